# SPDX-License-Identifier: Apache-2.0
"""Tests models in an object store with the real SGLang: its arguments for `--model-path
s3://bucket/model --load-format penstock`, and the tensors that the loader yields. The model has
several safetensors files, and no index.

The test does not build a model, because SGLang's layers need kernels that its CPU packages do not
have. tests/s3/with starts the store, `penstock serve`. Needs SGLang, so only make test-all runs
it."""

import os
import subprocess
import sys
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

import penstock
import tap
from penstock import _s3

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
URL = "s3://bucket/models/small"

# The program that the test runs. Its arguments are a local folder with the model, and the URL.
PROGRAM = """
import glob, os, sys
import torch
from safetensors.torch import load_file
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import loader
from sglang.srt.server_args import prepare_server_args

model, url = sys.argv[1:]
loader.get_server_args = lambda: None  # No server runs, so nobody asks for checksums.
want = {}
for path in glob.glob(model + "/*.safetensors"):
    want.update(load_file(path))

def resolved(name):
    args = prepare_server_args(["--model-path", name, "--load-format", "penstock",
                                "--device", "cpu", "--skip-tokenizer-init"])
    args.resolve_once()
    return args

args = resolved(url)
assert args.load_format == "penstock", args.load_format
assert args.served_model_name == url, args.served_model_name
assert args.tokenizer_path == args.model_path
assert sorted(os.listdir(args.model_path)) == ["config.json"], os.listdir(args.model_path)
made = loader.get_model_loader(LoadConfig(
    load_format=args.load_format, model_loader_extra_config=args.model_loader_extra_config))
source = made.Source(args.model_path, None, prefix="p.")
got = dict(made._get_weights_iterator(source))
assert got.keys() == {"p." + name for name in want}, sorted(got)
assert all(torch.equal(got["p." + name], value) for name, value in want.items())
try:
    resolved("s3://nobucket/model")
except OSError as error:
    assert "NoSuchBucket" in str(error) and "AWS_ENDPOINT_URL" in str(error), error
else:
    raise AssertionError("no error")
"""


class SglangObjects(unittest.TestCase):
    def test_loader(self):
        model, plugins = os.path.join(TMP, "model"), os.path.join(TMP, "plugins")
        transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
            vocab_size=130, architectures=["LlamaForCausalLM"]).save_pretrained(model)
        for i in range(3):
            safetensors.torch.save_file(
                {f"layers.{i}.{k}.weight": torch.randn(7, 5 + k) for k in range(4)},
                os.path.join(model, f"model-{i}-of-3.safetensors"))
        _s3.ask("s3://bucket/", "PUT")
        for name in os.listdir(model):
            with open(os.path.join(model, name), "rb") as f:
                penstock.ObjectClient().put_bytes(f"{URL}/{name}", f.read())
        # Writes the metadata of an installed package that has the plug-in's entry point.
        folder = os.path.join(plugins, "penstock_tree-1.dist-info")
        os.makedirs(folder)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: penstock-tree\nVersion: 1\n"),
                           ("entry_points.txt",
                            "[sglang.srt.plugins]\npenstock = penstock.sglang:plugin\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        env = dict(os.environ, HF_HUB_OFFLINE="1", XDG_CACHE_HOME=os.path.join(TMP, "cache"),
                   PYTHONPATH=f"{os.environ['PYTHONPATH']}:{plugins}")
        done = subprocess.run([sys.executable, "-c", PROGRAM, model, URL], env=env, text=True,
                              capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])


if __name__ == "__main__":
    tap.main()
