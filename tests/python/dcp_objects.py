# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints of torch.distributed.checkpoint in an object store: commit, manifests, locks,
kills, and `penstock ckpt` with s3://.

The store is the one that tests/s3/with has started, or else moto. PENSTOCK_KILLS sets the number
of random kills, PENSTOCK_SEED the random numbers."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import time
import unittest
import unittest.mock
import warnings

import boto3
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import penstock.torch as pt
import ranks
import tap
from penstock import _object_lock, _part
from penstock._dcp import LOCK
from penstock._dcp_object import _Prefix
from states import ERRORS

if "S3_SERVER" not in os.environ:
    import store

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
KILLS = int(os.environ.get("PENSTOCK_KILLS", "10"))
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))
PENSTOCK = os.path.join(os.environ["PENSTOCK_BUILD"], "penstock")
# The tests renew the lock more often and let it expire sooner than the package does, to run faster.
_object_lock.BEAT_S, _object_lock.LEASE_S = 0.3, 4.0
Boto = None


def setUpModule():
    global Boto  # pylint: disable=global-statement
    print(f"# seed {SEED}")
    if "S3_SERVER" not in os.environ:
        store.start()
        os.environ["AWS_ENDPOINT_URL"] = store.Store.endpoint
    Boto = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    if "S3_SERVER" in os.environ:
        Boto.create_bucket(Bucket="bucket")


def tearDownModule():
    if "S3_SERVER" not in os.environ:
        store.stop()


def state_of(step, count=50_000):
    return {"w": torch.full((count,), float(step)), "b": torch.full((7,), step), "step": step}


def save(url, step, **options):
    dcp.save(state_of(step), storage_writer=pt.StorageWriter(url, **options), no_dist=True)


def load(url, count=50_000):
    """Returns the step of a checkpoint. Asserts that all its values are those of this step."""
    got = {"w": torch.zeros(count), "b": torch.zeros(7, dtype=torch.int64), "step": 0}
    reader = pt.StorageReader(url)
    dcp.load(got, storage_reader=reader, no_dist=True)
    assert (got["w"] == got["step"]).all() and (got["b"] == got["step"]).all(), got
    assert reader.report.checked_bytes == reader.report.bytes > 0, reader.report
    return got["step"]


def keys(prefix):
    found = Boto.list_objects_v2(Bucket="bucket", Prefix=prefix + "/").get("Contents", ())
    return sorted(row["Key"][len(prefix) + 1:] for row in found)


def body(key):
    return Boto.get_object(Bucket="bucket", Key=key)["Body"].read()


def put(key, data):
    Boto.put_object(Bucket="bucket", Key=key, Body=data)


def states(url):
    return {found.path.rpartition("/")[2]: found.state for found in _part.list_checkpoints(url)}


def ckpt(*words):
    """Runs `penstock ckpt`. Returns its exit status and its JSON."""
    done = subprocess.run([PENSTOCK, "ckpt", *words, "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False, encoding="utf-8")
    try:
        return done.returncode, json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise AssertionError(f"{words}: {done.stdout}{done.stderr}") from error


def child(call, *args):
    """Starts call(pipe, *args) in a child process, which sends its results through the pipe."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=call, args=(there, *args), daemon=True)
    process.start()
    there.close()
    return process, here


def hold(pipe, url):
    lock = _object_lock.ObjectLock(_Prefix(url), LOCK)
    pipe.send("held")
    signal.pause()
    lock.release()


class Dying(pt.ObjectStorageWriter):
    """A writer that kills its process during a save, at the step `point`, which is one of
    POINTS."""

    def __init__(self, point, url):
        super().__init__(url)
        self.point = point

    def reach(self, point):
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_data(self, plan, planner):
        self.reach("before the parts")
        return super().write_data(plan, planner)

    def _commit(self, metadata, results):
        self.reach("after the parts")
        super()._commit(metadata, results)

    def _publish_marker(self):
        self.reach("after the manifest")
        super()._publish_marker()

    def _remove_strays(self, keep):
        self.reach("after the marker")
        super()._remove_strays(keep)


POINTS = ("before the parts", "after the parts", "after the manifest", "after the marker")


def dies(pipe, point, url, step):
    del pipe
    dcp.save(state_of(step), storage_writer=Dying(point, url), no_dist=True)


class Commit(unittest.TestCase):
    """Tests which objects a save leaves in the store, and what penstock ckpt reports about them."""

    def test_whole(self):
        run = "s3://bucket/whole"
        save(f"{run}/step-1", 1)
        self.assertEqual(keys("whole/step-1"), [".metadata", "__0_0.distcp", "penstock.manifest"])
        manifest = [json.loads(line) for line in body("whole/step-1/penstock.manifest").split(
            b"\n") if line]
        sums = [item[3] for part in manifest[1:-1] for item in part["items"]]
        self.assertTrue(sums and all(isinstance(value, int) for value in sums), manifest)
        self.assertEqual(load(f"{run}/step-1"), 1)
        code, told = ckpt("list", run)
        self.assertEqual((code, [(c["state"], c["parts"], c["ranks"], c["manifest"])
                                 for c in told["checkpoints"]]),
                         (0, [("complete", 1, 1, True)]))
        code, told = ckpt("verify", f"{run}/step-1")
        self.assertEqual((code, told["items"], told["items_unsummed"]), (0, 4, 0), told)
        self.assertEqual(ckpt("list", "s3://bucket/none")[1]["checkpoints"], [])
        self.assertEqual(ckpt("verify", "s3://bucket/none")[0], 1)
        self.assertEqual(ckpt("list", "s3://no-such-bucket/x")[0], 1)

    def test_replace(self):
        """A second save below the same prefix removes the objects of the first save."""
        url = "s3://bucket/replace/step"
        for step in (1, 2):
            save(url, step, parts=step)
            self.assertEqual(load(url), step)
        self.assertEqual(len([key for key in keys("replace/step") if "distcp" in key]), 2)
        self.assertEqual(len(keys("replace/step")), 4, keys("replace/step"))
        save(url, 3, checksums=False)
        self.assertFalse([key for key in keys("replace/step") if "manifest" in key])
        self.assertEqual(states("s3://bucket/replace"), {"step": "complete"})
        with self.assertRaisesRegex(ERRORS, "overwrite is False"):
            save(url, 4, overwrite=False)

    def test_unfinished(self):
        """If a save has not written its marker, a load says that the save was interrupted or still
        runs."""
        url = "s3://bucket/unfinished/step"
        save(url, 1)
        Boto.delete_object(Bucket="bucket", Key="unfinished/step/.metadata")
        with self.assertRaisesRegex(ERRORS, "its save was interrupted or still runs"):
            load(url)
        self.assertEqual(states("s3://bucket/unfinished"), {"step": "incomplete"})

    def test_damage(self):
        """penstock ckpt verify reports each bit flip and truncation. It names the damaged object
        (part), the tensor in it (item), and the offset."""
        rng, url = random.Random(SEED), "s3://bucket/damage/step"
        save(url, 1)
        data = body("damage/step/__0_0.distcp")
        for trial in range(40):
            wrong = bytearray(data)
            if trial % 4 == 3:
                del wrong[rng.randrange(len(wrong)):]
            else:
                at = rng.randrange(len(wrong))
                wrong[at] ^= 1 << rng.randrange(8)
            put("damage/step/__0_0.distcp", bytes(wrong))
            code, told = ckpt("verify", url)
            self.assertEqual((code, told["faults"][0]["part"]), (1, "__0_0.distcp"), told)
            fault = told["faults"][0]
            self.assertTrue(fault["item"] or len(wrong) < len(data), told)
            if len(wrong) == len(data):
                self.assertTrue(fault["offset"] <= at < fault["offset"] + fault["bytes"], told)
            else:
                self.assertEqual(states("s3://bucket/damage"), {"step": "damaged"})
            with self.assertRaises(ERRORS):
                load(url)
        put("damage/step/__0_0.distcp", data)
        self.assertEqual((ckpt("verify", url)[0], load(url)), (0, 1))

    def test_prune(self):
        """keep=N and prune remove old checkpoints, incomplete ones and stray objects."""
        run = "s3://bucket/prune"
        for step in range(1, 12):
            save(f"{run}/step-{step}", step, keep=2)
        self.assertEqual(states(run), {"step-10": "complete", "step-11": "complete"})
        Boto.delete_object(Bucket="bucket", Key="prune/step-10/.metadata")
        # A stray object: a part of rank 5, although the save of step 11 had only one rank.
        put("prune/step-11/__5_0.distcp", b"x" * 1000)
        time.sleep(1.1)  # The store may round the times of objects to seconds.
        save(f"{run}/step-12", 12)
        code, told = ckpt("list", run)
        self.assertEqual([(c["state"], c["stray_files"]) for c in told["checkpoints"]],
                         [("incomplete", 0), ("complete", 1), ("complete", 0)])
        code, told = ckpt("prune", run, "--newest", "--dry-run")
        self.assertEqual((code, len(told["removals"])), (0, 2), told)
        self.assertEqual(len(states(run)), 3)
        ckpt("prune", run, "--newest")
        self.assertEqual(states(run), {"step-11": "complete", "step-12": "complete"})
        self.assertNotIn("__5_0.distcp", keys("prune/step-11"))
        self.assertEqual((ckpt("prune", run, "--keep", "1")[0], states(run)),
                         (0, {"step-12": "complete"}))
        self.assertEqual(load(f"{run}/step-12"), 12)


class Locks(unittest.TestCase):
    """Tests two jobs that save below one prefix."""

    def test_two_jobs(self):
        url = "s3://bucket/lock/step"
        save(url, 1)
        process, pipe = child(hold, url)
        self.assertEqual(pipe.recv(), "held")
        started = time.monotonic()
        with self.assertRaises(ERRORS) as caught:
            save(url, 2)
        took = time.monotonic() - started
        self.assertIn("another job is saving a checkpoint there", str(caught.exception))
        self.assertLess(took, _object_lock.LEASE_S)
        self.assertEqual(load(url), 1)
        put("lock/step/__9_9.distcp", b"stray")
        self.assertEqual(ckpt("prune", url, "--newest")[1]["removals"], [])
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        started = time.monotonic()
        save(url, 3)
        self.assertGreater(time.monotonic() - started, _object_lock.LEASE_S)
        self.assertEqual(load(url), 3)
        self.assertEqual([key for key in keys("lock/step") if LOCK in key], [])

    def test_lost(self):
        """A job that has lost its lock writes no marker (.metadata), so the checkpoint stays
        incomplete."""
        url = "s3://bucket/lost/step"

        class Stalled(pt.ObjectStorageWriter):
            def _publish_marker(self):
                put("lost/step/" + LOCK, b"0123456789abcdef")
                super()._publish_marker()
        with self.assertRaisesRegex(ERRORS, "another job is saving"):
            dcp.save(state_of(1), storage_writer=Stalled(url), no_dist=True)
        self.assertEqual(states("s3://bucket/lost"), {"step": "incomplete"})
        self.assertEqual(body("lost/step/" + LOCK), b"0123456789abcdef")

    def test_race(self):
        """If several processes take a lock at the same time, only one of them gets the lock."""
        url = "s3://bucket/race/step"
        started = [child(hold, url) for _ in range(4)]
        held = []
        for _, pipe in started:
            try:
                held.append(pipe.poll(2 * _object_lock.LEASE_S) and pipe.recv())
            except EOFError:
                held.append("refused")
        for process, _ in started:
            process.kill()
            process.join()
        self.assertEqual(sorted(held), ["held"] + ["refused"] * 3)

    def test_same_process(self):
        """If a save fails on another rank, this process still holds its lock. The next save of this
        process gets the lock nevertheless."""
        url = "s3://bucket/again/step"
        left = pt.ObjectStorageWriter(url)
        left.set_up_storage_writer(True)
        left._lock()
        save(url, 1)
        self.assertEqual(load(url), 1)
        with self.assertRaises(OSError) as caught, left._at_work():
            pass
        self.assertEqual(caught.exception.errno, errno.EBUSY)


def saves(pipe, run, step):
    checkpoints = pt.Checkpointer(run, keep=3, raise_errors=True)
    while True:
        step += 1
        checkpoints.save(state_of(step), step)
        pipe.send(step)


FULL = torch.arange(4000.0).reshape(400, 10)


def sharded(value):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(value.clone(), mesh, [Shard(0)])


def save_ranks(rank, run, step, dead=None):
    checkpoints = pt.Checkpointer(run, patience=3.0)
    if rank == dead:
        def die(*_args):
            os._exit(9)
        with unittest.mock.patch.object(pt.ObjectStorageWriter, "write_data", die):
            checkpoints.save({"w": sharded(FULL * step), "step": step}, step)
    saved = checkpoints.save({"w": sharded(FULL * step), "step": step}, step)
    return saved.ok or str(saved.error)


def load_ranks(rank, run):
    checkpoints, got = pt.Checkpointer(run), {"w": sharded(torch.zeros_like(FULL)), "step": 0}
    path = checkpoints.load(got)
    return path.rpartition("/")[2], bool(torch.equal(got["w"].full_tensor(), FULL * got["step"]))


def save_local(rank, url):
    dcp.save({"mine": torch.full((9,), float(rank))}, storage_writer=pt.StorageWriter(url),
             use_collectives=False)


class Deaths(unittest.TestCase):
    """Tests saves during which a process or a rank dies."""

    def test_points(self):
        for number, point in enumerate(POINTS):
            with self.subTest(point=point):
                run = f"s3://bucket/points-{number}"
                pt.Checkpointer(run).save(state_of(1), 1)
                process, _ = child(dies, point, f"{run}/step-2", 2)
                process.join(60)
                self.assertEqual(process.exitcode, -signal.SIGKILL)
                whole = point == "after the marker"
                self.assertEqual(states(run).get("step-2", "incomplete"),
                                 "complete" if whole else "incomplete")
                with pt.Checkpointer(run) as checkpoints:
                    got = state_of(0)
                    path = checkpoints.load(got)
                    self.assertEqual((path, got["step"]),
                                     (f"{run}/step-{1 + whole}", 1 + whole))
                    # This save waits until the lock of the killed process has expired.
                    self.assertTrue(checkpoints.save(state_of(3), 2).ok)
                self.assertEqual(load(f"{run}/step-2"), 3)

    def test_kills(self):
        rng, run, step = random.Random(SEED), "s3://bucket/kills", 0
        for _ in range(KILLS):
            process, pipe = child(saves, run, step)
            self.assertTrue(pipe.poll(120))
            step = pipe.recv()
            time.sleep(rng.random() * 0.5)
            process.kill()
            process.join()
            try:
                while pipe.poll(0):
                    step = pipe.recv()
            except EOFError:
                pass
            found = {path: state for path, state in states(run).items()}
            whole = sorted(int(name[5:]) for name, state in found.items() if state == "complete")
            self.assertNotIn("damaged", found.values())
            self.assertIn(step, whole)
            for number in whole:
                self.assertEqual(load(f"{run}/step-{number}"), number)
            step = max(int(name[5:]) for name in found)

    def test_ranks(self):
        """If a rank dies in write_data, the errors of the other ranks name it. The earlier
        checkpoint can be loaded, also by another number of ranks."""
        run = "s3://bucket/ranks"
        self.assertEqual(ranks.run(3, save_ranks, run, 1), [True] * 3)
        started = time.monotonic()
        told = ranks.results(ranks.start(3, save_ranks, run, 2, 1))
        self.assertLess(time.monotonic() - started, 60)
        for rank in (0, 2):
            self.assertIn("rank 1", str(told[rank]))
        self.assertEqual(states(run), {"step-1": "complete", "step-2": "incomplete"})
        self.assertEqual(ranks.run(2, load_ranks, run), [("step-1", True)] * 2)

    def test_local(self):
        """If each rank saves without the others, each has its own manifest and marker."""
        url = "s3://bucket/local/step"
        ranks.run(3, save_local, url)
        code, told = ckpt("list", url)
        self.assertEqual((code, told["checkpoints"][0]["state"], told["checkpoints"][0]["ranks"]),
                         (0, "complete", 3))
        self.assertEqual(ckpt("verify", url)[0], 0)
        Boto.delete_object(Bucket="bucket", Key="local/step/__1.metadata")
        self.assertEqual(states(url), {"step": "incomplete"})


class Resume(unittest.TestCase):
    """Tests a Checkpointer whose checkpoints are below a prefix of a bucket."""

    def test_resume(self):
        run = "s3://bucket/resume"
        with pt.Checkpointer(run, keep=2, pool_bytes=1 << 24) as checkpoints:
            self.assertEqual(checkpoints.list(), [])
            self.assertIsNone(checkpoints.load(state_of(0)))
            for step in (9, 10):
                state = state_of(step)
                future = checkpoints.save_async(state, step)
                state["w"].zero_()
                self.assertTrue(future.result().ok, future.result().error)
            wrong = bytearray(body("resume/step-10/__0_0.distcp"))
            wrong[len(wrong) // 2] ^= 1
            put("resume/step-10/__0_0.distcp", bytes(wrong))
            got = state_of(0)
            self.assertEqual((checkpoints.load(got), got["step"]), (f"{run}/step-9", 9))
            with unittest.mock.patch("penstock._checkpointer.PROBE_BYTES", 1 << 20):
                late = checkpoints.save(state_of(11), 11, deadline=1e-6)
            self.assertIsInstance(late.error, pt.DeadlineError)
            self.assertNotEqual(states(run).get("step-11"), "complete")
            self.assertEqual([key for key in keys("resume") if "probe" in key], [])


if __name__ == "__main__":
    tap.main()
