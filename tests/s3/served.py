# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of `penstock serve`: starts the gateway, and provides a client, raw
requests, waits, certificates and TAP output. The scripts that tests/s3/gateway runs import this
module."""

import base64
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

import boto3
import botocore.client
import botocore.exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PENSTOCK_BUILD", os.path.join(ROOT, "build"))
PENSTOCK = os.environ.get("PENSTOCK", os.path.join(BUILD, "penstock"))
# If PENSTOCK_RC1_ADDRESS is set, it is the address of an RDMA network card. The servers then use
# it for HTTP, too.
ADDRESS = os.environ.get("PENSTOCK_RC1_ADDRESS", "127.0.0.1")
SEED = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 32)))  # run_cases prints it
KEY, SECRET = "AKWRITE", "secret+of/the+writer"
READ_KEY, READ_SECRET = "AKREAD", "secret+of/the+reader"
KEYS = f"""[{KEY}]
secret = {SECRET}
buckets = *
access = rw
[{READ_KEY}]
secret = {READ_SECRET}
buckets = data-*
access = r
"""


class Skip(Exception):
    """Ends a case as skipped."""


def same(got, wanted, what):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def write_private(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


class Gateway:
    """A gateway on a free port. If `root` is None, a new folder is made. `before` has the first
    words of the command, before `penstock`. With the URL `upstream`, the gateway forwards requests
    to that server, and `env` is added to its environment."""

    def __init__(self, root=None, flags=(), keys=KEYS, tls=None, before=(), upstream=None,
                 env=()):
        self.upstream, self.env = upstream, dict(os.environ, **dict(env))
        self.own = None
        self.place = tempfile.mkdtemp(prefix="gateway-")
        self.root = root or os.path.join(self.place, "root")
        os.makedirs(self.root, exist_ok=True)
        self.keys = os.path.join(self.place, "keys")
        self.log = os.path.join(self.place, "log")
        write_private(self.keys, keys)
        self.flags, self.tls, self.before = list(flags), tls, list(before)
        self.process, self.runs = None, False
        self.metrics_host = "127.0.0.1"
        self.start()

    def start(self):
        tls = ["--cert", self.tls[0], "--key", self.tls[1]] if self.tls else []
        objects = ["--upstream", self.upstream] if self.upstream else ["--root", self.root]
        self.process = subprocess.Popen(
            [*self.before, PENSTOCK, "serve", "--json", *objects,
             "--listen", f"{ADDRESS}:0", "--metrics", "127.0.0.1:0",
             "--keys", self.keys, "--access-log", self.log, *tls,
             *self.flags], env=self.env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        while not lines or lines[-1] != "}\n":
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the gateway ended: {self.process.stderr.read()}")
            lines.append(line)
            if len(lines) == 1 and line.rstrip().endswith("}"):
                break
        ready = json.loads("".join(lines))
        if "port" not in ready:
            raise AssertionError(f"the gateway ended: {ready}")
        self.runs = True
        self.port, self.metrics_port = ready["port"], ready["metrics_port"]
        self.url = f"http{'s' if self.tls else ''}://{ADDRESS}:{self.port}"

    def stop(self, number=signal.SIGTERM, timeout=60):
        """Stops the gateway with a signal and waits. It must still be running, or be ending after
        an earlier SIGTERM. Returns its exit status and its messages on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.runs = False
        _, err = self.process.communicate(timeout=timeout)
        status = self.process.returncode
        if status not in (0, -signal.SIGKILL if number == signal.SIGKILL else 0):
            raise AssertionError(f"the gateway ended with status {status}: {err}")
        return status, err

    def close(self):
        """Stops the gateway if it still runs, and removes its files."""
        try:
            ended = self.process.poll() is not None
            if self.runs:
                status, err = self.stop(signal.SIGKILL)
                same((ended, "ERROR: " in err or "runtime error: " in err), (False, False),
                     f"early end, and report of a sanitizer (status {status}, messages {err!r})")
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def client(self, key=KEY, secret=SECRET, verify=None, **config):
        settings = {"signature_version": "s3v4", "s3": {"addressing_style": "path"},
                    "retries": {"total_max_attempts": 1}, "read_timeout": 60}
        settings.update(config)
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1",
                            aws_access_key_id=key, aws_secret_access_key=secret, verify=verify,
                            config=botocore.client.Config(**settings))

    def connect(self, timeout=60, address=None):
        """Opens a connection to the gateway from this local address. If `address` is None, the
        kernel chooses the address."""
        source = (address, 0) if address else None
        return socket.create_connection((ADDRESS, self.port), timeout, source)

    def get(self, path):
        """Returns status and text of a page of the gateway's port for metrics."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics_host}:{self.metrics_port}{path}",
                                        timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """Returns the sum of a counter over all its labels."""
        lines = [line.split() for line in self.get("/metrics")[1].splitlines()
                 if line.startswith(name) and not line.startswith("#")]
        return sum(float(line[1]) for line in lines)

    def cpu_seconds(self):
        """Returns the CPU time that the gateway has used, in seconds."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def drafts(self):
        """Returns the names of the gateway's own files that requests have left behind."""
        return [name for _, _, names in os.walk(os.path.join(self.root, ".penstock"))
                for name in names if name != "lock"]


def opened(*args, **named):
    """Starts a gateway with the bucket data-1. Returns the gateway and a boto3 client."""
    gateway = Gateway(*args, **named)
    client = gateway.client()
    client.create_bucket(Bucket="data-1")
    return gateway, client


def keys_of(client, bucket="data-1"):
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def host(client):
    return client.meta.endpoint_url.split("//")[1]


def presigned(client, method, key, **more):
    """Returns the path of a presigned URL. A raw request with this path needs no other signature.
    """
    url = client.generate_presigned_url(method, Params={"Bucket": "data-1", "Key": key, **more})
    return "/" + url.split("/", 3)[3]


def put_head(client, key, length, extra=""):
    path = presigned(client, "put_object", key)
    return (f"PUT {path} HTTP/1.1\r\nHost: {host(client)}\r\nContent-Length: {length}\r\n"
            f"{extra}\r\n").encode()


def raw_put(gateway, client, key, length, body, extra=""):
    """Sends the head and the first bytes of a PUT. Returns the connection."""
    connection = gateway.connect()
    connection.sendall(put_head(client, key, length, extra) + body)
    return connection


def encoded_put(gateway, key, body, crc):
    """Returns a PUT whose body has the encoding aws-chunked and a CRC-32 in a trailer."""
    encoded = (b"%x\r\n" % len(body) + body + b"\r\n0\r\nx-amz-checksum-crc32:" +
               base64.b64encode(crc) + b"\r\n\r\n")
    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    request = AWSRequest("PUT", f"{gateway.url}/data-1/{key}", headers={
        "x-amz-content-sha256": kind, "x-amz-decoded-content-length": str(len(body)),
        "content-encoding": "aws-chunked", "x-amz-trailer": "x-amz-checksum-crc32",
        "x-amz-sdk-checksum-algorithm": "CRC32"})

    class Auth(S3SigV4Auth):
        def payload(self, request):
            return kind

    Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
    request.headers.replace_header("x-amz-content-sha256", kind)
    head = f"PUT /data-1/{key} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head += f"Content-Length: {len(encoded)}\r\nConnection: close\r\n\r\n"
    return head.encode() + encoded


def eventually(check, wanted, what, seconds=60):
    """Waits until check() returns `wanted`. Use it only if another process or thread causes the
    change and the test has no event to wait for."""
    end = time.monotonic() + seconds
    got = check()
    while got != wanted and time.monotonic() < end:
        time.sleep(0.01)
        got = check()
    same(got, wanted, f"{what}, after {seconds} s")


def until(condition, what, seconds=60):
    """Waits until condition() is true."""
    eventually(lambda: bool(condition()), True, what, seconds)


def make_certificate(place, name="cert"):
    """Makes a self-signed certificate for 127.0.0.1. Returns the file names of the certificate and
    of its key."""
    paths = os.path.join(place, name + ".pem"), os.path.join(place, name + ".key")
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-out", paths[0], "-keyout", paths[1]], capture_output=True, check=True)
    except FileNotFoundError:
        raise Skip("openssl is not installed") from None
    os.chmod(paths[1], 0o600)
    return paths


def repair_run(gateway, *flags, before=()):
    return subprocess.run([*before, PENSTOCK, "serve", "--repair", "--json", "--root",
                           gateway.root, *flags],
                          capture_output=True, text=True, timeout=60, check=False)


def repair(gateway, *flags):
    """Runs `penstock serve --repair`, which must succeed. Returns its report."""
    done = repair_run(gateway, *flags)
    same((done.returncode, done.stderr), (0, ""), "repair")
    return json.loads(done.stdout)


def failure(call, *args, **named):
    """Calls a function of boto3. Returns status and code of its error, or None if it succeeds."""
    try:
        call(*args, **named)
    except botocore.exceptions.ClientError as error:
        return (error.response["ResponseMetadata"]["HTTPStatusCode"],
                error.response["Error"]["Code"])
    return None


def read_reply(connection):
    """Receives until the server closes the connection. Returns all bytes."""
    data = b""
    try:
        while True:
            piece = connection.recv(65536)
            if not piece:
                return data
            data += piece
    except ConnectionResetError:
        return data


def together(functions):
    """Runs functions in parallel threads. Returns their results. If one raises an exception,
    raises it again."""
    results, errors = [None] * len(functions), []

    def run(number):
        try:
            results[number] = functions[number]()
        except BaseException as error:  # noqa: B902  (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def small_disk(gateway, mib):
    """Mounts a tmpfs of `mib` MiB as the root of a gateway and starts the gateway. At the end,
    stops the gateway and unmounts the tmpfs."""
    gateway.stop()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", gateway.root],
                      stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("mount is refused here")
    try:
        gateway.start()
        yield
    finally:
        gateway.stop(signal.SIGKILL)
        subprocess.run(["umount", gateway.root], check=True)


def run_cases(names, words):
    """Runs the functions case_NAME whose names contain one of the words. Returns the status."""
    # Before version 3.11.9, Python may crash when it collects a memoryview in a reference cycle
    # (cpython issue 77894). A failed request in urllib3 leaves such a cycle.
    if sys.version_info < (3, 11, 9):
        gc.disable()
    cases = [(name[5:], call) for name, call in names.items() if name.startswith("case_")
             and (not words or any(word in name for word in words))]
    if words and not cases:
        raise SystemExit(f"no case has a name with one of {words}")
    failed = 0
    print(f"# seed: PENSTOCK_SEED={SEED}\n1..{len(cases)}", flush=True)
    for number, (name, call) in enumerate(cases, 1):
        try:
            call()
            print(f"ok {number} - {name}", flush=True)
        except Skip as reason:
            print(f"# skip: {reason}\nok {number} - {name} # SKIP {reason}", flush=True)
        except Exception:  # noqa: B902  (a case may fail in any way)
            failed = 1
            for line in traceback.format_exc().splitlines():
                print("#", line)
            print(f"not ok {number} - {name}", flush=True)
    sys.stdout.flush()
    return failed
