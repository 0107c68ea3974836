# SPDX-License-Identifier: Apache-2.0
"""Tests transformers' from_pretrained under penstock.patch_safetensors.

transformers writes small models of several families, each into several files with an index,
and loads them with and without the patch. Parameters and logits must be equal. Needs torch and
transformers, so only make test-all runs it."""

import os
import tempfile
import unittest
from unittest import mock

import torch
import transformers

import penstock
import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 130}
WORDS = torch.arange(20).reshape(1, 20)


class FromPretrained(unittest.TestCase):
    def logits(self, folder, **how):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **how).eval()
        with torch.no_grad():
            return model.state_dict(), model(WORDS).logits

    def same(self, config, **how):
        folder = tempfile.mkdtemp(dir=TMP)
        torch.manual_seed(1)
        made = transformers.AutoModelForCausalLM.from_config(config)
        made.save_pretrained(folder, max_shard_size="100KB")
        self.assertTrue(os.path.exists(f"{folder}/model.safetensors.index.json"))
        want, expected = self.logits(folder, **how)
        opened = []
        real = penstock.safe_open.__init__

        def note(self, filename, *args, **kwargs):
            opened.append(os.path.basename(filename))
            real(self, filename, *args, **kwargs)

        with mock.patch.object(penstock.safe_open, "__init__", note), \
                penstock.patch_safetensors():
            got, logits = self.logits(folder, **how)
        self.assertEqual(set(opened), {n for n in os.listdir(folder) if n.endswith("tensors")})
        self.assertEqual(set(got), set(want))
        for name, value in want.items():
            self.assertEqual(got[name].dtype, value.dtype, name)
            self.assertTrue(torch.equal(got[name], value), name)
        self.assertTrue(torch.equal(logits, expected))

    def test_llama(self):
        self.same(transformers.LlamaConfig(**SMALL))

    def test_llama_half(self):
        self.same(transformers.LlamaConfig(**SMALL, dtype="bfloat16"), dtype=torch.bfloat16)

    def test_qwen2(self):
        self.same(transformers.Qwen2Config(**SMALL, tie_word_embeddings=True))

    def test_mixtral(self):
        self.same(transformers.MixtralConfig(**SMALL, num_local_experts=4))


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    tap.main()
