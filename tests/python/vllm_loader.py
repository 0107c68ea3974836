# SPDX-License-Identifier: Apache-2.0
"""Tests `--load-format penstock` in the real vLLM, against vLLM's own loader.

vLLM finds the loader through the package's entry point. It loads a small model with one rank,
and with two ranks that read together. The kernels in vLLM's wheel need a GPU. So without a GPU,
the test registers vLLM's CPU platform and computes nothing with the model. Needs vLLM, so only
make test-all runs it."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 130,
         "max_position_embeddings": 64, "architectures": ["LlamaForCausalLM"],
         "dtype": "float32"}

# The program of one rank of vLLM. Its last output line is the group that the rank used, or None.
RANK = """
import sys
import torch
from penstock import _engine
if not torch.cuda.is_available():
    torch.accelerator.empty_cache = lambda: None  # The real function needs a GPU.
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model
from vllm.plugins import load_general_plugins

model, rank, ranks, port, group = sys.argv[1], *map(int, sys.argv[2:])
made, real = [], _engine.group_of
def group_of(*args):
    made.append(real(*args))
    return made[-1]
_engine.group_of = group_of
load_general_plugins()

def load(load_format, extra):
    config = EngineArgs(model=model, skip_tokenizer_init=True, load_format=load_format,
                        dtype="float32", enforce_eager=True, max_model_len=64,
                        model_loader_extra_config=extra,
                        tensor_parallel_size=ranks).create_engine_config()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            gpu = torch.cuda.is_available()
            if gpu:
                torch.cuda.set_device(rank)
            init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank,
                                         "nccl" if gpu else "gloo")
            initialize_model_parallel(ranks)
        return dict(get_model(vllm_config=config).named_parameters())

want = load("auto", {})
got = load("penstock", {"group": bool(group), "window": 65536})
assert len(want) > 10 and want.keys() == got.keys()
assert all(torch.equal(value, want[name]) for name, value in got.items())
print(made[0])
"""


# A program that compares this package's loader with vLLM's, on the files in a folder. The second
# argument is the folder of a model without safetensors files.
COMPARE = """
import logging, sys, tempfile, time
import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins

model, other = sys.argv[1:]
load_general_plugins()

def loader(load_format, extra={}):
    config = EngineArgs(model=model, skip_tokenizer_init=True, load_format=load_format,
                        dtype="float32", enforce_eager=True, max_model_len=64,
                        model_loader_extra_config=extra).create_engine_config()
    return get_model_loader(config.load_config)

def read(made, **source):
    return dict(made._get_weights_iterator(made.Source(model, None, **source)))

theirs, ours = loader("auto"), loader("penstock")
names = set(read(theirs))
first = min(name.rpartition(".")[0] for name in names)
for experts in (None, {0}, {1, 2}, set()):
    for unused in (None, lambda name: name.startswith(first), lambda name: "experts" in name,
                   lambda name: True):
        theirs.local_expert_ids = ours.local_expert_ids = experts
        want = read(theirs, prefix="p.", is_unused_weight=unused)
        got = read(ours, prefix="p.", is_unused_weight=unused)
        assert want.keys() == got.keys(), (experts, sorted(want.keys() ^ got.keys())[:5])
        assert all(torch.equal(value, got[name]) for name, value in want.items())
assert len(read(ours)) < len(names)

# The weights are in another folder than the rest of the model.
theirs.local_expert_ids = None
want, empty = read(theirs, prefix="p."), tempfile.mkdtemp()
made = loader("penstock", {"weights": model, "window": 65536})
for how in ({}, {"is_unused_weight": lambda name: False}, {"allow_patterns_overrides": ["x*"]}):
    got = dict(made._get_weights_iterator(made.Source(empty, None, prefix="p.", **how)))
    assert want.keys() == got.keys(), sorted(want.keys() ^ got.keys())[:5]
    assert all(torch.equal(value, got[name]) for name, value in want.items())

made, start = loader("penstock"), time.perf_counter()
made.load_config.use_tqdm_on_load = True
read(made)
assert made.counter_before_loading_weights >= start

source = made.Source(other, None)
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logging.getLogger("penstock").addHandler(handler)
assert list(dict(made._get_weights_iterator(source))) == ["only"]
assert "has no safetensors files, so vLLM's own loader reads" in records[0], records
try:
    loader("penstock", {"require": "direct"})._get_weights_iterator(source)
except ValueError as error:
    assert "require='direct' forbids" in str(error)
else:
    raise AssertionError("no error")
"""


class Vllm(unittest.TestCase):
    def setUp(self):
        self.model = tempfile.mkdtemp(dir=TMP)
        config = transformers.LlamaConfig(**SMALL)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(
            self.model, max_shard_size="100KB")
        self.plugins = tempfile.mkdtemp(dir=TMP)
        self.announce("penstock-tree",
                      {"vllm.general_plugins": "penstock = penstock.vllm:register"})
        if not torch.cuda.is_available():
            with open(os.path.join(self.plugins, "cpu_only.py"), "w", encoding="utf-8") as f:
                f.write("def name():\n    return 'vllm.platforms.cpu.CpuPlatform'\n")
            self.announce("cpu-only", {"vllm.platform_plugins": "cpu_only = cpu_only:name"})

    def announce(self, name, groups):
        """Writes the metadata of an installed package `name` that has these entry points."""
        folder = os.path.join(self.plugins, f"{name.replace('-', '_')}-1.dist-info")
        os.mkdir(folder)
        with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as f:
            f.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        with open(os.path.join(folder, "entry_points.txt"), "w", encoding="utf-8") as f:
            f.writelines(f"[{group}]\n{entry}\n" for group, entry in groups.items())

    def environment(self):
        """Returns the environment of a process that runs vLLM."""
        env = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR",
                   PYTHONPATH=f"{os.environ['PYTHONPATH']}:{self.plugins}")
        if torch.cuda.is_available():
            env.pop("PENSTOCK_LIBCUDA", None)  # Use the real driver.
        return env

    def ranks(self, ranks, group):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = self.environment()
        started = [subprocess.Popen([sys.executable, "-c", RANK, self.model, str(rank),
                                     str(ranks), str(port), str(group)], env=env, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for rank in range(ranks)]
        outputs = [p.communicate(timeout=300) for p in started]
        self.assertEqual([p.returncode for p in started], [0] * ranks,
                         "\n".join(err[-3000:] for _, err in outputs))
        return [out.splitlines()[-1] for out, _ in outputs]

    def test_choices(self):
        """The loader reads the tensors that vLLM's loader reads, also with expert parallelism and
        with weights that the model does not use. It records the time and shows a progress bar. A
        model that has no safetensors files is read by vLLM's own loader, and Penstock's loader
        warns."""
        names = [f"model.layers.{i}.mlp.experts.{e}.up.{kind}" for i in range(2) for e in range(4)
                 for kind in ("weight", "weight_scale")]
        names += [f"model.layers.{i}.mlp.gate.weight" for i in range(2)]
        for i in range(4):
            safetensors.torch.save_file(
                {name: torch.full((3, 5), float(n)) for n, name in enumerate(names)
                 if n // 5 == i}, os.path.join(self.model, f"model-{i}-of-4.safetensors"))
        for name in os.listdir(self.model):
            if name not in ("config.json", *(f"model-{i}-of-4.safetensors" for i in range(4))):
                os.unlink(os.path.join(self.model, name))
        other = tempfile.mkdtemp(dir=TMP)
        torch.save({"only": torch.zeros(3)}, os.path.join(other, "pytorch_model.bin"))
        done = subprocess.run([sys.executable, "-c", COMPARE, self.model, other],
                              env=self.environment(), text=True, capture_output=True,
                              timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertRegex(done.stderr, "Loading safetensors with Penstock: 100%")

    def test_one(self):
        self.assertEqual(self.ranks(1, 1), ["None"])

    def test_two(self):
        if torch.cuda.is_available() and torch.cuda.device_count() < 2:
            self.skipTest("two GPUs are wanted")
        for rank, group in enumerate(self.ranks(2, 1)):
            self.assertRegex(group, rf"^penstock\.Group\('w-.*', {rank}, 2\)$")
        self.assertEqual(self.ranks(2, 0), ["None"] * 2)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    tap.main()
