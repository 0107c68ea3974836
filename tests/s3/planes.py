#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock plane`. A plane is a process that holds the network card and the keys of the
object store. Its tenants are the processes that use it. The cases test GET and PUT of tenants that
are clients, and transfers of tenants that are servers. A tenant must not reach the memory of
another tenant. Planes and tenants are killed or stopped in the middle of a transfer. Further cases
test SIGTERM, users, limits, and that no secret leaves the plane.

planes.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints TAP;
tests/run runs it."""

import fcntl
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from served import (BUILD, KEY, PENSTOCK, ROOT, SECRET, Gateway, Skip, make_certificate, opened,
                    run_cases, same, until)

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("matrix", os.path.join(ROOT, "tests/object/matrix"))
matrix = importlib.util.module_from_spec(importlib.util.spec_from_loader("matrix", loader))
loader.exec_module(matrix)
Side = matrix.Side

MIB = 1 << 20
BIG = 64
STANDIN = os.path.join(BUILD, "tests", "standin", "libcuda.so.1")
os.environ.setdefault("PENSTOCK_LIBCUDA", STANDIN)
EXPORT_BYTES = 192  # size of struct penstock_export


class Plane:
    """A process `penstock plane` with a socket in a folder of its own. `gateway` is the S3 endpoint
    to which the plane sends requests."""

    def __init__(self, gateway=None, *flags, env=(), place=None, readable=False):
        self.place = place or tempfile.mkdtemp(prefix="plane-")
        if readable:
            os.chmod(self.place, 0o755)
        self.socket = os.path.join(self.place, "socket")
        environment = dict(os.environ, **dict(env))
        if gateway:
            environment.update(AWS_ENDPOINT_URL=gateway.url, AWS_ACCESS_KEY_ID=KEY,
                               AWS_SECRET_ACCESS_KEY=SECRET)
        environment["PENSTOCK_LOG"] = "info"
        self.process = subprocess.Popen(
            [PENSTOCK, "plane", "--json", "--listen", self.socket, "--metrics", "127.0.0.1:0",
             *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the plane ended: {self.process.stderr.read()}")
        ready = json.loads(line)
        if not ready["ok"]:
            raise AssertionError(f"the plane ended: {ready}")
        same(ready["socket"], self.socket, "socket")
        self.metrics_port = ready["metrics_port"]

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}",
                                        timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        text = self.get("/metrics")[1]
        found = re.search("^penstock_plane_" + re.escape(name) + r" (\d+)$", text, re.M)
        if not found:
            raise AssertionError(f"there is no metric {name}: {text}")
        return int(found[1])

    def requests(self, operation, by):
        return self.metric(f'requests_total{{operation="{operation}",by="{by}"}}')

    def refused(self, reason):
        return self.metric(f'refused_total{{reason="{reason}"}}')

    def is_empty(self):
        return (self.metric("tenants"), self.metric("memory_bytes"),
                self.metric("in_flight")) == (0, 0, 0)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def stop(self, number=signal.SIGTERM):
        """Ends the plane. Returns its exit status and what it has written."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        if "ERROR: " in err or "runtime error: " in err:
            raise AssertionError(f"report of a sanitizer: {err}")
        return self.process.returncode, out + err

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            status, text = self.stop()
            if not kind:
                same(status, 0, f"status of the plane ({text})")


def tenant(plane, device="host", mib=16, silence_ms=30000):
    return Side("client", f"plane:{plane.socket}", device, mib, silence_ms)


def server_tenant(plane):
    return Side("server", "host", -1, "-", plane.socket)


def ended(side, expected, what):
    """Waits for a completion. Compares its result, the verdict about the response (such as "done"),
    and the transport with `expected`."""
    line = side.ask("end", 60000)
    same(tuple(line.split(" ")[:3]), tuple(map(str, expected)), f"{what} ({line})")
    return line


def transfer(side, op, length, expected, off=0, key="key", first=0, flags=0):
    """Opens a window (memory for a transfer), and sends a request that names the window."""
    same(side.ask(op, off, length), "window", f"window of a {op}")
    same(side.ask("start", "data-1", key, first, flags), "0 ", f"start of a {op}")
    line = ended(side, expected, op)
    same(side.ask("release"), "0", "release")
    return line


def seed_of(op):
    """Returns a seed for the memory before a transfer. A PUT may complete, and a later GET of the
    same object must change the memory nevertheless."""
    return 11 if op == "get" else 13


def in_the_middle(side, op, key="big"):
    """Begins a long request. Returns when the first bytes of a GET have arrived."""
    same(side.ask(op, 0, BIG * MIB), "window", "window")
    same(side.ask("start", "data-1", key, 0, 0), "0 ", "start")
    if op == "get":
        same(side.ask("wait"), "landed", "first byte")


# ---- clients ----

def round_trip(plane, client, device, how, put="done", get="done"):
    length = 9 * MIB + 77
    with tenant(plane, device) as side:
        same(side.ask("fill", 5), "filled", "fill")
        checksum = side.ask("sum", 0, length)
        transfer(side, "put", length, (length, put, how))
        stored = client.get_object(Bucket="data-1", Key="key")["Body"].read()
        same(len(stored), length, "length of the object")
        same(side.ask("fill", 6), "filled", "fill")
        behind = side.ask("sum", length, MIB)
        transfer(side, "get", length, (length, get, how))
        same(side.ask("sum", 0, length), checksum, "bytes of the object")
        same(side.ask("sum", length, MIB), behind, "bytes behind the window")
        # Read a range with a window that is longer than the rest of the object.
        same(side.ask("fill", 7), "filled", "fill")
        transfer(side, "get", 2 * MIB, (MIB + 77, get, how), off=4096, first=8 * MIB)
        client.put_object(Bucket="data-1", Key="part", Body=stored[8 * MIB:])
        want = side.ask("sum", 4096, MIB + 77)
        transfer(side, "get", MIB + 77, (MIB + 77, get, how), off=4 * MIB, key="part")
        same(side.ask("sum", 4 * MIB, MIB + 77), want, "bytes of the range")
        # If the gateway answers with an error, the request's result is that error.
        transfer(side, "get", 100, (-2, "error", "-"), key="missing")
        transfer(side, "put", 100, (-17, "error", "-"), flags=2)
        same(client.head_object(Bucket="data-1", Key="key")["ContentLength"], length, "length")
        # A GET of a range behind the end of the object moves no bytes.
        transfer(side, "get", 100, (0, "body", "http"), first=length)
        transfer(side, "put", MIB, (MIB, put, how), key="a%20?%/with=#\u00e4+&signs")
        length = client.head_object(Bucket="data-1", Key="a%20?%/with=#\u00e4+&signs")
        same(length["ContentLength"], MIB, "an object whose key has other characters")
    until(plane.is_empty, "the plane has nothing left")


def case_transports():
    gateway, client = opened(flags=["--device", "cuda:0"])
    with gateway:
        for transport in ("shm1", "tcp1"):
            with Plane(gateway, "--rdma", transport, "--device", "cuda:0") as plane:
                for count, device in enumerate(("host", "cuda:0"), 1):
                    round_trip(plane, client, device, transport)
                    # The GET of the empty range moves no byte by RDMA, so it counts under `body`.
                    same((plane.requests("get", "window"), plane.requests("get", "body"),
                          plane.requests("put", "window"), plane.requests("put", "body")),
                         (3 * count, count, 2 * count, 0), "requests")
                same(plane.metric('tenants_total{role="client"}'), 2, "tenants")


def case_bodies():
    """If the gateway declines tokens, the plane moves the bytes as bodies of HTTP, also for memory
    of a GPU."""
    gateway, client = opened(flags=["--rdma", "none"])
    with gateway, Plane(gateway, "--device", "cuda:0") as plane:
        for device in ("host", "cuda:0"):
            round_trip(plane, client, device, "http", "resend", "body")
        with tenant(plane) as side:
            line = transfer(side, "get", 100, (-95, "error", "-"), flags=1)
            same("declined RDMA" in line, True, line)
            line = transfer(side, "put", 100, (-95, "error", "-"), key="none", flags=1)
            same("declined RDMA" in line, True, line)
        same(client.list_objects_v2(Bucket="data-1", Prefix="none")["KeyCount"], 0, "objects")


def own_address():
    """Returns an address of this host that is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
        except OSError as error:
            raise Skip(f"this host has no route: {error}") from None
        return probe.getsockname()[0]


def case_two_cards():
    """Two addresses stand for two network cards. The gateway declines tokens that name the first
    address. So the plane repeats the request with the second address, and prefers this address for
    the next window."""
    other = own_address()
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="key", Body=b"x" * MIB)
    flags = "--rdma", "tcp1", "--address", f"{other},127.0.0.1"
    with gateway:
        for op in ("get", "put"):
            with Plane(gateway, *flags) as plane, tenant(plane) as side:
                transfer(side, op, MIB, (MIB, "done", "tcp1"), flags=1)
                transfer(side, op, MIB, (MIB, "done", "tcp1"), flags=1)
                same(plane.requests(op, "window"), 2, "requests")
                status, text = plane.stop()
                note = f"prefer other cards than that of {other}"
                same((status, text.count(note)), (0, 1), f"failures ({text})")
    with Gateway(flags=["--rdma-networks", f"{other}/32"]) as gateway:
        gateway.client().create_bucket(Bucket="data-1")
        with Plane(gateway, *flags) as plane, tenant(plane) as side:
            transfer(side, "put", MIB, (MIB, "done", "tcp1"), flags=1)
            same("prefer other cards" in plane.stop()[1], False, "failures")


def case_require():
    """The variable PENSTOCK_RDMA in the plane's environment can forbid or require RDMA."""
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="key", Body=b"x" * 100)
    with gateway:
        with Plane(gateway, env={"PENSTOCK_RDMA": "off"}) as plane, tenant(plane) as side:
            line = transfer(side, "get", 100, (100, "resend", "http"))
            same("PENSTOCK_RDMA is off" in line, True, line)
            same(side.ask("get", 0, 100), "window", "window")
            same(side.ask("start", "data-1", "key", 0, 1).split()[0], "-95", "no body, no window")
            same(side.ask("release"), "0", "release")
        with Plane(gateway, env={"PENSTOCK_RDMA": "require"}) as plane, tenant(plane) as side:
            transfer(side, "get", 100, (100, "done", "shm1"))


def case_https():
    """With an https endpoint, the plane does not use tcp1, which sends unencrypted bytes. It uses
    shm1, whose bytes stay on the host."""
    with tempfile.TemporaryDirectory() as place:
        tls = make_certificate(place)
        gateway = Gateway(tls=tls)
        with gateway:
            client = gateway.client(verify=tls[0])
            client.create_bucket(Bucket="data-1")
            client.put_object(Bucket="data-1", Key="key", Body=b"x" * 100)
            env = {"AWS_CA_BUNDLE": tls[0]}
            with Plane(gateway, "--rdma", "tcp1", env=env) as plane, tenant(plane) as side:
                line = transfer(side, "get", 100, (100, "resend", "https"))
                same("does not encrypt" in line, True, line)
            with Plane(gateway, "--rdma", "shm1", env=env) as plane, tenant(plane) as side:
                transfer(side, "get", 100, (100, "done", "shm1"))
            with Plane(gateway, "--rdma", "shm1") as plane, tenant(plane) as side:
                same(side.ask("get", 0, 100), "window", "window")
                same(side.ask("start", "data-1", "key", 0, 0), "0 ", "start")
                line = side.ask("end", 60000)
                same(int(line.split()[0]) < 0, True, f"an unknown certificate ({line})")
                same(side.ask("release"), "0", "release")


def case_secrets():
    """Only the plane has the keys of the object store, and it does not print them."""
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="key", Body=b"x" * 100)
    with gateway, Plane(gateway, env={"PENSTOCK_LOG": "debug"}) as plane:
        with tenant(plane) as side:
            transfer(side, "get", 100, (100, "done", "shm1"))
            for process in (side.process, plane.process):
                with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                    same(SECRET.encode() in file.read(), False, "the secret among arguments")
            with open(f"/proc/{side.process.pid}/environ", "rb") as file:
                same(SECRET.encode() in file.read(), False, "the secret in the tenant")
        status, text = plane.stop()
        same(status, 0, "status")
        same((SECRET in text, "x-amz" in text.lower()), (False, False), f"the secret in {text!r}")
        same("is a client" in text, True, f"log: {text}")


# ---- tenants ----

class Raw:
    """A tenant (a process that uses the plane) without the library: this script itself sends the
    messages (plane_message.h)."""
    HEAD = struct.Struct("=IHHQ")
    HELLO, FD, MEMORY, MEMORY_CLOSE, WINDOW, RELEASE, START = 1, 2, 5, 6, 7, 8, 9
    WELCOME, ANSWER = 13, 14

    def __init__(self, plane, role=1):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        self.socket.connect(plane.socket)
        kind, _ = self.ask(self.HELLO, struct.pack("=IIII", 1, 1, role, 0))
        same(kind, self.WELCOME, "answer to HELLO")

    def send(self, kind, body, fd=None):
        message = self.HEAD.pack(0x4e4c5053, 1, kind, 7) + body
        if fd is None:
            self.socket.send(message)
        else:
            socket.send_fds(self.socket, [message], [fd])

    def ask(self, kind, body):
        """Returns the kind of the answer, and its bytes after the head."""
        self.send(kind, body)
        data = self.socket.recv(65536)
        return self.HEAD.unpack_from(data)[2], data[self.HEAD.size:]

    def result(self, kind, body):
        """Sends a message. Returns the result and the object's number from its ANSWER."""
        kind, data = self.ask(kind, body)
        same(kind, self.ANSWER, "kind of the answer")
        return struct.unpack_from("=iIQ", data)[::2]

    def memory(self, mib):
        fd = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, mib * MIB)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        read_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self.send(self.FD, struct.pack("=I", 0), fd)
        self.send(self.FD, struct.pack("=I", 1), read_fd)
        result, number = self.result(
            self.MEMORY, struct.pack("=QII", mib * MIB, 0, 2) + bytes(EXPORT_BYTES))
        os.close(fd)
        os.close(read_fd)
        same(result, 0, "memory")
        return number

    def window(self, memory, length):
        # The struct ends with four bytes of padding.
        return self.result(self.WINDOW, struct.pack("=QQQII", memory, 0, length, 0, 0))

    def start(self, window, key):
        key = key.encode()
        body = struct.pack("=QQQII", window, 5, 0, 0, len(key))
        body += b"data-1".ljust(256, b"\0") + key.ljust(1025, b"\0") + bytes(256)
        return self.result(self.START, body + bytes(-len(body) % 8))[0]

    def close(self):
        self.socket.close()


def case_other_tenants_windows():
    """If a tenant names the window or the memory of another tenant, the plane refuses and counts
    the request. The object stays unchanged, and the window's owner can go on."""
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="mine", Body=b"m" * 100)
    with gateway, Plane(gateway) as plane:
        one, two = Raw(plane), Raw(plane)
        memory = one.memory(2)
        result, window = one.window(memory, 100)
        same(result, 0, "a window of the own memory")
        name = struct.pack("=Q", window)
        same(two.start(window, "mine"), -13, "a GET into another tenant's window")
        same(two.result(Raw.RELEASE, name)[0], -13, "a release of another tenant's window")
        same(two.window(memory, 100)[0], -13, "a window of another tenant's memory")
        same(two.result(Raw.MEMORY_CLOSE, struct.pack("=Q", memory))[0], -13, "memory")
        same(plane.refused("name"), 4, "refusals")
        same(plane.requests("get", "window"), 0, "requests before the owner's own")
        same(one.start(window, "mine"), 0, "a GET of the owner")
        until(lambda: plane.requests("get", "window") == 1, "the owner's GET")
        # The plane sends the completion of the GET before its answer to the release.
        same(Raw.HEAD.unpack_from(one.socket.recv(65536))[2], 16, "the completion")
        same(one.result(Raw.RELEASE, name)[0], 0, "release")
        two.socket.send(b"garbage")
        same(two.socket.recv(100), b"", "the answer to garbage")
        same(plane.refused("malformed"), 1, "malformed")
        one.close()
        two.close()
        until(plane.is_empty, "the plane has nothing left")


def case_users():
    """The plane refuses processes of users that are not permitted, even if they can open its
    socket."""
    if os.getuid():
        raise Skip("only root can become another user")

    def refused(plane, user):
        """Returns the error of a process that switches to the user and then connects to the plane
        as a server."""
        try:
            with Side("server", "host", user, "-", plane.socket):
                return None
        except matrix.Failure as failure:
            return str(failure)

    with Plane(readable=True) as plane:
        text = refused(plane, 65534)
        same("Permission denied" in text, True, f"the socket's mode ({text})")
        os.chmod(plane.socket, 0o666)
        text = refused(plane, 65534)
        same("does not serve this user" in text, True, text)
        same(plane.refused("user"), 1, "refusals")
    with Plane(None, "--users", "65534", readable=True) as plane:
        same(refused(plane, 65534), None, "a user that is permitted")
        text = refused(plane, 65533)
        same("does not serve this user" in text, True, text)
    # One user gets half of the tenants, and leaves the others to other users.
    with Plane(None, "--users", "65532,65533,65534", "--tenants", "4", readable=True) as plane, \
            Side("server", "host", 65534, "-", plane.socket), \
            Side("server", "host", 65534, "-", plane.socket):
        text = refused(plane, 65534)
        same("half of the plane's tenants" in str(text), True, f"a third tenant ({text})")
        same(plane.refused("limit-user"), 1, "refusals")
        same(refused(plane, 65533), None, "another user")
        until(lambda: plane.metric("tenants") == 2, "the other user has ended")
        # A second user gets half of the rest, and so leaves a tenant to a third user.
        with Side("server", "host", 65533, "-", plane.socket):
            text = refused(plane, 65533)
            same("that others leave" in str(text), True, f"a second tenant ({text})")
            same(refused(plane, 65532), None, "a third user")
            until(lambda: plane.metric("tenants") == 3, "the third user has ended")
        until(lambda: plane.metric("tenants") == 2, "the second user has ended")
        with server_tenant(plane), server_tenant(plane):
            same(plane.metric("tenants"), 4, "tenants of root")


def case_limits():
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="key", Body=b"x" * 100)
    with gateway, Plane(gateway, "--tenants", "2", "--memory", "16MiB", "--buckets", "data-1,b",
                        "--read-only") as plane:
        with tenant(plane) as side, tenant(plane) as other:
            try:
                tenant(plane).kill()
                raise AssertionError("the plane has a third tenant")
            except matrix.Failure as failure:
                same("as many tenants" in str(failure), True, str(failure))
            transfer(side, "get", 100, (100, "done", "shm1"))
            transfer(other, "get", 100, (100, "done", "shm1"))
            same(side.ask("put", 0, 100), "window", "window")
            line = side.ask("start", "data-1", "key", 0, 0)
            same(line.split()[0] + (" --read-only" if "--read-only" in line else ""),
                 "-13 --read-only", "a PUT")
            same(side.ask("release"), "0", "release")
            same(side.ask("get", 0, 100), "window", "window")
            same(side.ask("start", "other", "key", 0, 0).split()[0], "-13", "another bucket")
            same(side.ask("release"), "0", "release")
        try:
            tenant(plane, mib=17).kill()
            raise AssertionError("a tenant has more memory than it may have")
        except matrix.Failure as failure:
            same("bytes of memory" in str(failure), True, str(failure))
        same((plane.refused("limit-tenants"), plane.refused("limit-memory"),
              plane.refused("policy")), (1, 1, 2), "refusals")
    for flags in (["--role", "server"],):
        with Plane(None, *flags) as plane:
            try:
                tenant(plane).kill()
                raise AssertionError("the plane has the role client")
            except matrix.Failure as failure:
                same("this role" in str(failure), True, str(failure))


def case_descriptors():
    """A plane without a free descriptor refuses a connection, and its answer has the reason. As
    soon as descriptors are free again, it serves the next connection."""
    with Plane() as plane:
        pid = plane.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        same(soft, hard, "limit of open files")
        # Counts the plane's descriptors in /proc, because a request for metrics would itself need a
        # descriptor.
        count = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, hard))
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.settimeout(20)
                one.connect(plane.socket)
                reply = one.recv(65536)
            same((b"RLIMIT_NOFILE" in reply, Raw.HEAD.unpack_from(reply)[2]), (True, Raw.ANSWER),
                 f"refusal ({reply[:400]!r})")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        Raw(plane).close()
        until(plane.is_empty, "the plane has nothing left")


# ---- ends ----

def big_object(client):
    client.put_object(Bucket="data-1", Key="big", Body=os.urandom(MIB) * BIG)


def case_plane_killed():
    """If its plane is killed, the application gets an error. After the release, nothing changes the
    application's memory, although the server may still access the old pages. A new plane can listen
    at the same socket."""
    gateway, client = opened()
    big_object(client)
    with gateway:
        for transport in ("shm1", "tcp1"):
            for op in ("get", "put"):
                plane = Plane(gateway, "--rdma", transport)
                with tenant(plane, mib=BIG) as side:
                    same(side.ask("fill", seed_of(op)), "filled", "fill")
                    in_the_middle(side, op)
                    plane.kill()
                    line = side.ask("end", 60000)
                    # The request may have been complete before the kill.
                    if not line.startswith(f"{BIG * MIB} done"):
                        same(line.split()[:2], ["-104", "error"], f"{transport} {op} ({line})")
                        same("the plane is gone" in line, True, line)
                    same(side.ask("release"), "0", "release")
                    same(side.ask("fill", 12), "filled", "fill")
                    before = side.ask("sum", 0, BIG * MIB)
                    same(side.ask("get", 0, 100).startswith("error"), True, "a window")
                    with Plane(gateway, place=plane.place) as second, tenant(second) as other:
                        transfer(other, "get", MIB, (MIB, "done", "shm1"), key="big")
                    same(side.ask("sum", 0, BIG * MIB), before, "the memory after the release")


def case_plane_stopped():
    """If a plane does not answer, its tenant treats the plane as gone and releases the window. When
    the stopped plane continues, the gateway must not change the window's memory."""
    gateway, client = opened()
    big_object(client)
    with gateway, Plane(gateway, "--rdma", "tcp1") as plane:
        with tenant(plane, mib=BIG, silence_ms=500) as side:
            same(side.ask("fill", 11), "filled", "fill")
            in_the_middle(side, "get")
            plane.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, plane.process.pid, os.WSTOPPED)
            line = side.ask("end", 60000)
            if not line.startswith(f"{BIG * MIB} done"):
                same(line.split()[:2], ["-104", "error"], line)
                same("does not answer" in line, True, line)
            same(side.ask("release"), "0", "release")
            same(side.ask("fill", 12), "filled", "fill")
            before = side.ask("sum", 0, BIG * MIB)
            plane.process.send_signal(signal.SIGCONT)
            until(plane.is_empty, "the plane has ended the tenant")
            same(side.ask("sum", 0, BIG * MIB), before, "the memory after the release")


def case_gpu_memory():
    """A tenant ends with an open window in memory of a GPU. It frees this memory when the plane has
    given it up. If the plane is stopped, the memory stays allocated."""
    matrix.ENV["PENSTOCK_STANDIN_LEAKS"] = "2"  # exit status 97 if memory is left
    with Plane(None, "--device", "cuda:0") as plane:
        for stopped, status in ((False, 0), (True, 97)):
            with tenant(plane, "cuda:0", silence_ms=2000) as side:
                same(side.ask("get", 0, MIB), "window", "window")
                if stopped:
                    plane.process.send_signal(signal.SIGSTOP)
                    os.waitid(os.P_PID, plane.process.pid, os.WSTOPPED)
                side.process.stdin.close()
                same(side.process.wait(60), status, f"status of the tenant (stopped {stopped})")
    del matrix.ENV["PENSTOCK_STANDIN_LEAKS"]


def case_tenant_stopped():
    """A tenant is stopped by SIGSTOP for longer than the time after which a silent plane counts as
    gone. When it continues, it must still use the plane."""
    gateway, client = opened()
    client.put_object(Bucket="data-1", Key="key", Body=b"x" * 100)
    with gateway, Plane(gateway) as plane, tenant(plane, silence_ms=500) as side:
        same(side.ask("get", 0, 100), "window", "window")
        for process in (gateway.process, side.process):
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            if process is gateway.process:
                same(side.ask("start", "data-1", "key", 0, 0), "0 ", "start")
        time.sleep(1.5)
        side.signal(signal.SIGCONT)
        os.waitid(os.P_PID, side.process.pid, os.WCONTINUED)
        # During this time, the tenant sends a PING, which the plane answers.
        time.sleep(1.5)
        gateway.process.send_signal(signal.SIGCONT)
        ended(side, (100, "done", "shm1"), "the request")
        same(side.ask("release"), "0", "release")


def case_tenant_killed():
    """If a tenant is killed, the plane ends its transfers and serves other tenants."""
    gateway, client = opened()
    big_object(client)
    with gateway, Plane(gateway) as plane:
        lost = 0
        for count, op in enumerate(("get", "put", "get", "put"), 1):
            with tenant(plane) as other:
                with tenant(plane, mib=BIG) as side:
                    same(side.ask("fill", seed_of(op)), "filled", "fill")
                    in_the_middle(side, op)
                    side.kill()
                until(lambda: plane.metric("tenants") == 1, "the plane has ended the tenant")
                transfer(other, "get", MIB, (MIB, "done", "shm1"), key="big")
                same(plane.metric("memory_bytes"), 16 * MIB, "memory")
                same(plane.metric("in_flight"), 0, "in flight")
                lost = plane.metric("lost_windows_total")
                same(lost, count, "windows that were open")
        until(plane.is_empty, "the plane has nothing left")
        # No upload of a killed tenant has left a part of an object.
        same(client.head_object(Bucket="data-1", Key="big")["ContentLength"], BIG * MIB, "length")


def case_drain():
    """After SIGTERM, the plane completes the requests in flight and refuses new requests."""
    gateway, client = opened()
    big_object(client)
    with gateway:
        plane = Plane(gateway, "--rdma", "tcp1")
        with tenant(plane, mib=BIG) as side:
            same(side.ask("fill", 11), "filled", "fill")
            in_the_middle(side, "get")
            plane.process.send_signal(signal.SIGTERM)
            ended(side, (BIG * MIB, "done", "tcp1"), "a GET during the drain")
            same(plane.stop()[0], 0, "status")
            same(os.path.exists(plane.socket), False, "the socket")
            same(side.ask("release"), "0", "release")
            same(side.ask("get", 0, 100).startswith("error"), True, "a window after the end")
        # With --drain 0, the plane does not wait for the request in flight.
        plane = Plane(gateway, "--rdma", "tcp1", "--drain", "0")
        with tenant(plane, mib=BIG) as side:
            same(side.ask("fill", 11), "filled", "fill")
            in_the_middle(side, "get")
            same(plane.stop()[0], 0, "status")
            line = side.ask("end", 60000)
            if not line.startswith(f"{BIG * MIB} done"):
                same(line.split()[:2], ["-104", "error"], line)
            same(side.ask("release"), "0", "release")


def case_stuck_transfer():
    """A plane ends soon after --drain, also if one of its threads does not return."""
    gateway, client = opened()
    big_object(client)
    # The copies of the plane's GPU take minutes.
    slow = (("PENSTOCK_STANDIN_DELAY_US", "600000000"), ("PENSTOCK_STANDIN_SEED", "3"))
    with gateway, Plane(gateway, "--rdma", "tcp1", "--device", "cuda:0", "--drain", "1",
                        env=slow) as plane:
        with tenant(plane, "cuda:0", mib=BIG) as side:
            same(side.ask("get", 0, BIG * MIB), "window", "window")
            same(side.ask("start", "data-1", "big", 0, 0), "0 ", "start")
            until(lambda: plane.metric("in_flight") == 1, "the request is in flight")
            before = time.monotonic()
            status, text = plane.stop()
            took = time.monotonic() - before
            same((status, "does not end" in text), (1, True), f"status of the plane ({text})")
            same(took < 30, True, f"the end after {took:.1f} s")
            same(side.ask("end", 60000).split()[:2], ["-104", "error"], "the request")


# ---- servers ----

def case_server_moves():
    """A plane for servers moves bytes between a server's memory or files and the windows of
    clients. These clients have no plane."""
    with Plane(None, "--role", "server", "--device", "cuda:0") as plane:
        for transport, device in (("shm1", "host"), ("tcp1", "host"), ("shm1", "cuda:0")):
            with Side("client", transport, device, 16, 2000) as client, \
                    server_tenant(plane) as server:
                for op in ("get", "put", "fget", "fput"):
                    matrix.whole(client, server, op, 0, 9 * MIB + 77)
                    matrix.whole(client, server, op, 4096, 5 * MIB, inner=MIB + 3,
                                 part=2 * MIB + 1)
                token = client.ask("get", 0, MIB)
                same(server.ask("get", token, 1, MIB, 7), "begun", "server")
                same(server.line().split()[0], "-34", "bytes beyond the window")
                same(server.ask("get", matrix.flipped(token), 0, MIB, 7), "begun", "server")
                same(server.line().split()[0], "-13", "a changed token")
                same(server.ask("get", "nonsense", 0, MIB, 7), "begun", "server")
                same(server.line().split()[0], "-74", "a malformed token")
                same(client.ask("release"), "0", "release")
        same(plane.metric('moves_total{result="done"}'), 3 * 8, "moves")
        same(plane.metric('moves_total{result="error"}'), 3, "failed moves")
        until(plane.is_empty, "the plane has nothing left")


def case_server_ends():
    """Kills a plane for servers, or the server that uses it, in the middle of a transfer."""
    for transport in ("shm1", "tcp1"):
        for victim in ("plane", "server"):
            plane = Plane(None, "--role", "server")
            with Side("client", transport, "host", BIG, 2000) as client:
                with server_tenant(plane) as server:
                    matrix.interrupted(client, server, "get")
                    if victim == "plane":
                        plane.kill()
                        result = server.line().split(" ")
                        if result[0] != str(BIG * MIB):
                            same(result[0], "-104", f"the move ({result})")
                    else:
                        server.kill()
                        until(plane.is_empty, "the plane has nothing left")
                same(client.ask("release"), "0", "release")
                first = client.ask("fill", 12), client.ask("sum", 0, BIG * MIB)
                same(client.ask("sum", 0, BIG * MIB), first[1], "the memory after the release")
                if victim == "server":
                    with server_tenant(plane) as other:
                        matrix.whole(client, other, "get", 0, 4 * MIB)
                    same(plane.stop()[0], 0, "status")


def case_metrics():
    """The plane serves metrics on a second port, also after malformed requests."""
    with Plane() as plane:
        same(plane.get("/healthz"), (200, "ok\n"), "health")
        same(plane.get("/other")[0], 404, "another page")
        for text in (b"", b"GET /metrics", b"\0" * 5000):
            with socket.create_connection(("127.0.0.1", plane.metrics_port), 60) as connection:
                try:
                    connection.sendall(text)
                    connection.shutdown(socket.SHUT_WR)
                    same(connection.recv(100), b"", f"reply to {text[:20]!r}")
                except OSError:
                    pass  # the plane has closed the connection first
        second = subprocess.run([PENSTOCK, "plane", "--json", "--listen", plane.socket],
                                capture_output=True, text=True, check=False)
        same((second.returncode, "a process listens there" in second.stderr), (1, True),
             f"a second plane ({second.stderr})")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
