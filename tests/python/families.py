# SPDX-License-Identifier: Apache-2.0
"""Tests loading of generated models of known architectures, by all calls and for all ranks.

The safetensors package writes the files, in several parts with an index. The test compares each
rank's part of each tensor with the part that the architecture's tensor parallel layers need. This
file computes that part with numpy."""

import json
import os
import tempfile
import unittest

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

import penstock
import tap
from reference import fill

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
HIDDEN, HEAD, WORDS = 64, 8, 520


def layer(i, heads, kv):
    """Returns names and shapes of the attention of layer `i`, with `kv` key-value heads."""
    at = f"model.layers.{i}."
    return {
        at + "input_layernorm.weight": (HIDDEN,),
        at + "self_attn.q_proj.weight": (heads * HEAD, HIDDEN),
        at + "self_attn.k_proj.weight": (kv * HEAD, HIDDEN),
        at + "self_attn.v_proj.weight": (kv * HEAD, HIDDEN),
        at + "self_attn.o_proj.weight": (HIDDEN, heads * HEAD),
        at + "post_attention_layernorm.weight": (HIDDEN,),
    }


def mlp(at, size, names=("gate_proj", "up_proj", "down_proj")):
    return {f"{at}.{names[0]}.weight": (size, HIDDEN), f"{at}.{names[1]}.weight": (size, HIDDEN),
            f"{at}.{names[2]}.weight": (HIDDEN, size)}


def frame():
    """Returns names and shapes of the tensors that belong to no layer."""
    return {"model.embed_tokens.weight": (WORDS, HIDDEN), "model.norm.weight": (HIDDEN,),
            "lm_head.weight": (WORDS, HIDDEN)}


def llama():
    shapes = frame()
    for i in range(2):
        shapes |= layer(i, 8, 2) | mlp(f"model.layers.{i}.mlp", 96)
    return shapes, {"num_attention_heads": 8, "num_key_value_heads": 2}


def qwen2():
    shapes, config = llama()
    for i in range(2):
        for name, size in (("q", 64), ("k", 16), ("v", 16)):
            shapes[f"model.layers.{i}.self_attn.{name}_proj.bias"] = (size,)
    return shapes, config


def mixtral():
    shapes = frame() | layer(0, 8, 4)
    shapes["model.layers.0.block_sparse_moe.gate.weight"] = (4, HIDDEN)
    for e in range(4):
        shapes |= mlp(f"model.layers.0.block_sparse_moe.experts.{e}", 32, ("w1", "w3", "w2"))
    return shapes, {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 4}


def deepseek():
    """Returns a model with low-rank attention, shared and routed experts, and 8-bit weights with a
    scale for each block of 128 x 128."""
    shapes, at = frame(), "model.layers.0."
    shapes |= {at + "self_attn.q_a_proj.weight": (32, HIDDEN),
               at + "self_attn.q_a_layernorm.weight": (32,),
               at + "self_attn.q_b_proj.weight": (8 * 24, 32),
               at + "self_attn.kv_a_proj_with_mqa.weight": (24, HIDDEN),
               at + "self_attn.kv_a_layernorm.weight": (16,),
               at + "self_attn.kv_b_proj.weight": (8 * 32, 16),
               at + "self_attn.o_proj.weight": (HIDDEN, 8 * 16),
               at + "mlp.gate.weight": (4, HIDDEN),
               at + "mlp.gate.e_score_correction_bias": (4,)}
    shapes |= mlp(at + "mlp.shared_experts", 1024)
    for e in range(4):
        shapes |= mlp(at + f"mlp.experts.{e}", 1024)
    for name in [n for n in shapes if "experts" in n]:
        rows, columns = shapes[name]
        shapes[name + "_scale_inv"] = (-(-rows // 128), -(-columns // 128))
    return shapes, {"num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 4}


def dtype_of(name):
    if "scale_inv" in name or "correction_bias" in name:
        return numpy.dtype("float32")
    return numpy.dtype(ml_dtypes.float8_e4m3fn if "experts" in name else ml_dtypes.bfloat16)


def part(name, value, rank, ranks, kv):
    """Returns the part of a tensor that a rank of the parallel layers needs.

    Layers like q_proj are divided along their outputs, layers like o_proj along their inputs.
    Key-value heads are divided by heads, which ranks share if there are more ranks than
    heads."""
    if "embed_tokens" in name or "lm_head" in name:
        size = -(-len(value) // 64) * 64 // ranks
        return value[rank * size:(rank + 1) * size]
    if ".k_proj." in name or ".v_proj." in name:
        heads = numpy.split(value, kv)
        mine = numpy.array_split(range(kv), ranks)[rank] if kv >= ranks else \
            [rank * kv // ranks]
        return numpy.concatenate([heads[h] for h in mine])
    if any(f".{n}." in name for n in ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj",
                                      "w1", "w3")):
        return numpy.split(value, ranks)[rank]
    if any(f".{n}." in name for n in ("o_proj", "down_proj", "w2")):
        return numpy.split(value, ranks, axis=1)[rank]
    return value


class Families(unittest.TestCase):
    def make(self, family):
        shapes, config = family()
        folder = tempfile.mkdtemp(dir=TMP)
        arrays = {n: fill("uint8", (*s, dtype_of(n).itemsize), i).view(dtype_of(n)).reshape(s)
                  for i, (n, s) in enumerate(shapes.items())}
        names, where = list(arrays), {}
        for p in range(3):
            file = f"model-{p + 1:05}-of-00003.safetensors"
            specs = {n: safetensors.TensorSpec(
                dtype=str(arrays[n].dtype), shape=list(arrays[n].shape),
                data_ptr=arrays[n].ctypes.data, data_len=arrays[n].nbytes)
                for n in names[p::3]}
            safetensors.serialize_file(specs, os.path.join(folder, file), {"format": "pt"})
            where |= {n: file for n in specs}
        for name, content in (("model.safetensors.index.json", {"weight_map": where}),
                              ("config.json", config)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                json.dump(content, f)
        return folder, arrays, config["num_key_value_heads"]

    def same(self, name, got, want):
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape), name)
        self.assertEqual(got.tobytes(), want.tobytes(), name)

    def every_way(self, family):
        """Loads a model by load_file, safe_open, iterate, and for 2, 4 and 8 ranks."""
        folder, arrays, kv = self.make(family)
        loaded = penstock.load_file(folder, framework="numpy")
        self.assertEqual(set(loaded), set(arrays))
        with penstock.safe_open(folder, framework="np") as f:
            for name, value in arrays.items():
                self.same(name, loaded[name], value)
                self.same(name, f.get_tensor(name), value)
        for name, value in penstock.iterate(folder, framework="numpy", window=1 << 20):
            self.same(name, value, arrays.pop(name))
        self.assertEqual(arrays, {})
        for ranks in (2, 4, 8):
            for rank in range(ranks):
                got = penstock.load_file(folder, framework="numpy",
                                         shard={"rank": rank, "ranks": ranks})
                for name, value in got.items():
                    self.same(f"{name}, rank {rank} of {ranks}", value,
                              part(name, loaded[name], rank, ranks, kv))
                self.assertEqual(set(got), set(loaded))
        return folder, loaded

    def test_llama(self):
        self.every_way(llama)

    def test_qwen2(self):
        self.every_way(qwen2)

    def test_mixtral(self):
        self.every_way(mixtral)

    def test_deepseek(self):
        folder, loaded = self.every_way(deepseek)
        # With expert_ranks each rank gets some whole experts, and a part of each other tensor.
        for rank in range(2):
            got = penstock.load_file(folder, framework="numpy", shard={
                "rank": rank, "ranks": 2, "expert_rank": rank, "expert_ranks": 2})
            for name, value in loaded.items():
                expert = int(name.split(".experts.")[1][0]) if ".experts." in name else None
                if expert is None:
                    self.same(name, got[name], part(name, value, rank, 2, 8))
                elif expert // 2 == rank:
                    self.same(name, got[name], value)
                else:
                    self.assertNotIn(name, got)


if __name__ == "__main__":
    tap.main()
