#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends requests to `penstock serve` that it must refuse, hundreds of times. The gateway must
refuse and count each request. It must not store or change an object, nor leave a descriptor or a
draft behind, and its memory may grow by at most 6 MiB. Also fills the disk in the middle of
uploads and copies.

gateway_refusals.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints
TAP; tests/run runs it."""

import contextlib
import json
import os
import random
import re
import signal
import ssl
import sys
import threading
import zlib

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from served import (ADDRESS, KEY, SECRET, SEED, Gateway, encoded_put, eventually, failure, host,
                    keys_of, make_certificate, opened, presigned, put_head, read_reply,
                    run_cases, same, small_disk, until)

TURNS, REQUESTS = 10, 10
BODY = b"a body of some length " * 50
KEYS = ("kept", "new")  # the key of an existing object, and the key of none
SOURCE = random.Random(SEED)


def flip(data, first, last):
    """Returns a copy of `data` in which one random bit between two offsets is flipped."""
    data = bytearray(data)
    data[SOURCE.randrange(first, last)] ^= 1 << SOURCE.randrange(8)
    return bytes(data)


def signed_put(gateway, key, body):
    """Returns the head of a PUT that is signed with the digest of the body."""
    request = AWSRequest("PUT", f"{gateway.url}/data-1/{key}", data=body)
    Auth = type("Auth", (S3SigV4Auth,), {"_should_sha256_sign_payload": lambda *_: True})
    Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
    head = f"PUT /data-1/{key} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return (head + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()


def framed_put(gateway, key, frames):
    """Returns a PUT with the encoding aws-chunked whose body is also sent in HTTP chunks."""
    head, body = encoded_put(gateway, key, BODY,
                             zlib.crc32(BODY).to_bytes(4, "big")).split(b"\r\n\r\n", 1)
    head = re.sub(rb"\r\nContent-Length: \d+", b"\r\nTransfer-Encoding: chunked", head)
    return head + b"\r\n\r\n" + frames(body)


def chunks(body):
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


# Each of these functions returns the bytes of a request that the gateway must refuse.

def wrong_signature(gateway, client, key):
    head = put_head(client, key, len(BODY), "Connection: close\r\n")
    at = head.index(b"Signature=") + 10
    digit = head[at:at + 1]
    return head[:at] + (b"0" if digit != b"0" else b"1") + head[at + 1:] + BODY


def flipped_body(gateway, client, key):
    return signed_put(gateway, key, BODY) + flip(BODY, 0, len(BODY))


def flipped_path(gateway, client, key):
    head = signed_put(gateway, key, BODY)
    return head.replace(b"/data-1/k", b"/data-1/j").replace(b"/data-1/n", b"/data-1/o") + BODY


def flipped_chunk(gateway, client, key):
    data = encoded_put(gateway, key, BODY, zlib.crc32(BODY).to_bytes(4, "big"))
    at = data.index(BODY)
    return flip(data, at, at + len(BODY))


def oversize_head(gateway, client, key):
    return put_head(client, key, len(BODY), "X-A: " + "a" * 40000 + "\r\n") + BODY


def long_header(gateway, client, key):
    """libmicrohttpd itself refuses this head and those of the next three functions."""
    return put_head(client, key, len(BODY), "X-A: " + "a" * 200000 + "\r\n") + BODY


def many_headers(gateway, client, key):
    return put_head(client, key, len(BODY), "A: b\r\n" * 3000) + BODY


def no_host(gateway, client, key):
    return put_head(client, key, len(BODY)).replace(b"Host:", b"Hots:") + BODY


def huge_length(gateway, client, key):
    return put_head(client, key, 10 ** 26) + BODY


def truncated_head(gateway, client, key):
    return put_head(client, key, len(BODY))[:-9]


def malformed_token(gateway, client, key):
    url = f"{gateway.url}/data-1/{key}"
    request = AWSRequest("PUT", url, headers={"x-amz-rdma-token": "0:1:tcp9:x"})
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
    head = f"PUT /data-1/{key} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return (head + "Content-Length: 0\r\nConnection: close\r\n\r\n").encode()


def bad_chunks(gateway, client, key):
    return framed_put(gateway, key, SOURCE.choice((
        lambda body: b"zz\r\n" + body, lambda body: b"-5\r\n" + body,
        lambda body: b"f" * 40 + b"\r\n" + body, lambda body: b"\r\n" + body,
        lambda body: chunks(body).replace(b"\r\n0\r\n\r\n", b"0\r\n\r\n"),
        lambda body: chunks(body[:-9]))))


def truncated_chunks(gateway, client, key):
    return framed_put(gateway, key, lambda body: chunks(body)[:-20])


def truncated_body(gateway, client, key):
    return put_head(client, key, 2 * len(BODY), "Connection: close\r\n") + BODY


FOUR = 'penstock_requests_total{operation="PutObject",status="4xx"}'
HEADS, SLOW = "penstock_refused_heads_total", "penstock_slow_connections_total"
# (function that makes a request, accepted statuses, metrics that count the refusal). The status ""
# means that the client closes the connection.
KINDS = (
    (wrong_signature, {"403"}, ["penstock_refused_signatures_total"]),
    (flipped_path, {"403"}, ["penstock_refused_signatures_total"]),
    (flipped_body, {"400"}, [FOUR]),
    (flipped_chunk, {"400"}, [FOUR]),
    (malformed_token, {"400"}, [FOUR]),
    (oversize_head, {"400"}, [HEADS]),
    (long_header, {"431", ""}, [HEADS]),
    (many_headers, {"431"}, [HEADS]),
    (no_host, {"400"}, [HEADS]),
    (huge_length, {"413"}, [HEADS]),
    (truncated_head, {""}, [HEADS]),
    (bad_chunks, {"400", "413"}, [FOUR, "penstock_aborted_total"]),
    (truncated_chunks, {""}, ["penstock_aborted_total"]),
    (truncated_body, {""}, ["penstock_aborted_total"]),
)


def resident(gateway):
    """Returns the gateway's resident memory in KiB."""
    with open(f"/proc/{gateway.process.pid}/status", encoding="ascii") as lines:
        return [int(line.split()[1]) for line in lines if line.startswith("VmRSS")][0]


def descriptors(gateway):
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def send(gateway, data, ends=False):
    """Sends a request. Returns the status of the reply, or "" if there is none. If `ends` is true,
    the client closes the connection without waiting for a reply."""
    with gateway.connect() as raw:
        try:
            raw.sendall(data)
        except OSError:
            # the gateway has replied and closed the connection before it had read the whole
            # request
            pass
        return "" if ends else read_reply(raw)[9:12].decode()


def case_refusals():
    gateway, client = opened(flags=["--timeout", "20"])
    with gateway:
        client.put_object(Bucket="data-1", Key="kept", Body=b"kept")
        # The same requests without their defects are accepted.
        for data in (signed_put(gateway, "good", BODY) + BODY,
                     framed_put(gateway, "good", chunks),
                     put_head(client, "good", len(BODY), "Connection: close\r\n") + BODY):
            same(send(gateway, data), "200", f"status of {data[:60]!r}")
            same(client.get_object(Bucket="data-1", Key="good")["Body"].read(), BODY, "body")
            client.delete_object(Bucket="data-1", Key="good")

        def turn():
            for kind, statuses, counters in KINDS:
                before = sum(map(gateway.metric, counters))
                for key in KEYS * (REQUESTS // 2):
                    status = send(gateway, kind(gateway, client, key), "" in statuses)
                    same(status in statuses, True, f"{kind.__name__}: status {status!r}")
                eventually(lambda c=counters: sum(map(gateway.metric, c)), before + REQUESTS,
                           f"count of {kind.__name__}")

        def settled():
            until(lambda: gateway.metric("penstock_requests_in_flight") == 0, "no request is left")
            return descriptors(gateway), resident(gateway)

        turn()
        count, memory = settled()
        for _ in range(TURNS):
            turn()
        eventually(lambda: descriptors(gateway) <= count, True, f"at most {count} descriptors")
        grown = settled()[1] - memory
        print(f"# {TURNS * len(KINDS) * REQUESTS} requests, {count} descriptors, {grown} KiB grown")
        same(grown < 6 << 10, True, f"memory has grown by {grown} KiB")
        same(keys_of(client), ["kept"], "keys")
        same(client.get_object(Bucket="data-1", Key="kept")["Body"].read(), b"kept", "body")
        eventually(gateway.drafts, [], "drafts")


def lines_of(gateway):
    with open(gateway.log, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def refuse_first(raw):
    """Receives the reply to a request without a signature. The connection stays open."""
    reply = b""
    while not reply.endswith(b"</Error>"):
        piece = raw.recv(4096)
        same(piece != b"", True, f"more bytes after {reply!r}")
        reply += piece
    same(reply[9:12], b"403", "status of a request without a signature")


def case_refused_heads():
    """A head that the gateway or libmicrohttpd refuses, or that is incomplete, is one refused head,
    and one line in the log, without the signature in its target."""
    start = b"PUT /data-1/k?X-Amz-Signature=c2lnbmVk HTTP/1.1\r\n"
    good = start + b"Host: x\r\n"
    end = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    # bytes that the client sends, and whether the first line is right
    heads = ((good + b"X-A: " + b"a" * 40000 + b"\r\n\r\n", True),
             (good + b"X-A: " + b"a" * 200000 + b"\r\n\r\n", True),
             (good + b"".join(b"A%d: b\r\n" % n for n in range(3000)) + b"\r\n", True),
             (start + b"\r\n", True),
             (good + b"no colon\r\n\r\n", True),
             (good + b"Content-Length: abc\r\n\r\n", True),
             (good + b"Content-Length: -5\r\n\r\n", True),
             (good + b"Content-Length: 99999999999999999999999999\r\n\r\n", True),
             (start.replace(b"1.1", b"3.0") + b"Host: x\r\n\r\n", False),
             (b"GARBAGE\r\n\r\n", False), (b"GET  HTTP/1.1\r\n\r\n", False),
             (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n" + b"\0" * 500, False),
             (b"GET /" + b"c2lnbmVk" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", False))
    with Gateway(flags=["--drain", "1"]) as gateway:
        for number, (head, has_target) in enumerate(heads, 1):
            with gateway.connect() as raw:
                with contextlib.suppress(OSError):  # the gateway may refuse it earlier
                    raw.sendall(head)
                status = read_reply(raw)[9:12].decode()
            eventually(lambda: gateway.metric(HEADS), number, f"heads after {head[:90]!r}")
            eventually(lambda: len(lines_of(gateway)), number, f"lines after {head[:90]!r}")
            line = lines_of(gateway)[-1]
            same((line["remote"], line["error"] != ""), (ADDRESS, True), f"line {line}")
            if has_target:
                same((line["path"], line["query"]), ("/data-1/k", ""), f"line {line}")
                same(str(line["status"]) == status or not status, True, f"{status}, line {line}")
        count = len(heads)
        for head in (b"GET /a", start, good, end + b"GET /b"):
            with gateway.connect() as raw:
                raw.sendall(head[:len(end)])
                if head.startswith(end):  # the next request on the connection is incomplete
                    refuse_first(raw)
                    raw.sendall(head[len(end):])
            count += 1
            eventually(lambda c=count: gateway.metric(HEADS), count, f"heads after {head!r}")
        # A request whose reply comes before the rest of its body is no refused head.
        with gateway.connect() as raw:
            with contextlib.suppress(OSError):
                raw.sendall(good + b"Content-Length: 9000000\r\n\r\n" + b"x" * 9000000)
            read_reply(raw)
        # Neither is a connection without a request, even if it ends with an empty line.
        for data in (b"", b"\r\n", end + b"\r\n"):
            with gateway.connect() as raw:
                raw.sendall(data)
                if data.startswith(end):
                    refuse_first(raw)
        eventually(lambda: gateway.metric("penstock_connections"), 0, "connections")
        same([gateway.metric(HEADS), gateway.metric(SLOW)], [count, 0], "counts")
        # The end of the gateway is not a mistake of a client.
        lines = len(lines_of(gateway))
        with gateway.connect() as raw, gateway.connect() as other:
            raw.sendall(b"GET /")
            other.sendall(good)
            until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "a head has begun")
            gateway.stop(signal.SIGTERM)
        same(len(lines_of(gateway)), lines, "lines")
        with open(gateway.log, encoding="utf-8") as file:
            same("c2lnbmVk" in file.read(), False, "the log has a signature")


def case_slow_heads():
    """An incomplete head whose time is over is one slow connection. An idle connection is none."""
    good = b"GET / HTTP/1.1\r\nHost: x\r\n"
    with Gateway(flags=["--timeout", "3"]) as gateway, contextlib.ExitStack() as stack:
        held = []
        for first, second in ((b"", b""), (good + b"\r\n", b""), (b"GET /", b""), (good, b""),
                              (good + b"\r\n", b"GET /"), (good + b"\r\n", good)):
            raw = stack.enter_context(gateway.connect())
            raw.sendall(first)
            if first.endswith(b"\r\n\r\n"):
                refuse_first(raw)
            raw.sendall(second)
            held.append(raw)
        for raw in held:
            same(read_reply(raw), b"", "reply")
        eventually(lambda: gateway.metric("penstock_connections"), 0, "connections")
        same([gateway.metric(name) for name in (SLOW, HEADS, "penstock_aborted_total")], [4, 0, 0],
             "counts")
        same(sorted(line["error"] for line in lines_of(gateway)),
             ["AccessDenied"] * 3 + ["RequestTimeout"] * 4, "errors in the log")


def case_refused_heads_with_tls():
    """With TLS, a head counts from its first line on. A handshake that fails is no head."""
    with Gateway() as place, Gateway(tls=make_certificate(place.place)) as gateway:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for data in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            with gateway.connect() as raw:
                raw.sendall(data)
        heads = (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n")
        for number, head in enumerate(heads, 1):
            with context.wrap_socket(gateway.connect()) as raw:
                raw.sendall(head)
            eventually(lambda: gateway.metric(HEADS), number, f"heads after {head!r}")
        with context.wrap_socket(gateway.connect()):
            pass
        eventually(lambda: gateway.metric("penstock_connections"), 0, "connections")
        same(gateway.metric(HEADS), len(heads), "heads")
        same(len(lines_of(gateway)), len(heads), "lines")


def case_replays_after_expiry():
    """A valid request is sent again after its URL has expired. The gateway must refuse it, and
    change nothing."""
    gateway, client = opened()
    with gateway:
        url = client.generate_presigned_url("put_object", ExpiresIn=2, Params={
            "Bucket": "data-1", "Key": "k"})
        data = (f"PUT /{url.split('/', 3)[3]} HTTP/1.1\r\nHost: {host(client)}\r\nConnection: "
                f"close\r\nContent-Length: {len(BODY)}\r\n\r\n").encode() + BODY
        same(send(gateway, data), "200", "status within the time")
        client.put_object(Bucket="data-1", Key="k", Body=b"newer")
        # Before the expiry, a repeated request is still valid. So this case repeats only a read.
        url = client.generate_presigned_url("get_object", ExpiresIn=2, Params={
            "Bucket": "data-1", "Key": "k"})
        get = (f"GET /{url.split('/', 3)[3]} HTTP/1.1\r\nHost: {host(client)}\r\nConnection: "
               "close\r\n\r\n").encode()
        eventually(lambda: send(gateway, get), "403", "status of a replay after the time")
        before = gateway.metric("penstock_refused_signatures_total")
        same(send(gateway, data), "403", "status of the PUT after the time")
        same(gateway.metric("penstock_refused_signatures_total"), before + 1, "refusals")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"newer", "body")


def case_full_disk():
    """On a full disk, parts, copies and completions get status 507, and no part of them becomes
    visible."""
    gateway = Gateway()
    with gateway, small_disk(gateway, 16):
        client = gateway.client()
        client.create_bucket(Bucket="data-1")
        names = {"Bucket": "data-1", "Key": "parts"}
        part = b"x" * (6 << 20)
        upload = client.create_multipart_upload(**names)["UploadId"]
        etag = client.upload_part(UploadId=upload, PartNumber=1, Body=part, **names)["ETag"]
        client.put_object(Bucket="data-1", Key="old", Body=part)
        full = (507, "StorageFull")
        same(failure(client.upload_part, UploadId=upload, PartNumber=2, Body=part, **names),
             full, "UploadPart")
        same(failure(client.copy_object, Bucket="data-1", Key="copy", CopySource="data-1/old"),
             full, "CopyObject")
        same(failure(client.upload_part_copy, UploadId=upload, PartNumber=2,
                     CopySource="data-1/old", **names), full, "UploadPartCopy")
        finish = {"UploadId": upload, **names,
                  "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}
        same(failure(client.complete_multipart_upload, **finish), full,
             "CompleteMultipartUpload")
        same(keys_of(client), ["old"], "keys")
        same([p["PartNumber"] for p in client.list_parts(UploadId=upload, **names)["Parts"]],
             [1], "parts")
        same(client.get_object(Bucket="data-1", Key="old")["Body"].read() == part, True, "body")
        # Deleting an object frees space. Then the same upload can be completed.
        client.delete_object(Bucket="data-1", Key="old")
        same(failure(client.complete_multipart_upload, **finish), None, "with room")
        same(client.get_object(**names)["Body"].read() == part, True, "the object")
        same(gateway.drafts(), [], "drafts")


def case_herd_with_errors():
    """256 clients send requests at the same time, and half of them send requests that are refused.
    The other half must be served."""
    gateway, client = opened()
    with gateway:
        requests = []
        for number in range(256):
            if number % 2:
                requests.append(KINDS[number // 2 % len(KINDS)][0](gateway, client, "new"))
            else:
                requests.append(put_head(client, f"k{number}", len(BODY), "Connection: close\r\n")
                                + BODY)
        results, gate = [None] * 256, threading.Barrier(256)

        def run(number):
            gate.wait()
            results[number] = send(gateway, requests[number],
                                   number % 2 and "" in KINDS[number // 2 % len(KINDS)][1])

        threads = [threading.Thread(target=run, args=(n,)) for n in range(256)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same(set(results[::2]), {"200"}, "statuses of good requests")
        same([r for r in results[1::2] if r[:1] not in ("4", "")], [], "statuses of bad ones")
        same(gateway.metric('penstock_requests_total{operation="PutObject",status="5xx"}'), 0,
             "errors of the gateway")
        same(len(keys_of(client)), 128, "number of keys")
        same(send(gateway, f"GET {presigned(client, 'get_object', 'k0')} HTTP/1.1\r\nHost: "
                  f"{host(client)}\r\nConnection: close\r\n\r\n".encode()), "200", "a GET")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
