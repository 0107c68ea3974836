#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock serve --upstream`: identities, a failing upstream server, limits and broken
requests.

upstream.py [WORD...]: runs the cases whose names contain one of the words, or all. The upstream
server is another `penstock serve`, or the misbehaving server of server.py. conformance.py tests
the S3 API through an upstream server. Prints TAP; tests/run runs it."""

import base64
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib

from botocore.exceptions import ClientError, HTTPClientError

from served import (KEY, READ_KEY, READ_SECRET, SECRET, SEED, Gateway, encoded_put, eventually,
                    failure, host, make_certificate, presigned, put_head, raw_put, read_reply,
                    run_cases, same, together, until, write_private)
from server import Server

BACK_KEY, BACK_SECRET = "AKBACK", "secret+of/the+upstream"
OWN_KEY, OWN_SECRET = "AKOWN", "secret+of/one+identity"
BACK_KEYS = "".join(f"[{key}]\nsecret = {secret}\nbuckets = *\naccess = rw\n"
                    for key, secret in ((BACK_KEY, BACK_SECRET), (OWN_KEY, OWN_SECRET)))
FRONT_KEYS = f"""[{KEY}]
secret = {SECRET}
buckets = *
access = rw
[{READ_KEY}]
secret = {READ_SECRET}
buckets = data-*
access = r
upstream-access-key = {OWN_KEY}
upstream-secret = {OWN_SECRET}
"""
ENV = {"AWS_ACCESS_KEY_ID": BACK_KEY, "AWS_SECRET_ACCESS_KEY": BACK_SECRET,
       "AWS_REGION": "us-east-1"}
BIG = 1 << 20  # longer than the staging memory of one request


def front(url, *flags):
    return Gateway(keys=FRONT_KEYS, upstream=url, env=ENV, flags=flags)


class Pair:
    """A gateway in front of another gateway."""

    def __init__(self, *flags):
        self.back = Gateway(keys=BACK_KEYS)
        self.front = front(self.back.url, *flags)
        self.client = self.front.client()
        self.direct = self.back.client(BACK_KEY, BACK_SECRET)
        self.client.create_bucket(Bucket="data-1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.back, self.front:
            pass

    def stored(self):
        """Returns the keys of the objects and the names of the drafts that the upstream gateway
        stores."""
        listed = self.direct.list_objects_v2(Bucket="data-1").get("Contents", [])
        return [item["Key"] for item in listed], self.back.drafts()


def case_identities():
    with Pair() as pair:
        pair.client.put_object(Bucket="data-1", Key="k", Body=b"body")
        reader = pair.front.client(READ_KEY, READ_SECRET)
        same(reader.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "body")
        requests = pair.front.metric("penstock_upstream_replies_total")
        same(failure(reader.put_object, Bucket="data-1", Key="x", Body=b""),
             (403, "AccessDenied"), "PUT by the reader")
        same(failure(reader.get_object, Bucket="other", Key="x"), (403, "AccessDenied"),
             "GET of another bucket")
        same(failure(reader.list_buckets), (403, "AccessDenied"), "list of all buckets")
        writer = pair.front.client(KEY, "wrong" + SECRET)
        same(failure(writer.get_object, Bucket="data-1", Key="k"),
             (403, "SignatureDoesNotMatch"), "GET with a wrong secret")
        same(pair.front.metric("penstock_upstream_replies_total"), requests,
             "requests that reached the upstream")
        pair.back.stop()
        with open(pair.back.log) as log:
            seen = [(line["operation"], line["access_key"]) for line in map(json.loads, log)]
        same(seen, [("CreateBucket", BACK_KEY), ("PutObject", BACK_KEY), ("GetObject", OWN_KEY)],
             "the upstream's log")


def case_copy_source_needs_rights():
    with Pair() as pair:
        keys = FRONT_KEYS + "[AKCOPY]\nsecret = secret-of-copier\nbuckets = data-2\naccess = rw\n"
        pair.client.create_bucket(Bucket="data-2")
        pair.client.put_object(Bucket="data-1", Key="k", Body=b"body")
        write_private(pair.front.keys, keys)
        pair.front.process.send_signal(1)
        copier = pair.front.client("AKCOPY", "secret-of-copier")
        eventually(lambda: failure(copier.head_bucket, Bucket="data-2"), None, "reload of keys")
        for source in ("data-1/k", "/data-1/k", "%64ata-1/k"):
            same(failure(copier.copy_object, Bucket="data-2", Key="c", CopySource=source),
                 (403, "AccessDenied"), f"copy of {source}")


def case_big_bodies():
    data = random.Random(SEED).randbytes(24 << 20)
    with Pair("--buffer-memory", "4MiB") as pair:
        def go(name):
            pair.client.put_object(Bucket="data-1", Key=name, Body=data)
            got = pair.client.get_object(Bucket="data-1", Key=name)["Body"].read()
            assert got == data, f"{name}: {len(got)} bytes differ from {len(data)}"
        together([lambda n=n: go(f"k{n}") for n in range(3)])
        with open(f"/proc/{pair.front.process.pid}/status") as status:
            peak = [int(line.split()[1]) for line in status if line.startswith("VmHWM")][0]
        assert peak < 40 << 10, f"peak memory: got {peak} KiB, wanted less than 40 MiB"
        eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 0, "staging")
        out = pair.front.metric('penstock_bytes_total{transport="http",side="upstream"')
        assert out > 6 * len(data), f"bytes of the upstream: got {out}"


def case_wrong_bodies_store_nothing():
    data = random.Random(SEED).randbytes(BIG)
    wrong = base64.b64encode(zlib.crc32(data[1:]).to_bytes(4, "big")).decode()
    with Pair() as pair:
        for body in (data, data[:1000]):
            same(failure(pair.client.put_object, Bucket="data-1", Key="k", Body=body,
                         ContentMD5=base64.b64encode(bytes(16)).decode()), (400, "BadDigest"),
                 f"wrong MD5 of {len(body)} bytes")
            same(failure(pair.client.put_object, Bucket="data-1", Key="k", Body=body,
                         ChecksumCRC32=wrong), (400, "BadDigest"), "wrong CRC-32")
        eventually(pair.stored, ([], []), "keys and drafts of the upstream")


def case_trailers():
    # lengths below, at and above the limits of the gateway's ring buffer for one request
    sizes = (1000, 176 << 10, 192 << 10, BIG)
    data = random.Random(SEED).randbytes(BIG)
    with Pair() as pair:
        for size in sizes:
            for right in (True, False):
                body = data[:size]
                crc = zlib.crc32(body if right else body + b"x").to_bytes(4, "big")
                with pair.front.connect() as connection:
                    connection.sendall(encoded_put(pair.front, f"{size}-{right}", body, crc))
                    status = int(read_reply(connection).split()[1])
                same(status, 200 if right else 400, f"status of {size} bytes, right: {right}")
        eventually(pair.stored, (sorted(f"{n}-True" for n in sizes), []), "keys and drafts")
        for size in sizes[:2]:
            short = pair.client.head_object(Bucket="data-1", Key=f"{size}-True",
                                            ChecksumMode="ENABLED")
            same(short.get("ChecksumCRC32"),
                 base64.b64encode(zlib.crc32(data[:size]).to_bytes(4, "big")).decode(),
                 f"checksum of {size} bytes")
        got = pair.direct.get_object(Bucket="data-1", Key=f"{BIG}-True")
        assert got["Body"].read() == data, "the object differs"
        same(got.get("ContentEncoding"), None, "Content-Encoding")


def case_client_goes_away():
    with Pair() as pair:
        for size in (BIG, 1000):
            connection = raw_put(pair.front, pair.client, "k", size, bytes(size - 1))
            eventually(lambda: pair.front.metric("penstock_buffer_bytes") > 0, True, "staging")
            connection.close()
            eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 0, "staging")
        eventually(pair.stored, ([], []), "keys and drafts of the upstream")


def case_half_closed():
    """A client that sends nothing more after its request gets the reply, also if its body does not
    fit into the staging memory while the upstream takes no bytes."""
    data = random.Random(SEED).randbytes(2 * BIG)
    with Pair() as pair:
        pid = pair.back.process.pid
        for length in (10, 180000, 200000, 230000, 300000, 2 * BIG):
            heads = (put_head(pair.client, "k", length) + data[:length],
                     (f"GET {presigned(pair.client, 'get_object', 'k')} HTTP/1.1\r\n"
                      f"Host: {host(pair.client)}\r\n\r\n").encode())
            for number, head in enumerate(heads):
                os.kill(pid, signal.SIGSTOP)
                with pair.front.connect() as raw:
                    sender = threading.Thread(
                        target=lambda r=raw, h=head: (r.sendall(h), r.shutdown(socket.SHUT_WR)))
                    sender.start()
                    if length < BIG:
                        sender.join()  # the kernel and the gateway hold the whole request
                    until(lambda: pair.front.metric("penstock_requests_in_flight") == 1,
                          "the request has arrived")
                    # The connection and the exchange now wait for the upstream.
                    time.sleep(0.05)
                    os.kill(pid, signal.SIGCONT)
                    sender.join()
                    reply = read_reply(raw)
                same((reply[9:12], not number or reply.endswith(data[:length])), (b"200", True),
                     f"{'GET' if number else 'PUT'} of {length} bytes")
            got = pair.direct.get_object(Bucket="data-1", Key="k")["Body"].read()
            same(got == data[:length], True, f"the object of {length} bytes")
        same(pair.front.metric("penstock_aborted_total"), 0, "replies that were cut")


def case_reader_goes_away():
    with Pair() as pair:
        pair.client.put_object(Bucket="data-1", Key="k", Body=bytes(16 << 20))
        url = pair.client.generate_presigned_url("get_object",
                                                 Params={"Bucket": "data-1", "Key": "k"})
        with pair.front.connect() as connection:
            connection.sendall((f"GET /{url.split('/', 3)[3]} HTTP/1.1\r\n"
                                f"Host: 127.0.0.1:{pair.front.port}\r\n\r\n").encode())
            same(connection.recv(12), b"HTTP/1.1 200", "first bytes")
        eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 0, "staging")
        same(failure(pair.client.head_object, Bucket="data-1", Key="k"), None, "next request")


def case_tls():
    data = random.Random(SEED).randbytes(3 * BIG)
    with tempfile.TemporaryDirectory() as place:
        tls = make_certificate(place)
        with Gateway(keys=BACK_KEYS, tls=tls) as back:
            with Gateway(keys=FRONT_KEYS, upstream=back.url, env=ENV) as gateway:
                same(failure(gateway.client().create_bucket, Bucket="data-1"),
                     (503, "ServiceUnavailable"), "an upstream that is not trusted")
            trusts = dict(ENV, AWS_CA_BUNDLE=tls[0])
            with Gateway(keys=FRONT_KEYS, upstream=back.url, env=trusts) as gateway:
                client = gateway.client()
                client.create_bucket(Bucket="data-1")
                client.put_object(Bucket="data-1", Key="k", Body=data)
                got = client.get_object(Bucket="data-1", Key="k")["Body"].read()
                assert got == data, f"{len(got)} bytes differ from {len(data)}"


def case_buffer_memory():
    with Pair("--buffer-memory", "256KiB") as pair:
        # The gateway frees the memory of a request's body shortly after it has sent the reply.
        eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 0, "staging")
        with raw_put(pair.front, pair.client, "k", BIG, b"begin"):
            eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 256 << 10, "staging")
            try:
                pair.client.list_objects_v2(Bucket="data-1")
                raise AssertionError("a request got memory beyond the limit")
            except ClientError as error:
                reply = error.response
            same((reply["ResponseMetadata"]["HTTPStatusCode"], reply["Error"]["Code"],
                  reply["ResponseMetadata"]["HTTPHeaders"].get("retry-after")),
                 (503, "SlowDown", "1"), "reply beyond the limit")
            same(pair.front.metric("penstock_buffer_refused_total"), 1, "refused requests")
        eventually(lambda: pair.front.metric("penstock_buffer_bytes"), 0, "staging")
        pair.client.put_object(Bucket="data-1", Key="k", Body=b"body")
        with front(pair.back.url) as other:
            other.stop()
            other.flags = ["--buffer-memory", "100KiB"]
            try:
                other.start()
                raise AssertionError("a gateway started without memory")
            except AssertionError as error:
                assert "--buffer-memory is too small" in str(error), error


def case_upstream_down():
    with Pair() as pair:
        address = pair.back.url
        pair.back.stop()
        for size in (10, BIG):
            try:
                pair.client.put_object(Bucket="data-1", Key="k", Body=bytes(size))
                raise AssertionError("a PUT succeeded without an upstream")
            except ClientError as error:
                reply = error.response
            same((reply["ResponseMetadata"]["HTTPStatusCode"], reply["Error"]["Code"],
                  reply["ResponseMetadata"]["HTTPHeaders"].get("retry-after")),
                 (503, "ServiceUnavailable", "1"), f"reply to {size} bytes")
        same(pair.front.metric('penstock_upstream_failed_total{reason="refused"}'), 2, "failures")
        with Gateway(pair.back.root, keys=BACK_KEYS,
                     flags=["--listen", address.split("//")[1]]):
            pair.client.put_object(Bucket="data-1", Key="k", Body=b"body")


def case_upstream_hangs():
    server = Server()
    with front(server.url, "--timeout", "1") as gateway:
        client = gateway.client()
        server.fault = lambda request: [("hang",)]
        same(failure(client.get_object, Bucket="data-1", Key="k"), (503, "ServiceUnavailable"),
             "GET")
        assert server.closed.wait(30), "the connection with the upstream is still open"
        same(gateway.metric('penstock_upstream_failed_total{reason="timeout"}'), 1, "timeouts")
        same(gateway.metric("penstock_buffer_bytes"), 0, "staging")
    server.stop()


def case_upstream_breaks_off():
    server = Server()
    server.objects[b"k"] = bytes(BIG)
    with front(server.url) as gateway:
        client = gateway.client()
        for fault in (("short", 1000), ("reset", BIG // 2)):
            server.fault = lambda request, fault=fault: [fault]
            try:
                got = client.get_object(Bucket="data-1", Key="k")["Body"].read()
                raise AssertionError(f"{fault}: {len(got)} bytes count as complete")
            except (HTTPClientError, ClientError, OSError):
                pass
            except Exception as error:
                assert "IncompleteRead" in repr(error) or "Streaming" in repr(error), repr(error)
        server.fault = lambda request: [("drop",)] if request.number % 2 else None
        results = [failure(client.head_object, Bucket="data-1", Key="k") for _ in range(4)]
        assert None in results, f"no request succeeded: {results}"
        server.fault = lambda request: [("chunked",)]
        server.objects[b"k"] = bytes(5000)
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), bytes(5000),
             "chunked body")
    server.stop()


def case_herd():
    """256 clients store and read objects through the gateway at the same time. None of them may
    get an error."""
    with Pair() as pair:
        gate = threading.Barrier(256)

        def one(number):
            head = put_head(pair.client, f"k{number}", 4, "Connection: close\r\n")
            get = (f"GET {presigned(pair.client, 'get_object', f'k{number}')} HTTP/1.1\r\n"
                   f"Host: {host(pair.client)}\r\nConnection: close\r\n\r\n").encode()
            gate.wait()
            statuses = []
            for data in (head + b"body", get):
                with pair.front.connect() as raw:
                    raw.sendall(data)
                    statuses.append(read_reply(raw)[9:12])
            return statuses

        results = together([lambda n=n: one(n) for n in range(256)])
        same({tuple(result) for result in results}, {(b"200", b"200")}, "statuses")
        same(len(pair.stored()[0]), 256, "number of keys")


def case_early_reply():
    """The upstream server replies before it has received the whole body, and closes the
    connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listener.accept()
        connection.recv(100)
        text = b"<Error><Code>QuotaExceeded</Code></Error>"
        connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\nConnection: close\r\n"
                           b"x-amz-request-id: of-upstream\r\n\r\n%b" % (len(text), text))
        while connection.recv(65536):
            pass
        connection.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with front(f"http://127.0.0.1:{listener.getsockname()[1]}") as gateway:
        same(failure(gateway.client().put_object, Bucket="data-1", Key="k",
                     Body=bytes(32 << 20)), (403, "QuotaExceeded"), "PUT")
    thread.join()
    listener.close()


def case_signal_ends_requests():
    server = Server()
    with front(server.url, "--drain", "1") as gateway:
        server.fault = lambda request: [("hang",)]
        url = gateway.client().generate_presigned_url("get_object",
                                                      Params={"Bucket": "data-1", "Key": "k"})
        with gateway.connect() as connection:
            connection.sendall((f"GET /{url.split('/', 3)[3]} HTTP/1.1\r\n"
                                f"Host: 127.0.0.1:{gateway.port}\r\n\r\n").encode())
            eventually(lambda: len(server.requests), 1, "requests of the upstream")
            same(gateway.stop(timeout=30)[0], 0, "exit status")
        assert server.closed.wait(30), "the connection with the upstream is still open"
    server.stop()


def case_rdma_tokens_are_declined():
    with Pair() as pair:
        events = pair.client.meta.events
        events.register("before-sign.s3", lambda request, **_: request.headers.add_header(
            "x-amz-rdma-token", f"0:4:tcp1:192.0.2.1:9:{'0' * 32}"))
        try:
            reply = pair.client.put_object(Bucket="data-1", Key="k", Body=b"")
        except ClientError as error:  # botocore treats any reply with an element Error as an error
            reply = error.response
        same(reply["ResponseMetadata"]["HTTPHeaders"].get("x-amz-rdma-reply"), "501", "PUT")
        same(pair.stored()[0], [], "keys")
        pair.direct.put_object(Bucket="data-1", Key="k", Body=b"body")
        reply = pair.client.get_object(Bucket="data-1", Key="k")
        same((reply["ResponseMetadata"]["HTTPHeaders"].get("x-amz-rdma-reply"),
              reply["Body"].read()), ("501", b"body"), "GET")


def case_no_secrets():
    with Pair() as pair:
        pair.client.put_object(Bucket="data-1", Key="k", Body=b"body")
        pair.front.client(READ_KEY, READ_SECRET).get_object(Bucket="data-1", Key="k")
        pair.back.stop()
        failure(pair.client.get_object, Bucket="data-1", Key="k")
        with open(f"/proc/{pair.front.process.pid}/cmdline") as file:
            seen = file.read()
        seen += pair.front.get("/metrics")[1] + pair.front.stop()[1]
        with open(pair.front.log) as log:
            seen += log.read()
        for secret in (SECRET, READ_SECRET, BACK_SECRET, OWN_SECRET, "Signature="):
            assert secret not in seen, f"{secret} is in a log"
        assert BACK_KEY not in seen, "an access key of the upstream is in a log"


def refused_start(**named):
    try:
        with Gateway(**named):
            raise AssertionError("the gateway started")
    except AssertionError as error:
        return str(error)


def case_refused_starts():
    unset = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
             "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null"}
    for named, message in (
            ({"upstream": "http://127.0.0.1:1", "env": unset}, "has no upstream-access-key"),
            ({"upstream": "http://user:pass@127.0.0.1:1", "env": ENV}, "--upstream needs"),
            ({"upstream": "http://127.0.0.1:1/path", "env": ENV}, "--upstream needs"),
            ({"upstream": "ftp://127.0.0.1", "env": ENV}, "--upstream needs"),
            ({"upstream": "http://127.0.0.1:99999", "env": ENV}, "--upstream needs"),
            ({"keys": f"[{KEY}]\nsecret = {SECRET}\nbuckets = *\naccess = rw\n"
                      "upstream-secret = alone\n"}, "belong together")):
        got = refused_start(**named)
        assert message in got and "pass@" not in got, f"got {got!r}, wanted {message!r}"


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
