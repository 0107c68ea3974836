# SPDX-License-Identifier: Apache-2.0
"""The plug-ins for vLLM and SGLang against the interfaces that these document. Neither
engine is installed here: what stands in for them has the public names, signatures and
checks of theirs (vLLM 0.32, SGLang's model_loader of 2026) and does with a loader what
they do. Runs with torch and without."""

import abc
import dataclasses
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

import safetensors.numpy

import penstock
import penstock.vllm
import tap
from reference import fill

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
ARRAYS = {f"layers.{i}.w": fill("float32", (64, 200 + i), i) for i in range(12)}
DIR = os.path.join(TMP, "model")
MORE = {"audio": fill("int16", (5, 3))}


def raw(tensor):
    """The bytes of what a loader hands out: of torch, or the library's own."""
    if isinstance(tensor, penstock.Tensor):
        return bytes(tensor.buffer())
    import torch
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


class Model:
    """A model as an engine has built it: parameters, and what to do with weights."""

    def __init__(self, keep=False):
        self.keep, self.got, self.evaluated = keep, {}, False

    def parameters(self):
        return iter([types.SimpleNamespace(device="cpu")])

    def named_modules(self):
        return []

    def load_weights(self, weights):
        if self.keep:  # some do: all at once
            self.got = {name: raw(t) for name, t in dict(weights).items()}
        for name, tensor in () if self.keep else weights:
            self.got[name] = raw(tensor)

    def eval(self):
        self.evaluated = True
        return self


class Engine(unittest.TestCase):
    def setUp(self):
        names = list(ARRAYS)
        os.makedirs(DIR, exist_ok=True)
        for i in range(3):
            safetensors.numpy.save_file({n: ARRAYS[n] for n in names[4 * i:4 * i + 4]},
                                        os.path.join(DIR, f"model-{i}.safetensors"))
        os.makedirs(os.path.join(TMP, "more/sub"), exist_ok=True)
        safetensors.numpy.save_file(MORE, os.path.join(TMP, "more/sub/a.safetensors"))
        safetensors.numpy.save_file({"not": ARRAYS["layers.0.w"]},
                                    os.path.join(TMP, "more/sub/b.safetensors"))

    def module(self, name, **content):
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        self.addCleanup(sys.modules.pop, name)
        return module

    def same(self, got, want):
        self.assertEqual({n: v.tobytes() for n, v in want.items()}, got)


class Vllm(Engine):
    def setUp(self):
        super().setUp()
        self.registered = registered = {}

        class BaseModelLoader(abc.ABC):
            def __init__(self, load_config):
                self.load_config = load_config

            @abc.abstractmethod
            def download_model(self, model_config): ...

            @abc.abstractmethod
            def load_weights(self, model, model_config): ...

            def load_model(self, vllm_config, model_config, prefix=""):
                del prefix
                self.load_weights(vllm_config.model, model_config)
                return vllm_config.model.eval()

        def register_model_loader(load_format):
            def wrap(cls):
                if not issubclass(cls, BaseModelLoader):
                    raise ValueError("no subclass of BaseModelLoader")
                registered[load_format] = cls
                return cls
            return wrap

        self.module("vllm")
        self.module("vllm.model_executor")
        self.module("vllm.model_executor.model_loader",
                    register_model_loader=register_model_loader)
        self.module("vllm.model_executor.model_loader.base_loader",
                    BaseModelLoader=BaseModelLoader)
        from penstock.vllm import register
        register()
        register()  # vLLM says that a plug-in may be loaded more than once

    def load(self, model, **extra):
        config = types.SimpleNamespace(load_format="penstock", download_dir=None,
                                       model_loader_extra_config=extra)
        loader = self.registered[config.load_format](config)
        model_config = types.SimpleNamespace(model=DIR, revision=None)
        loader.download_model(model_config)
        return loader.load_model(types.SimpleNamespace(model=model), model_config)

    def test_load(self):
        model = self.load(Model(), effort="fast")
        self.assertTrue(model.evaluated)
        self.same(model.got, ARRAYS)

    def test_a_model_that_keeps_them(self):
        """More than the window holds: the rest comes in memory of its own."""
        self.same(self.load(Model(keep=True), window=65536).got, ARRAYS)

    def test_secondary(self):
        model = Model()
        model.secondary_weights = [types.SimpleNamespace(
            model_or_path=os.path.join(TMP, "more"), revision=None, subfolder="sub",
            prefix="tower.", fall_back_to_pt=True, allow_patterns_overrides=["a*"])]
        self.same(self.load(model).got, {**ARRAYS, "tower.audio": MORE["audio"]})

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "no option .'speed'"):
            self.load(Model(), speed=11)
        with self.assertRaisesRegex(ValueError, "effort of"):
            self.load(Model(), effort="loud")

    def test_ranks(self):
        """As many processes load at once as torch's group has."""
        for ready, ranks in ((False, 1), (True, 4)):
            group = types.SimpleNamespace(is_available=lambda: True, get_world_size=lambda: 4,
                                          is_initialized=lambda ready=ready: ready)
            torch = types.SimpleNamespace(distributed=group)
            with unittest.mock.patch.dict(sys.modules, torch=torch):
                self.assertEqual(penstock.vllm._ranks(), ranks)

    def test_entry_point(self):
        """As the package announces it to vLLM."""
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as f:
            self.assertRegex(f.read(), r'entry-points\."vllm\.general_plugins"\]\n'
                                       r'penstock = "penstock\.vllm:register"')


class Sglang(Engine):
    def setUp(self):
        super().setUp()

        class DefaultModelLoader:
            counter_before_loading_weights = 0.0

            @dataclasses.dataclass
            class Source:
                model_or_path: str
                revision: object
                prefix: str = ""
                fall_back_to_pt: bool = True
                model_config: object = None

                @classmethod
                def init_new(cls, model_config, model):
                    del model
                    return cls(model_config.model_path, model_config.revision,
                               model_config=model_config)

            def __init__(self, load_config):
                self.load_config = load_config
                if set(load_config.model_loader_extra_config) - {"num_threads"}:
                    raise ValueError("unexpected extra config")

            def _get_weights_iterator(self, source):
                return iter([("default", source.model_or_path)])

            def _get_all_weights(self, model_config, model):
                yield from self._get_weights_iterator(self.Source.init_new(model_config, model))
                for source in getattr(model, "secondary_weights", ()):
                    yield from self._get_weights_iterator(source)

            def load_model(self, *, model_config, device_config):
                model = device_config.model
                model.load_weights(self._get_all_weights(model_config, model))
                return model.eval()

        def get_model_loader(load_config):
            if isinstance(load_config.load_format, type):
                return load_config.load_format(load_config)
            return loader.DefaultModelLoader(load_config)

        self.module("sglang")
        self.module("sglang.srt")
        self.module("sglang.srt.model_loader")
        loader = self.module("sglang.srt.model_loader.loader",
                             DefaultModelLoader=DefaultModelLoader,
                             get_model_loader=get_model_loader)
        sys.modules["sglang.srt.model_loader"].loader = self.loader = loader
        self.default = DefaultModelLoader

    def load(self, model, load_format, draft=None):
        config = types.SimpleNamespace(load_format=load_format, model_loader_extra_config={},
                                       download_dir=None, draft_model_idx=draft)
        loader = self.loader.get_model_loader(config)
        self.assertIsInstance(loader, self.default)
        return loader, loader.load_model(
            model_config=types.SimpleNamespace(model_path=DIR, revision=None),
            device_config=types.SimpleNamespace(device="cpu", model=model))

    def test_as_load_format(self):
        from penstock.sglang import loader_class
        loader, model = self.load(Model(), loader_class())
        self.assertTrue(model.evaluated)
        self.assertGreater(loader.counter_before_loading_weights, 0)
        self.same(model.got, ARRAYS)

    def test_registered(self):
        from penstock.sglang import register
        register()
        model = Model()
        model.secondary_weights = [self.default.Source(os.path.join(TMP, "more/sub"), None,
                                                       prefix="draft.")]
        _, model = self.load(model, "auto")
        self.same(model.got, {**ARRAYS, "draft.audio": MORE["audio"],
                              "draft.not": ARRAYS["layers.0.w"]})

    def test_one_layer_of_a_draft(self):
        """What picks among all weights is left to SGLang's own."""
        from penstock.sglang import loader_class
        model = Model()
        model.load_weights = lambda weights: model.got.update(weights)
        _, model = self.load(model, loader_class(), draft=1)
        self.assertEqual(model.got, {"default": DIR})


if __name__ == "__main__":
    tap.main()
