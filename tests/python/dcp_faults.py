# SPDX-License-Identifier: Apache-2.0
"""Tests saves into folders that have a checkpoint, kills during the commit, and faults of the
file system. After each fault, the earlier checkpoint must be readable, with the right
checksums."""

import contextlib
import errno
import inspect
import os
import resource
import shutil
import signal
import subprocess
import time
import traceback
import unittest
import unittest.mock
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import penstock
import penstock._part
import penstock.torch as pt
import ranks
import tap
from older_torch import Shard, distribute_tensor, needs
from penstock import _dcp_write
from states import ERRORS, emptied, folder, same, stock_load

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
LACKS_SAFETENSORS = not hasattr(dcp, "HuggingFaceStorageWriter")


def state_of(value, count=5000):
    return {"w": torch.arange(float(count)) + value, "b": torch.full((7,), value), "step": value}


def save(path, value, **options):
    dcp.save(state_of(value), storage_writer=pt.StorageWriter(path, **options), no_dist=True)


def check(path, value):
    """Loads a checkpoint with the reader of this package, which must check all checksums, and
    with the reader of torch."""
    got, reader = emptied(state_of(value)), pt.StorageReader(path)
    dcp.load(got, storage_reader=reader, no_dist=True)
    same(got, state_of(value))
    assert reader.report.unchecked == "", reader.report
    got = emptied(state_of(value))
    dcp.load(got, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    same(got, state_of(value))
    found = penstock._part.list_checkpoints(path)
    assert [one.state for one in found] == ["complete"], found


def in_child(call, *args):
    """Forks a child that calls a function. Returns the child's process id."""
    child = os.fork()
    if child:
        return child
    try:
        call(*args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def save_ranks(rank, path, value):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = state_of(value)
    state["w"] = distribute_tensor(state["w"], mesh, [Shard(0)])
    dcp.save(state, storage_writer=pt.StorageWriter(path))


def save_local(rank, path, value):
    try:
        dcp.save({"mine": torch.full((9,), rank + value)}, storage_writer=pt.StorageWriter(path),
                 use_collectives=False)
    except ERRORS as error:
        return str(error)
    return ""


class Replaced(unittest.TestCase):
    """Tests saves into a folder that has a checkpoint."""

    def test_other_world_size(self):
        path = folder()
        for value, count in ((1, 4), (2, 2), (3, 1), (4, 3)):
            ranks.run(count, save_ranks, path, value)
            check(path, value)
            parts = {name.split("_")[2] for name in os.listdir(path) if name.endswith(".distcp")}
            self.assertEqual(parts, {str(rank) for rank in range(count)})

    def test_interrupted_commit(self):
        """A save is killed before it writes the marker, or after that, before it removes one of the
        old files. The folder must then have the old or the new checkpoint, and another number of
        ranks can save into it."""
        def interrupted(path, before):
            def die(*_):
                os._exit(9)

            def unlink(name, *_, real=os.unlink, left=[before], **__):
                if os.path.basename(name).startswith("__") or "manifest" in name:
                    if not left[0]:
                        die()
                    left[0] -= 1
                real(name)
            if before is None:
                _dcp_write.StorageWriter._publish_marker = die
            else:
                _dcp_write.os.unlink = unlink
            save(path, 2)
        for before in (None, 0, 1, 2, 3):
            with self.subTest(before=before):
                path = folder()
                ranks.run(3, save_ranks, path, 1)
                self.assertEqual(status(in_child(interrupted, path, before)), 9)
                check(path, 1 if before is None else 2)
                ranks.run(2, save_ranks, path, 3)
                check(path, 3)
                self.assertEqual(len(os.listdir(path)), 4)  # Two parts, manifest and marker.

    def test_killed_striped(self):
        """A save that stripes its parts over two drives is killed when one part is complete.
        The next save removes this part, even if it uses fewer drives."""
        def killed(path, drives):
            real = _dcp_write._part.write_part

            def write(file, *args, **how):
                real(file, *args, **how)
                os._exit(9)
            _dcp_write._part.write_part = write
            save(path, 2, stripe=drives)
        for checksums in (True, False):
            with self.subTest(checksums=checksums):
                path, drives = folder(), [folder("drive0"), folder("drive1")]
                places = [os.path.join(drive, "step") for drive in drives]
                parts = lambda: sum(map(os.listdir, places), [])  # noqa: E731
                save(path, 1, stripe=drives, checksums=checksums)
                if not checksums:  # A folder without a marker, but with parts.
                    os.unlink(os.path.join(path, ".metadata"))
                before = len(parts())
                self.assertEqual(status(in_child(killed, path, drives)), 9)
                self.assertGreater(len(parts()), before)
                if checksums:
                    check(path, 1)
                save(path, 3, stripe=drives[:1])
                check(path, 3)
                self.assertEqual(len(parts()), 1, parts())

    def test_torch_over_ours(self):
        """torch saves a checkpoint into a folder of Penstock. The old manifest has the same
        file names, but must not be used to check the new files."""
        path = folder()
        save(path, 1)
        dcp.save(state_of(2), storage_writer=dcp.FileSystemWriter(path), no_dist=True)
        got, reader = emptied(state_of(2)), pt.StorageReader(path)
        dcp.load(got, storage_reader=reader, no_dist=True)
        same(got, state_of(2))
        self.assertIn("no manifest", reader.report.unchecked)
        for command in ("list", "verify"):
            done = subprocess.run([os.path.join(os.environ.get("PENSTOCK_BUILD", "build"),
                                                "penstock"), "ckpt", command, path], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  encoding="utf-8")
            self.assertIn("another program has saved here", " ".join(done.stdout.split()))
            self.assertEqual(done.returncode == 0, command == "list", done.stdout)
        save(path, 3)
        check(path, 3)

    @needs("use_collectives")
    def test_local_over_global(self):
        """Ranks that save without collectives, each for itself, must not replace a checkpoint
        that all ranks have saved together."""
        path = folder()
        ranks.run(2, save_ranks, path, 1)
        for text in ranks.run(2, save_local, path, 5):
            self.assertIn("a checkpoint of all ranks exists there", text)
        check(path, 1)

    @needs("use_collectives")
    def test_global_over_local(self):
        path = folder()
        self.assertEqual(ranks.run(3, save_local, path, 5), [""] * 3)
        self.assertEqual(ranks.run(3, save_local, path, 6), [""] * 3)
        ranks.run(2, save_ranks, path, 1)
        check(path, 1)
        self.assertEqual([n for n in os.listdir(path) if n.endswith(".metadata")], [".metadata"])


class Faults(unittest.TestCase):
    """Tests faults of the file system during a save, which must leave the earlier
    checkpoint."""

    def setUp(self):
        self.path = folder()
        save(self.path, 1)

    def tearDown(self):
        check(self.path, 1)

    def refused(self, words, call, *args, **kwargs):
        with self.assertRaisesRegex(ERRORS, words):
            call(*args, **kwargs)

    def test_full_disk(self):
        """The save checks that the drive has enough space before it writes the first byte."""
        space = os.statvfs_result((4096, 4096, 100, 2, 2, 9, 9, 9, 0, 255))
        with unittest.mock.patch.object(_dcp_write.os, "statvfs", lambda _: space):
            self.refused("needs 2[0-9]{4} bytes, but .* has only 8192; free space", save, self.path,
                         2)
        self.assertEqual(len([n for n in os.listdir(self.path) if n.endswith(".distcp")]), 1)

    def test_file_limit(self):
        """A limit of the file size makes a write fail in the middle of a part."""
        def limited():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
            self.refused("__0_1.distcp.*(File too large|No space left)", save, self.path, 2)
        self.assertEqual(status(in_child(limited)), 0)

    def test_full_file_system(self):
        """A small tmpfs becomes full during a save. The check for free space, which would
        prevent that, is switched off."""
        place = folder("small")
        os.makedirs(place)
        if os.system(f"mount -t tmpfs -o size=128k none '{place}' 2>/dev/null"):
            self.skipTest("this user cannot mount a file system")
        try:
            inside = os.path.join(place, "step")
            save(inside, 1)
            with unittest.mock.patch.object(_dcp_write.StorageWriter, "_check_space",
                                            lambda *_: None):
                self.refused("the file needs .* free", dcp.save, state_of(2, 50000), no_dist=True,
                             storage_writer=pt.StorageWriter(inside))
            check(inside, 1)
            save(inside, 3)
            check(inside, 3)
        finally:
            os.system(f"umount '{place}'")

    def test_folder_vanishes(self):
        path = folder("gone")

        class Removing(pt.StorageWriter):
            def _write_parts(self, plan, planner):
                shutil.rmtree(path)
                return super()._write_parts(plan, planner)

            def _publish_marker(self):
                shutil.rmtree(path, ignore_errors=True)
                super()._publish_marker()

        self.refused("No such file or directory.*gone", dcp.save, state_of(2), no_dist=True,
                     storage_writer=Removing(path))
        Removing._write_parts = pt.StorageWriter._write_parts
        self.refused("No such file or directory.*gone", dcp.save, state_of(2), no_dist=True,
                     storage_writer=Removing(path))
        self.assertFalse(os.path.exists(os.path.join(path, ".metadata")))

    def test_read_only(self):
        os.chmod(self.path, 0o555)

        def other_user():
            if not os.getuid():
                above = os.path.dirname(self.path)
                while above != "/":
                    os.chmod(above, os.stat(above).st_mode | 0o001)
                    above = os.path.dirname(above)
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            self.refused("Permission denied.*step", save, self.path, 2)
        try:
            self.assertEqual(status(in_child(other_user)), 0)
        finally:
            os.chmod(self.path, 0o755)

    def test_two_processes(self):
        """While one process saves into a folder, a second process cannot save into it. After the
        first process was killed, the second can."""
        path = folder("shared")
        save(path, 1)
        here, there = os.pipe()

        def hold():
            class Slow(pt.StorageWriter):
                def _write_parts(self, plan, planner):
                    os.write(there, b"1")
                    time.sleep(60)
            dcp.save(state_of(2), storage_writer=Slow(path), no_dist=True)
        child = in_child(hold)
        os.read(here, 1)
        self.refused("another job is saving", save, path, 3)
        check(path, 1)
        os.kill(child, signal.SIGKILL)
        self.assertEqual(status(child), -signal.SIGKILL)
        save(path, 4)
        check(path, 4)

    def test_damaged_marker(self):
        """One byte of the marker is changed. The reader must report an error that names the
        marker, or read the metadata without an error."""
        path = folder("marker")
        save(path, 1)
        marker = os.path.join(path, ".metadata")
        with open(marker, "rb") as f:
            data = f.read()
        for at in range(0, len(data), 37):
            with open(marker, "wb") as f:
                f.write(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])
            try:
                pt.StorageReader(path).read_metadata()
            except penstock.FormatError as error:
                self.assertIn(".metadata", str(error))
            except OSError as error:
                self.fail(f"byte {at}: {error}")

    def test_reader_of_unfinished(self):
        path = folder("unfinished")

        class Reading(pt.StorageWriter):
            def _publish_marker(writer):
                self.refused("interrupted or still runs", check, path, 1)
                super()._publish_marker()
        dcp.save(state_of(1), storage_writer=Reading(path), no_dist=True)
        check(path, 1)


class Options(unittest.TestCase):
    def test_torch_options(self):
        """StorageWriter accepts the options of torch's FileSystemWriter, or refuses them with a
        reason."""
        for words, options in (("_extensions", {"_extensions": [object()]}),
                               ("TORCH_SAVE", {"serialization_format": "safetensors"}),
                               ("single_file_per_rank", {"single_file_per_rank": False})):
            with self.assertRaisesRegex(ValueError, words):
                pt.StorageWriter(folder(), **options)
        path = folder()
        save(path, 1, thread_count=2, per_thread_copy_ahead=0, cache_staged_state_dict=True)
        self.assertEqual(len([n for n in os.listdir(path) if n.endswith(".distcp")]), 2)
        check(path, 1)

    def test_wrong_options(self):
        """The constructors refuse wrong arguments, not a later save or load. Their signatures name
        every argument."""
        path = folder()
        made = [pt.Checkpointer, pt.StorageWriter, pt.StorageReader]
        with contextlib.suppress(ImportError):  # Some versions of torch have no base classes.
            made += [pt.HuggingFaceStorageWriter, pt.HuggingFaceStorageReader]
        for make in made:
            with self.subTest(make.__name__):
                self.assertRaises(TypeError, make, path, kep=3)
                self.assertRaisesRegex(ValueError, "require must be", make, path, require="al")
                self.assertRaisesRegex(ValueError, "effort one of", make, path, effort="slow")
        for make in (pt.ObjectStorageWriter, pt.ObjectStorageReader):
            self.assertRaises(TypeError, make, "s3://bucket/prefix", kep=3)
        self.assertRaisesRegex(ValueError, "no stripes", pt.Checkpointer, "s3://bucket/prefix",
                               stripe=[path])
        for make in made + [pt.ObjectStorageWriter, pt.ObjectStorageReader]:
            kinds = [p.kind for p in inspect.signature(make.__init__).parameters.values()]
            self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds, make)
        self.assertEqual(os.listdir(os.path.dirname(path)).count(os.path.basename(path)), 0)

    def test_steps(self):
        """The number of a checkpoint can be a tensor. Anything else than a whole number is refused,
        because Checkpointer would not find the checkpoint again."""
        with pt.Checkpointer(folder()) as points:
            saved = points.save({"w": torch.ones(3)}, torch.tensor(7))
            self.assertEqual((saved.error, saved.path), (None, points.path_of(7)))
            for save_one in (points.save, points.save_async):
                for step in ("x", 1.5):
                    self.assertRaises(TypeError, save_one, {"w": torch.ones(3)}, step)
            self.assertEqual(os.listdir(points.folder), ["step-7"])

    def test_file_urls(self):
        """A file URL means its path, not a folder named "file:" in the working folder."""
        path, other, here = folder(), folder(), os.getcwd()
        state = {"w": torch.arange(5.0)}
        os.chdir(os.path.dirname(folder()))
        try:
            save("file://" + path, 1, stripe=["file://localhost" + other])
            check(path, 1)
            got = emptied(state_of(1))
            dcp.load(got, storage_reader=pt.StorageReader("file://" + path), no_dist=True)
            same(got, state_of(1))
            self.assertTrue(os.listdir(other))
            dcp.save(state_of(2), storage_writer=pt.StorageWriter("unused"),
                     checkpoint_id="file://" + path)
            check(path, 2)
            with pt.Checkpointer("file://" + path) as points:
                self.assertEqual(points.folder, path)
            pt.save(state, f"file://{path}/a.pt")
            self.assertTrue(torch.equal(pt.load(f"file://{path}/a.pt")["w"], state["w"]))
            for make in (pt.StorageWriter, pt.StorageReader, pt.Checkpointer, pt.load):
                self.refuse_other_host(make)
            self.assertEqual(os.listdir("."), [])
        finally:
            os.chdir(here)

    def refuse_other_host(self, make):
        with self.assertRaisesRegex(penstock.PenstockError, "another host") as caught:
            make("file://host" + folder())
        self.assertEqual((caught.exception.errno, caught.exception.reason),
                         (errno.EINVAL, "bad-argument"))

    @unittest.skipIf(LACKS_SAFETENSORS, f"torch {torch.__version__} lacks HuggingFaceStorageWriter")
    def test_file_urls_of_safetensors(self):
        """The writer and the reader of safetensors checkpoints accept file URLs, too."""
        writer, reader, here = pt.HuggingFaceStorageWriter, pt.HuggingFaceStorageReader, os.getcwd()
        state = {"w": torch.arange(5.0)}
        os.chdir(os.path.dirname(folder()))
        try:
            for make in (writer, lambda url: writer(path=url)):
                url, got = "file://" + folder(), {"w": torch.zeros(5)}
                dcp.save(state, storage_writer=make(url), no_dist=True)
                dcp.load(got, storage_reader=reader(url), no_dist=True)
                self.assertTrue(torch.equal(got["w"], state["w"]))
            for make in (writer, reader):
                self.refuse_other_host(make)
            self.assertEqual(os.listdir("."), [])
        finally:
            os.chdir(here)


if __name__ == "__main__":
    tap.main()
