#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what an operator does while `penstock serve` runs: signals, new certificates, and a
root that gets another path.

gateway_life.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints TAP;
tests/run runs it."""

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys

from served import (KEYS, PENSTOCK, READ_KEY, READ_SECRET, Gateway, failure, make_certificate,
                    opened, put_head, raw_put, read_reply, run_cases, same, until, write_private)


def failure_or_refused(call, **named):
    try:
        return failure(call, **named)
    except Exception as error:  # noqa: B902  (a refused connection has many names in boto3)
        return error


def case_drain():
    gateway, client = opened(flags=["--drain", "60"])
    with gateway, raw_put(gateway, client, "k", 10, b"12345") as raw:
        until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "the PUT has arrived")
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.get("/healthz")[0] == 503, "the gateway drains")

        def refused():
            try:
                return gateway.connect().close()
            except ConnectionRefusedError:
                return True
        until(refused, "connections are refused", 10)
        raw.sendall(b"67890")
        reply = read_reply(raw)
        same((reply[9:12], b"Connection: close" in reply), (b"200", True), f"reply {reply!r}")
        same(gateway.stop()[0], 0, "exit status")
        with open(os.path.join(gateway.root, "data-1", "k"), "rb") as file:
            same(file.read(), b"1234567890", "object")


def case_drain_ends():
    gateway, client = opened(flags=["--drain", "1"])
    with gateway, raw_put(gateway, client, "k", 10, b"12345"):
        until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "the PUT has arrived")
        same(gateway.stop()[0], 0, "exit status")
        same(os.listdir(os.path.join(gateway.root, "data-1")), [], "files")


def case_tls():
    with Gateway() as place:
        first, second = make_certificate(place.place, "one"), make_certificate(place.place, "two")
        with Gateway(tls=first) as gateway:
            client = gateway.client(verify=first[0])
            client.create_bucket(Bucket="data-1")
            body = os.urandom(3 << 20)
            client.put_object(Bucket="data-1", Key="k", Body=body)
            same(client.get_object(Bucket="data-1", Key="k")["Body"].read() == body, True, "body")
            for new, old in zip(second, first):
                os.rename(new, old)
            gateway.process.send_signal(signal.SIGHUP)

            def works():
                return failure_or_refused(gateway.client(verify=first[0]).list_buckets) is None
            until(works, "the new certificate is used")
            same(gateway.stop()[0], 0, "exit status")
        os.chmod(first[1], 0o644)
        done = subprocess.run([PENSTOCK, "serve", "--root", place.root, "--listen", "127.0.0.1:0",
                               "--keys", place.keys, "--cert", first[0], "--key", first[1]],
                              capture_output=True, text=True, timeout=60, check=False)
        same((done.returncode, "chmod 600" in done.stderr), (1, True), "a key that others read")


def case_certificate_without_its_key():
    """A reload between the replacement of the certificate and of its key fails. The gateway keeps
    the old pair and accepts connections, also after several such reloads."""
    with Gateway() as place:
        first, second = make_certificate(place.place, "one"), make_certificate(place.place, "two")
        trusted = place.place + "/trusted"
        shutil.copy(first[0], trusted)
        with Gateway(tls=first) as gateway:
            gateway.client(verify=trusted).create_bucket(Bucket="data-1")
            os.rename(second[0], first[0])
            for number in range(3):
                write_private(gateway.keys, KEYS.replace(READ_KEY, f"AK{number}"))
                gateway.process.send_signal(signal.SIGHUP)
                client = gateway.client(f"AK{number}", READ_SECRET, verify=trusted)
                until(lambda c=client: failure_or_refused(c.list_buckets) is None,
                      "the keys are read")
            os.rename(second[1], first[1])
            gateway.process.send_signal(signal.SIGHUP)
            until(lambda: failure_or_refused(gateway.client(verify=first[0]).list_buckets) is None,
                  "the new certificate is used")
            same(gateway.stop()[1].count("belong together"), 3, "number of messages")


def case_old_certificate_ends():
    """After a reload of the certificate, the process runs a second HTTP server. The server with
    the old certificate ends when its last connection ends, and needs no signal for that."""
    with Gateway() as place:
        pair = make_certificate(place.place, "one")
        with Gateway(tls=pair) as gateway:
            def threads():
                return len(os.listdir(f"/proc/{gateway.process.pid}/task"))
            context = ssl.create_default_context(cafile=pair[0])
            before = threads()
            with gateway.connect() as raw, \
                    context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
                gateway.process.send_signal(signal.SIGHUP)
                until(lambda: threads() > before, "a second server runs")
                secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                same(secure.recv(12), b"HTTP/1.1 403", "reply of the first server")
                same(threads() > before, True, "both servers run")
            until(lambda: threads() == before, "the first server has ended")
            same(gateway.stop()[0], 0, "exit status")


def case_other_root():
    """A gateway whose root has lost its path is not healthy: other gateways that start later would
    serve another folder."""
    gateway, client = opened()
    with gateway:
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz")
        os.rename(gateway.root, gateway.root + "-away")
        same(gateway.get("/healthz"), (503, "the root is gone\n"), "without the root")
        os.mkdir(gateway.root)
        status, text = gateway.get("/healthz")
        same((status, "restart the gateway" in text), (503, True), f"with another root: {text}")
        os.rmdir(gateway.root)
        os.rename(gateway.root + "-away", gateway.root)
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz with the root")
        client.head_bucket(Bucket="data-1")


def case_few_files():
    """The gateway accepts only as many connections as it has descriptors for. So uploads that are
    in progress on all connections do not prevent it from accepting connections for metrics."""
    few = ["sh", "-c", "ulimit -n 300; exec \"$@\"", "sh"]
    gateway, client = opened(before=few, flags=["--threads", "4", "--drain", "1"])
    with gateway, contextlib.ExitStack() as stack:
        head = put_head(client, "k", 2) + b"x"
        for _ in range(150):
            raw = stack.enter_context(gateway.connect())
            with contextlib.suppress(ConnectionError):
                raw.sendall(head)
        # The threads of the gateway may together accept a few connections more than the limit.
        until(lambda: 70 < gateway.metric("penstock_requests_in_flight") < 90, "uploads run")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz")
        same("300 open files allows only 78 connections, not 4096" in gateway.stop()[1], True,
             "message")
    done = subprocess.run(["sh", "-c", "ulimit -n 60; exec \"$@\"", "sh", PENSTOCK, "serve",
                           "--root", "/", "--keys", "/dev/null", "--listen", "127.0.0.1:0"],
                          capture_output=True, text=True, timeout=60, check=False)
    same((done.returncode, "raise it with ulimit -n" in done.stderr), (1, True), "60 files")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
