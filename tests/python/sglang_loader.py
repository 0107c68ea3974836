# SPDX-License-Identifier: Apache-2.0
"""Tests `--load-format penstock` in the real SGLang: its plug-in, its choice of loaders, and the
tensors that the loader yields.

The test does not build a model, because SGLang's layers need kernels that its CPU packages do not
have. Needs SGLang, so only make test-all runs it."""

import os
import subprocess
import sys
import tempfile
import unittest

import safetensors.torch
import torch

import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))

# The program that the test runs. Its arguments are a folder with safetensors files, and a folder
# without them.
PROGRAM = """
import glob, logging, os, sys, time, types
import torch
from safetensors.torch import load_file
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import loader
from sglang.srt.server_args import LOAD_FORMAT_CHOICES

model, other = sys.argv[1:]
loader.get_server_args = lambda: None  # No server runs, so nobody asks for checksums.
assert "penstock" in LOAD_FORMAT_CHOICES
want = {}
for path in glob.glob(model + "/*.safetensors"):
    want.update(load_file(path))

def make(model_config=None, draft=None, load_format="penstock", **extra):
    config = LoadConfig(load_format=load_format, model_loader_extra_config=extra,
                        draft_model_idx=draft)
    return loader.get_model_loader(config, model_config)

def refused(words, call):
    try:
        call()
    except ValueError as error:
        assert words in str(error) and "forbids" in str(error), error
    else:
        raise AssertionError("no error")

made, before = make(effort="fast", window=1 << 20, num_threads=3), time.perf_counter()
assert isinstance(made, loader.DefaultModelLoader) and type(made) is not loader.DefaultModelLoader
assert type(make(load_format="auto")) is loader.DefaultModelLoader
source = made.Source(model, None, prefix="p.")
got = dict(made._get_weights_iterator(source))
assert got.keys() == {"p." + name for name in want}
assert all(torch.equal(got["p." + name], value) for name, value in want.items())
assert made.counter_before_loading_weights >= before
resolved = made.ResolvedSource(source, model, tuple(glob.glob(model + "/*0-of*")), True)
part = dict(made._get_weights_iterator(source, resolved_source=resolved,
                                       startup_prefetch_started=True))
assert part and part.keys() < got.keys()

texts, handler = [], logging.Handler()
handler.emit = lambda record: texts.append(record.getMessage())
logging.getLogger("penstock").addHandler(handler)
modelopt = types.SimpleNamespace(quantization="modelopt_fp8", modelopt_quant=None,
                                 _is_already_quantized=lambda: True)
assert type(make(modelopt)) is loader.ModelOptModelLoader
assert "SGLang has chosen ModelOptModelLoader" in texts.pop()
refused("ModelOptModelLoader", lambda: make(modelopt, require="direct"))
assert list(dict(made._get_weights_iterator(made.Source(other, None)))) == ["only"]
assert "has no safetensors files, so SGLang's own loader reads" in texts.pop()
strict = make(require="no-cpu-copy")
refused("no safetensors", lambda: strict._get_weights_iterator(made.Source(other, None)))
draft = make(draft=0, require="direct")
refused("draft model", lambda: draft._get_weights_iterator(source))
"""


class Sglang(unittest.TestCase):
    def test_loader(self):
        model, other, plugins = (tempfile.mkdtemp(dir=TMP) for _ in range(3))
        for i in range(3):
            safetensors.torch.save_file(
                {f"layers.{i}.{k}.weight": torch.randn(7, 5 + k) for k in range(4)},
                os.path.join(model, f"model-{i}-of-3.safetensors"))
        torch.save({"only": torch.zeros(3)}, os.path.join(other, "pytorch_model.bin"))
        # Writes the metadata of an installed package that has the plug-in's entry point.
        folder = os.path.join(plugins, "penstock_tree-1.dist-info")
        os.mkdir(folder)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: penstock-tree\nVersion: 1\n"),
                           ("entry_points.txt",
                            "[sglang.srt.plugins]\npenstock = penstock.sglang:plugin\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        env = dict(os.environ, HF_HUB_OFFLINE="1",
                   PYTHONPATH=f"{os.environ['PYTHONPATH']}:{plugins}")
        done = subprocess.run([sys.executable, "-c", PROGRAM, model, other], env=env, text=True,
                              capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertRegex(done.stderr, "Loading safetensors with Penstock: 100%")


if __name__ == "__main__":
    tap.main()
