# SPDX-License-Identifier: Apache-2.0
"""Tests the plug-ins for vLLM and SGLang against the interfaces that the engines document.

The tests do not need the engines. Stand-in modules have the names, signatures and checks of the
engines' modules (vLLM 0.33, SGLang 0.5.23) and call a loader as the engines do. The last class
tests the ranks of an engine as several processes. Runs with and without torch."""

import abc
import dataclasses
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

import safetensors.numpy

import penstock
import tap
from penstock import _engine, _group
from penstock._lib import open_device
from reference import fill

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
ARRAYS = {f"layers.{i}.w": fill("float32", (64, 200 + i), i) for i in range(12)}
DIR = os.path.join(TMP, "model")
MORE = {"audio": fill("int16", (5, 3))}


def raw(tensor):
    """Returns the bytes of a tensor that a loader yields: a torch tensor or a penstock.Tensor."""
    if isinstance(tensor, penstock.Tensor):
        return bytes(tensor.buffer())
    import torch
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


class Model:
    """Replaces the model that an engine would build. load_weights records the tensors.

    If `keep` is true, the model holds all tensors at the same time, as some models do."""

    def __init__(self, keep=False):
        self.keep, self.got, self.evaluated = keep, {}, False

    def parameters(self):
        device = type("device", (), {"type": "cpu", "__str__": lambda _: "cpu"})()
        return iter([types.SimpleNamespace(device=device)])

    def named_modules(self):
        return []

    def load_weights(self, weights):
        if self.keep:
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
        """Adds a stand-in module to sys.modules until the test ends."""
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        self.addCleanup(sys.modules.pop, name)
        return module

    def same(self, got, want):
        self.assertEqual({n: v.tobytes() for n, v in want.items()}, got)


def folder_of(url, needs_weights=True):
    """Replaces config_folder: returns a name for the local folder of a model in a store."""
    return f"/local/{url[5:]}" if needs_weights else f"/words/{url[5:]}"


def check_arguments(test, kind, check, model, tokenizer, extra):
    """Compares the arguments of an engine before and after its method `check`."""
    def after(load_format, name, words=None, extra=extra, served=None):
        made = getattr(kind(load_format=load_format, model_loader_extra_config=extra,
                            served_model_name=served, **{model: name, tokenizer: words}), check)()
        given = made["model_loader_extra_config"]
        given = json.loads(given) if isinstance(given, str) else given
        return [made[model], made[tokenizer], given, made["served_model_name"]]

    test.assertEqual(after("penstock", "s3://b/m"),
                     ["/local/b/m", "/local/b/m", {"weights": "s3://b/m"}, "s3://b/m"])
    test.assertEqual(after("penstock", "s3://b/m", "s3://b/m", served="name"),
                     ["/local/b/m", "/local/b/m", {"weights": "s3://b/m"}, "name"])
    test.assertEqual(after("penstock", "s3://b/m", "s3://b/t"),
                     ["/local/b/m", "/words/b/t", {"weights": "s3://b/m"}, "s3://b/m"])
    test.assertEqual(after("penstock", "/m", "s3://b/t"), ["/m", "/words/b/t", {}, None])
    other = {"weights": "s3://b/other"}
    other = json.dumps(other) if isinstance(extra, str) else other
    test.assertEqual(after("penstock", "s3://b/m", "/t", other),
                     ["/words/b/m", "/t", {"weights": "s3://b/other"}, "s3://b/m"])
    test.assertEqual(after("auto", "s3://b/m", "s3://b/t"), ["s3://b/m", "s3://b/t", {}, None])


def source_class(**more):
    """Returns a replacement for the engines' class Source. It has the fields that both engines'
    classes have, and those in `more`."""
    fields = [("model_or_path", str), ("revision", object), ("prefix", str, ""),
              ("fall_back_to_pt", bool, True), ("allow_patterns_overrides", object, None)]
    return dataclasses.make_dataclass("Source", fields + [(n, object, v) for n, v in more.items()])


def find(folder, patterns, other="*.bin"):
    """Finds a folder's files in the same way as the engines' _prepare_weights."""
    for pattern in patterns or ["*.safetensors", other]:
        files = glob.glob(os.path.join(folder, pattern))
        if files:
            return files, pattern.endswith("safetensors") or bool(patterns)
    raise RuntimeError("Cannot find any model weights")


def around(hook, original):
    """Wraps a function in a hook, as SGLang's registry does for HookType.AROUND."""
    return lambda *args, **how: hook(original, *args, **how)


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

        def vllm_reader(files, *_, **__):
            return iter([("vLLM's own reader", files)])

        def should_skip_weight(name, local_expert_ids):
            parts = name.split(".experts.")
            return len(parts) > 1 and name.endswith(".weight") and \
                int(parts[1].partition(".")[0]) not in local_expert_ids

        local_experts = self.local_experts = [None]

        class DefaultModelLoader(BaseModelLoader):
            counter_before_loading_weights = 0.0
            Source = source_class(subfolder=None, is_unused_weight=None)

            def __init__(self, load_config):
                super().__init__(load_config)
                self.local_expert_ids = local_experts[0]
                unknown = set(load_config.model_loader_extra_config) - {
                    "num_threads", "enable_multithread_load"}
                if unknown:
                    raise ValueError(f"Unexpected extra config keys {unknown}")

            def _prepare_weights(self, model_name_or_path, subfolder, revision,
                                 fall_back_to_pt, allow_patterns_overrides):
                if self.load_config.load_format != "auto" or revision or not fall_back_to_pt:
                    raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
                folder = os.path.join(model_name_or_path, subfolder or "")
                return (folder, *find(folder, allow_patterns_overrides), "index")

            def _get_weights_iterator(self, source):
                folder, files, safetensors, _ = self._prepare_weights(
                    source.model_or_path, source.subfolder, source.revision,
                    source.fall_back_to_pt, source.allow_patterns_overrides)
                if source.is_unused_weight is not None:
                    files = [f for f in files if source.is_unused_weight(os.path.basename(f))]
                if not safetensors:
                    steps = iter([("default", source.model_or_path)])
                elif self.load_config.model_loader_extra_config.get("enable_multithread_load"):
                    steps = default_loader.multi_thread_safetensors_weights_iterator(
                        files, self.load_config.use_tqdm_on_load, max_workers=3)
                else:
                    steps = default_loader.safetensors_weights_iterator(
                        files, self.load_config.use_tqdm_on_load,
                        self.load_config.safetensors_load_strategy,
                        local_expert_ids=self.local_expert_ids)
                if self.counter_before_loading_weights == 0.0:
                    self.counter_before_loading_weights = time.perf_counter()
                return ((source.prefix + name, tensor) for name, tensor in steps)

            def get_all_weights(self, model_config, model):
                yield from self._get_weights_iterator(self.Source(
                    model_config.model, model_config.revision))
                for source in getattr(model, "secondary_weights", ()):
                    yield from self._get_weights_iterator(source)

            def download_model(self, model_config):
                self._prepare_weights(model_config.model, None, model_config.revision, True, None)

            def load_weights(self, model, model_config):
                if model.load_weights(self.get_all_weights(model_config, model)) == set():
                    raise ValueError("Following weights were not initialized from checkpoint")

        def register_model_loader(load_format):
            def wrap(cls):
                if not issubclass(cls, BaseModelLoader):
                    raise ValueError("no subclass of BaseModelLoader")
                registered[load_format] = cls
                return cls
            return wrap

        def get_tp_group():
            assert self.ranks is not None, "tensor model parallel group is not initialized"
            return self.ranks

        class EngineArgs(types.SimpleNamespace):
            def create_model_config(self):
                return dict(vars(self))

        self.ranks, self.source = None, DefaultModelLoader.Source
        self.arguments = EngineArgs
        self.module("vllm")
        self.module("vllm.distributed", get_tp_group=get_tp_group)
        self.module("vllm.model_executor")
        self.module("vllm.model_executor.model_loader",
                    register_model_loader=register_model_loader)
        default_loader = self.module(
            "vllm.model_executor.model_loader.default_loader",
            DefaultModelLoader=DefaultModelLoader, safetensors_weights_iterator=vllm_reader,
            multi_thread_safetensors_weights_iterator=vllm_reader)
        self.module("vllm.model_executor.model_loader.ep_weight_filter",
                    should_skip_weight=should_skip_weight)
        self.module("vllm.model_executor.model_loader.weight_utils",
                    enable_tqdm=lambda wanted: wanted and self.shows)
        for name in ("default_loader", "ep_weight_filter", "weight_utils"):
            setattr(sys.modules["vllm.model_executor.model_loader"], name,
                    sys.modules[f"vllm.model_executor.model_loader.{name}"])
        self.shows, self.strategy, self.default_loader = False, None, default_loader
        self.module("vllm.engine")
        self.module("vllm.engine.arg_utils", EngineArgs=EngineArgs)
        self.module("vllm.transformers_utils",
                    config=types.SimpleNamespace(_read_safetensors_metadata_in_dir=list))
        from penstock.vllm import register
        register()
        register()  # vLLM's manual says that it may load a plug-in more than once.

    def load(self, model, folder=DIR, **extra):
        config = types.SimpleNamespace(load_format="penstock", download_dir=None,
                                       use_tqdm_on_load=True,
                                       safetensors_load_strategy=self.strategy,
                                       model_loader_extra_config=extra)
        loader = self.loader = self.registered[config.load_format](config)
        self.assertEqual((config.load_format, config.model_loader_extra_config),
                         ("penstock", extra))  # vLLM's config must stay unchanged.
        model_config = types.SimpleNamespace(model=folder, revision=None)
        loader.download_model(model_config)
        return loader.load_model(types.SimpleNamespace(model=model), model_config)

    def test_load(self):
        model = self.load(Model(), effort="fast", num_threads=3)
        self.assertTrue(model.evaluated)
        self.same(model.got, ARRAYS)

    def test_model_keeps_all_tensors(self):
        """If the model keeps all tensors, the window (the loader's memory) becomes full. Further
        tensors get memory of their own."""
        self.same(self.load(Model(keep=True), window=65536).got, ARRAYS)

    def test_secondary(self):
        model = Model()
        model.secondary_weights = [self.source(os.path.join(TMP, "more"), None, "tower.",
                                               allow_patterns_overrides=["a*"], subfolder="sub")]
        self.same(self.load(model).got, {**ARRAYS, "tower.audio": MORE["audio"]})

    def test_name_in_two_files(self):
        """If two files have a tensor of the same name, the model gets both, first the tensor of the
        first file."""
        folder = tempfile.mkdtemp(dir=TMP)
        for i in range(2):
            safetensors.numpy.save_file({"twice": fill("int8", (9,), i), f"n{i}": MORE["audio"]},
                                        f"{folder}/{i}.safetensors")
        self.same(self.load(Model(), folder).got,
                  {"n0": MORE["audio"], "twice": fill("int8", (9,), 1), "n1": MORE["audio"]})

    def test_other_files(self):
        """vLLM itself loads files that are not safetensors files, and reports missing files and
        tensors."""
        folder, model = tempfile.mkdtemp(dir=TMP), Model()
        model.load_weights = lambda weights: model.got.update(weights)
        with self.assertRaisesRegex(RuntimeError, "Cannot find"):
            self.load(model, folder)
        with open(os.path.join(folder, "a.bin"), "wb"):
            pass
        self.assertEqual(self.load(model, folder).got, {"default": folder})
        model.load_weights = lambda weights: set(dict(weights)) & {"no"}
        with self.assertRaisesRegex(ValueError, "not initialized"):
            self.load(model)

    def test_own_loader(self):
        """If vLLM's own loader must read the weights, a warning gives the reason. With the option
        `require`, the load fails instead."""
        folder, model = tempfile.mkdtemp(dir=TMP), Model()
        model.load_weights = lambda weights: model.got.update(weights)
        with open(os.path.join(folder, "a.bin"), "wb"):
            pass
        for where, strategy, words in ((folder, None, "has no safetensors files"),
                                       (DIR, "torchao", "quantized by torchao")):
            self.strategy = strategy
            with self.assertLogs("penstock", "WARNING") as told:
                self.load(model, where)
            self.assertIn(words, told.output[0])
            self.assertIn("vLLM's own loader reads the weights, without Penstock", told.output[0])
            for require in ("direct", "no-cpu-copy"):
                with self.assertRaisesRegex(ValueError, f"{words}.*require='{require}' forbids"):
                    self.load(model, where, require=require)
        self.assertIn("vLLM's own reader", model.got)
        self.strategy = None
        with self.assertNoLogs("penstock", "WARNING"):
            self.load(Model())
            self.load(Model(), enable_multithread_load=True)

    def test_model_in_store(self):
        """A model in an object store gets a local folder, and its URL becomes a loader option."""
        with unittest.mock.patch("penstock._engine_object.config_folder", folder_of):
            check_arguments(self, self.arguments, "create_model_config", "model", "tokenizer", {})
        self.strategy = "torchao"
        with self.assertRaisesRegex(ValueError, "torchao.*cannot read.*s3://b/m.*local folder"):
            self.load(Model(), weights="s3://b/m")

    def test_time(self):
        """The loader records the time before the load. vLLM computes the load's duration from
        it."""
        before = time.perf_counter()
        self.load(Model())
        self.assertGreaterEqual(self.loader.counter_before_loading_weights, before)
        # After the load, vLLM has the functions again that the loader replaced during the load.
        self.assertEqual(self.default_loader.safetensors_weights_iterator.__name__, "vllm_reader")

    def test_unused_weights(self):
        """Files that vLLM drops because the model does not use their tensors are not read."""
        model, names = Model(), list(ARRAYS)
        model.secondary_weights = [self.source(
            DIR, None, "t.", is_unused_weight=lambda name: name == "model-1.safetensors")]
        self.same(self.load(model).got,
                  {**ARRAYS, **{"t." + n: ARRAYS[n] for n in names[4:8]}})

    def test_experts(self):
        """With expert parallelism a rank reads its own experts and all other tensors."""
        folder = tempfile.mkdtemp(dir=TMP)
        arrays = {f"l.{i}.experts.{e}.w[{e}]*.{kind}": fill("int16", (5, 7 + e), i)
                  for i in range(2) for e in range(4) for kind in ("weight", "scale")}
        arrays["l.0.gate.weight"] = MORE["audio"]
        names = list(arrays)
        for i in range(2):
            safetensors.numpy.save_file({n: arrays[n] for n in names[i::2]},
                                        f"{folder}/{i}.safetensors")
        for local in ({0, 3}, {1}, set(), None):
            self.local_experts[0] = local
            self.same(self.load(Model(), folder).got,
                      {n: a for n, a in arrays.items() if local is None or
                       "experts" not in n or n.endswith("scale") or
                       int(n.split("experts.")[1][0]) in local})

    def test_bar(self):
        """The process that shows vLLM's progress bar shows Penstock's, too."""
        bars = []

        class Bar:
            def __init__(self, total, disable, **_):
                self.total, self.n, self.disable = total, 0, disable
                bars.append(self)

            def update(self, n):
                self.n += n

            def close(self):
                pass

        modules = {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": types.SimpleNamespace(tqdm=Bar)}
        with unittest.mock.patch.dict(sys.modules, modules):
            for self.shows in (False, True):
                self.load(Model())
        bar, = bars
        total = sum(array.nbytes for array in ARRAYS.values())
        self.assertEqual((bar.n, bar.total), (total, total))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "Unexpected extra config keys .'speed'"):
            self.load(Model(), speed=11)
        with self.assertRaisesRegex(ValueError, "effort one of"):
            self.load(Model(), effort="loud")
        for name in ("group", "keep_cached"):
            with self.assertRaisesRegex(ValueError, f"{name} must be true or false"):
                self.load(Model(), **{name: "of eight"})

    def test_processes(self):
        """process_count is the size of torch's process group, if it is initialised."""
        for ready, ranks in ((False, 1), (True, 4)):
            group = types.SimpleNamespace(is_available=lambda: True, get_world_size=lambda: 4,
                                          is_initialized=lambda ready=ready: ready)
            torch = types.SimpleNamespace(distributed=group)
            with unittest.mock.patch.dict(sys.modules, torch=torch):
                self.assertEqual(_engine.process_count(), ranks)

    def test_ranks(self):
        """On the CPU the ranks read together only if the option `group` is true."""
        sent = []

        def all_gather(value):
            sent.append(value)
            return [value]

        self.ranks = types.SimpleNamespace(world_size=2, rank_in_group=0,
                                           all_gather_object=all_gather)
        self.same(self.load(Model()).got, ARRAYS)
        self.assertIsNone(sent[0][0])
        self.same(self.load(Model(), group=True).got, ARRAYS)
        self.assertEqual(sent[1][0], _group.host_identity())

    def test_entry_points(self):
        """pyproject.toml declares the entry points by which both engines find the plug-ins."""
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as f:
            text = f.read()
        for group, entry in (("vllm.general_plugins", "vllm:register"),
                             ("sglang.srt.plugins", "sglang:plugin")):
            self.assertIn(f'entry-points."{group}"]\npenstock = "penstock.{entry}"\n', text)


class Sglang(Engine):
    def setUp(self):
        super().setUp()

        class LoadConfig:
            def __init__(self, load_format, extra=None, draft=None, load_group="default"):
                self.load_format, self.draft_model_idx = load_format, draft
                self.model_loader_extra_config, self.load_group = extra or {}, load_group
                self._verify_load_format()

            def _verify_load_format(self):
                if isinstance(self.load_format, str) and self.load_format != "auto":
                    raise ValueError(f"{self.load_format!r} is not a valid LoadFormat")

        class DefaultModelLoader:
            counter_before_loading_weights = 0.0
            Source = source_class(model_config=None)

            def __init__(self, load_config):
                self.load_config = load_config
                if set(load_config.model_loader_extra_config) - {"num_threads"}:
                    raise ValueError("unexpected extra config")

            def _prepare_weights(self, model_name_or_path, revision, fall_back_to_pt,
                                 allow_patterns_overrides=None):
                if self.load_config.load_format != "auto" or revision or not fall_back_to_pt:
                    raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
                return (model_name_or_path, *find(model_name_or_path, allow_patterns_overrides))

            def _get_weights_iterator(self, source, *, resolved_source=None,
                                      startup_prefetch_started=False):
                del startup_prefetch_started
                return iter([("default", (resolved_source or source).model_or_path)])

            def _get_all_weights(self, model_config, model):
                yield from self._get_weights_iterator(self.Source(
                    model_config.model_path, None, model_config=model_config))
                for source in getattr(model, "secondary_weights", ()):
                    yield from self._get_weights_iterator(source)

            def load_model(self, *, model_config, device_config):
                model = device_config.model
                model.load_weights(self._get_all_weights(model_config, model))
                return model.eval()

        class OtherLoader(DefaultModelLoader):
            pass

        def get_model_loader(load_config, model_config=None):
            if isinstance(load_config.load_format, type):
                return load_config.load_format(load_config)
            other = getattr(model_config, "quantization", None)
            return (OtherLoader if other else loader.DefaultModelLoader)(load_config)

        def with_mtp(files, folder, index_file, hf_config):
            self.assertEqual(index_file, "model.safetensors.index.json")
            return files + [os.path.join(folder, hf_config)] if hf_config else files

        def get_tp_group():
            raise RuntimeError("parallel name 'tp_group' has not been written in this process")

        self.module("sglang")
        self.module("sglang.srt")
        self.module("sglang.srt.distributed", get_tp_group=get_tp_group)
        self.module("sglang.srt.configs")
        self.module("sglang.srt.configs.load_config", LoadConfig=LoadConfig,
                    LoadFormat=types.SimpleNamespace(AUTO="auto"))
        self.module("sglang.srt.model_loader")
        self.module("sglang.srt.model_loader.weight_utils", maybe_add_mtp_safetensors=with_mtp)
        loader = self.module("sglang.srt.model_loader.loader", other=OtherLoader,
                             DefaultModelLoader=DefaultModelLoader,
                             get_model_loader=get_model_loader)
        for name in ("loader", "weight_utils"):
            setattr(sys.modules["sglang.srt.model_loader"], name,
                    sys.modules[f"sglang.srt.model_loader.{name}"])
        self.loader, self.default, self.config = loader, DefaultModelLoader, LoadConfig

    def load(self, model, load_format, draft=None, extra=None, **described):
        config = self.config(load_format, extra, draft)
        described = {"model_path": DIR, "hf_config": None, "quantization": None, **described}
        model_config = types.SimpleNamespace(**described)
        loader = self.loader.get_model_loader(config, model_config)
        self.assertIsInstance(loader, self.default)
        return loader, loader.load_model(
            model_config=model_config,
            device_config=types.SimpleNamespace(device="cpu", model=model))

    def test_as_load_format(self):
        from penstock.sglang import loader_class
        loader, model = self.load(Model(), loader_class(), extra={"effort": "fast"})
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

    def test_plugin(self):
        """plugin() adds --load-format penstock to SGLang's choices and hooks."""
        class ServerArgs(types.SimpleNamespace):
            def resolve_once(self):
                return dict(vars(self))

        choices, hooks = ["auto"], {}
        self.module("sglang.srt.plugins")
        self.module("sglang.srt.plugins.hook_registry",
                    HookType=types.SimpleNamespace(AROUND="around"),
                    HookRegistry=types.SimpleNamespace(register=lambda target, hook, kind:
                                                       hooks.update({target: (hook, kind)})))
        server_args = self.module("sglang.srt.server_args", LOAD_FORMAT_CHOICES=choices,
                                  ServerArgs=ServerArgs, add_load_format_choices=choices.extend)
        from penstock.sglang import plugin
        plugin()
        plugin()
        self.assertEqual(choices, ["auto", "penstock"])
        for target, (hook, kind) in hooks.items():
            self.assertEqual(kind, "around")
            module, _, name = target.rpartition(".")
            place = self.config if module.endswith("LoadConfig") else \
                server_args.ServerArgs if module.endswith("ServerArgs") else sys.modules[module]
            setattr(place, name, around(hook, getattr(place, name)))
        loader, model = self.load(Model(), "penstock", extra={"window": 65536, "num_threads": 3})
        self.assertIsNot(type(loader), self.default)
        self.same(model.got, ARRAYS)
        self.assertIs(type(self.loader.get_model_loader(self.config("auto"))), self.default)
        quantized = types.SimpleNamespace(quantization="own")
        with self.assertLogs("penstock", "WARNING") as told:
            other = self.loader.get_model_loader(self.config("penstock", {"group": False}),
                                                 quantized)
        self.assertIs(type(other), self.loader.other)
        self.assertIn("SGLang has chosen OtherLoader", told.output[0])
        with self.assertRaisesRegex(ValueError, "OtherLoader.*require='no-cpu-copy' forbids"):
            self.loader.get_model_loader(self.config("penstock", {"require": "no-cpu-copy"}),
                                         quantized)
        with self.assertRaisesRegex(ValueError, "OtherLoader for the.*s3://b/m.*local folder"):
            self.loader.get_model_loader(self.config("penstock", {"weights": "s3://b/m"}),
                                         quantized)
        with self.assertRaises(ValueError):
            self.load(Model(), "tensorflow")
        with unittest.mock.patch("penstock._engine_object.config_folder", folder_of):
            check_arguments(self, ServerArgs, "resolve_once", "model_path", "tokenizer_path", "{}")

    def test_weights_elsewhere(self):
        """The loader reads the weights from another place than the rest of the model."""
        empty = os.path.join(TMP, "no-weights")
        os.makedirs(empty, exist_ok=True)
        from penstock.sglang import loader_class
        _, model = self.load(Model(), loader_class(), extra={"weights": DIR},
                             model_path=empty)
        self.same(model.got, ARRAYS)

    def test_chosen_files(self):
        """The loader reads the files that SGLang's search has found, and the files that SGLang adds
        to the model."""
        from penstock.sglang import loader_class
        _, model = self.load(Model(), loader_class(), hf_config="../more/sub/a.safetensors")
        self.same(model.got, {**ARRAYS, **MORE})
        loader = loader_class()(self.config("auto"))
        resolved = types.SimpleNamespace(use_safetensors=True, model_or_path="resolved",
                                         weight_files=(f"{TMP}/more/sub/a.safetensors",))
        source = self.default.Source("nowhere", None, "p.")
        got = loader._get_weights_iterator(source, resolved_source=resolved,
                                           startup_prefetch_started=True)
        self.same({name: raw(t) for name, t in got}, {"p.audio": MORE["audio"]})
        resolved.use_safetensors = False
        self.assertEqual(list(loader._get_weights_iterator(source, resolved_source=resolved)),
                         [("default", "resolved")])

    def test_draft_layer(self):
        """SGLang's own iterator reads a draft model, because SGLang picks one layer of it."""
        from penstock.sglang import loader_class
        model = Model()
        model.load_weights = lambda weights: model.got.update(weights)
        with self.assertLogs("penstock", "WARNING") as told:
            _, model = self.load(model, loader_class(), draft=1)
        self.assertEqual(model.got, {"default": DIR})
        self.assertIn("is a draft model, so SGLang's own loader reads", told.output[0])
        with self.assertRaisesRegex(ValueError, "draft model.*require='direct' forbids"):
            self.load(model, loader_class(), draft=1, extra={"require": "direct"})

    def test_load_group(self):
        """SGLang's load_group is the group of ranks that load together. If it is None, each rank
        loads alone."""
        from penstock import sglang
        group = types.SimpleNamespace(world_size=2)
        for given, want in ((None, None), (group, group), ("default", None)):
            self.assertIs(sglang._ranks(types.SimpleNamespace(load_group=given)), want)


# The program of one rank of an engine, on a GPU of its own. It saves the tensors that it got
# into a file. It prints how many bytes it has read from the model's files, and the number of
# loads. The ranks exchange objects through files. Modes: "alone" sets the option group to false,
# "blocked" prevents rank 1 from joining the group, "dies" ends rank 1 at its first tensor.
RANK = """
import logging, os, sys, time
import penstock
from penstock import _engine, _group, _model
model, folder, rank, ranks, hosts, mode = sys.argv[1:]
rank, ranks, hosts = int(rank), int(ranks), int(hosts)
logging.basicConfig(format="%(message)s")
_engine.framework_of = _model.framework_of = lambda name: "dlpack"

class Ranks:
    world_size, rank_in_group, turn = ranks, rank, 0
    def all_gather_object(self, value):
        files = [f"{folder}/gather.{self.turn}.{r}" for r in range(ranks)]
        self.turn += 1
        with open(files[rank] + ".new", "w") as f:
            f.write(repr(value))
        os.rename(files[rank] + ".new", files[rank])
        until = time.monotonic() + 60
        while not all(map(os.path.exists, files)):
            assert time.monotonic() < until
            time.sleep(0.005)
        return [eval(open(path).read()) for path in files]

read, load, identity = [0, 0], _model.Model.load, _group.host_identity
def counted(*args, **how):
    got = load(*args, **how)
    read[0] += got[1].read
    read[1] += 1
    return got
_model.Model.load = counted
_group.host_identity = lambda: (*identity(), rank * hosts // ranks)
if mode == "blocked" and rank == 1:
    os.environ["XDG_RUNTIME_DIR"] = "/proc"
_engine.JOIN_S = 1.0 if mode == "blocked" else 60.0
files = [os.path.join(model, name) for name in os.listdir(model)]
options = {"window": 4 << 20} if mode != "alone" else {"group": False}
got = {}
into = _model.Model.load_into
def counted_into(*args, **how):
    report = into(*args, **how)
    read[0] += report.read
    read[1] += 1
    return report
needs = None
if mode == "experts":  # All ranks need the even tensors, and each rank half of the odd ones.
    _model.Model.load_into = counted_into
    needs = lambda name: None if int(name) % 2 == 0 else int(name) % 4 // 2 == rank
for name, tensor in _engine.file_weights(files, rank, Ranks(), options, "m.", needs=needs):
    if mode == "dies" and rank == 1:
        os._exit(7)
    got[name] = tensor if read[1] else penstock.allocate(tensor.dtype, tensor.shape, rank)
    if not read[1]:
        penstock.load_into([os.path.join(model, f) for f in os.listdir(model)],
                           {name[2:]: got[name]})
penstock.save_file(got, f"{folder}/{rank}.safetensors")
print(*read)
"""


BIG = {f"{i}": fill("int16", (512, 1000 + i), i) for i in range(8)}


class Together(Engine):
    """Runs the ranks of an engine, each in a process with a GPU of its own."""

    def ranks(self, ranks, hosts=1, mode=""):
        """Runs RANK in `ranks` processes, as if they were spread over `hosts` machines.

        Checks the tensors that each rank got, and returns (bytes read, loads, standard error)
        of each rank; in mode "dies" (exit status, standard error)."""
        folder = tempfile.mkdtemp(dir=TMP)
        env = dict(os.environ, PENSTOCK_STANDIN_DEVICES=str(ranks), XDG_RUNTIME_DIR=folder)
        started = [subprocess.Popen([sys.executable, "-c", RANK, self.folder, folder,
                                     str(rank), str(ranks), str(hosts), mode], env=env, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for rank in range(ranks)]
        outputs = [p.communicate(timeout=90) for p in started]
        if mode == "dies":
            return [(p.returncode, err) for p, (_, err) in zip(started, outputs)]
        self.assertEqual([p.returncode for p in started], [0] * ranks, outputs)
        for rank in range(ranks):
            got = safetensors.numpy.load_file(f"{folder}/{rank}.safetensors")
            want = {n: v for n, v in BIG.items() if mode != "experts" or int(n) % 2 == 0 or
                    int(n) % 4 // 2 == rank}
            self.same({n.removeprefix("m."): v.tobytes() for n, v in got.items()}, want)
        return [(*map(int, out.split()), err) for out, err in outputs]

    def setUp(self):
        super().setUp()
        if os.environ.get("PENSTOCK_STANDIN") == "0":
            try:
                open_device(3)
            except penstock.PenstockError as error:
                self.skipTest(f"4 GPUs are wanted: {error}")
        self.folder = tempfile.mkdtemp(dir=TMP)
        for i in range(2):
            safetensors.numpy.save_file({n: BIG[n] for n in list(BIG)[4 * i:4 * i + 4]},
                                        f"{self.folder}/{i}.safetensors")
        self.bytes = sum(v.nbytes for v in BIG.values())

    def test_one_host(self):
        """All ranks together read the model once, through windows smaller than the model."""
        results = self.ranks(4)
        self.assertTrue(all(loads == 4 and not err for _, loads, err in results), results)
        self.assertLessEqual(sum(read for read, *_ in results), self.bytes * 1.05)

    def test_two_hosts(self):
        """The ranks of each machine read the model once together. Machines share
        nothing."""
        results = self.ranks(4, hosts=2)
        for pair in (results[:2], results[2:]):
            read = sum(one[0] for one in pair)
            self.assertGreaterEqual(read, self.bytes)
            self.assertLessEqual(read, self.bytes * 1.05)

    def test_experts(self):
        """The tensors that all ranks need are read by all ranks together. Each rank alone reads its
        own experts."""
        results = self.ranks(2, mode="experts")
        self.assertTrue(all(not err for *_, err in results), results)
        read = sum(one[0] for one in results)
        self.assertGreaterEqual(read, self.bytes)
        self.assertLessEqual(read, self.bytes * 1.05)

    def test_alone(self):
        """With group=False each rank reads alone. If one rank cannot join the group, all ranks
        read alone, and each logs the reason."""
        self.assertEqual(self.ranks(2, mode="alone"), [(0, 0, "")] * 2)
        for _, loads, err in self.ranks(2, mode="blocked"):
            self.assertEqual(loads, 0)
            self.assertIn("each rank reads the model for itself: ", err)

    def test_rank_dies(self):
        (code, err), (died, _) = self.ranks(2, mode="dies")
        self.assertEqual((code, died), (1, 7))
        self.assertIn("rank 1", err.splitlines()[-1])


if __name__ == "__main__":
    tap.main()
