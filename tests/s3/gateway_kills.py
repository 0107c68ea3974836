#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills `penstock serve` while clients store objects, many times. After each restart, every
acknowledged object must be there, and every object must be whole. At the end, `penstock serve
--repair` must remove all drafts (temporary files) and uploads, and nothing else. $PENSTOCK_KILLS is
the number of kills (default 15). Prints TAP."""

import hashlib
import os
import random
import signal
import sys
import threading

import botocore.exceptions

from served import SEED, Gateway, keys_of, repair, run_cases, same, until

KILLS = int(os.environ.get("PENSTOCK_KILLS", "15"))
KEYS = ("a", "a/b", "c/d/e", "f" * 300, "g/")
PART = 5 << 20


def body_of(writer, number, length):
    """Returns a body whose completeness can be checked: a head, bytes, and their digest."""
    rest = random.Random(f"{writer} {number}").randbytes(length)
    return b"%d %d %d\n" % (writer, number, length) + rest + hashlib.sha256(rest).digest()


def number_of(body, writer):
    """Returns the number in a body of this writer. Fails if the body is not complete."""
    head, rest = body.split(b"\n", 1)
    who, number, length = map(int, head.split())
    same((who, len(rest)), (writer, length + 32), "writer and length")
    same(hashlib.sha256(rest[:-32]).digest(), rest[-32:], f"digest of {head}")
    return number


class Writer(threading.Thread):
    """Stores objects with increasing numbers under its key until the gateway is gone."""

    def __init__(self, client, key, writer, first):
        super().__init__()
        self.client, self.key, self.writer = client, key, writer
        self.next, self.acknowledged, self.errors = first, -1, []
        self.count = 0  # number of acknowledged objects

    def store(self, body):
        if self.writer != 2:
            self.client.put_object(Bucket="data-1", Key=self.key, Body=body)
            return
        upload = self.client.create_multipart_upload(Bucket="data-1", Key=self.key)["UploadId"]
        names = {"Bucket": "data-1", "Key": self.key, "UploadId": upload}
        parts = [{"PartNumber": n + 1, "ETag": self.client.upload_part(
            PartNumber=n + 1, Body=body[n * PART:(n + 1) * PART], **names)["ETag"]}
            for n in range((len(body) + PART - 1) // PART)]
        self.client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **names)

    def run(self):
        source = random.Random(f"{SEED} {self.writer} {self.next}")
        while True:
            number, self.next = self.next, self.next + 1
            length = source.choice((10, 5000, 300000, PART + 1000))
            try:
                self.store(body_of(self.writer, number, length))
            except botocore.exceptions.ClientError as error:
                self.errors.append(error)
                return
            except Exception:  # noqa: B902  (a connection that breaks has many names in boto3)
                return
            self.acknowledged = number
            self.count += 1


def check(client, writers):
    """Compares all stored objects with the acknowledged ones."""
    for one in writers:
        same(one.errors, [], f"errors of {one.key[:9]}")
        try:
            body = client.get_object(Bucket="data-1", Key=one.key)["Body"].read()
        except client.exceptions.NoSuchKey:
            same(one.acknowledged, -1, f"last acknowledged object {one.key[:9]}")
            continue
        found = number_of(body, one.writer)
        # The interrupted PUT may have been stored or not.
        same(one.acknowledged <= found < one.next, True,
             f"number {found} of {one.key[:9]} between {one.acknowledged} and {one.next}")
        one.acknowledged = found
    listed = keys_of(client)
    same(set(listed) <= set(KEYS), True, f"keys {listed}")


def check_repair(gateway, writers):
    """Runs a repair after the kills. Checks that it removes all drafts and uploads, and no object.
    """
    left = gateway.drafts()
    print(f"# {len(left)} files are left", flush=True)
    same(bool(left), True, f"the kills have left files: {left}")
    # The repair removes only files whose last change (ctime) is older than the leases of 1 s. A
    # test cannot set the ctime, so it waits.
    until(lambda: repair(gateway, "--lease", "1", "--upload-lease", "1")["in_use"] == 0,
          "nothing is in use")
    same(gateway.drafts(), [], "files that the repair leaves")
    own = os.path.join(gateway.root, ".penstock")
    folders = [name for where in ("tmp", "multipart/data-1") for name in
               (os.listdir(os.path.join(own, where)) if os.path.isdir(os.path.join(own, where))
                else [])]
    same(folders, [], "folders that the repair leaves")
    check(gateway.client(), writers)
    same(sorted(keys_of(gateway.client())), sorted(KEYS), "keys after the repair")


def case_kills():
    source = random.Random(SEED)
    print(f"# {KILLS} kills", flush=True)
    counts = [0] * len(KEYS)
    with Gateway(flags=["--threads", "8"]) as gateway:
        gateway.client().create_bucket(Bucket="data-1")
        before = [(0, -1)] * len(KEYS)
        for kill in range(KILLS):
            client = gateway.client(retries={"total_max_attempts": 1}, connect_timeout=5)
            writers = [Writer(client, key, n, before[n][0]) for n, key in enumerate(KEYS)]
            for one, (_, acknowledged) in zip(writers, before):
                one.acknowledged = acknowledged
                one.start()
            if kill == 0:
                until(lambda: all(one.count for one in writers) or any(
                    not one.is_alive() for one in writers), "each writer has stored an object")
            # The time until the kill is random, so that it can interrupt a PUT at any moment.
            threading.Event().wait(source.uniform(0.05, 0.8))
            gateway.stop(signal.SIGKILL)
            for one in writers:
                one.join()
            counts = [count + one.count for count, one in zip(counts, writers)]
            gateway.start()
            check(gateway.client(), writers)
            before = [(one.next, one.acknowledged) for one in writers]
        print(f"# acknowledged objects of each writer: {counts}", flush=True)
        same(min(counts) > 0, True, f"each writer has stored objects: {counts}")
        check_repair(gateway, writers)


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
