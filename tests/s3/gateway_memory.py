#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends many requests of mixed kinds to `penstock serve` over few keep-alive connections, and
compares the gateway's anonymous memory (RssAnon) after a warm-up with that at the end. It must not
grow by more than GROWTH_KIB: with 20,000 requests, a leak of 105 bytes a request fails; with one
million, a leak of 3 bytes. Does the same for a client, a program that reads as many ranges of an
object by HTTP, and then by S3 over RDMA. $PENSTOCK_REQUESTS is the number (default 20,000). On a
machine with two cores, one million requests took 66 s, and RssAnon of the gateway went from 2,464
KiB to 2,416 KiB. Prints TAP; tests/run runs it."""

import itertools
import os
import subprocess
import sys
import time

from served import (BUILD, KEY, READ_KEY, READ_SECRET, SECRET, host, opened, presigned, put_head,
                    run_cases, same, together)

REQUESTS = int(os.environ.get("PENSTOCK_REQUESTS", "20000"))
CONNECTIONS = 4
# number of requests that fill the caches of each thread's allocator before the measurement
WARM_UP = 4000
GROWTH_KIB = 2048
BATCH = max(REQUESTS // 10, CONNECTIONS)


def memory_kib(process):
    """Returns the anonymous memory (heap and stacks) of a process in KiB. It does not include
    mapped files. Returns None if the process has ended."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("RssAnon")), None)


def requests_of(gateway, client, number):
    """Returns one request of each kind, as bytes, with the status that its reply must have."""
    body = b"x" * 3000
    reader = gateway.client(READ_KEY, READ_SECRET)

    def plain(method, path):
        return f"{method} {path} HTTP/1.1\r\nHost: {host(client)}\r\n\r\n".encode()

    get = presigned(client, "get_object", "k")
    listing = client.generate_presigned_url("list_objects_v2", Params={"Bucket": "data-1"})
    listing = "/" + listing.split("/", 3)[3]
    denied = presigned(reader, "delete_object", "k")
    kinds = [(plain("GET", get), 200), (plain("HEAD", presigned(client, "head_object", "k")), 200),
             (plain("GET", presigned(client, "get_object", "absent")), 404),
             (plain("GET", listing), 200), (plain("DELETE", denied), 403),
             (plain("GET", get[:-1] + ("0" if get[-1] != "0" else "1")), 403),
             (plain("GET", "/data-1/k"), 403),
             (plain("GET", get).replace(b"\r\n\r\n", b"\r\nRange: bytes=10-99\r\n\r\n"), 206)]
    kinds += kinds
    # A PUT is slow, because it waits for the drive. So only one of many requests is a PUT.
    return kinds + [(put_head(client, f"put-{number}", len(body)) + body, 200)]


def reply_read(stream, is_head):
    """Reads one reply. Returns its status."""
    status, length = int(stream.readline().split()[1]), 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if not is_head:
        same(len(stream.read(length)), length, "length of a body")
    return status


def send(gateway, kinds, count):
    """Sends requests on one connection. Each request follows the reply to the previous one."""
    with gateway.connect() as raw, raw.makefile("rb") as stream:
        for request, status in itertools.islice(itertools.cycle(kinds), count):
            raw.sendall(request)
            same(reply_read(stream, request.startswith(b"HEAD")), status,
                 f"status of {request[:40]!r}")


def case_memory_is_flat():
    gateway, client = opened(flags=["--threads", "2"])
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"y" * 5000)

        def send_all(count):
            # A presigned URL is valid for only an hour, so each batch uses new URLs.
            kinds = [requests_of(gateway, client, n) for n in range(CONNECTIONS)]
            together([lambda k=k: send(gateway, k, count // CONNECTIONS) for k in kinds])

        send_all(WARM_UP)
        before, sent, start = memory_kib(gateway.process), 0, time.monotonic()
        while sent < REQUESTS:
            count = min(BATCH, REQUESTS - sent)
            send_all(count)
            sent += count
            print(f"# {sent} requests: {memory_kib(gateway.process)} KiB", flush=True)
        after, took = memory_kib(gateway.process), time.monotonic() - start
        print(f"# RssAnon {before} KiB after {WARM_UP} requests, {after} KiB after {sent} more in "
              f"{took:.1f} s")
        same(after - before <= GROWTH_KIB, True,
             f"growth from {before} KiB to {after} KiB, at most {GROWTH_KIB} KiB")


def case_memory_of_a_client_is_flat():
    for way in ("off", "require"):
        gateway, client = opened()
        with gateway:
            client.put_object(Bucket="data-1", Key="k", Body=os.urandom(8 << 20))
            env = dict(os.environ, AWS_ENDPOINT_URL=gateway.url, AWS_ACCESS_KEY_ID=KEY,
                       AWS_SECRET_ACCESS_KEY=SECRET)
            samples = []  # number of requests so far, and the client's memory then
            with subprocess.Popen([os.path.join(BUILD, "tests", "s3-object"), "many",
                                   f"s3://data-1/k?rdma={way}", str(REQUESTS)], env=env,
                                  stdout=subprocess.PIPE, text=True) as reader:
                while reader.poll() is None:
                    sent = gateway.metric('penstock_requests_total{operation="GetObject"')
                    memory = memory_kib(reader)
                    if sent > REQUESTS / 4 and memory is not None:
                        samples.append((sent, memory))
                said = reader.stdout.read()
            same(said.startswith(f"ok {REQUESTS} "), True, f"result of the client ({said!r})")
            same(len(samples) > 1, True, f"samples {samples}")
            (first, before), (last, after) = samples[0], samples[-1]
            print(f"# rdma={way}: RssAnon {before} KiB after {first:.0f} requests, {after} KiB "
                  f"after {last:.0f}", flush=True)
            same(last > REQUESTS / 2, True, f"requests at the last sample: {last}")
            same(after - before <= GROWTH_KIB, True,
                 f"growth from {before} KiB to {after} KiB, at most {GROWTH_KIB} KiB")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
