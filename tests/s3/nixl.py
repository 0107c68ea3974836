#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock serve` with the plug-in OBJ of NIXL, from its wheel, unchanged. The plug-in reads
and writes objects with two S3 clients of AWS's SDK for C++: the plain client, and the client of
AWS's Common Runtime (CRT), which sends objects in parts and reads them in ranges. nixl.py [WORD...]
runs the cases whose names contain one of the words, or all. Prints TAP; tests/shim/clients/packaged
runs it."""

import contextlib
import ctypes
import glob
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from served import KEY, SECRET, Gateway, run_cases, same

MIB = 1 << 20
PART = 5 * MIB
LIMIT_S = 60
FOLDER = tempfile.TemporaryDirectory()


def absent_library():
    """Makes a libcuobjclient.so.1, which the plug-in needs but the wheel does not have. Its
    functions end the process: without the option `accelerated`, the plug-in calls none of them."""
    package = os.path.dirname(importlib.util.find_spec("nixl_cu12").origin)
    plugin, = glob.glob(os.path.join(os.path.dirname(package), ".nixl_cu12.*", "plugins",
                                     "libplugin_OBJ.so"))
    names = subprocess.run(["nm", "-D", "--undefined-only", plugin], check=True,
                           capture_output=True, text=True).stdout.split()
    source = os.path.join(FOLDER.name, "absent.c")
    with open(source, "w", encoding="utf-8") as out:
        out.writelines(f"void {name}(void);\nvoid {name}(void) {{ __builtin_trap(); }}\n"
                       for name in names if "cuObjClient" in name)
    library = os.path.join(FOLDER.name, "libcuobjclient.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-Wl,-soname,libcuobjclient.so.1",
                    source], check=True)
    return library


class Agent:
    """An agent of NIXL with the plug-in OBJ."""

    def __init__(self, url, bucket="data-1", secret=SECRET, **params):
        self.name = "agent"
        self.nixl = NIXL.nixl_agent(self.name, NIXL.nixl_agent_config(backends=[]))
        self.nixl.create_backend("OBJ", {
            "access_key": KEY, "secret_key": secret, "bucket": bucket, "endpoint_override": url,
            "scheme": "http", "region": "us-east-1", "use_virtual_addressing": "false", **params})

    def move(self, op, keys, length, content=None, at=0):
        """Moves `length` bytes of each object, at the same time. Returns the memory, or None if
        the transfer fails."""
        memory = ctypes.create_string_buffer(content or b"", length * len(keys))
        base = ctypes.addressof(memory)
        here = [(base + n * length, length, 0) for n in range(len(keys))]
        regions = (self.nixl.register_memory([(*region, "") for region in here], "DRAM",
                                             backends=["OBJ"]),
                   self.nixl.register_memory([(0, at + length, n + 1, key)
                                              for n, key in enumerate(keys)], "OBJ",
                                             backends=["OBJ"]))
        handle = self.nixl.initialize_xfer(
            op, self.nixl.get_xfer_descs(here, "DRAM"),
            self.nixl.get_xfer_descs([(at, length, n + 1) for n in range(len(keys))], "OBJ"),
            self.name, backends=["OBJ"])
        try:
            state, until = self.nixl.transfer(handle), time.monotonic() + LIMIT_S
            while state not in ("DONE", "ERR") and time.monotonic() < until:
                time.sleep(0.001)
                state = self.nixl.check_xfer_state(handle)
        except ERRORS:
            state = "ERR"
        self.nixl.release_xfer_handle(handle)
        for region in regions:
            self.nixl.deregister_memory(region)
        same(state in ("DONE", "ERR"), True, f"{op} has ended: {state}")
        return memory.raw if state == "DONE" else None


@contextlib.contextmanager
def opened():
    gateway = Gateway()
    try:
        client = gateway.client()
        client.create_bucket(Bucket="data-1")
        yield gateway, client
    finally:
        gateway.close()


def requests_of(gateway):
    with open(gateway.log, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def stored(client, key):
    return client.get_object(Bucket="data-1", Key=key)["Body"].read()


def write_and_read(length, keys, **params):
    data = random.Random(length).randbytes(length * len(keys))
    with opened() as (gateway, client):
        agent = Agent(gateway.url, **params)
        same(agent.move("WRITE", keys, length, data) is not None, True, "WRITE")
        for n, key in enumerate(keys):
            same(stored(client, key) == data[n * length:(n + 1) * length], True, f"object {key}")
        same(agent.move("READ", keys, length) == data, True, "READ")
        if length > 100:
            same(agent.move("READ", keys[:1], length - 100, at=100) == data[100:length], True,
                 "READ of a range")
        return [(line["method"], line["status"]) for line in requests_of(gateway)]


def case_small_objects():
    write_and_read(1, ["one"])
    write_and_read(4096, [f"folder/key {n}+ü" for n in range(100)])


def case_large_object_plain():
    requests = write_and_read(64 * MIB, ["large"])
    same([method for method, _ in requests].count("POST"), 0, "uploads in parts")


def case_large_objects_crt():
    # CRT sends an object of one part with a plain PUT.
    for length in (PART - 1, PART, 2 * PART + 1, 64 * MIB):
        requests = write_and_read(length, ["large", "other"], crtMinLimit=str(PART))
        same([method for method, _ in requests].count("POST"), 0 if length <= PART else 4,
             f"requests that begin and complete uploads of {length} bytes")


def case_missing_key():
    with opened() as (gateway, client):
        for params in ({}, {"crtMinLimit": str(MIB)}):
            agent = Agent(gateway.url, **params)
            same(agent.move("READ", ["none"], 2 * MIB), None, "READ of a missing key")
        client.put_object(Bucket="data-1", Key="short", Body=b"short")
        same(Agent(gateway.url).move("READ", ["short"], 5), b"short", "READ afterwards")


def case_wrong_secret():
    with opened() as (gateway, client):
        for params in ({}, {"crtMinLimit": str(MIB)}):
            agent = Agent(gateway.url, secret="wrong", **params)
            same(agent.move("WRITE", ["key"], 2 * MIB, bytes(2 * MIB)), None, "WRITE")
        same({line["status"] for line in requests_of(gateway)[1:]}, {403}, "statuses")
        same(client.list_objects_v2(Bucket="data-1")["KeyCount"], 0, "objects")


if __name__ == "__main__":
    ctypes.CDLL(absent_library(), ctypes.RTLD_GLOBAL)
    # pylint: disable=wrong-import-position
    from nixl_cu12 import _api as NIXL  # noqa: E402
    from nixl_cu12 import _bindings  # noqa: E402
    ERRORS = tuple(value for value in vars(_bindings).values()
                   if isinstance(value, type) and issubclass(value, Exception))
    sys.exit(run_cases(globals(), sys.argv[1:]))
