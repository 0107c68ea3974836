#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what `penstock serve` does with conditions of requests, and with limits of their bodies,
beyond what conformance.py can expect of all servers.

gateway_requests.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints
TAP; tests/run runs it."""

import sys

from served import Gateway, failure, run_cases, same

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


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
