#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests S3 over RDMA through `penstock serve --upstream`: bytes move by RDMA between the client's
window and the gateway, and by HTTP between the gateway and the upstream server. The client is
boto3 with examples/object_boto3.py, or a client in this file that ends in the middle of a
transfer. The upstream server is another gateway, moto, or the misbehaving server of server.py.
rdma_upstream.py [WORD...] runs the cases whose names contain one of the words, or all. Prints TAP;
tests/run runs it."""

import base64
import hashlib
import logging
import random
import select
import socket
import struct
import sys
import threading
import zlib

import botocore.exceptions

import rdma
from rdma import (LEN, MIB, WAYS, Stalled, declined_put, drain_during_a_drip,
                  object_boto3, until, with_token)
from served import Gateway, failure, run_cases, same
from server import Server
from upstream import BACK_KEY, BACK_KEYS, BACK_SECRET, ENV, FRONT_KEYS

KIB = 1 << 10
RING = 192 * KIB  # bytes of staging memory that one request uses


class Setup(rdma.Setup):
    """A gateway in front of another gateway, or of the server at `url`."""

    def __init__(self, transport=None, device="host", url=None, flags=()):
        self.back = None if url else Gateway(keys=BACK_KEYS)
        super().__init__(transport, device, keys=FRONT_KEYS, upstream=url or self.back.url,
                         env=ENV, flags=flags)
        self.direct = self.back.client(BACK_KEY, BACK_SECRET) if self.back else None

    def __exit__(self, *_):
        super().__exit__()
        if self.back:
            self.back.close()

    def stored(self, key):
        """Returns the body of an object that the upstream server stores, or None."""
        try:
            return self.direct.get_object(Bucket="data-1", Key=key)["Body"].read()
        except self.direct.exceptions.NoSuchKey:
            return None

    def is_idle(self):
        until(lambda: self.metric("buffer_bytes") == 0, "the staging is free")
        same(self.back.drafts(), [], "drafts of the upstream")


def crc32c(data):
    """Computes the CRC-32C byte by byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    TABLE.append(_byte)


class Puppet(threading.Thread):
    """A client of the transport tcp1. `data` is the content of its window. It answers `commands`
    commands of the gateway and then closes its connections, like a client that is killed."""

    def __init__(self, data, commands):
        super().__init__(daemon=True)
        self.data, self.commands, self.offsets = bytearray(data), commands, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.token = f"0:{len(data):x}:tcp1:127.0.0.1:{port}:{'0' * 32}"
        self.start()

    def run(self):
        connections = []
        # The gateway may open several connections.
        while not connections or len(self.offsets) < self.commands:
            for ready in select.select([self.listener, *connections], [], [])[0]:
                try:
                    if ready == self.listener:
                        connections.append(self.listener.accept()[0])
                        connections[-1].sendall(b"PENSTOCK tcp1 1\n")
                    elif len(self.offsets) < self.commands:
                        self.answer(ready)
                except OSError:
                    self.commands = 0
        for connection in (self.listener, *connections):
            connection.close()

    def answer(self, connection):
        command = connection.recv(56, socket.MSG_WAITALL)
        if len(command) < 56:
            raise ConnectionResetError
        _, kind, seq, _, _, off, length, _ = struct.unpack("<IIQQ16sQII", command)
        self.offsets.append(off)
        piece = b""
        if kind == 1:
            self.data[off:off + length] = connection.recv(length, socket.MSG_WAITALL)
        else:
            piece = bytes(self.data[off:off + length])
        connection.sendall(struct.pack("<IBBBBQII", 0x31504354, 3, 0, 0, 0, seq, len(piece),
                                       crc32c(piece) if piece else 0) + piece)

    def end(self):
        """Waits until the client has ended. Fails if the gateway has sent too few commands."""
        self.join(30)
        same(self.is_alive(), False, f"a client that waits after {self.offsets}")


def round_trip(transport, device):
    data = random.Random(5).randbytes(LEN)
    far = 3 * LEN // 4096 * 4096
    with Setup(transport, device, flags=["--device", device] if device != "host" else []) as s:
        s.memory.write(0, data)
        how, response = s.objects.put("data-1", "key", s.memory, 0, LEN)
        same(how, transport, "PUT")
        same(response["ETag"], f'"{hashlib.md5(data).hexdigest()}"', "ETag of the upstream")
        same(s.stored("key") == data, True, "the object in the upstream")
        same(s.objects.get("data-1", "key", s.memory, far, LEN), transport, "GET")
        same(s.memory.read(far, LEN) == data, True, "the object by RDMA")
        s.memory.write(0, bytes(4096))
        same(s.objects.get("data-1", "key", s.memory, 0, 1000, first=5000), transport, "range")
        same(s.memory.read(0, 1001) == data[5000:6000] + b"\0", True, "the range")
        same((s.moved(transport, "in"), s.moved(transport, "out")), (LEN, LEN + 1000), "bytes")
        same(s.declined("other"), 0, "declined")
        upload = s.plain.create_multipart_upload(Bucket="data-1", Key="parts")["UploadId"]
        parts = []
        for number in (1, 2):
            how, response = s.objects.put("data-1", "parts", s.memory, 8192, 6 * MIB,
                                          UploadId=upload, PartNumber=number)
            same(how, transport, "UploadPart")
            parts.append({"ETag": response["ETag"], "PartNumber": number})
        s.plain.complete_multipart_upload(Bucket="data-1", Key="parts", UploadId=upload,
                                          MultipartUpload={"Parts": parts})
        same(s.stored("parts") == data[8192:8192 + 6 * MIB] * 2, True, "the parts")
        s.is_idle()


def case_round_trips():
    for transport, device in WAYS:
        round_trip(transport, device)


def case_lengths_around_the_staging():
    data = random.Random(11).randbytes(3 * RING)
    with Setup() as s:
        for length in (1, 1000, 176 * KIB, 176 * KIB + 1, RING, RING + 1, 2 * RING, 3 * RING - 1):
            s.memory.write(0, data)
            same(s.objects.put("data-1", "key", s.memory, 0, length)[0], "shm1", f"PUT {length}")
            same(s.stored("key") == data[:length], True, f"the object of {length} bytes")
            s.memory.write(0, bytes(3 * RING))
            same(s.objects.get("data-1", "key", s.memory, 0, length), "shm1", f"GET {length}")
            same(s.memory.read(0, 3 * RING) == data[:length] + bytes(3 * RING - length), True,
                 f"the window of {length} bytes")
        # A GET of an empty object does not change the window.
        s.direct.put_object(Bucket="data-1", Key="empty", Body=b"")
        s.memory.write(0, b"x")
        window = object_boto3.Window(s.memory, object_boto3.READ, 0, 1)
        reply = with_token(s, window.headers()["x-amz-rdma-token"], s.plain.get_object, "empty")
        window.release()
        headers = reply["ResponseMetadata"]["HTTPHeaders"]
        same((headers["x-amz-rdma-reply"], headers["x-amz-rdma-bytes-transferred"]),
             ("200", "0"), "reply to an empty object")
        same(s.memory.read(0, 1), b"x", "the window of an empty object")


def case_moto():
    """Uses moto as the upstream server, which is independent of this project."""
    from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    data = random.Random(12).randbytes(LEN)
    try:
        with Setup(url="http://%s:%d" % moto.get_host_and_port()) as s:
            s.memory.write(0, data)
            how, response = s.objects.put("data-1", "key", s.memory, 0, LEN)
            same((how, response["ETag"]), ("shm1", f'"{hashlib.md5(data).hexdigest()}"'), "PUT")
            s.memory.write(0, bytes(LEN))
            same(s.objects.get("data-1", "key", s.memory, 0, LEN), "shm1", "GET")
            same(s.memory.read(0, LEN) == data, True, "the object")
            same(s.objects.get("data-1", "key", s.memory, 0, 1000, first=5000), "shm1", "range")
            same(s.memory.read(0, 1000) == data[5000:6000], True, "the range")
    finally:
        moto.stop()


def reply_of(call, **words):
    """Returns status, x-amz-rdma-reply and Retry-After of a request that must fail."""
    try:
        call(**words)
    except botocore.exceptions.ClientError as error:
        meta = error.response["ResponseMetadata"]
        headers = meta["HTTPHeaders"]
        return (meta["HTTPStatusCode"], headers.get("x-amz-rdma-reply"),
                headers.get("retry-after"))
    raise AssertionError("the request succeeded")


def case_errors_of_the_upstream_pass():
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=b"x" * MIB)
        s.memory.write(0, bytes(MIB))
        window = object_boto3.Window(s.memory, object_boto3.READ, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]
        call = lambda **words: with_token(s, token, s.plain.get_object, **words)  # noqa: E731
        same(reply_of(call, IfMatch='"other"'), (412, None, None), "If-Match")
        same(failure(call, Range="bytes=9999999-"), (416, "InvalidRange"), "Range")
        s.plain.delete_object(Bucket="data-1", Key="key")
        same(failure(call), (404, "NoSuchKey"), "a missing object")
        window.release()
        same(s.memory.read(0, MIB) == bytes(MIB), True, "the window is untouched")
        window = object_boto3.Window(s.memory, object_boto3.WRITE, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]
        s.direct.put_object(Bucket="data-1", Key="key", Body=b"old")
        same(failure(lambda: with_token(s, token, s.plain.put_object, IfNoneMatch="*")),
             (412, "PreconditionFailed"), "If-None-Match")
        window.release()
        same(s.stored("key"), b"old", "the object")
        s.is_idle()


def case_checksums():
    data = random.Random(13).randbytes(MIB)
    right, wrong = (base64.b64encode(zlib.crc32(d).to_bytes(4, "big")).decode()
                    for d in (data, data[1:]))
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    with Setup() as s:
        for length in (MIB, 1000):
            s.memory.write(0, data)
            for words, wanted in (({"ChecksumCRC32": wrong}, (400, "BadDigest")),
                                  ({"ContentMD5": base64.b64encode(bytes(16)).decode()},
                                   (400, "BadDigest"))):
                same(failure(lambda n=length, w=words: s.objects.put(
                    "data-1", "key", s.memory, 0, n, **w)), wanted, f"{words} {length}")
                same(s.stored("key"), None, f"the object after {words}")
        s.objects.put("data-1", "key", s.memory, 0, MIB, ChecksumCRC32=right)
        found = s.direct.head_object(Bucket="data-1", Key="key", ChecksumMode="ENABLED")
        same(found.get("ChecksumCRC32"), right, "the checksum in the upstream")
        s.objects.put("data-1", "key", s.memory, 0, MIB, ContentMD5=md5)
        same(s.stored("key") == data, True, "the object")
        s.is_idle()
    # Even if the upstream server does not compare checksums, it must not get a complete body with
    # wrong bytes.
    server = Server()
    with Setup(url=server.url) as s:
        s.memory.write(0, data)
        for length in (MIB, 1000):
            same(failure(lambda n=length: s.objects.put("data-1", "key", s.memory, 0, n,
                                                        ChecksumCRC32=wrong)),
                 (400, "BadDigest"), f"a checksum that only the gateway compares, {length}")
        same(b"key" in server.objects, False, "whether the upstream has the object")
        s.objects.put("data-1", "key", s.memory, 0, MIB, ChecksumCRC32=right)
        same(server.objects[b"key"] == data, True, "the object")
    server.stop()


def case_short_windows_are_declined():
    data = random.Random(6).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        s.memory.write(0, bytes(MIB))
        window = object_boto3.Window(s.memory, object_boto3.READ, 0, MIB - 1)
        reply = with_token(s, window.headers()["x-amz-rdma-token"], s.plain.get_object)
        window.release()
        same(reply["ResponseMetadata"]["HTTPHeaders"]["x-amz-rdma-reply"], "501", "reply")
        same(reply["Body"].read() == data, True, "body")
        same(s.memory.read(0, MIB) == bytes(MIB), True, "the window is untouched")
        same((s.declined("short-window"), s.metric("rdma_failed_total")), (1, 0),
             "declined and failed")


def case_wrong_tokens():
    data = random.Random(7).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        replies = s.gateway.metric("penstock_upstream_replies_total")
        for token in ("x", "0:1:tcp2:127.0.0.1:1:" + "0" * 32, "a" * 600):
            for function in (s.plain.get_object, s.plain.put_object):
                same(failure(lambda f=function, t=token: with_token(s, t, f)),
                     (400, "InvalidRDMAToken"), token)
        window = object_boto3.Window(s.memory, object_boto3.WRITE, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        same(failure(lambda: with_token(s, wrong, s.plain.put_object)),
             (500, "RDMATransferFailed"), "a wrong capability")
        window.release()
        same(failure(lambda: with_token(s, token, s.plain.put_object)),
             (500, "RDMATransferFailed"), "a released token")
        for foreign in ("0:100000:tcp1:192.0.2.1:9:" + "0" * 32,
                        f"0:100000:shm1:{'0' * 32}:m:x:{'0' * 32}"):
            same(declined_put(s, foreign), ("RDMANotSupported", "501"), foreign)
        same(s.gateway.metric("penstock_upstream_replies_total"), replies,
             "requests that reached the upstream")
        # If the transfer of a GET fails, the gateway sends the object as the body.
        same(with_token(s, token, s.plain.get_object)["Body"].read() == data, True, "body")
        same(s.metric("rdma_failed_total"), 3, "failed")
        same(s.stored("key") == data, True, "the object is unchanged")


def case_rdma_can_be_turned_off():
    rdma.rdma_turned_off(Setup)


def case_upstream_down():
    with Setup() as s:
        s.back.stop()
        for op, function in ((object_boto3.WRITE, s.plain.put_object),
                             (object_boto3.READ, s.plain.get_object)):
            window = object_boto3.Window(s.memory, op, 0, MIB)
            token = window.headers()["x-amz-rdma-token"]
            same(reply_of(lambda f=function, t=token: with_token(s, t, f)), (503, None, "1"),
                 f"reply to {function.__name__}")
            window.release()
        same(s.gateway.metric('penstock_upstream_failed_total{reason="refused"}'), 2, "failures")
        until(lambda: s.metric("buffer_bytes") == 0, "the staging is free")


def case_upstream_breaks_off():
    """The upstream server breaks off before the gateway has sent anything to the client. So the
    client gets an error and no truncated body."""
    server = Server()
    server.objects[b"key"] = bytes(LEN)
    with Setup(url=server.url) as s:
        for fault in (("short", 1000), ("reset", LEN // 2)):
            server.fault = lambda request, fault=fault: [fault]
            same(failure(s.objects.get, "data-1", "key", s.memory, 0, LEN),
                 (503, "ServiceUnavailable"), f"{fault}")
        server.fault = lambda request: [("chunked",)]
        server.objects[b"key"] = bytes(5000)
        same(s.objects.get("data-1", "key", s.memory, 0, 5000), "http",
             "a body without a length is declined")
        same(s.declined("other"), 1, "declined")
    server.stop()


def case_client_ends_in_a_get():
    """The client ends when some pieces have moved. The gateway then reads the object again, to
    send it as the body."""
    data = random.Random(14).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        for commands in (0, 1, 3):
            puppet = Puppet(bytes(MIB), commands)
            reply = with_token(s, puppet.token, s.plain.get_object)
            same(reply["Body"].read() == data, True, f"the body after {commands} commands")
            same(reply["ResponseMetadata"]["HTTPHeaders"]["x-amz-rdma-reply"], "501", "reply")
            puppet.end()
            same(puppet.offsets, [n * RING for n in range(commands)], "offsets of the pieces")
            same(puppet.data[:commands * RING] == data[:commands * RING], True, "the pieces")
        same(s.metric("rdma_failed_total"), 3, "failed")
        s.is_idle()


def case_client_ends_in_a_put():
    data = random.Random(15).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=b"old")
        for commands in (0, 1, 5):
            puppet = Puppet(data, commands)
            # If the client is gone when the gateway opens another connection, the gateway declines
            # the token.
            reply = failure(lambda p=puppet: with_token(s, p.token, s.plain.put_object))
            same(reply in ((500, "RDMATransferFailed"), (500, "RDMANotSupported")), True,
                 f"{reply} after {commands} commands")
            puppet.end()
            same(puppet.offsets, [n * RING for n in range(commands)], "offsets of the pieces")
            same(s.stored("key"), b"old", "the object")
        # 1 MiB is moved in six pieces of at most RING bytes.
        puppet = Puppet(data, 6)
        with_token(s, puppet.token, s.plain.put_object)
        puppet.end()
        same(s.stored("key") == data, True, "the object after all commands")
        same(s.metric("rdma_failed_total") + s.declined("unreachable"), 3, "failed or declined")
        s.is_idle()


def case_staging_is_bounded():
    """Requests that wait for RDMA may use half of the memory of --buffer-memory. Beyond that, the
    gateway declines tokens. When all of this memory is in use, requests get status 503."""
    data = random.Random(10).randbytes(MIB)
    with Setup(flags=["--buffer-memory", "512KiB"]) as s, Stalled() as stalled:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        results = []
        put = threading.Thread(target=lambda: results.append(failure(
            lambda: with_token(s, stalled.token, s.plain.put_object))))
        put.start()
        connection = stalled.accept()
        same(s.metric("buffer_bytes"), 256 * KIB, "staging")
        same(with_token(s, stalled.token, s.plain.get_object)["Body"].read() == data, True,
             "a GET with a second token")
        same(declined_put(s, stalled.token), ("RDMANotSupported", "501"), "a PUT with one")
        same(s.declined("busy"), 2, "declined")
        same(results, [], "the stalled PUT")
        connection.close()
        put.join()
        same(results, [(500, "RDMATransferFailed")], "the stalled PUT")
        s.is_idle()
    with Setup(flags=["--buffer-memory", "256KiB"]) as s, Stalled() as stalled:
        put = threading.Thread(target=lambda: failure(
            lambda: with_token(s, stalled.token, s.plain.put_object)))
        put.start()
        connection = stalled.accept()
        same(reply_of(lambda: with_token(s, stalled.token, s.plain.get_object)),
             (503, None, "1"), "a request without staging")
        same(s.metric("buffer_refused_total"), 1, "refused")
        connection.close()
        put.join()


def case_many_clients():
    """Under load the gateway may decline tokens, but no request may fail, and no object may be
    damaged."""
    data = random.Random(16).randbytes(2 * MIB)
    with Setup(flags=["--buffer-memory", "8MiB"]) as s:
        s.memory.write(0, data)
        results, errors = [], []

        def work(number):
            at = (2 + number * 2) * MIB
            try:
                for turn in range(4):
                    key = f"{number}-{turn}"
                    results.append(s.objects.put("data-1", key, s.memory, 0, 2 * MIB)[0])
                    results.append(s.objects.get("data-1", key, s.memory, at, 2 * MIB))
                    same(s.memory.read(at, 2 * MIB) == data, True, key)
            except Exception as error:  # noqa: B902  (a request may fail in any way)
                errors.append(repr(error))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same(errors, [], "errors")
        same((len(results), set(results) <= {"shm1", "http"}, "shm1" in results),
             (96, True, True), "requests")
        s.is_idle()


def case_drain_ends_a_dripping_client():
    """When the time of --drain has passed, the gateway cancels a transfer by RDMA and exits."""
    with Setup(flags=["--drain", "1", "--min-rate", "1"]) as s, Stalled() as stalled:
        drain_during_a_drip(s, stalled)
        same((s.stored("key"), s.back.drafts()), (None, []), "object and drafts")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
