#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how `penstock serve` handles conditions of requests, limits of their bodies, keys that are
not UTF-8, and ETags.
conformance.py cannot test these cases, because other servers behave differently.

gateway_requests.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints
TAP; tests/run runs it."""

import base64
import contextlib
import fcntl
import hashlib
import http.client
import os
import signal
import sys
import threading
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from served import KEY, SECRET, Skip, failure, keys_of, opened, run_cases, same, together, until

# maximum bytes of one XML body, and of the XML bodies of all requests together
TEXT, TEXTS = 4 << 20, 64 << 20
WRONG = '"0123456789abcdef0123456789abcdef"'


def case_delete_many_conditions():
    """DeleteObjects deletes only entries whose conditions hold. An unknown condition is refused."""
    gateway, client = opened()
    with gateway:
        etags = {key: client.put_object(Bucket="data-1", Key=key, Body=key.encode())["ETag"]
                 for key in ("any", "bare", "date", "right", "size", "star", "wrong")}
        entries = [{"Key": "any"}, {"Key": "bare", "ETag": etags["bare"].strip('"')},
                   {"Key": "date", "LastModifiedTime": "2026-11-22T00:00:00Z"},
                   {"Key": "right", "ETag": etags["right"]}, {"Key": "size", "Size": 99},
                   {"Key": "star", "ETag": "*"}, {"Key": "wrong", "ETag": WRONG},
                   {"Key": "missing", "ETag": WRONG}, {"Key": "absent"}]
        reply = client.delete_objects(Bucket="data-1", Delete={"Objects": entries})
        same(sorted(item["Key"] for item in reply["Deleted"]),
             ["absent", "any", "bare", "right", "star"], "deleted")
        same(sorted((item["Key"], item["Code"]) for item in reply["Errors"]),
             [("date", "NotImplemented"), ("missing", "NoSuchKey"), ("size", "NotImplemented"),
              ("wrong", "PreconditionFailed")], "errors")
        same(keys_of(client), ["date", "size", "wrong"], "keys")


def case_delete_conditions():
    gateway, client = opened()
    with gateway:
        etag = client.put_object(Bucket="data-1", Key="k", Body=b"x")["ETag"]
        for more, wanted in (({"IfMatchSize": 99}, (501, "NotImplemented")),
                             ({"IfMatchLastModifiedTime": "2026-11-22T00:00:00Z"},
                              (501, "NotImplemented")),
                             ({"IfMatch": WRONG}, (412, "PreconditionFailed"))):
            same(failure(client.delete_object, Bucket="data-1", Key="k", **more), wanted,
                 f"DELETE with {more}")
            same(keys_of(client), ["k"], "keys")
        same(failure(client.delete_object, Bucket="data-1", Key="k", IfMatch=etag), None, "DELETE")
        same(keys_of(client), [], "keys")


def case_complete_if_match_race():
    """A completion with If-Match must not replace an object that changes while the parts are
    copied."""
    gateway, client = opened()
    blocked = threading.Event()
    # The test holds a lease on a part. When the gateway opens this file, the kernel delays the
    # open and sends SIGIO to the test.
    before = signal.signal(signal.SIGIO, lambda *_: blocked.set())
    with gateway:
        etag = client.put_object(Bucket="data-1", Key="k", Body=b"old")["ETag"]
        names = {"Bucket": "data-1", "Key": "k"}
        names["UploadId"] = client.create_multipart_upload(**names)["UploadId"]
        part = client.upload_part(PartNumber=1, Body=b"part", **names)["ETag"]
        lease = os.open(os.path.join(gateway.root, ".penstock", "multipart", "data-1",
                                     names["UploadId"], "00001"), os.O_RDONLY)
        try:
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            raise Skip(f"the file system has no leases: {error}") from None
        got = []
        completion = threading.Thread(target=lambda: got.append(failure(
            client.complete_multipart_upload, IfMatch=etag,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]}, **names)))
        completion.start()
        same(blocked.wait(30), True, "the completion opens the part")
        gateway.client().put_object(Bucket="data-1", Key="k", Body=b"new")
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        completion.join()
        os.close(lease)
        same(got, [(412, "PreconditionFailed")], "completion")
        same(client.get_object(Bucket="data-1", Key="k")["Body"].read(), b"new", "body")
    signal.signal(signal.SIGIO, before)


def case_listing_while_objects_move():
    """PUTs of longer keys replace the files of objects by folders. Meanwhile each listing must
    still contain these objects with their sizes."""
    gateway, client = opened()
    with gateway:
        folder = os.path.join(gateway.root, "data-1")
        wanted = {f"k{n:03}": 7 for n in range(300)}
        for key in wanted:
            with open(os.path.join(folder, key), "xb") as file:
                file.write(b"content")
        moved, counts = threading.Event(), [0, 0]

        def move():
            mover = gateway.client()
            try:
                for number, key in enumerate(wanted):
                    if number % 100 == 50:
                        # The writer pauses in each third of its requests until both clients have
                        # made another listing.
                        seen = list(counts)
                        until(lambda seen=seen: all(now > then for now, then in
                                                    zip(counts, seen)), "both clients list")
                    mover.put_object(Bucket="data-1", Key=key + "/x", Body=b"")
            finally:
                moved.set()

        def list_all(number):
            lister = gateway.client()
            while not moved.is_set():
                pages = lister.list_objects_v2(Bucket="data-1")["Contents"]
                found = {item["Key"]: item["Size"] for item in pages if "/" not in item["Key"]}
                differs = set(wanted.items()) ^ set(found.items())
                same({key: found.get(key) for key in wanted} == wanted, True,
                     f"listing {counts[number]} (differs: {differs})")
                counts[number] += 1

        together([move, lambda: list_all(0), lambda: list_all(1)])
        print("# listings:", counts)
        same(min(counts) >= 3, True, f"at least three listings each: {counts}")


def has_queue(gateway):
    """Returns whether a socket of the gateway has bytes that were not read yet."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    port = f":{gateway.port:04X}"
    return any(row[4] != "00000000:00000000" for row in rows
               if port in (row[1][-5:], row[2][-5:]) and row[3] == "01")


def case_texts_limit():
    """The memory for the XML bodies of all requests together is limited. Requests beyond the limit
    get status 503."""
    gateway, client = opened()
    with gateway:
        upload = client.create_multipart_upload(Bucket="data-1", Key="k")["UploadId"]
        url = client.generate_presigned_url("complete_multipart_upload", Params={
            "Bucket": "data-1", "Key": "k", "UploadId": upload})
        host, path = url.split("/", 3)[2:]
        head = (f"POST /{path} HTTP/1.1\r\nHost: {host}\r\n"
                f"Content-Length: {TEXT}\r\n\r\n").encode()

        def replies(count):
            """Sends requests whose last byte is missing, and waits until the gateway has read
            them. Then completes them."""
            connections = [gateway.connect() for _ in range(count)]
            for one in connections:
                one.sendall(head + b" " * (TEXT - 1))
            until(lambda: not has_queue(gateway), "the gateway has read all bytes")
            got = []
            for one in connections:
                one.sendall(b" ")
                got.append(one.recv(4096).decode())
                one.close()
            return got

        # A refused request occupies its memory until its reply is sent. So the number of refused
        # requests varies, and only the set of statuses is checked.
        got = replies(TEXTS // TEXT + 4)
        statuses = [reply.split(" ", 2)[1] for reply in got]
        print("#", statuses)
        same(set(statuses), {"400", "503"}, "statuses beyond the limit")
        same([("Retry-After" in reply) for reply in got], [s == "503" for s in statuses],
             "replies with Retry-After")
        until(lambda: gateway.metric("penstock_requests_in_flight") == 0, "all have ended")
        same([reply.split(" ", 2)[1] for reply in replies(TEXTS // TEXT)],
             ["400"] * (TEXTS // TEXT), "statuses of as many as the limit allows")


def case_short_texts():
    gateway, client = opened()
    with gateway:
        for length, wanted in (((64 << 10) + 1, "MaxMessageLengthExceeded"),
                               (64 << 10, "MalformedXML")):
            client.meta.events.register_last("before-sign.s3.CreateBucket", lambda request,
                                             length=length, **_:
                                             setattr(request, "data", b"x" * length))
            same(failure(client.create_bucket, Bucket="new"), (400, wanted), f"{length} bytes")


def case_keys_are_bytes():
    """Keys need not be UTF-8. A listing with encoding-type=url contains them."""
    gateway, _ = opened()
    with gateway:
        for number in range(1, 256):
            key = b"%c/%c" % (number, number)
            response = send_signed(gateway, "PUT", "/data-1/" + quote(key, safe="/"), key)
            same(response[0], 200, f"PUT of {key!r} ({response})")
        listing = send_signed(gateway, "GET", "/data-1", query={
            "list-type": "2", "encoding-type": "url"})[1]
        found = [unquote_to_bytes(text.partition("<")[0])
                 for text in listing.decode().split("<Key>")[1:]]
        same(found, [b"%c/%c" % (n, n) for n in range(1, 256)], "keys")
        for key in found:
            same(send_signed(gateway, "GET", "/data-1/" + quote(key, safe="/")), (200, key),
                 f"GET of {key!r}")
        same(len(os.listdir(os.fsencode(os.path.join(gateway.root, "data-1")))), 255, "folders")


def send_signed(gateway, method, path, body=b"", query=()):
    """Sends a request whose path may have any bytes. Returns status and body of the reply."""
    request = AWSRequest(method, gateway.url + path, data=body, params=dict(query))
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
    target = request.prepare().url.partition(f":{gateway.port}")[2]
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, target, body=body, headers=dict(request.headers.items()))
        reply = connection.getresponse()
        return reply.status, reply.read()


def case_etags_without_md5():
    """The ETag of a PUT is the MD5 of the body. With --no-md5 it is not, and its suffix says so. A
    Content-MD5 is still compared."""
    body = b"a body"
    for flags in ([], ["--no-md5"]):
        gateway, client = opened(flags=flags)
        with gateway:
            etag = client.put_object(Bucket="data-1", Key="k", Body=body)["ETag"]
            same((etag == f'"{hashlib.md5(body).hexdigest()}"', "-" in etag),
                 (False, True) if flags else (True, False), f"ETag {etag} with {flags}")
            same(client.head_object(Bucket="data-1", Key="k")["ETag"], etag, "ETag of HEAD")
            same(failure(client.put_object, Bucket="data-1", Key="k", Body=body,
                         ContentMD5=base64.b64encode(bytes(16)).decode()), (400, "BadDigest"),
                 f"a wrong MD5 with {flags}")
            same(failure(client.put_object, Bucket="data-1", Key="k", Body=body,
                         ContentMD5=base64.b64encode(hashlib.md5(body).digest()).decode()), None,
                 f"the right MD5 with {flags}")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
