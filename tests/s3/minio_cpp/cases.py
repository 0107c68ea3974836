#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests S3 over RDMA between minio-cpp, a client of another project, and `penstock serve`.
minio-cpp is unmodified. Our libs3rdma.so.0 (s3rdma.c) gives it tokens of transport tcp1. The
counters of the server prove whether the bytes moved through a window or as a body of HTTP. cases.py
[WORD...] runs the cases whose names contain one of the words, or all. Prints TAP;
tests/s3/minio_cpp/run runs it."""

import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# pylint: disable=wrong-import-position
from served import ADDRESS, BUILD, KEY, SECRET, Gateway, run_cases, same  # noqa: E402

MIB = 1 << 20
LEN = 9 * MIB + 77
LIMIT_S = 60
PLACE = os.path.join(BUILD, "minio-cpp")
FOLDER = tempfile.TemporaryDirectory()
FILE, GOT = (os.path.join(FOLDER.name, name) for name in ("file", "got"))
DATA = random.Random(11).randbytes(LEN)
MD5 = hashlib.md5(DATA).hexdigest()


def start(server, *words, **env):
    standin = os.path.join(BUILD, "tests", "standin")
    env = dict(os.environ, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
               PENSTOCK_S3RDMA_LOG="1", LD_LIBRARY_PATH=f"{PLACE}/lib:{standin}",
               PENSTOCK_LIBCUDA=os.path.join(standin, "libcuda.so.1"), **env)
    return subprocess.Popen([os.path.join(PLACE, "driver"), server.split("//")[1],
                             *map(str, words)],
                            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(server, *words, **env):
    """Returns the line that the program driver.cc prints, and the number of its tokens."""
    out, err = start(server, *words, **env).communicate(timeout=LIMIT_S)
    tokens = re.findall(r"^token \S+:tcp1:\S+$|^token x\S+$", err, re.M)
    same(re.sub(r"^(token|failed) \S+\n", "", err, flags=re.M), "", "messages of minio-cpp")
    return out.strip(), len(tokens)


class Setup:
    """A gateway with the bucket data-1, and counters of it."""

    def __init__(self, *flags):
        self.gateway = Gateway(flags=flags)
        self.plain = self.gateway.client()
        self.plain.create_bucket(Bucket="data-1")
        with open(FILE, "wb") as file:
            file.write(DATA)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gateway.close()

    def run(self, how, key, file, *words, **env):
        return run(self.gateway.url, how, "data-1", key, file, *words, **env)

    def counter(self, name):
        text = self.gateway.get("/metrics")[1]
        found = re.search("^penstock_" + re.escape(name) + r" (\d+)$", text, re.M)
        return int(found[1]) if found else 0

    def moved(self):
        """Returns the numbers of bytes that tcp1 has moved in and out."""
        return tuple(self.counter(f'bytes_total{{transport="tcp1",side="front",'
                                  f'direction="{direction}"}}') for direction in ("in", "out"))

    def log(self):
        """Returns pairs of method and status of all requests for the object."""
        with open(self.gateway.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return [(line["method"], line["status"]) for line in lines if "key" in line["path"]]

    def stored(self, key="key"):
        return self.plain.get_object(Bucket="data-1", Key=key)["Body"].read()


def got():
    with open(GOT, "rb") as file:
        return file.read()


def case_put_and_get():
    with Setup() as s:
        out, tokens = s.run("put", "key", FILE)
        same((out[:3], tokens), ("ok ", 1), f"PUT: {out}")
        same(s.moved(), (LEN, 0), "bytes by tcp1")
        same(s.stored() == DATA, True, "the object by HTTP")
        same(s.run("get", "key", GOT, LEN), ("ok", 1), "GET")
        same(got() == DATA, True, "the object by RDMA")
        same(s.moved(), (LEN, LEN), "bytes by tcp1")


def case_ranges():
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=DATA)
        for off, size in ((5000, 1000), (0, 1), (LEN - 7, 7)):
            same(s.run("range", "key", GOT, size, off), ("ok", 1), f"range {off} {size}")
            same(got() == DATA[off:off + size], True, f"bytes of range {off} {size}")
        same(s.moved(), (0, 1008), "bytes by tcp1")
        # The object ends before the range: the window stays unchanged behind the object's end.
        same(s.run("range", "key", GOT, 100, LEN - 7), ("ok", 1), "a range that ends later")
        same(got() == DATA[-7:] + b"\xee" * 93, True, "bytes of the range that ends later")
        same(s.run("get", "key", GOT, LEN + 5), ("ok", 1), "a buffer that is longer")
        same(got() == DATA + b"\xee" * 5, True, "bytes in the longer buffer")
        same(s.moved(), (0, 1015 + LEN), "bytes by tcp1")


def case_parts():
    """Each part has a token and a CRC-64/NVME, which the server compares with the bytes."""
    data = random.Random(12).randbytes(12 * MIB + 5)
    for inflight in (1, 3):
        with Setup() as s:
            with open(FILE, "wb") as file:
                file.write(data)
            out, tokens = s.run("parts", "key", FILE, 5 * MIB, inflight)
            same((out[:3], tokens), ("ok ", 3), f"parts: {out}")
            same(s.stored() == data, True, "the object")
            same(s.moved(), (len(data), 0), "bytes by tcp1")


def case_gpu_memory():
    """The memory is that of the stand-in, a simulated CUDA driver."""
    with Setup() as s:
        out, tokens = s.run("put", "key", FILE, "gpu")
        same((out[:3], tokens), ("ok ", 1), f"PUT: {out}")
        same(s.stored() == DATA, True, "the object by HTTP")
        same(s.run("get", "key", GOT, LEN, "gpu"), ("ok", 1), "GET")
        same(got() == DATA, True, "the object by RDMA")
        same(s.moved(), (LEN, LEN), "bytes by tcp1")


def fall_back(fault, counter, statuses, *flags):
    """Tokens that the server declines or cannot use: minio-cpp moves the bytes by HTTP. `statuses`
    are those of the PUT and of the GET with a token, `counter` counts both."""
    with Setup(*flags) as s:
        env = {"PENSTOCK_S3RDMA_FAULT": fault} if fault else {}
        out, count = s.run("put", "key", FILE, **env)
        same((out, count), (f"ok {MD5}", 1), "PUT")
        same(s.stored() == DATA, True, "the object")
        requests = s.log()
        same(s.run("get", "key", GOT, LEN, **env), ("ok", 1), "GET")
        same(got() == DATA, True, "the bytes")
        same(s.moved(), (0, 0), "bytes by tcp1")
        if counter:
            same(s.counter(counter), 2, counter)
        same(s.log()[len(requests):], [("GET", statuses[1]), ("GET", 200)], "requests of the GET")
        # The last request is that of boto3.
        same(requests[-3:], [("PUT", statuses[0]), ("PUT", 200), ("GET", 200)],
             "requests of the PUT")


def case_server_without_rdma():
    fall_back(None, 'rdma_declined_total{reason="no-transport"}', (200, 200), "--rdma", "none")


def case_tokens_of_another_host():
    fall_back("foreign", 'rdma_declined_total{reason="other-address"}', (200, 200))


def case_malformed_tokens():
    fall_back("malformed", None, (400, 400))


def case_unreachable_windows():
    fall_back("unreachable", 'rdma_declined_total{reason="unreachable"}', (200, 200))


def case_released_windows():
    fall_back("released", "rdma_failed_total", (500, 200))


def case_server_dies():
    """The server is killed in the middle of a transfer. minio-cpp must report an error, and the
    object must not exist."""
    length = 512 * MIB
    with Setup() as s:
        with open(FILE, "wb") as file:
            file.truncate(length)
        driver = start(s.gateway.url, "put", "data-1", "key", FILE)
        line = driver.stderr.readline()
        same(line[:6], "token ", line)
        s.gateway.stop(signal.SIGKILL)
        out, err = driver.communicate(timeout=LIMIT_S)
        same((driver.returncode, out[:6]), (0, "error "), f"PUT: {out} {err}")
        s.gateway.start()
        same("Contents" in s.gateway.client().list_objects_v2(Bucket="data-1"), False, "the key")


@contextlib.contextmanager
def mock_store(requests, **reply):
    """A mock of a server. It stores the requests' headers, and answers each one with a status and
    headers."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self):
            requests.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            for name, value in {"Content-Length": "0", **reply}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def do_GET(self):
            self.do_PUT()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer((ADDRESS, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{ADDRESS}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def signed(headers):
    return sorted(re.search("SignedHeaders=([^,]*)", headers["authorization"])[1].split(";"))


def case_headers_of_minio_cpp():
    """Which headers minio-cpp sends, and which of a response it needs."""
    requests = []
    with mock_store(requests, ETag='"0123"', x_amz_rdma_reply="200",
                    x_amz_rdma_bytes_transferred=str(LEN)) as url:
        with open(FILE, "wb") as file:
            file.write(DATA)
        same(run(url, "put", "data-1", "key", FILE), ("ok 0123", 1), "PUT")
        same(run(url, "get", "data-1", "key", GOT, LEN), ("ok", 1), "GET")
        same(run(url, "range", "data-1", "key", GOT, 10, 3), ("ok", 1), "range")
    print("# requests:", *({name: value for name, value in headers.items()
                            if name not in ("authorization", "x-amz-rdma-token")}
                           for headers in requests), sep="\n# ")
    need = ["host", "x-amz-content-sha256", "x-amz-date", "x-amz-rdma-token"]
    put, get, part = requests
    same(signed(put), sorted(need + ["content-length", "content-type"]), "signed headers, PUT")
    same(signed(get), need, "signed headers, GET")
    same((part["range"], "range" in signed(part)), ("bytes=3-12", True), "range")
    same({headers["x-amz-content-sha256"] for headers in requests}, {"UNSIGNED-PAYLOAD"}, "hash")
    same((put["content-length"], put.get("content-md5")), ("0", None), "PUT")


def case_server_that_ignores_tokens():
    """minio-cpp counts a PUT as done if the status is 200 and there is an ETag, also without
    x-amz-rdma-reply. So a server that ignores the token stores an empty object, and minio-cpp
    reports success. Our client half resends such a PUT."""
    requests = []
    with mock_store(requests, ETag='"d41d8cd98f00b204e9800998ecf8427e"') as url:
        with open(FILE, "wb") as file:
            file.write(DATA)
        same(run(url, "put", "data-1", "key", FILE),
             ("ok d41d8cd98f00b204e9800998ecf8427e", 1), "PUT")
    same([headers["content-length"] for headers in requests], ["0"], "requests")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
