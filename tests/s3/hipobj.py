# SPDX-License-Identifier: Apache-2.0
"""Tests the RDMA protocol hipobj-rc-v2 between s3:// URLs and `penstock serve` over an RDMA network
card, such as Soft-RoCE (tests/lab/rc1). The cases test objects of one part and of several, ranges,
and processes that are killed in the middle of transfers. They also send requests that the gateway
must refuse. Needs PENSTOCK_RC1_ADDRESS, the card's address.

hipobj.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints TAP;
tests/s3/gateway runs it."""

import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from client_rdma import MIB, Setup
from served import (ADDRESS, BUILD, KEY, PENSTOCK, READ_KEY, READ_SECRET, SECRET, SEED, eventually,
                    run_cases, same)

HIPOBJ = "rdma=require&rdma-transports=hipobj-rc-v2"
FLAGS = ["--rdma", "hipobj-rc-v2"]


def url(key, more=""):
    return f"s3://data-1/{key}?{HIPOBJ}{more}"


def case_objects_of_all_lengths():
    with Setup(flags=FLAGS) as s:
        moved = 0
        for count, parts in ((1, 1), (4097, 1), (MIB + 1, 1), (17 * MIB + 5, 3)):
            data = s.source(count)
            report = s.copy(s.path("source"), url("key"))
            same(report["write"]["paths"], {"rdma": count}, "paths of the write")
            same(report["parts"], {"rdma": parts, "http": 0, "reason": ""}, "parts")
            report = s.copy(url("key"), s.path("got"))
            same(report["read"]["paths"], {"rdma": count}, "paths of the read")
            same(report["read"]["engine"], "hipobj-rc-v2", "transport")
            same(s.read() == data, True, f"the bytes of {count}")
            moved += count
        same(s.moved("hipobj-rc-v2"), (moved, moved), "bytes of the gateway")
        same(s.gateway.metric("penstock_rdma_failed_total"), 0, "failed")


def case_many_ranges():
    """Many short reads at the same time return the same bytes by hipobj-rc-v2 as by HTTP."""
    with Setup(flags=FLAGS) as s:
        s.source(3 * MIB + 77)
        s.copy(s.path("source"), url("key"))
        said = []
        before = s.moved("hipobj-rc-v2")[1]
        for words in ("rdma=off", HIPOBJ):
            done = subprocess.run([os.path.join(BUILD, "tests", "s3-object"), "many",
                                   f"s3://data-1/key?{words}", "100"], env=s.env,
                                  capture_output=True, text=True, timeout=250, check=False)
            said.append(done.stdout)
        same(said[0].startswith("ok 100 "), True, said[0])
        same(said[1], said[0], "sum of the bytes")
        same(s.moved("hipobj-rc-v2")[1] - before, 100 * 65536, "bytes by hipobj-rc-v2")


def case_client_is_killed():
    """The gateway serves other clients after a client is killed in the middle of its transfers."""
    chance = random.Random(SEED)
    with Setup(flags=FLAGS) as s:
        data = s.source(24 * MIB)
        s.copy(s.path("source"), url("whole"))
        for turn in range(4):
            words = (url("whole"), s.path("got")) if turn % 2 else (s.path("source"), url("part"))
            with subprocess.Popen([PENSTOCK, "cp", *words], env=s.env, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as client:
                before = sum(s.moved("hipobj-rc-v2"))
                eventually(lambda: sum(s.moved("hipobj-rc-v2")) > before or  # noqa: B023
                           client.poll() is not None, True, "a transfer", 120)  # noqa: B023
                try:
                    client.wait(chance.random() / 4)
                except subprocess.TimeoutExpired:
                    pass
                client.kill()
        s.copy(url("whole"), s.path("got"))
        same(s.read() == data, True, "the bytes afterwards")
        same("part" in [os.path.basename(name) for name in os.listdir(
            os.path.join(s.gateway.root, "data-1"))], False, "an object that is not complete")


def case_server_is_killed():
    """A client whose gateway is killed ends with an error. After a restart of the gateway, clients
    work again."""
    with Setup(flags=FLAGS) as s:
        data = s.source(24 * MIB)
        s.copy(s.path("source"), url("whole"))
        for words in ((url("whole", "&timeout=2"), s.path("got")),
                      (s.path("source"), url("other", "&timeout=2"))):
            before = sum(s.moved("hipobj-rc-v2"))
            with subprocess.Popen([PENSTOCK, "cp", *words], env=s.env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
                eventually(lambda: sum(s.moved("hipobj-rc-v2")) > before,  # noqa: B023
                           True, "a transfer", 120)
                s.gateway.stop(signal.SIGKILL)
                _, err = client.communicate(timeout=300)
            print("#", client.returncode, err.strip().splitlines()[-1:])
            same(client.returncode != 0 or s.read() == data, True, "an error, or all bytes")
            s.gateway.start()
            s.env["AWS_ENDPOINT_URL"] = s.gateway.url
        s.copy(url("whole"), s.path("got"))
        same(s.read() == data, True, "the bytes afterwards")


def ask(s, step, headers, key=KEY, secret=SECRET):
    """Sends a request of hipobj-rc-v2. Returns the status, the headers and the error code."""
    request = AWSRequest("POST", f"{s.gateway.url}/.hipobj-rc/{step}", data=b"", headers={
        f"x-amz-rdma-{name}": value for name, value in headers.items()})
    S3SigV4Auth(Credentials(key, secret), "s3", "us-east-1").add_auth(request)
    plain = urllib.request.Request(request.url, data=b"", headers=dict(request.headers.items()),
                                   method="POST")
    try:
        with urllib.request.urlopen(plain, timeout=60) as reply:
            return reply.status, reply.headers, ""
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, error.headers, text.partition("<Code>")[2].partition("<")[0]


def prepare(s, op, size=4096, **credentials):
    gid = "0" * 20 + "ffff" + "".join(f"{int(n):02x}" for n in ADDRESS.split("."))
    token = "01" + "12345600" + gid + "00" * 20 + "01" + "0000"
    same(len(token), 88, "length of the token")
    return ask(s, "prepare", {
        "protocol": "hipobj-rc-v2", "op": op, "target": "/data-1/key", "size": str(size),
        "token": token, "psn": "00a1b2", "cookie": "deadbeef"}, **credentials)


def proceed(s, step, session, cookie="deadbeef", **credentials):
    return ask(s, step, {"protocol": "hipobj-rc-v2", "session": session, "cookie": cookie,
                         "qpn": "563412", "mr-addr": "1000", "mr-rkey": "1"}, **credentials)


def case_foreign_sessions():
    reader = {"key": READ_KEY, "secret": READ_SECRET}
    with Setup(flags=FLAGS) as s:
        s.source(MIB)
        s.copy(s.path("source"), url("key"))
        status, headers, _ = prepare(s, "GET")
        same((status, headers["x-amz-rdma-protocol"]), (200, "hipobj-rc-v2"), "PREPARE")
        same(len(headers["x-amz-rdma-reply"]), 92, "reply")
        session = headers["x-amz-rdma-session"]
        gone = (404, "NoSuchRDMASession")
        same(proceed(s, "ready", session, **reader)[::2], gone, "another access key")
        same(proceed(s, "ready", session, "deadbeee")[::2], gone, "a wrong cookie")
        same(proceed(s, "ready", session)[::2], gone, "the session afterwards")
        session = prepare(s, "GET")[1]["x-amz-rdma-session"]
        same(proceed(s, "cancel", session)[0], 200, "CANCEL")
        same(proceed(s, "ready", session)[::2], gone, "the session after CANCEL")
        same(prepare(s, "PUT", **reader)[::2], (403, "AccessDenied"), "PUT by a reader")
        same(prepare(s, "GET", 1 << 31)[::2], (413, "RDMATooLarge"), "2 GiB")


def case_queue_pair_that_does_not_exist():
    """If the queue pair that a READY names does not exist, the transfer fails, and the gateway
    stores nothing."""
    with Setup(flags=FLAGS) as s:
        s.source(4096)
        s.copy(s.path("source"), url("key"))
        for op in ("GET", "PUT"):
            session = prepare(s, op)[1]["x-amz-rdma-session"]
            same(proceed(s, "ready", session)[::2], (500, "RDMATransferFailed"), op)
        s.copy(url("key"), s.path("got"))
        same(len(s.read()), 4096, "the object")


if __name__ == "__main__":
    if ADDRESS == "127.0.0.1":
        print("1..0 # SKIP PENSTOCK_RC1_ADDRESS names no RDMA network card")
        sys.exit(77)
    sys.exit(run_cases(globals(), sys.argv[1:]))
