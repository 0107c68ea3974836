#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what `penstock serve` does with conditions of requests, and with limits of their bodies,
beyond what conformance.py can expect of all servers.

gateway_requests.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints
TAP; tests/run runs it."""

import fcntl
import os
import signal
import sys
import threading

from served import Gateway, Skip, failure, run_cases, same

WRONG = '"0123456789abcdef0123456789abcdef"'


def opened(**named):
    gateway = Gateway(**named)
    client = gateway.client()
    client.create_bucket(Bucket="data-1")
    return gateway, client


def keys_of(client):
    return [item["Key"] for item in client.list_objects_v2(Bucket="data-1").get("Contents", [])]


def case_delete_many_conditions():
    """Only entries whose conditions hold are deleted; an unknown condition is refused."""
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
    """An object that changes while a completion copies the parts is not replaced."""
    gateway, client = opened()
    blocked = threading.Event()
    # The kernel delays the opening of a file with a lease, and sends SIGIO to the lease's owner.
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


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
