# SPDX-License-Identifier: Apache-2.0
"""Tests pickling and copying of safe_open, slices, Model and Tensor, in this process and in
children of the start methods spawn and fork. Uses numpy arrays."""

import copy
import multiprocessing
import os
import pickle
import shutil
import threading
import unittest

import numpy

import penstock
import tap
from arrays import ARRAYS, FILE, TMP

COPIES = (lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy)


def contents(one):
    """Returns the tensors of an object of the package, as bytes. A child process calls it."""
    if isinstance(one, penstock.safe_open):
        return {name: one.get_tensor(name).tobytes() for name in one.keys()}
    if isinstance(one, penstock.Model):
        return {name: value.tobytes() for name, value in one.load(framework="np")[0].items()}
    return {"box": numpy.asarray(one if isinstance(one, penstock.Tensor) else one[:]).tobytes()}


WANTED = {name: array.tobytes() for name, array in ARRAYS.items()}


class Pickled(unittest.TestCase):
    def objects(self):
        """Yields every kind of object, and the tensors that it has."""
        opened, model = penstock.safe_open(FILE, framework="np"), penstock.Model(FILE)
        box = {"box": WANTED["box"]}
        yield opened, WANTED
        yield model, WANTED
        yield opened.get_slice("box"), box
        yield penstock.load_file(FILE, names=["box"], framework="dlpack")["box"], box
        opened.close()
        model.close()

    def test_copies(self):
        for one, wanted in self.objects():
            for make in COPIES:
                twin = make(one)
                self.assertIs(type(twin), type(one))
                self.assertIsNot(twin, one)
                self.assertEqual(contents(twin), wanted)
            self.assertEqual(contents(one), wanted)

    def test_in_child(self):
        """A child gets the object as the argument of its function, as workers of torch's DataLoader
        do."""
        for method in ("spawn", "fork"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                for one, wanted in self.objects():
                    self.assertEqual(pool.apply_async(contents, (one,)).get(60), wanted)

    def test_arguments(self):
        """The arguments apply to the file that was opened again."""
        names = ["wide", "b*"]
        model = pickle.loads(pickle.dumps(penstock.Model(FILE, names=names, immutable=True)))
        self.assertEqual(sorted(info.name for info in model.infos), ["box", "wide"])
        for make in COPIES:
            opened = make(penstock.safe_open(FILE, "dlpack", 0, effort="fast", path="bounce"))
            self.assertEqual((opened.framework, opened.device), ("dlpack", 0))
            self.assertEqual(opened.get_tensor("box").device, "cuda:0")
            with self.assertRaises(penstock.PenstockError):
                make(penstock.safe_open(FILE, "np", path="fault:bounce?eio=1")).get_tensor("box")

    def test_places(self):
        """A relative path, and a list of files, name the same files in another working folder."""
        parts = os.path.join(TMP, "parts")
        os.makedirs(parts, exist_ok=True)
        penstock.save_file({"a": ARRAYS["row"]}, os.path.join(parts, "a.safetensors"))
        penstock.save_file({"b": ARRAYS["box"]}, os.path.join(parts, "b.safetensors"))
        here = os.getcwd()
        try:
            os.chdir(parts)
            one = penstock.safe_open("a.safetensors", framework="np")
            two = penstock.safe_open(["a.safetensors", "b.safetensors"], framework="np")
            url = penstock.safe_open("file://" + FILE, framework="np")
            os.chdir("/")
            for make in COPIES:
                self.assertEqual(contents(make(one)), {"a": WANTED["row"]})
                self.assertEqual(contents(make(two)), {"a": WANTED["row"], "b": WANTED["box"]})
                self.assertEqual(contents(make(url)), WANTED)
        finally:
            os.chdir(here)

    def test_removed(self):
        """If the file was removed, the copy does not open a file with the same relative path in
        another working folder."""
        folders = [os.path.join(TMP, name) for name in ("one", "other")]
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            shutil.copy(FILE, os.path.join(folder, "m.safetensors"))
        here = os.getcwd()
        try:
            os.chdir(folders[0])
            objects = (penstock.safe_open("m.safetensors", "np"), penstock.Model("m.safetensors"))
            os.unlink("m.safetensors")
            os.chdir(folders[1])
            for one in objects:
                data = pickle.dumps(one)
                with self.assertRaises(penstock.NotFoundError) as caught:
                    pickle.loads(data)
                self.assertEqual(caught.exception.path,
                                 os.path.join(folders[0], "m.safetensors"))
        finally:
            os.chdir(here)

    def test_missing(self):
        file = os.path.join(TMP, "moved.safetensors")
        shutil.copy(FILE, file)
        data = pickle.dumps(penstock.safe_open(file, framework="np"))
        os.unlink(file)
        with self.assertRaises(penstock.NotFoundError) as caught:
            pickle.loads(data)
        self.assertEqual(caught.exception.path, file)

    def test_tensors(self):
        """A pickled Tensor has its own memory. From protocol 5 on, it can be pickled without a copy
        of its bytes."""
        for name, tensor in penstock.load_file(FILE, framework="dlpack").items():
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                twin = pickle.loads(pickle.dumps(tensor, protocol))
                self.assertEqual((twin.dtype, twin.shape, twin.device),
                                 (tensor.dtype, tensor.shape, "host"))
                self.assertEqual(numpy.asarray(twin).tobytes(), WANTED[name])
                self.assertTrue(not twin.nbytes or twin.ptr != tensor.ptr)
            self.assertEqual(copy.copy(tensor).ptr, tensor.ptr)
            buffers = []
            self.assertLess(len(pickle.dumps(tensor, 5, buffer_callback=buffers.append)), 300)
            self.assertEqual(buffers[0].raw().nbytes, tensor.nbytes)

    def test_refused(self):
        """What cannot be pickled says so, and says what to do instead."""
        opened = penstock.safe_open(FILE, "np")
        stoppable = penstock.safe_open(FILE, "np", stop=threading.Event())
        with opened.prefetch() as loader, penstock.Group("pickled", 0, 1) as group:
            for one, words in ((penstock.allocate("F32", (4,), 0), "not in host memory"),
                               (loader, "call prefetch in the other"),
                               (group, "create the Group in the other"),
                               (stoppable, "open the file in the other")):
                with self.assertRaisesRegex(TypeError, words):
                    pickle.dumps(one)
        self.assertEqual(contents(copy.copy(stoppable)), WANTED)
        part = opened.get_slice("box")
        opened.close()
        for one in (opened, part):
            with self.assertRaisesRegex(ValueError, "closed"):
                pickle.dumps(one)


if __name__ == "__main__":
    tap.main()
