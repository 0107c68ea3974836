# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.deepspeed with DeepSpeed on the CPU. DeepSpeed's own checkpoint engine must read
the files that save_checkpoint writes with this package, and this package must read the files of
DeepSpeed's engine. Also tests saves in which a rank fails or dies. Needs deepspeed and torch."""

import glob
import os
import tempfile
import unittest
import warnings

import torch

import ranks
import tap

# DS_ACCELERATOR prevents a message of DeepSpeed. DeepSpeed needs the other two variables, which its
# launcher would set.
os.environ.update(DS_ACCELERATOR="cpu", CROSS_SIZE="1", CROSS_RANK="0")
import deepspeed
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

import penstock.deepspeed
import penstock.torch
from penstock import _torch_file
from penstock._coordination import RankError

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))


def engine_of(stage, more=None):
    """Returns a DeepSpeed engine that has trained one step."""
    os.dup2(2, 1)  # DeepSpeed's messages are no test results.
    warnings.simplefilter("ignore")
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Linear(300, 8))
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True, "bf16": {"enabled": True}, **(more or {})}
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters()),
                                  config=config)[0]
    train(engine)
    return engine


def train(engine):
    loss = engine(torch.ones(1, 64, dtype=torch.bfloat16)).float().sum()
    engine.backward(loss)
    engine.step()


def same(one, other):
    """Returns whether two objects, nested dicts and lists, have equal tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other)


def optimizer_of(engine):
    """Returns copies of the tensors of a rank's optimizer."""
    found = []

    def visit(value):
        if isinstance(value, torch.Tensor):
            found.append(value.clone())
        elif isinstance(value, (dict, list, tuple)):
            for one in value.values() if isinstance(value, dict) else value:
                visit(one)

    visit(engine.optimizer.state_dict())
    return found


def round_trip(rank, stage, folder):
    """Saves with one checkpoint engine and loads with another: this package's and DeepSpeed's
    own, in both directions."""
    engine = engine_of(stage)
    stock = engine.checkpoint_engine
    ours = penstock.deepspeed.use(engine)
    assert isinstance(stock, TorchCheckpointEngine) and isinstance(ours, CheckpointEngine)
    for number, (writer, reader) in enumerate(((ours, stock), (stock, ours), (ours, ours))):
        train(engine)
        want = optimizer_of(engine)
        engine.checkpoint_engine = writer
        assert engine.save_checkpoint(folder, tag=f"t{number}", client_state={"n": number})
        train(engine)
        assert not same(want, optimizer_of(engine))
        engine.checkpoint_engine = reader
        path, state = engine.load_checkpoint(folder)  # the tag is in the file latest
        assert path and f"t{number}" in path and state["n"] == number, (path, state)
        assert same(want, optimizer_of(engine)), (stage, number)
    return sorted(os.listdir(os.path.join(folder, "t0"))) == \
        sorted(os.listdir(os.path.join(folder, "t1")))


def failing(rank, folder, dies):
    """Saves a checkpoint, and then a second one during which rank 1 fails or dies. Returns the
    error's message, and whether the engine can save afterwards."""
    engine = engine_of(1)
    penstock.deepspeed.use(engine, patience=3.0)
    assert engine.save_checkpoint(folder, tag="good")
    save = _torch_file.save

    def fail(*args, **how):
        if dies:
            os._exit(9)
        raise OSError(28, "no space left")

    if rank == 1:
        _torch_file.save = fail
    try:
        engine.save_checkpoint(folder, tag="bad")
    except RankError as error:
        text = str(error)
    _torch_file.save = save
    return text, not dies and engine.save_checkpoint(folder, tag="next", save_latest=False)


def with_writer(rank, folder):
    """Saves with DeepSpeed's option checkpoint.writer. penstock.torch.load must read the files
    like torch.load. Returns the message with which use() refuses such an engine, and the number
    of files."""
    engine = engine_of(3, {"checkpoint": {"writer": {"type": "python"}}})
    assert engine.save_checkpoint(folder, tag="t")
    names = glob.glob(os.path.join(folder, "t", "*.pt"))
    for name in names:
        report = penstock.torch.FileReport()
        found = penstock.torch.load(name, weights_only=False, report=report)
        assert report.fallback is None, report
        assert same(found, torch.load(name, weights_only=False)), name
    try:
        penstock.deepspeed.use(engine)
    except ValueError as error:
        return str(error), len(names)
    return "", len(names)


def whole_model(rank, folder):
    """Calls save_16bit_model, with which rank 0 writes one file."""
    engine = engine_of(1)
    penstock.deepspeed.use(engine)
    assert engine.save_16bit_model(folder, "model.bin")
    return same(torch.load(os.path.join(folder, "model.bin")), dict(engine.module.state_dict()))


def latest(folder):
    with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
        return file.read()


class Engine(unittest.TestCase):
    def test_round_trip(self):
        """With ZeRO 1 and ZeRO 3 on two ranks, DeepSpeed's own checkpoint engine reads the files of
        this package's engine, and the other way round."""
        for stage in (1, 3):
            folder = os.path.join(TMP, f"zero{stage}")
            self.assertEqual(ranks.run(2, round_trip, stage, folder, seconds=400), [True, True])

    def test_failed_rank(self):
        """If rank 1 cannot save, both ranks raise an error that names rank 1, and the file `latest`
        is unchanged. The next save succeeds."""
        folder = os.path.join(TMP, "failed")
        for text, saved in ranks.run(2, failing, folder, False, seconds=400):
            self.assertIn("rank 1: OSError", text)
            self.assertTrue(saved)
        self.assertEqual(latest(folder), "good")

    def test_dead_rank(self):
        """If rank 1 dies in a save, rank 0 raises an error that names rank 1, and the file `latest`
        is unchanged."""
        folder = os.path.join(TMP, "dead")
        first, second = ranks.results(ranks.start(2, failing, folder, True), 400)
        self.assertEqual(first[0], True, first)
        self.assertIn("rank 1: it has died", first[1][0])
        self.assertEqual(second, (False, None))
        self.assertEqual(latest(folder), "good")

    def test_whole_model(self):
        """save_16bit_model works, although only rank 0 saves."""
        self.assertEqual(ranks.run(2, whole_model, TMP, seconds=400), [True, True])

    def test_writer(self):
        """penstock.torch.load reads the files that DeepSpeed writes with its option
        checkpoint.writer. use() refuses an engine with such a writer."""
        text, files = ranks.run(1, with_writer, os.path.join(TMP, "writer"), seconds=400)[0]
        self.assertIn("FastCheckpointEngine", text)
        self.assertEqual(files, 2)

    def test_folders(self):
        """makedirs also creates the parent folders. It refuses a folder that exists, unless
        exist_ok is set."""
        engine = penstock.deepspeed.CheckpointEngine()
        path = os.path.join(TMP, "a", "b", "c")
        engine.makedirs(path)
        self.assertTrue(os.path.isdir(path))
        engine.makedirs(path, exist_ok=True)
        self.assertRaises(FileExistsError, engine.makedirs, path)
        self.assertRaises(FileNotFoundError, engine.load, os.path.join(path, "none.pt"))
        self.assertRaises(OSError, engine.save, {}, os.path.join(path, "no", "file.pt"))


if __name__ == "__main__":
    tap.main()
