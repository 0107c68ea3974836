#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock serve` when something it needs is missing: descriptors, space, the folder of
objects, a valid file of keys or certificates. Each trouble has a defined answer, and the gateway
serves again when the trouble is over, without a restart. Also tests clients that close their half
of a connection, and reloads while requests are in flight.

gateway_troubles.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints
TAP; tests/run runs it."""

import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys

from served import (KEY, KEYS, SECRET, SEED, Gateway, Skip, eventually, failure, host, keys_of,
                    make_certificate, opened, presigned, put_head, raw_put, read_reply, run_cases,
                    same, small_disk, until, write_private)

CLOSE = "Connection: close\r\n"
BUSY = (503, "SlowDown")
GONE = (503, "ServiceUnavailable")


def descriptors(gateway):
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def limit_descriptors(gateway, more):
    """Lets the gateway open `more` descriptors than it has open, or as many as before if `more` is
    None. Returns the limit."""
    _, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
    limit = hard if more is None else descriptors(gateway) + more
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def get_head(client, key):
    return (f"GET {presigned(client, 'get_object', key)} HTTP/1.1\r\nHost: {host(client)}\r\n"
            f"{CLOSE}\r\n").encode()


# --- half-closed connections ------------------------------------------------------

def case_half_closed_get():
    """A client that sends nothing more after its request gets the whole reply."""
    gateway, client = opened()
    with gateway:
        body = random.Random(SEED).randbytes(8 << 20)
        client.put_object(Bucket="data-1", Key="k", Body=body)
        before = descriptors(gateway)
        for first in (0, 1000):
            with gateway.connect() as raw:
                raw.sendall(get_head(client, "k"))
                start = raw.recv(first) if first else b""
                raw.shutdown(socket.SHUT_WR)
                reply = start + read_reply(raw)
            same((reply[9:12], reply.partition(b"\r\n\r\n")[2] == body), (b"200", True),
                 f"reply after {first} bytes")
        eventually(lambda: descriptors(gateway) <= before, True, "descriptors")
        same(gateway.metric("penstock_aborted_total"), 0, "replies that were cut")


def case_half_closed_put():
    """A client that closes its half of the connection after the body gets the reply, each of 200
    times for each length. If the body is incomplete, the gateway stores nothing."""
    gateway, client = opened()
    with gateway:
        body = random.Random(SEED).randbytes(1 << 20)
        before = descriptors(gateway)
        for length, times in ((10, 200), (60000, 200), (200000, 200), (len(body), 50)):
            for number in range(times):
                close = CLOSE if number % 2 else ""
                with raw_put(gateway, client, "k", length, b"", close) as raw:
                    raw.sendall(body[:length])
                    raw.shutdown(socket.SHUT_WR)
                    same(read_reply(raw)[9:12], b"200", f"PUT {number} of {length} bytes")
            same(client.get_object(Bucket="data-1", Key="k")["Body"].read() == body[:length], True,
                 f"the object of {length} bytes")
        same(gateway.metric("penstock_aborted_total"), 0, "replies that were cut")
        with raw_put(gateway, client, "cut", len(body), body[:-1], CLOSE) as raw:
            raw.shutdown(socket.SHUT_WR)
            same(read_reply(raw)[9:12] in (b"", b"400"), True, "PUT without its last byte")
        eventually(lambda: gateway.metric("penstock_requests_in_flight"), 0, "requests")
        eventually(lambda: descriptors(gateway) <= before + 1, True, "descriptors")
        same((keys_of(client), gateway.drafts()), (["k"], []), "files")


def case_half_closed_long_operations():
    """A client that sends nothing more gets the reply to a request that a worker thread runs."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        for name, named, wanted in (("copy_object", {"CopySource": "data-1/k"}, b"200"),
                                    ("list_objects_v2", {}, b"200"),
                                    ("delete_object", {"Key": "n"}, b"204")):
            method = {"c": "PUT", "l": "GET", "d": "DELETE"}[name[0]]
            if name == "copy_object":
                path, more = presigned(client, name, "n", **named), \
                    "x-amz-copy-source: data-1/k\r\nContent-Length: 0\r\n"
            else:
                path = client.generate_presigned_url(name, Params={"Bucket": "data-1", **named})
                path, more = "/" + path.split("/", 3)[3], ""
            for number in range(50):
                with gateway.connect() as raw:
                    raw.sendall((f"{method} {path} HTTP/1.1\r\nHost: {host(client)}\r\n{more}"
                                 f"{CLOSE}\r\n").encode())
                    raw.shutdown(socket.SHUT_WR)
                    same(read_reply(raw)[9:12], wanted, f"{name} {number}")


def case_half_closed_put_with_tls():
    with Gateway() as place:
        pair = make_certificate(place.place)
        with Gateway(tls=pair) as gateway:
            client = gateway.client(verify=pair[0])
            client.create_bucket(Bucket="data-1")
            context = ssl.create_default_context(cafile=pair[0])
            for number in range(50):
                with context.wrap_socket(gateway.connect(), server_hostname="127.0.0.1") as raw:
                    raw.sendall(put_head(client, "k", 60000, CLOSE) + bytes(60000))
                    # Python's method shutdown would end TLS in both directions.
                    with socket.socket(fileno=os.dup(raw.fileno())) as plain:
                        plain.shutdown(socket.SHUT_WR)
                    same(raw.recv(12)[9:12], b"200", f"PUT {number}")


# --- descriptors ------------------------------------------------------------------

def case_no_descriptors():
    """If clients open too many connections, the gateway closes further ones at once. It keeps
    descriptors for files and for the metrics, and does not use up a CPU."""
    gateway, client = opened(before=["sh", "-c", "ulimit -n 140; exec \"$@\"", "sh"],
                             flags=["--timeout", "600", "--threads", "4"])
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        held, refused = [], 0
        while not refused and len(held) < 100:
            held.append(gateway.connect(timeout=20))
            try:
                held[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                refused += held[-1].recv(12) != b"HTTP/1.1 403"
            except (BrokenPipeError, ConnectionResetError):
                refused += 1
        same((refused, len(held) > 4), (1, True), f"refusals, of {len(held)} connections")
        same(gateway.metric("penstock_refused_connections_total"), 1, "refusals in the metrics")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz meanwhile")
        before = gateway.cpu_seconds()
        try:  # waits until the gateway has been idle for a second
            held[0].settimeout(1)
            held[0].recv(1 << 16, socket.MSG_WAITALL)
        except TimeoutError:
            pass
        used = gateway.cpu_seconds() - before
        same(used < 0.5, True, f"CPU time {used} s")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "a GET")
        for connection in held:
            connection.close()
        until(lambda: failure_or_closed(gateway) is None, "the gateway serves again")


def case_limit_of_descriptors_falls():
    """If the limit of open files falls while the gateway runs, the gateway closes new connections
    at once, and does not use up a CPU."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        limit_descriptors(gateway, 8)
        before = gateway.cpu_seconds()
        for _ in range(50):
            same(failure_or_closed(gateway) is None, False, "a new connection")
        same(gateway.metric("penstock_refused_connections_total"), 50, "refusals in the metrics")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz meanwhile")
        used = gateway.cpu_seconds() - before
        same(used < 0.5, True, f"CPU time {used} s")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "a GET")
        limit_descriptors(gateway, None)
        same(failure_or_closed(gateway), None, "a new connection later")


def failure_or_closed(gateway):
    """Lists the buckets with a new connection. Returns the error, or None."""
    with gateway.connect() as raw:
        try:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return None if raw.recv(12) == b"HTTP/1.1 403" else "closed"
        except OSError as error:
            return error


def case_no_descriptor_for_files():
    """Requests that find no descriptor for a file are told to come again."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        client.head_object(Bucket="data-1", Key="k")  # closes what the PUT had open
        limit_descriptors(gateway, 0)
        for call, named in ((client.get_object, {"Key": "k"}), (client.list_objects_v2, {}),
                            (client.put_object, {"Key": "n", "Body": b"x"})):
            same(failure(call, Bucket="data-1", **named), BUSY, call.__name__)
        limit_descriptors(gateway, None)
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "a GET later")
        same(keys_of(client), ["k"], "keys")


# --- the folder of objects --------------------------------------------------------

def case_full_root():
    gateway = Gateway()
    with gateway, small_disk(gateway, 2):
        client = gateway.client()
        client.create_bucket(Bucket="data-1")
        name = os.path.join(gateway.root, "filler")
        with open(name, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                same(error.errno, 28, "error of the filler")
        same(failure(client.put_object, Bucket="data-1", Key="k", Body=b"x" * 9000),
             (507, "StorageFull"), "a PUT")
        same(gateway.get("/healthz"), (200, "ok\nthe root is full\n"), "/healthz")
        os.unlink(name)
        same(failure(client.put_object, Bucket="data-1", Key="k", Body=b"x" * 9000), None,
             "a PUT with room")
        same((gateway.get("/healthz"), gateway.drafts()), ((200, "ok\n"), []), "/healthz, drafts")


def case_read_only_root():
    gateway = Gateway()
    with gateway, small_disk(gateway, 8):
        client = gateway.client()
        client.create_bucket(Bucket="data-1")
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        upload = client.create_multipart_upload(Bucket="data-1", Key="m")["UploadId"]
        if subprocess.run(["mount", "-o", "remount,ro", gateway.root], check=False).returncode:
            raise Skip("a mount cannot become read-only here")
        for call, named in (
                (client.put_object, {"Key": "n", "Body": b"x"}),
                (client.delete_object, {"Key": "k"}),
                (client.copy_object, {"Key": "c", "CopySource": "data-1/k"}),
                (client.create_multipart_upload, {"Key": "m"}),
                (client.upload_part, {"Key": "m", "UploadId": upload, "PartNumber": 1,
                                      "Body": b"x"}),
                (client.abort_multipart_upload, {"Key": "m", "UploadId": upload})):
            same(failure(call, Bucket="data-1", **named), GONE, call.__name__)
        same(failure(client.create_bucket, Bucket="other"), GONE, "a bucket")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "a GET")
        same(keys_of(client), ["k"], "keys")
        same(gateway.get("/healthz"), (200, "ok\nthe root is read-only\n"), "/healthz")
        subprocess.run(["mount", "-o", "remount,rw", gateway.root], check=True)
        same(failure(client.put_object, Bucket="data-1", Key="n", Body=b"x"), None, "a PUT")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz afterwards")


def case_root_is_away():
    """The contents of the root disappear, and come back. Meanwhile, no client is told that its
    objects do not exist."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        away = os.path.join(gateway.place, "away")
        os.mkdir(away)
        for name in os.listdir(gateway.root):
            os.rename(os.path.join(gateway.root, name), os.path.join(away, name))
        calls = ((client.get_object, {"Bucket": "data-1", "Key": "k"}),
                 (client.put_object, {"Bucket": "data-1", "Key": "n", "Body": b"x"}),
                 (client.list_objects_v2, {"Bucket": "data-1"}), (client.list_buckets, {}))
        for call, named in calls:
            same(failure(call, **named), GONE, call.__name__)
        same(failure(client.head_object, Bucket="data-1", Key="k")[0], 503, "HEAD")
        same(gateway.get("/healthz"), (503, "the root is gone\n"), "/healthz")
        for name in os.listdir(away):
            os.rename(os.path.join(away, name), os.path.join(gateway.root, name))
        for call, named in calls:
            same(failure(call, **named), None, call.__name__ + " afterwards")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz afterwards")
        shutil.rmtree(gateway.root)
        for call, named in calls:
            same(failure(call, **named), GONE, call.__name__ + " without the root")
        same(gateway.get("/healthz")[0], 503, "/healthz without the root")


# --- reloads ----------------------------------------------------------------------

def case_keys_reload_in_flight():
    """Requests in flight keep the access keys with which they began."""
    gateway, client = opened()
    with gateway:
        half = b"x" * 5000
        held = [raw_put(gateway, client, f"k{number:03}", 10000, half, CLOSE)
                for number in range(100)]
        until(lambda: gateway.metric("penstock_requests_in_flight") == 100, "all have arrived")
        write_private(gateway.keys, KEYS.replace(SECRET, "another+secret"))
        gateway.process.send_signal(signal.SIGHUP)
        changed = gateway.client(KEY, "another+secret")
        until(lambda: failure(changed.list_buckets) is None, "the new secret works")
        same(failure(client.list_buckets), (403, "SignatureDoesNotMatch"), "the old secret")
        for number, raw in enumerate(held):
            raw.sendall(half)
            same(read_reply(raw)[9:12], b"200", f"PUT {number}")
            raw.close()
        same(len(keys_of(changed)), 100, "objects")


def case_keys_reload_broken():
    """A file of keys that is broken, missing or readable for others changes nothing."""
    gateway, client = opened()
    with gateway:
        def remove():
            os.unlink(gateway.keys)

        for change, reason in ((lambda: write_private(gateway.keys, "[broken\n"), "line 1"),
                               (lambda: os.chmod(gateway.keys, 0o644), "chmod 600"),
                               (remove, "No such file")):
            change()
            gateway.process.send_signal(signal.SIGHUP)
            said = gateway.process.stderr.readline() + gateway.process.stderr.readline()
            same((reason in said, "the access keys are unchanged" in said), (True, True), said)
            same(failure(client.list_buckets), None, "the old keys")
        write_private(gateway.keys, KEYS.replace(SECRET, "another+secret"))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: failure(gateway.client(KEY, "another+secret").list_buckets) is None,
              "a file that is whole again")


def case_certificate_reload():
    """A broken certificate changes nothing. A valid certificate is used for new connections, while
    requests in flight keep the old one."""
    with Gateway() as place:
        pair = make_certificate(place.place, "one")
        other = make_certificate(place.place, "two")
        with Gateway(tls=pair) as gateway:
            client = gateway.client(verify=pair[0])
            client.create_bucket(Bucket="data-1")
            with open(pair[0], encoding="utf-8") as file:
                good = file.read()
            before = 0
            for broken in ("", good[:len(good) // 2], good.replace("M", "N"), "x", good[9:]):
                with open(pair[0], "w", encoding="utf-8") as file:
                    file.write(broken)
                gateway.process.send_signal(signal.SIGHUP)
                said = ""
                while "unchanged" not in said:
                    line = gateway.process.stderr.readline()
                    same(bool(line), True, f"messages {said!r}")
                    said += line
                same("the certificate is unchanged" in said, True, said)
                before = before or descriptors(gateway)
                # The gateway may still close the connection of the round before.
                eventually(lambda most=before: descriptors(gateway) <= most, True,
                           "descriptors after a broken certificate")
                context = ssl.create_default_context(cadata=good)
                with gateway.connect() as raw, \
                        context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
                    secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    same(secure.recv(12), b"HTTP/1.1 403", "reply with the old certificate")
            held = []
            for number in range(20):
                held.append(context.wrap_socket(gateway.connect(), server_hostname="127.0.0.1"))
                held[-1].sendall(put_head(client, f"k{number:03}", 10, CLOSE) + b"12345")
            until(lambda: gateway.metric("penstock_requests_in_flight") == 20, "all have arrived")
            for new, old in zip(other, pair):
                os.rename(new, old)
            gateway.process.send_signal(signal.SIGHUP)

            def works():
                fresh = ssl.create_default_context(cafile=pair[0])
                try:
                    with gateway.connect() as raw, \
                            fresh.wrap_socket(raw, server_hostname="127.0.0.1"):
                        return True
                except ssl.SSLError:
                    return False
            until(works, "the new certificate is used")
            for number, raw in enumerate(held):
                raw.sendall(b"67890")
                same(read_reply(raw)[9:12], b"200", f"PUT {number}")
                raw.close()
            same(len(keys_of(gateway.client(verify=pair[0]))), 20, "objects")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
