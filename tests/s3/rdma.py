#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests S3 over RDMA between boto3 and `penstock serve`: boto3 is unmodified, and
examples/object_boto3.py adds the tokens through its event hooks. rdma.py [WORD...] runs the cases
whose names contain one of the words, or all. Prints TAP; tests/run runs it."""

import base64
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib

import botocore.exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from served import (ADDRESS, BUILD, KEY, ROOT, SECRET, Gateway, Skip, failure, make_certificate,
                    read_reply, run_cases, same, until)

os.environ.setdefault("PENSTOCK_LIBRARY", os.path.join(BUILD, "src", "libpenstock.so.0"))
os.environ.setdefault("PENSTOCK_LIBCUDA",
                      os.path.join(BUILD, "tests", "standin", "libcuda.so.1"))
sys.path.insert(0, os.path.join(ROOT, "examples"))
import far  # noqa: E402  pylint: disable=wrong-import-position
import object_boto3  # noqa: E402  pylint: disable=wrong-import-position

MIB = 1 << 20
LEN = 9 * MIB + 77
WAYS = (("shm1", "host"), ("tcp1", "host"), ("shm1", "cuda:0"), ("tcp1", "cuda:0"))


class Setup:
    """A gateway with a bucket, and a client with memory for two objects."""

    def __init__(self, transport=None, device="host", **gateway):
        self.gateway = Gateway(**gateway)
        self.plain = self.gateway.client(
            request_checksum_calculation="when_required",
            s3={"addressing_style": "path", "payload_signing_enabled": False})
        self.plain.create_bucket(Bucket="data-1")
        self.transport = object_boto3.Transport(transport, ADDRESS)
        self.memory = self.transport.memory(4 * LEN, device)
        self.objects = object_boto3.Objects(self.plain, self.transport)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gateway.close()

    def metric(self, name):
        text = self.gateway.get("/metrics")[1]
        found = re.search("^penstock_" + re.escape(name) + r" (\d+)$", text, re.M)
        return int(found[1]) if found else None

    def declined(self, reason):
        """Returns how many tokens were declined for this reason. None may have been declined for
        another reason."""
        same(self.gateway.metric("penstock_rdma_declined_total"),
             count := self.metric(f'rdma_declined_total{{reason="{reason}"}}'),
             f"tokens that were declined, all and with reason {reason}")
        return count

    def moved(self, transport, direction):
        return self.metric(f'bytes_total{{transport="{transport}",side="front",'
                           f'direction="{direction}"}}')


def read_plain(client, key):
    return client.get_object(Bucket="data-1", Key=key)["Body"].read()


def round_trip(transport, device, *flags):
    data = random.Random(5).randbytes(LEN)
    flags = [*flags, "--device", device] if device != "host" else flags
    with Setup(transport, device, flags=flags) as s:
        s.memory.write(0, data)
        how, response = s.objects.put("data-1", "key", s.memory, 0, LEN)
        same(how, transport, "PUT")
        same(bool(re.fullmatch(r'"[0-9a-f]{32}-1"', response["ETag"])), True, response["ETag"])
        same(read_plain(s.plain, "key") == data, True, "the object by HTTP")
        same(s.objects.get("data-1", "key", s.memory, 3 * LEN // 4096 * 4096, LEN), transport,
             "GET")
        same(s.memory.read(3 * LEN // 4096 * 4096, LEN) == data, True, "the object by RDMA")
        s.memory.write(0, bytes(4096))
        same(s.objects.get("data-1", "key", s.memory, 0, 1000, first=5000), transport, "range")
        same(s.memory.read(0, 1001) == data[5000:6000] + b"\0", True, "the range")
        same((s.moved(transport, "in"), s.moved(transport, "out")), (LEN, LEN + 1000), "bytes")
        same(s.declined("other"), 0, "declined")
        until(lambda: s.gateway.metric("penstock_requests_in_flight") == 0, "all have ended")
        with open(s.gateway.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        same([(line["operation"], line["rdma_bytes"], line["bytes_in"], line["bytes_out"])
              for line in lines if line["transport"] == transport],
             [("PutObject", LEN, 0, 0), ("GetObject", LEN, 0, 0), ("GetObject", 1000, 0, 0)],
             "lines of the log")
        # Uploads an object in parts.
        upload = s.plain.create_multipart_upload(Bucket="data-1", Key="parts")["UploadId"]
        parts = []
        for number in (1, 2):
            how, response = s.objects.put("data-1", "parts", s.memory, 8192, 6 * MIB,
                                          UploadId=upload, PartNumber=number)
            same(how, transport, "UploadPart")
            parts.append({"ETag": response["ETag"], "PartNumber": number})
        s.plain.complete_multipart_upload(Bucket="data-1", Key="parts", UploadId=upload,
                                          MultipartUpload={"Parts": parts})
        same(read_plain(s.plain, "parts") == data[8192:8192 + 6 * MIB] * 2, True, "the parts")


def case_round_trips():
    for transport, device in WAYS:
        round_trip(transport, device)


def case_ofi1_round_trips():
    """If both sides name transport ofi1, it moves the bytes, over each provider of libfabric."""
    for provider in ("net", "tcp;ofi_rxm"):
        os.environ["PENSTOCK_OFI_PROVIDER"] = provider
        try:
            object_boto3.Transport("ofi1")
        except OSError as error:
            if "needs libfabric" in str(error) or "has no ofi1" in str(error):
                raise Skip(str(error)) from error
            raise
        round_trip("ofi1", "host", "--rdma", "tcp1,ofi1")
    # Without the option for ofi1, the gateway declines the token, and the bytes move by HTTP.
    with Setup("ofi1") as s:
        s.memory.write(0, b"x" * MIB)
        same(s.objects.put("data-1", "key", s.memory, 0, MIB)[0], "http", "PUT")
        same(s.objects.get("data-1", "key", s.memory, MIB, MIB), "http", "GET")
        same(s.memory.read(MIB, MIB) == b"x" * MIB, True, "bytes")


if ADDRESS != "127.0.0.1":
    # With PENSTOCK_RC1_ADDRESS, ADDRESS is the address of an RDMA network card (tests/lab/rc1).
    def case_round_trip_through_a_card():
        round_trip("rc1", "host")


def case_short_windows_are_declined():
    data = random.Random(6).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        s.memory.write(0, bytes(MIB))
        window = object_boto3.Window(s.memory, object_boto3.READ, 0, MIB - 1)
        s.objects.local.headers = window.headers()
        reply = s.plain.get_object(Bucket="data-1", Key="key")
        s.objects.local.headers = None
        window.release()
        same(reply["ResponseMetadata"]["HTTPHeaders"]["x-amz-rdma-reply"], "501", "reply")
        same(reply["Body"].read() == data, True, "body")
        same(s.memory.read(0, MIB) == bytes(MIB), True, "the window is untouched")
        same(s.declined("short-window"), 1, "declined")


def with_token(s, token, function, key="key", **words):
    s.objects.local.headers = {"x-amz-rdma-token": token}
    try:
        return function(Bucket="data-1", Key=key, **words)
    finally:
        s.objects.local.headers = None


def declined_put(s, token):
    """Returns the error code and x-amz-rdma-reply of a PUT that must be declined."""
    try:
        with_token(s, token, s.plain.put_object)
    except botocore.exceptions.ClientError as error:
        return (error.response["Error"]["Code"],
                error.response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-rdma-reply"))
    return None


def case_wrong_tokens():
    data = random.Random(7).randbytes(MIB)
    with Setup() as s:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        for token in ("x", "0:1:tcp2:127.0.0.1:1:" + "0" * 32, "a" * 600):
            for function in (s.plain.get_object, s.plain.put_object):
                reply = failure(lambda f=function, t=token: with_token(s, t, f))
                same(reply, (400, "InvalidRDMAToken"), token)
        window = object_boto3.Window(s.memory, object_boto3.WRITE, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        reply = failure(lambda: with_token(s, wrong, s.plain.put_object))
        same(reply, (500, "RDMATransferFailed"), "a wrong capability")
        window.release()
        reply = failure(lambda: with_token(s, token, s.plain.put_object))
        same(reply, (500, "RDMATransferFailed"), "a released token")
        # If the transfer of a GET fails, the gateway sends the object as the body.
        same(with_token(s, token, s.plain.get_object)["Body"].read() == data, True, "body")
        same(read_plain(s.plain, "key") == data, True, "the object is unchanged")
        same(s.metric("rdma_failed_total"), 3, "failed")
        # The tokens name another host. The gateway declines them, so that the client can send the
        # object by HTTP.
        for foreign in ("0:100000:tcp1:192.0.2.1:9:" + "0" * 32,
                        f"0:100000:shm1:{'0' * 32}:m:x:{'0' * 32}"):
            same(declined_put(s, foreign), ("RDMANotSupported", "501"), foreign)
        same([s.metric(f'rdma_declined_total{{reason="{reason}"}}') for reason in
              ("other-address", "no-transport")], [1, 1], "declined")
        # A client on the same host, but in another network namespace, has no such socket for the
        # gateway.
        absent = ":".join([*token.split(":")[:-2], "absent", "0" * 32])
        same(declined_put(s, absent), ("RDMANotSupported", "501"), absent)
        same(s.metric('rdma_declined_total{reason="unreachable"}'), 1, "unreachable")
        same(read_plain(s.plain, "key") == data, True, "the object is unchanged")


def headers_of(call):
    """Returns the headers of the reply to a request, which may be an error."""
    try:
        reply = call()
    except botocore.exceptions.ClientError as error:
        reply = error.response
    return reply["ResponseMetadata"]["HTTPHeaders"]


def case_headers_of_requests():
    """The signature must cover the token, a PUT with a token must have no body, and checksums and
    conditions hold for the bytes that move by RDMA."""
    data = random.Random(12).randbytes(MIB)
    right, wrong = (base64.b64encode(zlib.crc32(d).to_bytes(4, "big")).decode()
                    for d in (data, data[1:]))
    with Setup() as s:
        s.memory.write(0, data)
        window = object_boto3.Window(s.memory, object_boto3.WRITE, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]

        def add(request, **_):
            request.headers["x-amz-rdma-token"] = token
        s.plain.meta.events.register("before-send.s3", add)
        same(failure(s.plain.put_object, Bucket="data-1", Key="key", Body=b""),
             (403, "AccessDenied"), "a token that is not signed")
        s.plain.meta.events.unregister("before-send.s3", add)
        same(failure(lambda: with_token(s, token, s.plain.put_object, Body=b"body")),
             (400, "InvalidRequest"), "a token and a body")
        window.release()
        for words in ({"ChecksumCRC32": wrong},
                      {"ContentMD5": base64.b64encode(bytes(16)).decode()}):
            same(failure(lambda w=words: s.objects.put("data-1", "key", s.memory, 0, MIB, **w)),
                 (400, "BadDigest"), f"{words}")
        got = headers_of(lambda: with_token(s, "x", s.plain.put_object))
        same((got.get("x-amz-rdma-reply"), got.get("x-amz-rdma-bytes-transferred")),
             (None, None), "headers of the reply to a malformed token")
        same(os.listdir(os.path.join(s.gateway.root, "data-1")), [], "objects")
        same(s.gateway.drafts(), [], "drafts")
        s.objects.put("data-1", "key", s.memory, 0, MIB, ChecksumCRC32=right)
        s.memory.write(0, bytes(MIB))
        window = object_boto3.Window(s.memory, object_boto3.READ, 0, MIB)
        token = window.headers()["x-amz-rdma-token"]
        same(failure(lambda: with_token(s, token, s.plain.get_object, IfMatch='"other"')),
             (412, "PreconditionFailed"), "another ETag")
        same(s.memory.read(0, MIB) == bytes(MIB), True, "the window is untouched")
        got = headers_of(lambda: with_token(s, token, s.plain.get_object, ChecksumMode="ENABLED"))
        same([got.get(name) for name in ("x-amz-rdma-reply", "x-amz-rdma-bytes-transferred",
                                         "content-length", "x-amz-checksum-crc32")],
             ["200", str(MIB), "0", right], "headers of the reply to a GET")
        same(s.memory.read(0, MIB) == data, True, "the object")
        window.release()


def rdma_turned_off(setup):
    """If the gateway allows no transport of the client, all bytes move by HTTP. `setup` creates
    the Setup."""
    data = random.Random(9).randbytes(MIB)
    for flags, transport in ((["--rdma", "none"], None), (["--rdma", "tcp1"], "shm1")):
        with setup(transport, flags=flags) as s:
            s.memory.write(0, data)
            same(s.objects.put("data-1", "key", s.memory, 0, MIB)[0], "http", "PUT")
            s.memory.write(0, bytes(MIB))
            same(s.objects.get("data-1", "key", s.memory, 0, MIB), "http", "GET")
            same(s.memory.read(0, MIB) == data, True, "bytes")
            same(s.declined("no-transport"), 2, "declined")


def case_rdma_can_be_turned_off():
    rdma_turned_off(Setup)


def case_tls_excludes_tcp1():
    data = random.Random(8).randbytes(MIB)
    cert, key = make_certificate(os.environ.get("TMPDIR", "/tmp"))
    os.environ["AWS_CA_BUNDLE"] = cert
    try:
        for transport, wanted in (("tcp1", "http"), ("shm1", "shm1")):
            with Setup(transport, tls=(cert, key)) as s:
                s.memory.write(0, data)
                same(s.objects.put("data-1", "key", s.memory, 0, MIB)[0], wanted, "PUT")
                s.memory.write(0, bytes(MIB))
                same(s.objects.get("data-1", "key", s.memory, 0, MIB), wanted, "GET")
                same(s.memory.read(0, MIB) == data, True, "bytes")
                same(s.declined("not-encrypted"), 2 if transport == "tcp1" else 0, "declined")
    finally:
        del os.environ["AWS_CA_BUNDLE"]


def case_lost_client():
    """The client is killed in the middle of the transfer of a PUT. The gateway must not store the
    object."""
    script = f"""
import sys
sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}]
import rdma
client = rdma.Stalled()
print(client.token, flush=True)
connection = client.accept()
connection.sendall(rdma.READ_REPLY + bytes(rdma.MIB // 2))
print("half", flush=True)
sys.stdin.readline()
"""
    with Setup() as s, subprocess.Popen([sys.executable, "-c", script], text=True,
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE) as client:
        token, results = client.stdout.readline().strip(), []
        put = threading.Thread(target=lambda: results.append(failure(
            lambda: with_token(s, token, s.plain.put_object))))
        put.start()
        same(client.stdout.readline(), "half\n", "progress of the transfer")
        same(results, [], "results before the kill")
        client.kill()
        put.join()
        client.wait()
        same(results, [(500, "RDMATransferFailed")], "the PUT")
        same(s.metric("rdma_failed_total"), 1, "failed")
        # The client at the token's address is gone, so nothing moves.
        same(declined_put(s, token), ("RDMANotSupported", "501"), "a later PUT")
        same(s.declined("unreachable"), 1, "declined")
        same(failure(lambda: s.plain.head_object(Bucket="data-1", Key="key"))[0], 404, "the object")
        same(s.gateway.drafts(), [], "drafts")


class Stalled:
    """A client of the transport tcp1 that greets the gateway and receives one command, but does not
    answer it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.token = f"0:{MIB:x}:tcp1:127.0.0.1:{port}:{'0' * 32}"

    def accept(self):
        """Returns a connection on which the server has already sent a command."""
        connection = self.listener.accept()[0]
        connection.sendall(b"PENSTOCK tcp1 1\n")
        same(len(connection.recv(56, socket.MSG_WAITALL)), 56, "length of a command")
        return connection

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def case_stalled_client():
    """If a client stalls, its request fails after the time limit, and the gateway continues to
    work."""
    data = random.Random(10).randbytes(MIB)
    with Setup(flags=["--threads", "2"]) as s, Stalled() as stalled:
        s.plain.put_object(Bucket="data-1", Key="key", Body=data)
        results = []
        put = threading.Thread(target=lambda: results.append(failure(
            lambda: with_token(s, stalled.token, s.plain.put_object))))
        put.start()
        connection = stalled.accept()
        # One of the two workers waits for the stalled client. The other worker serves requests,
        # and declines a second token.
        same(read_plain(s.plain, "key") == data, True, "a GET meanwhile")
        same(with_token(s, stalled.token, s.plain.get_object)["Body"].read() == data, True,
             "a GET with a token meanwhile")
        same(s.declined("busy"), 1, "declined")
        same(results, [], "the stalled PUT")
        put.join()
        connection.close()
        same(results, [(500, "RDMATransferFailed")], "the stalled PUT")
        same(read_plain(s.plain, "key") == data, True, "the object is unchanged")
        # If the transfer of a GET stalls, the gateway sends the object as the body.
        get = threading.Thread(target=lambda: results.append(
            with_token(s, stalled.token, s.plain.get_object)["Body"].read()))
        get.start()
        connection = stalled.accept()
        get.join()
        connection.close()
        same(results[1] == data, True, "the stalled GET")


# head of the client's answer to a READ of 1 MiB
READ_REPLY = struct.pack("<IBBBBQII", 0x31504354, 3, 0, 0, 0, 1, MIB, 0)


class Dripping(threading.Thread):
    """Sends the answer to a READ of 1 MiB one byte at a time, until the server closes the
    connection."""

    def __init__(self, connection):
        super().__init__()
        self.connection, self.sent = connection, 0

    def run(self):
        try:
            self.connection.sendall(READ_REPLY)
            # The pause is shorter than the server's limit for a time without progress, so that
            # only another limit can end the transfer.
            while not select.select([self.connection], [], [], 0.1)[0]:
                self.connection.sendall(b"x")
                self.sent += 1
        except OSError:
            pass
        self.connection.close()


def case_dripping_client():
    """A client that makes progress one byte at a time must not occupy a worker forever."""
    with Setup(flags=["--min-rate", str(MIB)]) as s, Stalled() as stalled:
        results = []
        put = threading.Thread(target=lambda: results.append(failure(
            lambda: with_token(s, stalled.token, s.plain.put_object))))
        put.start()
        drip = Dripping(stalled.accept())
        drip.start()
        put.join()
        drip.join()
        same(results, [(500, "RDMATransferFailed")], "the PUT")
        # More than 20 pauses of 0.1 s show that the limit for a time without progress did not end
        # the transfer.
        same(drip.sent > 20, True, f"{drip.sent} bytes were sent")


def drain_during_a_drip(s, stalled):
    """Stops a gateway by SIGTERM while the transfer of a PUT makes slow progress. The gateway and
    the PUT must end."""
    results = []

    def put():
        try:
            results.append(failure(lambda: with_token(s, stalled.token, s.plain.put_object)))
        except botocore.exceptions.BotoCoreError as error:
            results.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    drip = Dripping(stalled.accept())
    drip.start()
    same(s.gateway.stop(timeout=30), (0, ""), "status and messages")
    thread.join()
    drip.join()
    same(len(results), 1, f"an end of the PUT: {results}")


def raw_request(s, method, token):
    """Returns the bytes of a signed request with a token and without a body."""
    request = AWSRequest(method, f"{s.gateway.url}/data-1/key",
                         headers={"x-amz-rdma-token": token})

    class Auth(S3SigV4Auth):
        def payload(self, request):
            return "UNSIGNED-PAYLOAD"

    Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return (f"{method} /data-1/key HTTP/1.1\r\nHost: {ADDRESS}:{s.gateway.port}\r\n{head}"
            "Content-Length: 0\r\nConnection: close\r\n\r\n").encode()


def case_half_closed_during_a_transfer():
    """A client may close its half of the HTTP connection while the bytes move by RDMA. The transfer
    then ends as usual, and the client gets the reply."""
    data = random.Random(14).randbytes(MIB)
    for method in ("PUT", "GET"):
        with Setup() as s, Stalled() as stalled:
            s.plain.put_object(Bucket="data-1", Key="key", Body=b"old" if method == "PUT" else data)
            with s.gateway.connect() as raw:
                raw.sendall(raw_request(s, method, stalled.token))
                with stalled.accept() as connection:
                    if method == "GET":
                        same(connection.recv(MIB, socket.MSG_WAITALL) == data, True, "bytes")
                    raw.shutdown(socket.SHUT_WR)
                    sent = data if method == "PUT" else b""
                    connection.sendall(far.REPLY.pack(0x31504354, 3, 0, 0, 0, 1, len(sent),
                                                      far.crc32c(sent) if sent else 0) + sent)
                    reply = read_reply(raw).lower()
            same((reply[9:12], b"x-amz-rdma-reply: 200\r\n" in reply), (b"200", True), reply)
            same(read_plain(s.plain, "key") == data, True, "the object")
    with Setup("shm1") as s:
        s.memory.write(0, data)
        for method, access in (("PUT", object_boto3.WRITE), ("GET", object_boto3.READ)):
            for number in range(50):
                window = object_boto3.Window(s.memory, access, 0, MIB)
                with s.gateway.connect() as raw:
                    raw.sendall(raw_request(s, method, window.headers()["x-amz-rdma-token"]))
                    raw.shutdown(socket.SHUT_WR)
                    reply = read_reply(raw).lower()
                window.release()
                same((reply[9:12], b"x-amz-rdma-reply: 200\r\n" in reply), (b"200", True),
                     f"{method} {number}: {reply}")
        same((s.moved("shm1", "in"), s.moved("shm1", "out")), (50 * MIB, 50 * MIB), "bytes")


def case_drain_ends_a_dripping_client():
    """When the time of --drain has passed, the gateway cancels a transfer by RDMA and exits."""
    with Setup(flags=["--drain", "1", "--min-rate", "1"]) as s, Stalled() as stalled:
        drain_during_a_drip(s, stalled)
        same(s.gateway.drafts(), [], "drafts")


def case_drain_refuses_queued_requests():
    """When the time of --drain has passed, the gateway refuses a request that waits for a worker,
    and does not execute it."""
    with Setup(flags=["--drain", "1", "--threads", "1", "--min-rate", "1"]) as s, \
            Stalled() as stalled:
        s.plain.put_object(Bucket="data-1", Key="key", Body=b"x" * MIB)
        results = []

        def ends(call):
            try:
                results.append(failure(call))
            except botocore.exceptions.BotoCoreError as error:
                results.append(type(error).__name__)

        def copy(number):
            ends(lambda: s.gateway.client().copy_object(Bucket="data-1", Key=f"copy-{number}",
                                                        CopySource="data-1/key"))

        # The only worker waits for this transfer, which makes slow progress.
        threads = [threading.Thread(target=ends, args=(
            lambda: with_token(s, stalled.token, s.plain.put_object),))]
        threads[0].start()
        drip = Dripping(stalled.accept())
        drip.start()
        for number in range(3):
            threads.append(threading.Thread(target=copy, args=(number,)))
            threads[-1].start()
        until(lambda: s.metric("requests_in_flight") == 4, "all requests have arrived")
        same(s.gateway.stop(timeout=30), (0, ""), "status and messages")
        for thread in threads + [drip]:
            thread.join()
        same(os.listdir(os.path.join(s.gateway.root, "data-1")), ["key"], f"objects; {results}")
        same(s.gateway.drafts(), [], "drafts")


def case_drain_waits_for_transfers():
    """After SIGTERM, the gateway waits until a transfer by RDMA has ended. In this case, the
    transfer ends with an error."""
    with Setup() as s, Stalled() as stalled:
        results = []
        thread = threading.Thread(target=lambda: results.append(failure(
            lambda: with_token(s, stalled.token, s.plain.put_object))))
        thread.start()
        connection = stalled.accept()
        same(s.gateway.stop(), (0, ""), "status and messages")
        thread.join()
        connection.close()
        same(results, [(500, "RDMATransferFailed")], "the PUT in flight")


def case_drain_completes_transfers():
    """After SIGTERM, transfers by RDMA in flight end successfully: the object of a PUT is stored,
    and the bytes of a GET count as moved."""
    data = random.Random(13).randbytes(MIB)
    for put in (True, False):
        with Setup() as s, Stalled() as stalled:
            s.plain.put_object(Bucket="data-1", Key="key", Body=b"old" if put else data)
            results, call = [], s.plain.put_object if put else s.plain.get_object
            thread = threading.Thread(target=lambda c=call: results.append(headers_of(
                lambda: with_token(s, stalled.token, c))))  # noqa: B023
            thread.start()
            connection = stalled.accept()
            moved = b"" if put else connection.recv(MIB, socket.MSG_WAITALL)
            s.gateway.process.send_signal(signal.SIGTERM)
            until(lambda: s.gateway.get("/healthz")[0] == 503, "the gateway drains")
            same(results, [], "responses before the transfer ends")
            sent = data if put else b""
            connection.sendall(far.REPLY.pack(0x31504354, 3, 0, 0, 0, 1, len(sent),
                                              far.crc32c(sent) if put else 0) + sent)
            thread.join()
            same(s.gateway.stop(), (0, ""), "status and messages")
            connection.close()
            same([(found.get("x-amz-rdma-reply"), found.get("x-amz-rdma-bytes-transferred"))
                  for found in results], [("200", str(MIB))], "the response")
            same(put or moved == data, True, "bytes of the GET")
            with open(os.path.join(s.gateway.root, "data-1", "key"), "rb") as file:
                same(file.read() == data, True, "the object")


def case_gateway_killed():
    """Kills the gateway in the middle of a PUT by RDMA. It must not leave an object."""
    with Setup() as s, Stalled() as stalled:
        errors = []

        def put():
            try:
                with_token(s, stalled.token, s.plain.put_object)
            except botocore.exceptions.BotoCoreError as error:
                errors.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        connection = stalled.accept()
        s.gateway.stop(signal.SIGKILL)
        thread.join()
        connection.close()
        same(len(errors), 1, "the PUT has no response")
        s.gateway.start()
        same(failure(lambda: s.gateway.client().get_object(Bucket="data-1", Key="key")),
             (404, "NoSuchKey"), "the object")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
