#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock serve`: keys, limits, hostile requests, files in its folder, logs.

gateway.py [WORD...]: runs the cases whose names contain one of the words, or all. conformance.py
tests the API of S3, and gateway_kills.py tests crashes of the gateway. Prints TAP; tests/run runs
it."""

import collections
import fcntl
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib

import botocore.exceptions

from served import (BUILD, KEY, KEYS, PENSTOCK, READ_KEY, READ_SECRET, SECRET, SEED, Gateway, Skip,
                    encoded_put, eventually, failure, host, keys_of, opened, presigned, put_head,
                    read_reply, repair, repair_run, run_cases, same, small_disk, together, until,
                    write_private)

# --- keys -------------------------------------------------------------------------

def refused_keys(text, mode=0o600):
    """Starts a gateway with a wrong key file. Returns its exit status and its message."""
    with Gateway() as place:
        write_private(place.keys, text)
        os.chmod(place.keys, mode)
        done = subprocess.run([PENSTOCK, "serve", "--root", place.root, "--listen",
                               "127.0.0.1:0", "--keys", place.keys], capture_output=True,
                              text=True, timeout=60, check=False)
        return done.returncode, done.stderr


def case_key_file_modes():
    """gateway_life.py tests the modes with which a group may read the file."""
    for mode in (0o604, 0o660, 0o622, 0o644):
        status, err = refused_keys(KEYS, mode)
        same((status, "chmod 600" in err), (1, True), f"mode {mode:o} ({err})")


def case_key_file_malformed():
    good = f"[A]\nsecret = {SECRET}\nbuckets = *\naccess = rw\n"
    for text in ("", "[A]\n", good.replace("access = rw", "access = all"),
                 good.replace(f"secret = {SECRET}\n", ""), good.replace("buckets = *\n", ""),
                 good + good, "secret = x\n" + good, good + "other = 1\n",
                 good + f"secret = {SECRET}\n"):
        status, err = refused_keys(text)
        same(status, 1, f"status with {text!r}")
        same(SECRET in err, False, f"the secret is in {err!r}")


def case_key_rights():
    gateway, client = opened()
    with gateway:
        client.create_bucket(Bucket="other")
        client.put_object(Bucket="data-1", Key="k", Body=b"x")
        reader = gateway.client(READ_KEY, READ_SECRET)
        same(reader.get_object(Bucket="data-1", Key="k")["Body"].read(), b"x", "body")
        denied = (403, "AccessDenied")
        same(failure(reader.put_object, Bucket="data-1", Key="k", Body=b"y"), denied, "PUT")
        same(failure(reader.list_objects_v2, Bucket="other"), denied, "other bucket")
        same(failure(reader.delete_object, Bucket="data-1", Key="k"), denied, "DELETE")
        same([b["Name"] for b in reader.list_buckets()["Buckets"]], ["data-1"], "buckets")
        wrong = gateway.client(KEY, SECRET + "x")
        same(failure(wrong.list_buckets), (403, "SignatureDoesNotMatch"), "wrong secret")
        unknown = gateway.client("NOBODY", SECRET)
        same(failure(unknown.list_buckets), (403, "InvalidAccessKeyId"), "unknown key")


def case_keys_reload():
    gateway, client = opened()
    with gateway:
        write_private(gateway.keys, KEYS.replace(SECRET, "another+secret"))
        gateway.process.send_signal(signal.SIGHUP)
        changed = gateway.client(KEY, "another+secret")
        until(lambda: failure(changed.list_buckets) is None, "the new secret works")
        same(failure(client.list_buckets), (403, "SignatureDoesNotMatch"), "old secret")
        write_private(gateway.keys, "[broken\n")
        gateway.process.send_signal(signal.SIGHUP)
        message = gateway.process.stderr.readline() + gateway.process.stderr.readline()
        same("unchanged" in message, True, f"message {message!r}")
        same(failure(changed.list_buckets), None, "the old keys stay")


# --- hostile requests -------------------------------------------------------------

def case_slow_head():
    """A client that sends a head byte by byte is disconnected. Other clients are served meanwhile.
    """
    gateway, client = opened(flags=["--timeout", "2", "--threads", "1"])
    with gateway, gateway.connect() as slow:
        start = time.monotonic()
        slow.settimeout(0.3)
        slow.sendall(b"GET /data-1/k HTTP/1.1\r\nHost: x\r\nX-A: ")
        ended = False
        while not ended and time.monotonic() - start < 40:
            try:
                slow.sendall(b"a")
                ended = slow.recv(1) == b""
            except TimeoutError:
                same(failure(client.head_bucket, Bucket="data-1"), None, "another client")
            except OSError:
                ended = True
        same(ended, True, "the connection has ended")
        eventually(lambda: gateway.metric("penstock_slow_connections_total"), 1, "slow connections")


def case_slow_body():
    gateway, client = opened(flags=["--timeout", "60", "--min-rate", "10000"])
    with gateway, gateway.connect() as slow:
        slow.settimeout(0.5)
        start = time.monotonic()
        slow.sendall(put_head(client, "slow", 1000000))
        ended = False
        while not ended and time.monotonic() - start < 60:
            try:
                slow.sendall(b"a")
                ended = slow.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                ended = True
        same(ended, True, "the connection has ended")
        eventually(lambda: gateway.metric("penstock_slow_connections_total"), 1, "slow connections")
        same(keys_of(client), [], "keys")
        until(lambda: not gateway.drafts(), "no draft is left")


def case_oversize_heads():
    gateway, client = opened()
    with gateway:
        for head in (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 40000 + b"\r\n\r\n",
                     b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100 + b"\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 400000 + b"\r\n\r\n"):
            with gateway.connect() as raw:
                raw.sendall(head)
                line = read_reply(raw).split(b"\r\n")[0]
                same(line[9:12] in (b"400", b"413", b"414", b"431", b""), True,
                     f"reply {line!r} to {len(head)} bytes")
        eventually(lambda: gateway.metric("penstock_refused_heads_total"), 4, "refusals counted")
        same(failure(client.head_bucket, Bucket="data-1"), None, "the gateway goes on")


def case_garbage():
    """Sends requests with random changes. The gateway answers or disconnects. It must store
    nothing under other keys, and no body that differs from its checksum."""
    gateway, client = opened(flags=["--timeout", "3"])  # ends requests that stay incomplete
    source, body = random.Random(SEED), b"abcde" * 50
    with gateway:
        def request(number):
            if number % 2:
                return encoded_put(gateway, f"encoded-{number}", body,
                                   zlib.crc32(body).to_bytes(4, "big"))
            return put_head(client, f"plain-{number}", len(body), "Connection: close\r\n") + body

        # Without changes the requests are accepted, so a later refusal is an effect of the
        # changes.
        for number in (0, 1):
            with gateway.connect() as raw:
                raw.sendall(request(number))
                same(read_reply(raw)[9:12], b"200", f"status of request {number}, unchanged")
        held = []
        for number in range(2, 600):
            data = bytearray(request(number))
            for _ in range(source.randrange(1, 4)):
                at = source.randrange(len(data))
                data[at:at + source.randrange(3)] = source.randbytes(source.randrange(3))
            held.append(gateway.connect())
            held[-1].sendall(data)
        statuses = collections.Counter(read_reply(raw)[9:12].decode() for raw in held)
        for raw in held:
            raw.close()
        print("# statuses:", dict(statuses))
        same({"200", "400", "403"} <= statuses.keys(), True, f"statuses {statuses}")
        same(statuses.keys() <= {"", "200", "400", "403", "404", "405", "411", "413", "414", "417",
                                 "431", "501", "505"}, True, f"statuses {statuses}")
        keys = keys_of(client)
        same([key for key in keys if not re.fullmatch("encoded-[0-9]+|plain-[0-9]+", key)], [],
             "other keys")
        encoded = [key for key in keys if key.startswith("encoded")]
        same(1 < len(encoded) < 300, True, f"{len(encoded)} bodies with a checksum are stored")
        for key in encoded:
            same(client.get_object(Bucket="data-1", Key=key)["Body"].read(), body, key)
        until(lambda: not gateway.drafts(), "no draft is left")


def case_unknown_uploads():
    """A request for an upload that does not exist must not close the gateway's own descriptors 0
    to 2."""
    gateway, client = opened()
    with gateway:
        client.create_bucket(Bucket="other")
        upload = client.create_multipart_upload(Bucket="other", Key="k")["UploadId"]
        standard = [f"/proc/{gateway.process.pid}/fd/{n}" for n in (0, 1, 2)]
        before = [os.readlink(path) for path in standard]
        # The folder of uploads has an entry for the bucket `other`, and none for data-1.
        for bucket in ("data-1", "other"):
            for word in ("x", "../" * 4, "0" * 32, "f" * 33, upload[:-1] + "/"):
                for call, more in ((client.list_parts, {}), (client.abort_multipart_upload, {}),
                                   (client.upload_part, {"PartNumber": 1, "Body": b"x"})):
                    same(failure(call, Bucket=bucket, Key="k", UploadId=word, **more),
                         (404, "NoSuchUpload"), f"upload {word!r} of {bucket}")
        same([os.path.lexists(path) and os.readlink(path) for path in standard], before,
             "descriptors 0 to 2")


def case_unknown_parameters():
    """If a request has an unknown parameter, the gateway either refuses it or makes only the
    change that the request names."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"old")
        client.create_bucket(Bucket="other")
        added = []  # the last word of this list is appended to the query
        client.meta.events.register("before-sign.s3", lambda request, **_: setattr(
            request, "url", request.url + ("&" if "?" in request.url else "?") + added[-1]))
        calls = ((client.put_object, {"Bucket": "data-1", "Key": "k", "Body": b"new"}),
                 (client.create_multipart_upload, {"Bucket": "data-1", "Key": "m"}),
                 (client.create_bucket, {"Bucket": "new"}),
                 (client.delete_object, {"Bucket": "data-1", "Key": "k"}),
                 (client.delete_bucket, {"Bucket": "other"}))
        plain = gateway.client()
        for word in ("metadataConfiguration", "newSubresource=1"):
            added.append(word)
            for call, more in calls:
                same(failure(call, **more), (501, "NotImplemented"), f"{call.__name__} {word}")
            same(plain.get_object(Bucket="data-1", Key="k")["Body"].read(), b"old", "body")
            same([b["Name"] for b in plain.list_buckets()["Buckets"]], ["data-1", "other"],
                 "buckets")
        for word in ("x-id=Any", "X-Trace=1"):
            added.append(word)
            for call, more in calls[:2]:
                same(failure(call, **more), None, f"{call.__name__} {word}")


def case_presigned_by_version_2():
    """The gateway tells the caller which version of signatures it wants, whatever the method is."""
    gateway, client = opened()
    with gateway:
        query = "AWSAccessKeyId=AKWRITE&Signature=c2lnbmF0dXJl&Expires=4102444800"
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            with gateway.connect() as raw:
                raw.sendall(f"{method} /data-1/k?{query} HTTP/1.1\r\nHost: {host(client)}\r\n"
                            "Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
                reply = read_reply(raw)
            same(b" 400 " in reply, True, f"{method}: {reply}")
            same(b"AWS4-HMAC-SHA256" in reply, method != "HEAD", f"{method}: {reply}")


def case_truncated_body():
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="old", Body=b"old")
        for key in ("new", "old"):
            with gateway.connect() as raw:
                raw.sendall(put_head(client, key, 100000) + b"x" * 50000)
        until(lambda: gateway.metric("penstock_aborted_total") == 2, "both are counted")
        same(keys_of(client), ["old"], "keys")
        same(client.get_object(Bucket="data-1", Key="old")["Body"].read(), b"old", "body")
        same(gateway.drafts(), [], "drafts")


def case_cut_requests():
    """If a client closes its connection in the middle of a request, the gateway soon closes it,
    too. The gateway is stopped meanwhile, so the end of the stream arrives with the bytes."""
    gateway, client = opened()  # an idle connection ends after 60 s
    client.close()
    parts = (b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", put_head(client, "k", 10) + b"12345")
    with gateway:
        gateway.process.send_signal(signal.SIGSTOP)
        for part in parts:
            with gateway.connect() as raw:
                raw.sendall(part)
        gateway.process.send_signal(signal.SIGCONT)
        eventually(lambda: gateway.metric("penstock_connections"), 0, "connections", 30)


def case_double_headers():
    gateway, client = opened()
    with gateway, gateway.connect() as raw:
        raw.sendall(put_head(client, "k", 1, "x-amz-meta-a: 1\r\nx-amz-meta-a: 2\r\n"
                             "Connection: close\r\n") + b"x")
        reply = read_reply(raw)
        same((reply[9:12], b"x-amz-meta-a" in reply), (b"400", True), f"reply {reply!r}")
        same(keys_of(client), [], "keys")


def case_ambiguous_length():
    """A proxy may see another end of these bodies than the gateway. So the gateway must not take
    the bytes that follow for a request."""
    gateway, client = opened()
    with gateway:
        path = presigned(client, "put_object", "k")
        for extra in ("Content-Length: 1\r\nContent-Length: 2\r\n",
                      "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
                      "Content-Length: 1\r\nTransfer-Encoding: identity\r\n",
                      "Transfer-Encoding: gzip, chunked\r\n"):
            head = f"PUT {path} HTTP/1.1\r\nHost: {host(client)}\r\n{extra}\r\n".encode()
            with gateway.connect(10) as raw:
                raw.sendall(head + b"1\r\nx\r\n0\r\n\r\n")
                raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                reply = read_reply(raw)
            same((reply[9:12], reply.count(b"HTTP/1.1"), b"Connection: close" in reply),
                 (b"400", 1, True), f"reply {reply!r} after {extra!r}")
        same(keys_of(client), [], "keys")


def case_body_limit():
    gateway, client = opened(flags=["--body-max", "1MiB"])
    with gateway:
        same(failure(client.put_object, Bucket="data-1", Key="k", Body=b"x" * ((1 << 20) + 1)),
             (400, "EntityTooLarge"), "too long")
        same(failure(client.put_object, Bucket="data-1", Key="k", Body=b"x" * (1 << 20)), None,
             "just fits")


def count_answered(gateway, count, address="127.0.0.1"):
    """Opens `count` connections from one address, one after another. Sends a request on each and
    keeps it open. Returns how many connections get a reply, and how many the gateway closes
    without a reply."""
    replies, held = collections.Counter(), []
    before = gateway.metric("penstock_connections")
    for _ in range(count):
        held.append(gateway.connect(timeout=20, address=address))
        try:
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            replies[held[-1].recv(12)] += 1
        except (BrokenPipeError, ConnectionResetError):
            replies[b""] += 1
    for connection in held:
        connection.close()
    eventually(lambda: gateway.metric("penstock_connections"), before, "open connections")
    same(replies.keys() <= {b"HTTP/1.1 403", b""}, True, f"replies {replies}")
    return replies[b"HTTP/1.1 403"], replies[b""]


def case_connections_limit():
    """The gateway closes connections beyond the limit at once, and serves the others."""
    with Gateway(flags=["--connections", "64", "--timeout", "600"]) as gateway:
        for _ in range(2):
            same(count_answered(gateway, 200), (64, 136), "connections with and without a reply")
        same(failure(gateway.client().list_buckets), None, "the gateway serves again")


def case_connections_per_address():
    with Gateway(flags=["--connections-per-address", "16", "--timeout", "600"]) as gateway:
        with gateway.connect(address="127.0.0.3") as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            same(other.recv(12), b"HTTP/1.1 403", "another address")
            same(count_answered(gateway, 50, "127.0.0.2"), (16, 34),
                 "connections of one address with and without a reply")
        with gateway.connect(address="127.0.0.4") as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            same(other.recv(12), b"HTTP/1.1 403", "another address, later")


def case_no_descriptors():
    """While the process has no descriptor left for a connection, the gateway does not try to accept
    it again and again, but sleeps. It accepts the connection when there is a descriptor."""
    with Gateway(flags=["--threads", "2"]) as gateway:
        pid = gateway.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        with gateway.connect() as waits:
            waits.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            before = gateway.cpu_seconds()
            waits.settimeout(1)
            try:
                got = waits.recv(12)
            except TimeoutError:
                got = None
            used = gateway.cpu_seconds() - before
            same((got, used < 0.5), (None, True), f"reply, and few seconds of a CPU ({used})")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            waits.settimeout(20)
            same(waits.recv(12), b"HTTP/1.1 403", "reply when there are descriptors")


def allow_connections(count):
    """Lets this process open as many files as it may. Skips the case if the gateway, which has the
    same limit, does not accept `count` connections: it reserves 3 files for each of them."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < 3 * count + 300:
        raise Skip(f"only {limit} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def case_many_connections():
    """The gateway serves a client while 1,000 connections have each sent a part of a request."""
    allow_connections(1000)
    gateway, client = opened(flags=["--timeout", "600", "--min-rate", "1"])
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        path = presigned(client, "get_object", "k")
        head = f"GET {path} HTTP/1.1\r\nHost: {host(client)}\r\n".encode()
        held = [gateway.connect() for _ in range(1000)]
        for connection in held:
            connection.sendall(head)
        until(lambda: gateway.metric("penstock_connections") >= 1000, "all are connected")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"body", "body")
        for connection in held:
            connection.sendall(b"Connection: close\r\n\r\n")
        replies = {read_reply(connection)[9:12] for connection in held}
        same(replies, {b"200"}, "statuses")
        for connection in held:
            connection.close()
        until(lambda: gateway.metric("penstock_connections") <= 1, "all are closed")


def thread_states(pid):
    """Returns the states of a process's threads, such as "S" (sleeping) or "T" (stopped)."""
    states = set()
    for name in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{name}/stat", encoding="utf-8") as file:
            states.add(file.read().rsplit(")", 1)[1].split()[0])
    return states


def case_burst():
    """A thread that finds exactly as many events as libmicrohttpd takes with one system call (128),
    or a multiple of them, handles these events at once. The events arrive together, because the
    gateway is stopped while the clients send."""
    allow_connections(384)
    gateway, client = opened(flags=["--threads", "1", "--timeout", "600", "--min-rate", "1"])
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"body")
        path = presigned(client, "get_object", "k")
        head = f"GET {path} HTTP/1.1\r\nHost: {host(client)}\r\n".encode()
        for count in (127, 128, 129, 256, 384):
            held = [gateway.connect() for _ in range(count)]
            for connection in held:
                connection.sendall(head)
            eventually(lambda: gateway.metric("penstock_requests_in_flight"), count,
                       "requests that have begun")
            gateway.process.send_signal(signal.SIGSTOP)
            until(lambda: thread_states(gateway.process.pid) == {"T"}, "all threads are stopped")
            for connection in held:
                connection.sendall(b"Connection: close\r\n\r\n")
            gateway.process.send_signal(signal.SIGCONT)
            statuses, end = collections.Counter(), time.monotonic() + 60
            for connection in held:
                connection.settimeout(max(0.01, end - time.monotonic()))
                try:
                    statuses[read_reply(connection)[9:12]] += 1
                except TimeoutError:
                    statuses["none"] += 1
            same(statuses, {b"200": count}, f"statuses of {count} requests")
            for connection in held:
                connection.close()
            until(lambda: gateway.metric("penstock_connections") <= 1, "all are closed")


def case_herd():
    """256 clients store and read objects at the same time. None of them may get an error."""
    gateway, client = opened()
    with gateway:
        paths = [(presigned(client, "put_object", f"k{n}"), presigned(client, "get_object",
                                                                      f"k{n}"))
                 for n in range(256)]

        def one(number):
            statuses = []
            for method, path in zip(("PUT", "GET"), paths[number]):
                with gateway.connect() as raw:
                    raw.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host(client)}\r\n"
                                "Connection: close\r\nContent-Length: "
                                f"{4 * (method == 'PUT')}\r\n\r\n".encode() +
                                b"body" * (method == "PUT"))
                    statuses.append(read_reply(raw)[9:12])
            return statuses

        results = together([lambda n=n: one(n) for n in range(256)])
        same({tuple(result) for result in results}, {(b"200", b"200")}, "statuses")
        same(len(keys_of(client)), 256, "number of keys")


def case_traversal():
    gateway, client = opened()
    with gateway:
        outside = os.path.join(gateway.place, "outside")
        with open(outside, "w", encoding="ascii") as file:
            file.write("secret file")
        os.mkdir(os.path.join(gateway.root, "data-1", "dir"))
        os.symlink(outside, os.path.join(gateway.root, "data-1", "link"))
        os.symlink(gateway.place, os.path.join(gateway.root, "data-1", "folder"))
        os.symlink(gateway.place, os.path.join(gateway.root, "linked-bucket"))
        for key in ("../../outside", "dir/../../../outside", "link", "folder/outside",
                    "../.penstock/lock", "./link"):
            same(failure(client.get_object, Bucket="data-1", Key=key), (404, "NoSuchKey"), key)
        same(keys_of(client), [], "keys")
        same(failure(client.list_objects_v2, Bucket="linked-bucket"), (404, "NoSuchBucket"),
             "a linked bucket")
        same(failure(client.put_object, Bucket="data-1", Key="folder/new", Body=b"x")[0], 400,
             "PUT through a link")
        for key in ("../../up", "dir/../../..//up", "..", ".", "/", "//", "/../x"):
            client.put_object(Bucket="data-1", Key=key, Body=key.encode())
            same(client.get_object(Bucket="data-1", Key=key)["Body"].read(), key.encode(), key)
        with open(outside, encoding="ascii") as file:
            same(file.read(), "secret file", "file outside")
        same(sorted(os.listdir(gateway.place)), ["keys", "log", "outside", "root"], "files")


# --- files ------------------------------------------------------------------------

def case_plain_files():
    """Each object is a plain file with the name of its key, and each plain file in a bucket is an
    object."""
    gateway, client = opened()
    with gateway:
        folder = os.path.join(gateway.root, "data-1")
        etag = client.put_object(Bucket="data-1", Key="x/y.txt", Body=b"by S3")["ETag"]
        path = os.path.join(folder, "x", "y.txt")
        with open(path, "rb") as file:
            same(file.read(), b"by S3", "file")
        with open(path, "wb") as file:
            file.write(b"by POSIX")
        got = client.get_object(Bucket="data-1", Key="x/y.txt")
        same((got["Body"].read(), got["ETag"] == etag), (b"by POSIX", False), "changed file")
        with open(os.path.join(folder, "x", "new"), "wb") as file:
            file.write(b"new")
        os.makedirs(os.path.join(folder, "empty", "folder"))
        os.mkfifo(os.path.join(folder, "pipe"))
        same(keys_of(client), ["x/new", "x/y.txt"], "keys")
        got = client.list_objects_v2(Bucket="data-1", Delimiter="/")
        same([p["Prefix"] for p in got["CommonPrefixes"]], ["x/"], "common prefixes")
        same(got["KeyCount"], 1, "KeyCount")


def case_long_metadata():
    """If the metadata do not fit into the file system's extended attributes, the gateway keeps
    them in a file."""
    gateway, client = opened()
    with gateway:
        metadata = {f"m{i}": "%" * 190 for i in range(10)}
        for body in (b"one", b"two"):
            client.put_object(Bucket="data-1", Key="k", Body=body, Metadata=metadata)
            got = client.get_object(Bucket="data-1", Key="k")
            same((got["Body"].read(), got["Metadata"]), (body, metadata), "object")
        same(failure(client.put_object, Bucket="data-1", Key="k", Body=b"x", Metadata=metadata,
                     IfNoneMatch="*"), (412, "PreconditionFailed"), "a PUT that is refused")
        # The gateway removes the metadata of a refused PUT after its reply.
        eventually(lambda: len(gateway.drafts()), 1, "number of the gateway's files")
        client.delete_object(Bucket="data-1", Key="k")
        same(gateway.drafts(), [], "files that remain")


NAMES = ["a", "b", "", ".", "..", "%", "%e", "%self", "%moving", "%25", "-", "a" * 255, "a" * 256,
         "%" + "b" * 253, "%" + "b" * 254, "c" * 253, "c" * 254, "c" * 600, "\u00fc", " ", "+"]


def case_keys_collide():
    """Stores random keys, many of which are also prefixes of other keys. Compares the objects with
    a dictionary."""
    gateway, client = opened()
    source = random.Random(SEED)
    other = Gateway(root=gateway.root)
    with gateway, other:
        clients, model = [client, other.client()], {}
        for step in range(600):
            key = "/".join(source.choice(NAMES) for _ in range(source.randrange(1, 5)))
            if not key or len(key.encode()) > 1024:
                continue
            one = source.choice(clients)
            if source.random() < 0.7:
                model[key] = b"%d" % step
                one.put_object(Bucket="data-1", Key=key, Body=model[key])
            else:
                key = source.choice(sorted(model) or [key])
                one.delete_object(Bucket="data-1", Key=key)
                model.pop(key, None)
            if step % 50 == 0:
                same(keys_of(source.choice(clients)),
                     sorted(model, key=lambda text: text.encode()), f"keys at step {step}")
        for key, body in model.items():
            same(client.get_object(Bucket="data-1", Key=key)["Body"].read(), body, key)
        for key in list(model):
            client.delete_object(Bucket="data-1", Key=key)
        same(keys_of(client), [], "keys at the end")
        client.delete_bucket(Bucket="data-1")


def case_listing_pages():
    """Each page size and each delimiter gives the same keys as a sorted list."""
    gateway, client = opened()
    source = random.Random(SEED)
    with gateway:
        keys = sorted({"".join(source.choice("ab/-") for _ in range(source.randrange(1, 7)))
                       for _ in range(150)})
        for key in keys:
            client.put_object(Bucket="data-1", Key=key, Body=b"")
        for prefix in ("", "a", "a/", "/", "b-", "//"):
            for delimiter in ("", "/", "-", "ab", "a/"):
                rest = [key for key in keys if key.startswith(prefix)]
                wanted = sorted({key if not delimiter or delimiter not in key[len(prefix):] else
                                 prefix + key[len(prefix):].split(delimiter)[0] + delimiter
                                 for key in rest})
                for size in (1, 7, 1000):
                    same(listed(client, prefix, delimiter, size), wanted,
                         f"prefix {prefix!r}, delimiter {delimiter!r}, pages of {size}")


def listed(client, prefix, delimiter, size):
    found, more = [], {}
    while True:
        page = client.list_objects_v2(Bucket="data-1", Prefix=prefix, Delimiter=delimiter,
                                      MaxKeys=size, **more)
        found += sorted([item["Key"] for item in page.get("Contents", [])] +
                        [item["Prefix"] for item in page.get("CommonPrefixes", [])])
        if not page["IsTruncated"]:
            return found
        more = {"ContinuationToken": page["NextContinuationToken"]}


def case_large_folder():
    """Lists a folder with more files than a listing keeps in memory at a time."""
    gateway, client = opened()
    with gateway:
        folder = os.path.join(gateway.root, "data-1")
        names = sorted(f"f{i * 7919 % 5000:04}" for i in range(5000))
        for name in names:
            os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT))
        same(keys_of(client) == names, True, "all names are listed in order")
        same(listed(client, "f49", "", 1000), [n for n in names if n.startswith("f49")], "prefix")


def case_unreadable_files():
    """If the gateway may not read a file that belongs to a listing, the listing fails."""
    gateway, client = opened(before=without_override())
    with gateway:
        own = os.path.join(gateway.root, ".penstock", "multipart", "data-1")
        bucket = os.path.join(gateway.root, "data-1")
        for key in ("a", "b", "c/d", "e", "e/f"):
            client.put_object(Bucket="data-1", Key=key, Body=b"x")
        upload = client.create_multipart_upload(Bucket="data-1", Key="m")["UploadId"]
        client.upload_part(Bucket="data-1", Key="m", UploadId=upload, PartNumber=1, Body=b"x")
        objects = (client.list_objects_v2, client.list_objects, client.list_object_versions)
        calls = [(call, {}, f"{bucket}/{name}") for call in objects
                 for name in ("b", "c", "c/d", "e", "e/%self")]
        calls += [(client.list_parts, {"Key": "m", "UploadId": upload}, f"{own}/{upload}/00001"),
                  (client.list_multipart_uploads, {}, f"{own}/{upload}/upload"),
                  (client.list_multipart_uploads, {}, f"{own}/{upload}"),
                  (client.list_multipart_uploads, {}, own)]
        for call, more, path in calls:
            mode = os.stat(path).st_mode
            os.chmod(path, 0)
            what = f"{call.__name__} with {os.path.relpath(path, gateway.root)}"
            same(failure(call, Bucket="data-1", **more), (403, "AccessDenied"), what)
            os.chmod(path, mode)
            same(failure(call, Bucket="data-1", **more), None, what + " readable")
        os.chmod(bucket, 0)
        same([b["Name"] for b in client.list_buckets()["Buckets"]], ["data-1"], "buckets")
        os.chmod(bucket, 0o755)


def case_completions_wait():
    """Two requests complete one upload at the same time. One of them stores the object, and both
    get its ETag. If the upload is aborted at the same time, it is not completed."""
    gateway, client = opened()
    with gateway:
        for end in ("complete", "abort"):
            names = {"Bucket": "data-1", "Key": end}
            names["UploadId"] = client.create_multipart_upload(**names)["UploadId"]
            part = client.upload_part(PartNumber=1, Body=b"x", **names)["ETag"]
            parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
            path = os.path.join(gateway.root, ".penstock", "multipart", "data-1",
                                names["UploadId"], "upload")
            lock = os.open(path, os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)

            def complete(names=names, parts=parts):
                return failure(gateway.client().complete_multipart_upload, MultipartUpload=parts,
                               **names)

            def release(end=end, names=names, lock=lock):
                try:
                    until(lambda: gateway.metric("penstock_requests_in_flight") == 2, "both wait")
                    same(failure(client.head_object, Bucket="data-1", Key=end)[0], 404, "object")
                    if end == "abort":
                        client.abort_multipart_upload(**names)
                finally:
                    os.close(lock)

            got = together([complete, complete, release])[:2]
            wanted = None if end == "complete" else (404, "NoSuchUpload")
            same(got, [wanted, wanted], f"completions, {end}")
        same(keys_of(client), ["complete"], "keys")
        same(gateway.drafts(), [], "files of the gateway")


def case_abort_beside_parts():
    """An upload is aborted while several clients store parts. No file or folder of it remains."""
    gateway, client = opened()
    with gateway:
        clients = [gateway.client() for _ in range(4)]
        for n in range(20):
            names = {"Bucket": "data-1", "Key": f"key-{n}"}
            names["UploadId"] = client.create_multipart_upload(**names)["UploadId"]
            first = threading.Event()

            def store(number, names=names, first=first):
                failed = None
                while failed is None and number < 10000:
                    failed = failure(clients[number % 4].upload_part, PartNumber=number, Body=b"x",
                                     **names)
                    first.set()
                    number += 4
                return failed

            def abort(names=names, first=first):
                first.wait(60)
                return failure(client.abort_multipart_upload, **names)

            got = together([lambda i=i, store=store: store(i + 1) for i in range(4)] + [abort])
            same(got, [(404, "NoSuchUpload")] * 4 + [None], f"round {n}")
            same(os.listdir(os.path.join(gateway.root, ".penstock", "multipart", "data-1")), [],
                 f"uploads after round {n}")
        same(gateway.drafts(), [], "files of the gateway")


def case_full_disk():
    gateway = Gateway()
    with gateway, small_disk(gateway, 8):
        client = gateway.client()
        client.create_bucket(Bucket="data-1")
        client.put_object(Bucket="data-1", Key="old", Body=b"old")
        for key in ("new", "old"):
            same(failure(client.put_object, Bucket="data-1", Key=key, Body=b"x" * (16 << 20)),
                 (507, "StorageFull"), f"PUT {key}")
        same(keys_of(client), ["old"], "keys")
        same(client.get_object(Bucket="data-1", Key="old")["Body"].read(), b"old", "body")
        same(gateway.drafts(), [], "drafts")
        client.put_object(Bucket="data-1", Key="small", Body=b"x" * (1 << 20))


def case_if_none_match_race():
    """Many clients of two gateways send PUT with If-None-Match: * for one key. Exactly one
    succeeds."""
    gateway, client = opened()
    other = Gateway(root=gateway.root)
    with gateway, other:
        clients = [one.client() for one in (gateway, other) for _ in range(3)]
        for step in range(40):
            key = f"k{step}"
            if step % 2:
                clients.append(clients.pop(0))

            def attempt(number, key=key):
                return failure(clients[number].put_object, Bucket="data-1", Key=key,
                               Body=b"%d" % number, IfNoneMatch="*")

            calls = [lambda n=n: attempt(n) for n in range(6)]
            # At the same time, another PUT makes a folder with the object's name.
            calls.append(lambda: failure(client.put_object, Bucket="data-1", Key=key + "/x",
                                         Body=b"x"))
            results = together(calls)
            same((sorted(map(str, results[:6])), results[6]),
                 (sorted(["None"] + ["(412, 'PreconditionFailed')"] * 5), None), key)
            same(client.get_object(Bucket="data-1", Key=key)["Body"].read(),
                 b"%d" % results.index(None), f"body of {key}")


def case_object_becomes_folder():
    """While another gateway replaces an object by a folder of its name, the object must stay
    readable."""
    gateway, client = opened()
    other = Gateway(root=gateway.root)
    with gateway, other:
        second = other.client()
        for step in range(30):
            key = f"k{step}"
            client.put_object(Bucket="data-1", Key=key, Body=b"first")

            def read_it(key=key):
                return {client.get_object(Bucket="data-1", Key=key)["Body"].read()
                        for _ in range(8)}

            def write_it(key=key):
                for number in range(4):
                    client.put_object(Bucket="data-1", Key=key, Body=b"second")
                    second.put_object(Bucket="data-1", Key=f"{key}/{number}/x", Body=b"x")

            seen, _ = together([read_it, write_it])
            same(seen <= {b"first", b"second"}, True, f"bodies {seen}")
            same(client.get_object(Bucket="data-1", Key=key)["Body"].read(), b"second", key)


# --- life -------------------------------------------------------------------------

def case_metrics():
    gateway, client = opened()
    with gateway:
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz")
        client.put_object(Bucket="data-1", Key="k", Body=b"x" * 1000,
                          ChecksumAlgorithm="SHA256")
        client.get_object(Bucket="data-1", Key="k")["Body"].read()
        failure(client.get_object, Bucket="data-1", Key="absent")
        text = gateway.get("/metrics")[1]
        for line in ('penstock_requests_total{operation="PutObject",status="2xx"} 1',
                     'penstock_requests_total{operation="GetObject",status="2xx"} 1',
                     'penstock_requests_total{operation="GetObject",status="4xx"} 1'):
            same(line in text.splitlines(), True, f"{line} in\n{text}")
        for line in text.splitlines():
            same(bool(re.fullmatch(r'# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[^{}]*\})? [0-9.e+-]+',
                                   line)), True, f"form of {line!r}")
        same(gateway.get("/other")[0], 404, "another page")
        os.rename(gateway.root + "/.penstock", gateway.root + "/away")
        same(gateway.get("/healthz")[0], 503, "/healthz without the root")


def case_log_has_no_secret():
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"x")
        paths = [presigned(client, "get_object", "k"),
                 "/data-1/k?AWSAccessKeyId=AKWRITE&Signature=c2lnbmF0dXJl&Expires=1",
                 "/data-1/k?X-Amz-Security-Token=tokentoken&x%2Damz-signature=abcdef"]
        for path in paths:
            with gateway.connect() as raw:
                raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host(client)}\r\nCookie: cookie1\r\n"
                            "Authorization2: abc\r\nConnection: close\r\n\r\n".encode())
                read_reply(raw)
        failure(gateway.client(KEY, SECRET + "x").list_buckets)
        _, err = gateway.stop()
        with open(gateway.log, encoding="utf-8") as file:
            text = file.read()
        lines = [json.loads(line) for line in text.splitlines()]
        same(len(lines), 6, f"lines of {text}")
        same([line["status"] for line in lines], [200, 200, 200, 400, 403, 403], "statuses")
        for word in (SECRET, "ignature=", "c2lnbmF0dXJl", "tokentoken", "abcdef", "cookie1",
                     paths[0].split("Signature=")[1][:20]):
            same(word in text + err, False, f"{word} in {text + err}")


def case_log_counts_bytes():
    """The access log has the bytes of bodies that were sent, as the metrics have, and the bucket
    also if the host names it."""
    gateway, client = opened(flags=["--domain", "s3.example.com"])
    with gateway:
        client.put_object(Bucket="data-1", Key="k", Body=b"x" * 10000)
        client.head_object(Bucket="data-1", Key="k")
        client.get_object(Bucket="data-1", Key="k")["Body"].read()
        with open(os.path.join(gateway.root, "data-1", "big"), "xb") as file:
            file.truncate(256 << 20)  # more than the buffers of a connection
        until(lambda: gateway.metric("penstock_requests_in_flight") == 0, "all have ended")
        with gateway.connect() as raw:
            raw.sendall(f"GET {presigned(client, 'get_object', 'big')} HTTP/1.1\r\n"
                        f"Host: {host(client)}\r\n\r\n".encode())
            raw.recv(1)
        until(lambda: gateway.metric("penstock_aborted_total") == 1, "the GET has ended")
        with gateway.connect() as raw:
            raw.sendall(b"GET /k HTTP/1.1\r\nHost: data-1.s3.example.com\r\n"
                        b"Connection: close\r\n\r\n")
            read_reply(raw)
        until(lambda: gateway.metric("penstock_requests_in_flight") == 0, "all have ended")
        sent = gateway.metric('penstock_bytes_total{transport="http",side="front",direction="out"}')
        gateway.stop()
        with open(gateway.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        same([(line["operation"], line["bucket"], line["complete"], line["bytes_in"],
               line["bytes_out"], line["transport"], line["rdma_bytes"]) for line in lines[1:-1]],
             [("PutObject", "data-1", True, 10000, 0, "http", 0),
              ("HeadObject", "data-1", True, 0, 0, "http", 0),
              ("GetObject", "data-1", True, 0, 10000, "http", 0),
              ("GetObject", "data-1", False, 0, 0, "http", 0)], "lines")
        same((lines[-1]["bucket"], lines[-1]["path"], lines[-1]["status"]), ("data-1", "/k", 403),
             "line of a request whose host names the bucket")
        same(sum(line["bytes_out"] for line in lines), sent, "bytes in the log and in the metric")


def case_repair():
    gateway, client = opened()
    with gateway, gateway.connect() as raw:
        own = os.path.join(gateway.root, ".penstock")
        uploads = []
        for key in ("old", "live"):
            upload = client.create_multipart_upload(Bucket="data-1", Key=key)["UploadId"]
            client.upload_part(Bucket="data-1", Key=key, UploadId=upload, PartNumber=1, Body=b"x")
            uploads.append(os.path.join(own, "multipart", "data-1", upload))
        for name in ("upload", "00001", ""):
            os.utime(os.path.join(uploads[0], name), (1, 1))
        draft = os.path.join(own, "tmp", "0123")
        write_private(draft, "a draft")
        raw.sendall(put_head(client, "k", 10) + b"12345")
        until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "the PUT has arrived")
        result = repair(gateway)
        same((result["uploads_removed"], result["drafts_removed"], result["in_use"]), (1, 0, 2),
             "first repair")
        same([os.path.exists(path) for path in uploads], [False, True], "uploads")
        # A draft's age depends on the time of its last change (ctime), which a test cannot set. So
        # the test waits until the draft is older than the lease of 1 s.
        until(lambda: repair(gateway, "--lease", "1")["drafts_removed"] == 1, "the draft is old")
        raw.sendall(b"67890")
        until(lambda: keys_of(client) == ["k"], "the PUT of a live gateway succeeds")
        client.upload_part(Bucket="data-1", Key="live", UploadId=os.path.basename(uploads[1]),
                           PartNumber=2, Body=b"y")


def case_repair_keeps_moves():
    """If a repair cannot read a folder, it must not remove a draft (a file in .penstock/tmp),
    because the draft may be the only name of an object."""
    gateway, client = opened()
    with gateway:
        client.put_object(Bucket="data-1", Key="a", Body=b"body")
        gateway.stop()
        # Simulates a crash in the middle of PUT "a/b": the folder and the object "a" have
        # exchanged their names, and nothing else has happened.
        folder = os.path.join(gateway.root, "data-1", "a")
        place = os.path.join(gateway.root, ".penstock", "tmp", "0" * 32)
        os.rename(folder, place)
        os.mkdir(folder)
        os.symlink("0" * 32, os.path.join(folder, "%moving"))
        until(lambda: time.time() - os.stat(place).st_ctime > 3, "the draft is old")
        for mode in (0, 0o444):
            os.chmod(folder, mode)
            done = repair_run(gateway, "--lease", "1", before=without_override())
            same((done.returncode, "no draft was removed" in done.stderr, os.path.exists(place)),
                 (1, True, True), f"repair with mode {mode:o} ({done.stderr})")
        os.chmod(folder, 0o755)
        result = repair(gateway, "--lease", "1")
        same((result["moves_completed"], result["drafts_removed"]), (1, 0), "second repair")
        gateway.start()
        same(gateway.client().get_object(Bucket="data-1", Key="a")["Body"].read(), b"body", "body")


def case_repair_keeps_unreadable_uploads():
    gateway, client = opened()
    with gateway:
        upload = client.create_multipart_upload(Bucket="data-1", Key="k")["UploadId"]
        place = os.path.join(gateway.root, ".penstock", "multipart", "data-1", upload)
        os.chmod(place, 0o444)
        done = repair_run(gateway, before=without_override())
        result = json.loads(done.stdout)
        same((result["uploads_removed"], result["in_use"]), (0, 1), "repair")
        os.chmod(place, 0o700)
        same(failure(client.list_parts, Bucket="data-1", Key="k", UploadId=upload), None, "upload")


def without_override():
    """Returns the first words of a command whose process obeys the permissions of files even as
    root."""
    if os.getuid():
        return []
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search",
             "--inh-caps=-dac_override,-dac_read_search"]
    try:
        subprocess.run([*words, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise Skip("setpriv cannot drop the right to override modes") from None
    return words


def case_rdma_declined():
    gateway, client = opened()
    with gateway:
        token = "0000000000001000:00001000:00000001:0000:000001:0:" + "0" * 32
        client.meta.events.register("before-sign.s3", lambda request, **_: request.headers.
                                    add_header("x-amz-rdma-token", token))
        try:
            client.put_object(Bucket="data-1", Key="k", Body=b"")
        except botocore.exceptions.ClientError as error:
            got = error.response["ResponseMetadata"]["HTTPHeaders"]
        with open(gateway.log, encoding="utf-8") as file:
            status = json.loads(file.read().splitlines()[-1])["status"]
        # The status is 200, but boto3 reports 500, because the body of the reply is an error.
        same((status, got.get("x-amz-rdma-reply"), got.get("x-amz-rdma-bytes-transferred")),
             (200, "501", "0"), "PUT")
        same(os.listdir(os.path.join(gateway.root, "data-1")), [], "nothing is stored")
        gateway.client().put_object(Bucket="data-1", Key="k", Body=b"body")
        got = client.get_object(Bucket="data-1", Key="k")
        same((got["Body"].read(), got["ResponseMetadata"]["HTTPHeaders"].get("x-amz-rdma-reply")),
             (b"body", "501"), "GET")
        token = "x" * 513
        same(failure(client.put_object, Bucket="data-1", Key="l", Body=b""),
             (400, "InvalidRDMAToken"), "a token that is too long")
        same(gateway.metric("penstock_rdma_declined_total"), 2.0, "declines counted")


if __name__ == "__main__":
    print(f"# build {BUILD}")
    sys.exit(run_cases(globals(), sys.argv[1:]))
