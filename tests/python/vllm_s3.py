# SPDX-License-Identifier: Apache-2.0
"""Tests models in an object store with the real vLLM: `vllm serve s3://bucket/model --load-format
penstock`.

The engine generates text on the CPU. It must generate the same tokens as vLLM's own loader does
from a local folder. The test makes a small model with random weights and a tokenizer. tests/s3/with
starts the store, `penstock serve`. Needs vLLM built for CPUs, so only make test-all runs it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import fsspec
import safetensors.torch
import tokenizers
import torch
import transformers

import penstock
import penstock.fsspec
import tap
from penstock import _s3

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 128,
         "max_position_embeddings": 64, "architectures": ["LlamaForCausalLM"],
         "initializer_range": 0.5, "tie_word_embeddings": False}
URL = "s3://bucket/models/small one"

# Prints one line of JSON: the dtype that vLLM has chosen, and the generated tokens. The arguments
# are the model and the load format.
GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
engine = LLM(sys.argv[1], load_format=sys.argv[2], enforce_eager=True, max_model_len=64,
             max_num_seqs=2)
done = engine.generate(["w1 w2 w3", "w9 w8"],
                       SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
config = engine.llm_engine.model_config
print(json.dumps([str(config.dtype), [list(d.outputs[0].token_ids) for d in done],
                  config.served_model_name]))
"""

# Prints the message of vLLM's error for each model in the arguments. An argument has the form
# MODEL, or VARIABLE=VALUE MODEL.
REFUSE = """
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
for argument in sys.argv[1:]:
    setting, _, model = argument.rpartition(" ")
    name, _, value = setting.partition("=")
    old = os.environ.get(name)
    os.environ.update({name: value} if name else {})
    try:
        EngineArgs(model=model, load_format="penstock").create_engine_config()
        print("no error")
    except Exception as error:
        print(json.dumps(f"{type(error).__name__} {error}"))
    os.environ.update({name: old} if old is not None else {})
"""


def make_model(folder):
    """Saves a model of which only the headers of the files tell the dtype, and that it has an
    lm_head."""
    words = ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(125)]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>",
        eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    model.to(torch.float16).save_pretrained(folder, max_shard_size="1MB")
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config.pop("dtype", None)
    config["tie_word_embeddings"] = True
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)


class VllmObjects(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = os.path.join(TMP, "model")
        make_model(cls.model)
        cls.plugins = os.path.join(TMP, "plugins")
        folder = os.path.join(cls.plugins, "penstock_tree-1.dist-info")
        os.makedirs(folder)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: penstock-tree\nVersion: 1\n"),
                           ("entry_points.txt",
                            "[vllm.general_plugins]\npenstock = penstock.vllm:register\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        _s3.ask("s3://bucket/", "PUT")
        client = penstock.ObjectClient()
        for name in os.listdir(cls.model):
            with open(os.path.join(cls.model, name), "rb") as f:
                client.put_bytes(f"{URL}/{name}", f.read())
        client.put_bytes("bucket/half/config.json", b"{}")
        client.put_bytes("bucket/half/pytorch_model.bin", b"x")
        client.put_bytes("bucket/bare/model.safetensors", b"x")

    def run_vllm(self, program, *args, **env):
        """Runs a program with vLLM, and returns the lines of its output that are JSON."""
        done = subprocess.run(
            [sys.executable, "-c", program, *args], text=True, capture_output=True, timeout=300,
            check=False, env=dict(
                os.environ, HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS="1", VLLM_LOGGING_LEVEL="ERROR",
                XDG_CACHE_HOME=os.path.join(TMP, "cache"),
                PYTHONPATH=f"{os.environ['PYTHONPATH']}:{self.plugins}", **env))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in ("[", '"')]

    def test_generate(self):
        want = self.run_vllm(GENERATE, self.model, "auto")[-1]
        got = self.run_vllm(GENERATE, URL, "penstock")[-1]
        self.assertEqual(got[:2], want[:2])
        self.assertEqual(got[0], "torch.float16")
        self.assertGreater(len(set(got[1][0])), 4)
        self.assertEqual(got[2], URL)
        copied = [name for _, _, names in os.walk(os.path.join(TMP, "cache", "penstock"))
                  for name in names]
        self.assertIn("tokenizer.json", copied)
        self.assertFalse([name for name in copied if name.endswith(".safetensors")])

    def test_errors(self):
        told = self.run_vllm(REFUSE, "s3://bucket/none", "s3://bucket/half", "s3://bucket/bare",
                             "s3://nobucket/model", "AWS_SECRET_ACCESS_KEY=wrong s3://bucket/half",
                             "AWS_ENDPOINT_URL=http://127.0.0.1:9 s3://bucket/half")
        for text, words in zip(told, (
                "has no files.*Check the URL.*AWS_ENDPOINT_URL",
                "has no safetensors files.*Convert",
                "has no config.json. Copy all files", "404 NoSuchBucket.*Check the URL",
                "SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY",
                "does not accept connections.*AWS_ENDPOINT_URL"), strict=True):
            self.assertRegex(text, words)

    def test_readers(self):
        """load_file, and safetensors through fsspec, read the same tensors as a local reader."""
        want = {}
        for name in sorted(os.listdir(self.model)):
            if name.endswith(".safetensors"):
                here = safetensors.torch.load_file(os.path.join(self.model, name))
                with fsspec.open(f"penstock://{URL[5:]}/{name}", "rb") as f:
                    there = safetensors.torch.load(f.read())
                self.assertEqual(here.keys(), there.keys())
                self.assertTrue(all(torch.equal(here[key], there[key]) for key in here))
                want.update(here)
        got = penstock.load_file(URL.replace(" ", "%20"), framework="pt")
        self.assertEqual(got.keys(), want.keys())
        self.assertTrue(all(torch.equal(got[key], want[key]) for key in want))


if __name__ == "__main__":
    penstock.fsspec.register("penstock")
    transformers.utils.logging.disable_progress_bar()
    tap.main()
