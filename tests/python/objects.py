# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.ObjectClient, penstock.fsspec and load_file with s3:// against moto, a server that
imitates Amazon S3. boto3 writes what this package reads, and the other way round."""

import contextlib
import errno
import gc
import http.server
import io
import json
import os
import pickle
import random
import re
import signal
import socketserver
import sys
import tempfile
import threading
import traceback
import unittest
import unittest.mock

import fsspec
import numpy

import penstock
import penstock.fsspec
import store
import tap
from penstock import _engine, _s3, _transfer
from store import SECRET, TMP, Store, body, client, put

SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
RANDOM = random.Random(SEED)
# Keys that would change if a program put them into a URL, a query or a file name unescaped.
KEYS = ["plain", "a/b/c.bin", "space and+plus", "hash#mark?query=1&x=2", "percent%41%2F",
        "ümlaut-✓", "dots/../here", "double//slash", "end/", "quote\"<&>'", "a" * 300,
        "~tilde-._!$()*,;:@="]


def setUpModule():
    print(f"# seed {SEED}")
    store.start()


def tearDownModule():
    store.stop()


class Questions(unittest.TestCase):
    """Tests requests that move no object data, such as listings and requests for sizes."""

    def test_names(self):
        for key in KEYS:
            with self.subTest(key=key):
                data = os.urandom(RANDOM.randrange(1, 999))
                put(key, data)
                self.assertTrue(client().exists("bucket/" + key))
                self.assertEqual(client(bucket="bucket").size(key), len(data))
                self.assertEqual([i.nbytes for i in client().list("bucket/" + key)
                                  if i.name == "bucket/" + key], [len(data)])
                client().delete("s3://bucket/" + key)
                self.assertFalse(client().exists("bucket/" + key))
        for name in ("bucket", "bucket/", "/key", "a b/key", "..", "../key", "", "b/k\0"):
            with self.assertRaises(ValueError, msg=name):
                client().exists(name)

    def test_info(self):
        put("facts", b"12345")
        told = client().info("bucket/facts")
        theirs = Store.boto.head_object(Bucket="bucket", Key="facts")
        self.assertEqual(told, ("bucket/facts", 5, theirs["ETag"].strip('"'),
                                theirs["LastModified"].timestamp()))
        with self.assertRaises(FileNotFoundError) as caught:
            client().info("bucket/absent")
        self.assertEqual((caught.exception.errno, caught.exception.reason, caught.exception.path),
                         (errno.ENOENT, "not-found", "s3://bucket/absent"))

    def test_list(self):
        Store.boto.create_bucket(Bucket="many")
        self.addCleanup(setattr, _s3, "PAGE_KEYS", _s3.PAGE_KEYS)
        _s3.PAGE_KEYS = 20
        names = [f"d{i % 3}/n{i}" for i in range(103)]
        for name in names:
            Store.boto.put_object(Bucket="many", Key=name, Body=b"1")
        self.assertEqual(client(bucket="many").list_objects(""), sorted(names))
        self.assertEqual(client().list_objects("many/d1/n10"),
                         sorted(f"many/{n}" for n in names if n.startswith("d1/n10")))
        self.assertEqual([i.name for i in client().list("many/", delimiter="/")],
                         ["many/d0/", "many/d1/", "many/d2/"])
        with self.assertRaisesRegex(FileNotFoundError, "NoSuchBucket"):
            client().list_objects("nosuch/")

    def test_copy(self):
        for key in KEYS:
            put(key, key.encode())
            client().copy("bucket/" + key, "bucket/copy of " + key)
            self.assertEqual(body("copy of " + key), key.encode())
        with self.assertRaises(FileNotFoundError):
            client().copy("bucket/absent", "bucket/other")

    def test_bad_endpoints(self):
        for url in ("ftp://host", "http://", "host:1", "http://h/path"):
            with self.assertRaisesRegex(penstock.PenstockError, "want http://") as caught:
                penstock.ObjectClient(url).exists("bucket/key")
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(ValueError) as caught:
            penstock.ObjectClient("http://user:secret@host")
        self.assertNotIn("secret", str(caught.exception))
        with self.assertRaises(penstock.PenstockError) as caught:
            _s3.ask("s3://bucket/key?endpoint=http://user:secret@host", "HEAD")
        self.assertNotIn("secret", str(caught.exception))

    def test_keys(self):
        """The client takes its S3 access keys from the environment or from a profile. Without keys,
        the error says which variable to set."""
        old = dict(os.environ)
        try:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del os.environ[name]
            with self.assertRaisesRegex(penstock.PenstockError, "set AWS_ACCESS_KEY_ID") as caught:
                client().exists("bucket/key")
            self.assertEqual(caught.exception.errno, errno.EACCES)
            self.assertFalse(client(anonymous=True).exists("bucket/absent"))
            with open(os.environ["AWS_SHARED_CREDENTIALS_FILE"], "w", encoding="ascii") as f:
                f.write("[lab]\naws_access_key_id = AK\naws_secret_access_key = hidden\n")
            self.assertFalse(client(profile="lab").exists("bucket/absent"))
            self.assertNotIn("hidden", repr(client(profile="lab")))
            with self.assertRaisesRegex(penstock.PenstockError, "none"):
                client(profile="none").exists("bucket/absent")
            mine = client(access_key="AKMINE", secret_key="hidden", session_token="hidden")
            mine.put_bytes("bucket/given", b"data")
            self.assertEqual((mine.exists("bucket/given"), mine.get_bytes("bucket/given")),
                             (True, b"data"))
            self.assertNotIn("hidden", repr(mine) + mine.url("bucket/given"))
            same = client(access_key="AKMINE", secret_key="hidden", session_token="hidden")
            other = client(access_key="AKMINE", secret_key="other")
            self.assertEqual((same.url("bucket/x") == mine.url("bucket/x"),
                              other.url("bucket/x") == mine.url("bucket/x")), (True, False))
            fs = penstock.fsspec.PenstockFileSystem(Store.endpoint, key="AKMINE", secret="hidden",
                                                    skip_instance_cache=True)
            self.assertEqual(fs.cat_file("bucket/given"), b"data")
            for words in ({"access_key": "A"}, {"secret_key": "hidden"},
                          {"access_key": "A", "secret_key": "hidden", "profile": "lab"}):
                with self.assertRaisesRegex(ValueError, "together") as wrong:
                    client(**words)
                self.assertNotIn("hidden", str(wrong.exception))
            with self.assertRaisesRegex(penstock.PenstockError, "control character") as caught:
                client(access_key="A", secret_key="hidden\n")
            self.assertNotIn("hidden", str(caught.exception))
        finally:
            os.environ.clear()
            os.environ.update(old)


    def test_checked(self):
        """The client refuses invalid headers, methods and URLs, which could change a request."""
        url = client().url("bucket/key")
        for words, call in (
                ("header 'x-a'", lambda: _s3.ask(url, "GET", headers={"x-a": "b\r\nx-c: d"})),
                ("header 'X-A'", lambda: _s3.ask(url, "GET", headers={"X-A": "b"})),
                ("header 'x a'", lambda: _s3.ask(url, "GET", headers={"x a": "b"})),
                ("at most 4 headers",
                 lambda: _s3.ask(url, "GET", headers={f"x-{i}": "b" for i in range(5)})),
                ("the method must be", lambda: _s3.ask(url, "POST")),
                ("the method must be", lambda: _s3.ask(url, "GET / HTTP/1.1\r\n")),
                ("needs a URL s3://", lambda: _s3.ask(Store.endpoint, "GET")),
                ("a bucket's name", lambda: _s3.ask("s3://a b/key", "GET")),
                ("want s3://BUCKET/KEY", lambda: _s3.ask("s3://bucket", "GET")),
                ("want s3://BUCKET/KEY",
                 lambda: _transfer.Storage("s3://bucket/" + client()._query, "name"))):
            with self.subTest(words=words):
                with self.assertRaisesRegex(penstock.PenstockError, words) as caught:
                    call()
                self.assertIn(caught.exception.errno, (errno.EINVAL, errno.E2BIG))

    def test_documented(self):
        """Runs the blocks of docs/python.md about objects as one program."""
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs",
                               "python.md"), encoding="utf-8") as f:
            text = f.read()
        blocks = re.findall(r"^```python objects\n(.*?)^```", text, re.S | re.M)
        self.assertGreater(len(blocks), 1)
        space, output = {}, io.StringIO()
        os.environ["AWS_ENDPOINT_URL"] = Store.endpoint
        penstock.fsspec.register("penstock")  # The entry point of an installed package does this.
        try:
            with contextlib.redirect_stdout(output):
                exec("\n".join(blocks), space)  # pylint: disable=exec-used
        finally:
            del os.environ["AWS_ENDPOINT_URL"]
        self.assertEqual(output.getvalue().splitlines()[0], "4000 bytes")
        self.assertEqual(space["other"].tobytes(), space["array"].tobytes())
        self.assertEqual(set(space["tensors"]), {"a"})
        for name in penstock._objects.__all__ + ["penstock.fsspec"]:
            self.assertIn(name, text)
        for name, member in vars(penstock.ObjectClient).items():
            if callable(member) and not name.startswith("_"):
                self.assertIn(f"`{name}", text, name)


class Prefetch(unittest.TestCase):
    """A read from an object's start sends its HEAD and its GET at the same time."""

    def setUp(self):
        self.data, self.requests, self.tokens = RANDOM.randbytes(4096), [], []
        self.addresses = []  # of the windows of transport tcp1
        case = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                span = self.headers.get("range")
                case.requests.append((self.command, span))
                if "x-amz-rdma-token" in self.headers:
                    fields = self.headers["x-amz-rdma-token"].split(":")
                    case.tokens.append(fields[2])
                    if fields[2] == "tcp1":
                        case.addresses.append(":".join(fields[3:-2]))
                first, last = map(int, re.findall(r"\d+", span or f"0 {len(case.data)}"))
                part = case.data[first:last + 1]
                self.send_response(206 if span else 200)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", str(len(part)))
                if span:
                    self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/"
                                     f"{len(case.data)}")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(part)

            do_GET = do_HEAD

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = "http://127.0.0.1:%d" % server.server_address[1]
        patch = unittest.mock.patch.dict(os.environ, PENSTOCK_RDMA="off")
        patch.start()
        self.addCleanup(patch.stop)

    def sent(self, **options):
        """Returns a client, and forgets earlier requests."""
        self.requests.clear()
        return penstock.ObjectClient(self.url, **options)

    def test_requests(self):
        # An open waits for the first bytes for 1 s, and reads use them for 1 s.
        tap.timely(self.check_requests, 1)

    def check_requests(self):
        first = [("GET", "bytes=0-65535"), ("HEAD", None)]
        self.assertEqual(self.sent().get_bytes("b/k"), self.data)
        self.assertEqual(sorted(self.requests), first)
        self.assertEqual(self.sent().get_bytes_range("b/k", 0, 9), self.data[:9])
        self.assertEqual(sorted(self.requests), first)
        report = penstock.TransferReport()
        self.assertEqual(bytes(self.sent().get("b/k", framework="np", report=report)), self.data)
        self.assertEqual(sorted(self.requests), first)
        self.assertEqual((report.paths, report.cpu_copies), ({"bounce": 4096}, 2.0))
        self.assertEqual(self.sent().get_bytes_range("b/k", 5, 9), self.data[5:14])
        self.assertEqual(self.requests, [("HEAD", None), ("GET", "bytes=5-13")])
        fs = penstock.fsspec.PenstockFileSystem(self.url)
        self.requests.clear()
        with fs.open("b/k") as f:
            self.assertEqual((f.size, f.read()), (4096, self.data))
        self.assertEqual(sorted(self.requests), first)
        with fs.open("b/k", size=4096) as f:
            self.requests.clear()
            f.seek(5)
            self.assertEqual(f.read(), self.data[5:])
        self.assertEqual(self.requests, [("HEAD", None), ("GET", "bytes=5-4095")])
        for start, end, sent in ((None, None, first), (0, 9, first), (None, -9, first),
                                 (5, 9, [("HEAD", None), ("GET", "bytes=5-8")]),
                                 (-9, None, [("HEAD", None), ("GET", "bytes=4087-4095")]),
                                 (9, 5, [("HEAD", None)])):
            self.requests.clear()
            self.assertEqual(fs.cat_file("b/k", start, end), self.data[start:end])
            self.assertEqual(sorted(self.requests), sorted(sent))

    def test_rdma(self):
        """The arguments rdma, rdma_transports and rdma_addresses select the transport and the
        address of the token that the client sends. This server ignores tokens, and gets one of each
        transport."""
        words = {"rdma": "on", "rdma_transports": "tcp1"}
        self.assertEqual(self.sent(**words).url("b/k").split("&", 1)[1],
                         "rdma=on&rdma-transports=tcp1")
        self.assertEqual(self.sent(**words).get_bytes("b/k"), self.data)
        fs = penstock.fsspec.PenstockFileSystem(self.url, rdma="on", rdma_transports="shm1")
        self.assertEqual(fs.cat_file("b/k"), self.data)
        self.assertEqual(self.sent().get_bytes("b/k"), self.data)
        with unittest.mock.patch.dict(os.environ, PENSTOCK_RDMA="on",
                                      PENSTOCK_RDMA_TRANSPORTS="tcp1,shm1"):
            self.assertEqual(self.sent().get_bytes("b/k"), self.data)
        self.assertEqual(self.tokens, ["tcp1", "shm1", "tcp1"])
        self.addresses.clear()
        for client in (self.sent(**words, rdma_addresses="127.0.0.2,127.0.0.3"),
                       penstock.fsspec.PenstockFileSystem(self.url, **words,
                                                          rdma_addresses="127.0.0.4,::1").client):
            self.assertIn("&rdma-addresses=127.0.0.", client.url("b/k"))
            self.assertEqual(client.get_bytes("b/k"), self.data)
        self.assertEqual(self.addresses, ["127.0.0.2", "127.0.0.4"])
        with self.assertRaisesRegex(penstock.PenstockError, "want numeric addresses of this host"):
            self.sent(rdma_addresses="localhost").get_bytes("b/k")
        with self.assertRaisesRegex(penstock.PenstockError, "ignored the token"):
            self.sent(rdma="require", rdma_transports="tcp1").get_bytes("b/k")
        for create in (penstock.ObjectClient, penstock.fsspec.PenstockFileSystem):
            with self.assertRaisesRegex(ValueError, "rdma must be one of"):
                create(self.url, rdma="perhaps")

    def test_stricter_class(self):
        with self.assertRaises(penstock.PenstockError):
            self.sent(require="no-cpu-copy").get_bytes("b/k")
        self.assertEqual(self.requests, [("HEAD", None)])


class Data(unittest.TestCase):
    """Tests transfers of objects from and to memory of several kinds."""

    def test_shapes(self):
        """Puts and gets random arrays, whole and in part, contiguous and with gaps."""
        for number in range(30):
            dtype = RANDOM.choice(["uint8", "int16", "float32", "float64"])
            shape = [RANDOM.randrange(1, 60) for _ in range(RANDOM.randrange(1, 4))]
            array = numpy.frombuffer(RANDOM.randbytes(int(numpy.prod(shape)) * 8),
                                     dtype)[:int(numpy.prod(shape))].reshape(shape)
            view = array[..., RANDOM.randrange(shape[-1]):]
            with self.subTest(number=number, dtype=dtype, shape=shape, view=view.shape):
                report = client().put("bucket/array", view)
                self.assertEqual(report.bytes, view.nbytes)
                self.assertEqual(body("array"), view.tobytes())
                wide = numpy.full([*view.shape[:-1], view.shape[-1] + 3], 7, dtype)
                out = wide[..., 1:-2]
                told = penstock.TransferReport()
                self.assertIs(client().get("bucket/array", out, report=told), out)
                self.assertEqual(out.tobytes(), view.tobytes())
                self.assertTrue((wide[..., :1] == 7).all() and (wide[..., -2:] == 7).all())
                self.assertEqual(told.bytes, view.nbytes)
                self.assertEqual(sum(told.paths.values()), view.nbytes)
                first = RANDOM.randrange(view.nbytes)
                length = RANDOM.randrange(1, view.nbytes + 9)
                self.assertEqual(client().get_bytes_range("bucket/array", first, length),
                                 view.tobytes()[first:first + length])

    def test_devices(self):
        data = RANDOM.randbytes(3 << 20)
        put("device", data)
        for device in ("cpu", "cuda:0"):
            got = client().get("bucket/device", device=device, framework="dlpack")
            self.assertEqual((got.dtype, got.shape), ("U8", (len(data),)))
            self.assertEqual(got.device, "host" if device == "cpu" else device)
            client().put("bucket/back", got)
            self.assertEqual(body("back"), data)
            got = client().get("bucket/device", device=device, dtype="F32", shape=(3, 1 << 18),
                               framework="dlpack")
            self.assertEqual((got.dtype, got.shape), ("F32", (3, 1 << 18)))
            client().get_rdma("bucket/device", got)
            client().put_rdma("bucket/back2", got)
            self.assertEqual(body("back2"), data)
        got = client().get("bucket/device", dtype="I16", offset=4, framework="np")
        self.assertEqual(got.tobytes(), data[4:])

    def test_held(self):
        """While a transfer uses a buffer, the program cannot resize it, which would free its
        memory."""
        put("held", b"0123456789")
        data, move, moves = bytearray(10), _transfer.Storage.move, []

        def resizing(storage, *args, **how):
            with self.assertRaises(BufferError):
                data.append(0)
            moves.append(move(storage, *args, **how).bytes)
        with unittest.mock.patch.object(_transfer.Storage, "move", resizing):
            client().get("bucket/held", data)
            client().put("bucket/held", data)
        self.assertEqual((data, moves), (b"0123456789", [10, 10]))
        data.append(0)

    def test_long(self):
        """Puts and gets an object that is so long that it is uploaded in parts."""
        data = RANDOM.randbytes(1 << 20) * 41 + b"end"
        client().put_bytes("bucket/long", data)
        self.assertEqual(body("long"), data)
        self.assertEqual(client().get_bytes("bucket/long"), data)

    def test_empty(self):
        client().put_bytes("bucket/empty", b"")
        self.assertEqual(body("empty"), b"")
        self.assertEqual(client().get_bytes("bucket/empty"), b"")
        self.assertEqual(client().get("bucket/empty", framework="dlpack").shape, (0,))
        self.assertTrue(client().exists("bucket/empty"))

    def test_names(self):
        for key in KEYS:
            with self.subTest(key=key):
                client().put_bytes("bucket/" + key, key.encode())
                self.assertEqual(body(key), key.encode())
                self.assertEqual(client(bucket="bucket").get_bytes(key), key.encode())

    def test_refused(self):
        put("ten", b"0123456789")
        with self.assertRaises(FileNotFoundError) as caught:
            client().get("bucket/absent")
        self.assertEqual((caught.exception.reason, caught.exception.path),
                         ("not-found", "s3://bucket/absent"))
        with self.assertRaises(penstock.PenstockError) as caught:
            client().get("bucket/ten", bytearray(11))
        self.assertEqual(caught.exception.errno, errno.ENODATA)
        for words, call in (
                ("read-only", lambda: client().get("bucket/ten", b"0123456789")),
                ("no whole number", lambda: client().get("bucket/ten", dtype="F32")),
                ("no whole number", lambda: client().get("bucket/ten", offset=11)),
                ("must not be negative", lambda: client().get("bucket/ten", offset=-1)),
                ("there is no dtype", lambda: client().get("bucket/ten", dtype="U9"))):
            with self.assertRaisesRegex(ValueError, words):
                call()
        with self.assertRaises(TypeError):
            client().put("bucket/ten", 5)
        self.assertEqual(body("ten"), b"0123456789")
        with self.assertRaisesRegex(penstock.ClassRefusedError, "object meets at most no-cpu-copy"):
            client(require="direct").get_bytes("bucket/ten")

    def test_fork(self):
        client().put_bytes("bucket/forked", b"parent")
        child = os.fork()
        if not child:
            try:
                assert client().get_bytes("bucket/forked") == b"parent"
                client().put_bytes("bucket/forked", b"child")
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(client().get_bytes("bucket/forked"), b"child")

    def test_threads(self):
        shared, failed = client(), []

        def work(number):
            try:
                for i in range(10):
                    data = RANDOM.randbytes(100_000)
                    shared.put_bytes(f"bucket/thread{number}", data)
                    assert shared.get_bytes(f"bucket/thread{number}") == data, (number, i)
            except BaseException as error:  # pylint: disable=broad-except
                failed.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


class Models(unittest.TestCase):
    """Tests safetensors files in a bucket."""

    TENSORS = {"a": numpy.arange(100_000, dtype=numpy.float32).reshape(100, 1000),
               "b": numpy.arange(7, dtype=numpy.int16)}

    def same(self, got):
        self.assertEqual({n: v.tobytes() for n, v in got.items()},
                         {n: v.tobytes() for n, v in self.TENSORS.items()})

    def test_one_file(self):
        penstock.save_file(self.TENSORS, client().url("bucket/model/model.safetensors"))
        self.assertIn(b'"a"', body("model/model.safetensors"))
        for name in ("model/model.safetensors", "model"):
            self.same(penstock.load_file(client().url("bucket/" + name), framework="np"))
        with penstock.safe_open(client().url("bucket/model"), "np") as f:
            self.assertEqual(f.get_slice("a")[10:20].tobytes(), self.TENSORS["a"][10:20].tobytes())
        self.same(dict((n, v.copy()) for n, v in
                       penstock.iterate(client().url("bucket/model"), framework="np")))

    def test_group(self):
        """Two processes read one model together."""
        name = client().url("bucket/group.safetensors")
        big = {f"t{i}": numpy.full(1 << 18, i, dtype=numpy.float32) for i in range(40)}
        penstock.save_file(big, name)
        children = []
        for rank in range(2):
            children.append(os.fork())
            if not children[-1]:
                try:
                    with penstock.Group(f"objects-{os.getppid()}", rank, 2) as group:
                        got = penstock.load_file(name, framework="np", group=group)
                    assert got.keys() == big.keys()
                    assert all((got[n] == big[n]).all() for n in big)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
        self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0, 0])

    def test_engine(self):
        """file_weights, with which the loaders for vLLM and SGLang read files, reads a bucket."""
        penstock.save_file(self.TENSORS, client().url("bucket/engine/model.safetensors"))
        steps = _engine.file_weights([client().url("bucket/engine")], "cpu", None,
                                     {"window": 1 << 20}, "p.")
        self.same({name.removeprefix("p."): numpy.array(value) for name, value in steps})

    def test_environment(self):
        penstock.save_file(self.TENSORS, client().url("bucket/plain.safetensors"))
        os.environ["AWS_ENDPOINT_URL"] = Store.endpoint
        try:
            self.same(penstock.load_file("s3://bucket/plain.safetensors", framework="np"))
        finally:
            del os.environ["AWS_ENDPOINT_URL"]

    def test_index(self):
        files = {"a": "part 1.safetensors", "b": "part 2.safetensors"}
        for name, file in files.items():
            penstock.save_file({name: self.TENSORS[name]}, client().url("bucket/sharded/" + file))
        client().put_bytes("bucket/sharded/model.safetensors.index.json",
                           json.dumps({"weight_map": files}).encode())
        for name in ("sharded/", "sharded/model.safetensors.index.json"):
            self.same(penstock.load_file(client().url("bucket/" + name), framework="np"))

    def test_presigned(self):
        penstock.save_file(self.TENSORS, client().url("bucket/signed.safetensors"))
        url = Store.boto.generate_presigned_url("get_object", Params={
            "Bucket": "bucket", "Key": "signed.safetensors"})
        self.same(penstock.load_file(url, framework="np"))
        with self.assertRaises(FileNotFoundError) as caught:
            penstock.load_file(url.replace("signed", "absent"), framework="np")
        self.assertIn("absent.safetensors", str(caught.exception))
        self.assertNotIn("Signature", str(caught.exception) + str(caught.exception.path))

    def test_changed(self):
        """If an object is replaced after its header was read, the read of a tensor fails."""
        name = client().url("bucket/changed.safetensors")
        penstock.save_file(self.TENSORS, name)
        with penstock.safe_open(name, "np") as f:
            penstock.save_file({n: v + 1 for n, v in self.TENSORS.items()}, name)
            with self.assertRaisesRegex(penstock.PenstockError, "changed") as caught:
                f.get_tensor("a")
        self.assertEqual(caught.exception.errno, errno.ESTALE)


class FileSystem(unittest.TestCase):
    """Tests penstock.fsspec, called directly and through the package fsspec."""

    def setUp(self):
        self.fs = penstock.fsspec.PenstockFileSystem(Store.endpoint, skip_instance_cache=True)
        for found in client().list_objects("bucket/fs/"):
            client().delete(found)
        for name, data in (("fs/a", b"aa"), ("fs/d/b", b"bbb"), ("fs/d/e/c", b"c" * 5000)):
            put(name, data)

    def test_look(self):
        self.assertEqual(self.fs.ls("bucket/fs", detail=False), ["bucket/fs/a", "bucket/fs/d"])
        self.assertEqual([r["type"] for r in self.fs.ls("penstock://bucket/fs/")],
                         ["file", "directory"])
        self.assertEqual(self.fs.find("bucket/fs"),
                         ["bucket/fs/a", "bucket/fs/d/b", "bucket/fs/d/e/c"])
        self.assertEqual(self.fs.glob("bucket/fs/**/c"), ["bucket/fs/d/e/c"])
        self.assertEqual(self.fs.glob("bucket/fs/*"), ["bucket/fs/a", "bucket/fs/d"])
        self.assertTrue(self.fs.isdir("bucket/fs/d") and self.fs.isfile("bucket/fs/d/b"))
        self.assertTrue(self.fs.isdir("bucket") and not self.fs.exists("bucket/fs/none"))
        self.assertEqual(self.fs.size("bucket/fs/d/e/c"), 5000)
        self.assertEqual(self.fs.du("bucket/fs"), 5005)
        self.assertEqual(self.fs.modified("bucket/fs/a"),
                         Store.boto.head_object(Bucket="bucket", Key="fs/a")["LastModified"])
        with self.assertRaises(FileNotFoundError):
            self.fs.ls("bucket/fs/none")

    def test_read(self):
        with self.fs.open("bucket/fs/d/e/c") as f:
            f.seek(4990)
            self.assertEqual(f.read(), b"c" * 10)
            self.assertEqual(f.read(), b"")
        self.assertEqual(self.fs.cat(["bucket/fs/d/b", "bucket/fs/d/e/c"]),
                         {"bucket/fs/d/b": b"bbb", "bucket/fs/d/e/c": b"c" * 5000})
        self.assertEqual(self.fs.cat_file("bucket/fs/d/b", 1), b"bb")
        self.assertEqual(self.fs.cat_file("bucket/fs/d/b", -2, -1), b"b")
        self.assertEqual(self.fs.head("bucket/fs/d/e/c", 3), b"ccc")
        for name in ("bucket/fs/none", "bucket/fs/d"):
            with self.assertRaises(FileNotFoundError):
                self.fs.open(name)
        with self.fs.open("bucket/fs/a", "r") as f:
            self.assertEqual(f.read(), "aa")

    def test_read_one_version(self):
        """The size and the bytes of an open file are those of the object at the open."""
        put("fs/a", bytes(100000))
        with self.fs.open("bucket/fs/a") as f:
            self.assertEqual(f.info(), self.fs.info("bucket/fs/a"))
            put("fs/a", b"other")
            with self.assertRaises(penstock.PenstockError) as caught:
                f.read()
            self.assertEqual((caught.exception.errno, f.size), (errno.ESTALE, 100000))

    def test_read_in_another_process(self):
        """A child of fork and a process that unpickles the file open the object again."""
        with self.fs.open("bucket/fs/d/e/c") as f, pickle.loads(pickle.dumps(f)) as again:
            self.assertEqual(again.read(), b"c" * 5000)
            child = os.fork()
            if not child:
                signal.alarm(60)  # Ends a child that hangs, for which waitpid would wait forever.
                same = False
                try:
                    same = f.read() == b"c" * 5000
                finally:
                    os._exit(not same)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(f.read(), b"c" * 5000)

    def test_write(self):
        data = RANDOM.randbytes(1 << 20) * 20
        with self.fs.open("bucket/fs/new", "wb") as f:
            for at in range(0, len(data), 700_000):
                f.write(data[at:at + 700_000])
            self.assertFalse(self.fs.exists("bucket/fs/new"))
        self.assertEqual(body("fs/new"), data)
        with self.fs.open("bucket/fs/none", "wb"):
            pass
        self.assertEqual(body("fs/none"), b"")
        with self.assertRaises(ZeroDivisionError), self.fs.transaction:
            with self.fs.open("bucket/fs/half", "wb") as f:
                f.write(b"x")
            raise ZeroDivisionError
        self.assertFalse(self.fs.exists("bucket/fs/half"))
        with self.fs.transaction, self.fs.open("bucket/fs/done", "wb") as f:
            f.write(b"x")
        self.assertEqual(body("fs/done"), b"x")

    def test_exclusive(self):
        """The modes "create" and "x" never replace an object, also not one that another client
        creates meanwhile."""
        source = tempfile.mkstemp(dir=TMP)[1]
        with open(source, "wb") as f:
            f.write(b"mine")

        def opened(name, _mode):
            with self.fs.open(name, "xb") as f:
                f.write(b"mine")
        calls = {"pipe_file": lambda name, mode: self.fs.pipe_file(name, b"mine", mode=mode),
                 "put_file": lambda name, mode: self.fs.put_file(source, name, mode=mode),
                 "open": opened}
        commit = _transfer.Storage.commit

        def late(storage, *args):
            put("fs/" + name, b"theirs")
            commit(storage, *args)
        for name, call in calls.items():
            with self.subTest(name=name):
                with unittest.mock.patch.object(_transfer.Storage, "commit", late):
                    with self.assertRaises(FileExistsError):
                        call("bucket/fs/" + name, "create")
                self.assertEqual(body("fs/" + name), b"theirs")
                with self.assertRaises(FileExistsError) as caught:
                    call("bucket/fs/" + name, "create")
                self.assertEqual((caught.exception.errno, caught.exception.filename),
                                 (errno.EEXIST, "bucket/fs/" + name))
                self.assertEqual(body("fs/" + name), b"theirs")
                self.fs.rm("bucket/fs/" + name)
                call("bucket/fs/" + name, "create")
                self.assertEqual(body("fs/" + name), b"mine")
        for name in ("pipe_file", "put_file"):
            with self.assertRaisesRegex(ValueError, "must be 'overwrite' or 'create'"):
                calls[name]("bucket/fs/" + name, "other")
            calls[name]("bucket/fs/" + name, "overwrite")
        for mode in ("ab", "r+b", "zb"):
            with self.assertRaises(NotImplementedError):
                self.fs.open("bucket/fs/open", mode)
        self.assertEqual(body("fs/open"), b"mine")
        try:
            self.fs.open("bucket/fs/open", "xb")
            self.fail("the open has not failed")
        except FileExistsError:
            self.fs.rm("bucket/fs/open")
        gc.collect()
        self.assertFalse(self.fs.exists("bucket/fs/open"), "a finalizer has created it")

    def test_change(self):
        self.fs.cp("bucket/fs/d", "bucket/fs/copy", recursive=True)
        self.assertEqual(self.fs.find("bucket/fs/copy"), ["bucket/fs/copy/b", "bucket/fs/copy/e/c"])
        self.fs.mv("bucket/fs/a", "bucket/fs/moved")
        self.assertEqual(body("fs/moved"), b"aa")
        self.assertFalse(self.fs.exists("bucket/fs/a"))
        self.fs.rm("bucket/fs/copy", recursive=True)
        self.assertFalse(self.fs.exists("bucket/fs/copy"))
        with self.assertRaises(FileNotFoundError):
            self.fs.rm("bucket/fs/a")
        folder = tempfile.mkdtemp(dir=TMP)
        self.fs.get("bucket/fs/d", folder + "/d", recursive=True)
        with open(folder + "/d/e/c", "rb") as f:
            self.assertEqual(f.read(), b"c" * 5000)
        self.fs.put(folder + "/d", "bucket/fs/up", recursive=True)
        self.assertEqual(body("fs/up/e/c"), b"c" * 5000)

    def test_registered(self):
        penstock.fsspec.register("s3")
        try:
            with fsspec.open("s3://bucket/fs/a", endpoint_url=Store.endpoint) as f:
                self.assertEqual(f.read(), b"aa")
            with fsspec.open("s3://bucket/fs/text", "w", endpoint_url=Store.endpoint) as f:
                f.write("text")
        finally:
            sys.modules["fsspec.registry"]._registry.pop("s3")
        self.assertEqual(body("fs/text"), b"text")


class Planned(http.server.BaseHTTPRequestHandler):
    """A server that gives the answers in `plan`, one after the other."""
    protocol_version = "HTTP/1.1"
    plan, seen = [], []

    def do_GET(self):  # pylint: disable=invalid-name
        self.seen.append(self.path)
        status, answer = self.plan.pop(0)
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        # The write fails if the client has closed the connection before it has read the whole
        # answer.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(answer)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


class SlowCopy(http.server.BaseHTTPRequestHandler):
    """A server that answers a copy after 3 s, or as soon as a second request arrives."""
    protocol_version = "HTTP/1.1"
    seen, second = [], threading.Event()

    def do_PUT(self):  # pylint: disable=invalid-name
        self.seen.append(self.headers["x-amz-copy-source"])
        if len(self.seen) > 1:
            self.second.set()
        self.second.wait(3)
        answer = b"<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>"
        # The write fails if the client has closed the connection instead of waiting for the answer.
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


class Answers(unittest.TestCase):
    """Tests a server's errors, and answers that a server should not give."""

    def test_slow_copy(self):
        """A copy may take longer than the time limit of other requests. The client waits, and does
        not send the request again."""
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SlowCopy) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever).start()
            try:
                penstock.ObjectClient("http://127.0.0.1:%d" % server.server_address[1], timeout=1,
                                      bucket="bucket").copy("from", "to")
            finally:
                server.shutdown()
        self.assertEqual(SlowCopy.seen, ["/bucket/from"])

    def ask(self, *plan):
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Planned) as server:
            server.daemon_threads = True
            Planned.plan, Planned.seen = list(plan), []
            threading.Thread(target=server.serve_forever).start()
            try:
                return penstock.ObjectClient("http://127.0.0.1:%d" % server.server_address[1]
                                             ).list_objects("bucket/")
            finally:
                server.shutdown()

    PAGE = (b'<?xml version="1.0"?>'
            b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            b"<EncodingType>url</EncodingType>"
            b"<Contents><Key>a%2Fb</Key><Size>1</Size></Contents></ListBucketResult>")

    def test_repeated(self):
        """The client repeats a request after a broken connection and after a temporary error."""
        got = self.ask((None, b""), (503, b"<Error><Code>SlowDown</Code></Error>"), (500, b""),
                       (200, self.PAGE))
        self.assertEqual(got, ["bucket/a/b"])
        self.assertEqual(len(Planned.seen), 4)

    def test_encoding(self):
        """Some servers ignore encoding-type=url. The client must not decode their keys, which are
        not percent-encoded."""
        page = self.PAGE.replace(b"</Contents>", b"</Contents><CommonPrefixes><Prefix>a+%2F/"
                                 b"</Prefix></CommonPrefixes>").replace(b"a%2Fb", b"a+b%2Fc")
        self.assertEqual(self.ask((200, page)), ["bucket/a //", "bucket/a b/c"])
        plain = page.replace(b"<EncodingType>url</EncodingType>", b"")
        for answer in (plain, plain.replace(b"<Contents>", b"<EncodingType/><Contents>")):
            self.assertEqual(self.ask((200, answer)), ["bucket/a+%2F/", "bucket/a+b%2Fc"])

    def test_refused(self):
        with self.assertRaisesRegex(penstock.PenstockError, "answered 403 AccessDenied") as caught:
            self.ask((403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"))
        self.assertEqual(caught.exception.errno, errno.EACCES)
        self.assertNotIn(SECRET, str(caught.exception))

    def test_hostile(self):
        bomb = b'<!DOCTYPE x [<!ENTITY a "' + b"b" * 1000 + b'">]><x>' + b"&a;" * 1000 + b"</x>"
        for answer, words in ((bomb, "declaration"), (b"<a>", "malformed"), (b"", "malformed"),
                              (b"x" * (4 << 20) + b"y", "has more than 4194304 bytes")):
            with self.assertRaisesRegex(penstock.PenstockError, words):
                self.ask((200, answer))

    def test_endless_list(self):
        page = self.PAGE.replace(b"<Contents>", b"<IsTruncated>true</IsTruncated>"
                                 b"<NextContinuationToken>t</NextContinuationToken><Contents>")
        with self.assertRaisesRegex(penstock.PenstockError, "does not go on"):
            self.ask((200, page), (200, page), (200, page))
        self.assertEqual(len(Planned.seen), 2)


if __name__ == "__main__":
    store.exit_without_objects()
    tap.main()
