#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""model.py FOLDER [--layers 32] [--files 1] [--scale 1]: writes a generated model with the
tensor shapes of Llama 3 8B, and its config.json, for the benchmarks of this folder. 32
layers have 16.06 GB, 15 layers 8.6 GB, and 54 layers 25.7 GB. --scale 16 divides the
model's width by 16. model.py FILE --equal COUNT BYTES writes COUNT tensors of BYTES bytes
each. Every number is a positive or negative BF16 whose absolute value is between 0.008 and
0.032, so that the model computes finite results. No two pages are equal."""

import argparse
import json
import os
import struct
import time

HIDDEN, INNER, WORDS, HEADS, KV_HEADS = 4096, 14336, 128256, 32, 8
BLOCK = 64 << 20
PAGE = 4096


def llama(layers, scale=1):
    """Yields the name and the shape of every tensor, named as in the transformers package."""
    hidden, inner, words = HIDDEN // scale, INNER // scale, WORDS // scale
    kv = hidden // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (words, hidden)
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (hidden, hidden)
        yield at + "self_attn.k_proj.weight", (kv, hidden)
        yield at + "self_attn.v_proj.weight", (kv, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, hidden)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (inner, hidden)
        yield at + "mlp.up_proj.weight", (inner, hidden)
        yield at + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (words, hidden)


def config(layers, scale=1):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
            "hidden_size": HIDDEN // scale, "intermediate_size": INNER // scale,
            "num_hidden_layers": layers, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "vocab_size": WORDS // scale,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1,
            "eos_token_id": 2}


def pages():
    """Returns a block of random floats, and a function. The function writes into each page
    of the block the index of this page in the file."""
    block = bytearray(os.urandom(BLOCK))
    high = bytes([0x3c] * 128 + [0xbc] * 128)  # Exponent 120, random sign.
    block[1::2] = bytes(block[1::2]).translate(high)
    def stamp(first):
        n = [first // PAGE + i for i in range(0, BLOCK // PAGE, 256)]
        block[0::PAGE] = bytes(range(256)) * len(n)
        for at in (1, 2, 3):
            row = bytes(v >> 8 * at & 255 for v in n)
            block[2 * at::PAGE] = b"".join(bytes([v]) * 256 for v in row)
    return block, stamp


def write(path, tensors):
    """Writes one file, block by block: the header, then the numbers."""
    table, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        size = 2
        for n in shape:
            size *= n
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    head = struct.pack("<Q", len(head)) + head
    block, stamp = pages()
    with open(path, "wb", buffering=0) as f:
        os.posix_fallocate(f.fileno(), 0, len(head) + at)
        done, length = 0, len(head) + at
        while done < length:
            stamp(done)
            if done < len(head):  # The header replaces the first numbers.
                part = head[done:done + BLOCK]
                block[:len(part)] = part
            part = memoryview(block)[:min(BLOCK, length - done)]
            while part:
                part = part[f.write(part):]
            if done < len(head):  # Later blocks have numbers there.
                block, stamp = pages()
            done += BLOCK
        os.fdatasync(f.fileno())
    return length


def write_model(folder, layers, files=1, scale=1):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config(layers, scale), f, indent=1)
    tensors = list(llama(layers, scale))
    if files == 1:
        return write(os.path.join(folder, "model.safetensors"), tensors)
    rows, length, each = {}, 0, -(-len(tensors) // files)
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = tensors[i * each:(i + 1) * each]
        length += write(os.path.join(folder, name), part)
        rows.update((title, name) for title, _ in part)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w",
              encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": length}, "weight_map": rows}, f)
    return length


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--equal", nargs=2, type=int, metavar=("COUNT", "BYTES"))
    args = parser.parse_args()
    start = time.monotonic()
    if args.equal:
        count, size = args.equal
        length = write(args.path, [(f"t{i:05}", (size // 2,)) for i in range(count)])
    else:
        length = write_model(args.path, args.layers, args.files, args.scale)
    print(f"{length / 1e9:.2f} GB in {time.monotonic() - start:.1f} s: {args.path}")


if __name__ == "__main__":
    main()
