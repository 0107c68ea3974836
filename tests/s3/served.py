# SPDX-License-Identifier: Apache-2.0
"""Starts `penstock serve` for the tests of the gateway, and helps them: a client, raw requests,
TAP output. Called by gateway.py and gateway_kills.py."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import urllib.request

import boto3
import botocore.client
import botocore.exceptions

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PENSTOCK_BUILD", os.path.join(ROOT, "build"))
PENSTOCK = os.environ.get("PENSTOCK", os.path.join(BUILD, "penstock"))
# With PENSTOCK_RC1_ADDRESS, the address of an RDMA network card, HTTP uses this card, too.
ADDRESS = os.environ.get("PENSTOCK_RC1_ADDRESS", "127.0.0.1")
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
    """A gateway on a free port. `root` is made if it is None. `before` begins its command. With
    `upstream`, a URL, it passes requests through to this server, and `env` is added to its
    environment."""

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
        self.process = None
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
        self.port, self.metrics_port = ready["port"], ready["metrics_port"]
        self.url = f"http{'s' if self.tls else ''}://{ADDRESS}:{self.port}"

    def stop(self, number=signal.SIGTERM, timeout=60):
        """Ends the gateway. Returns its exit status and what it wrote to standard error."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err

    def close(self):
        status, err = self.stop(signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)
        if "ERROR: " in err:
            raise AssertionError(f"a sanitizer reports (status {status}): {err}")

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

    def connect(self, timeout=60):
        return socket.create_connection((ADDRESS, self.port), timeout)

    def get(self, path):
        """Returns status and text of a page of the second port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}",
                                        timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """Returns the sum of a counter's values."""
        lines = [line.split() for line in self.get("/metrics")[1].splitlines()
                 if line.startswith(name) and not line.startswith("#")]
        return sum(float(line[1]) for line in lines)

    def drafts(self):
        """Returns the names of all files of the gateway's own that a request may leave."""
        return [name for _, _, names in os.walk(os.path.join(self.root, ".penstock"))
                for name in names if name != "lock"]


def failure(call, *args, **named):
    """Returns status and code of the error with which a call fails, or None."""
    try:
        call(*args, **named)
    except botocore.exceptions.ClientError as error:
        return (error.response["ResponseMetadata"]["HTTPStatusCode"],
                error.response["Error"]["Code"])
    return None


def read_reply(connection):
    """Returns all bytes until the server ends the connection."""
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
    """Runs functions in threads. Returns their results; an exception is raised again."""
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


def run_cases(names, words):
    """Runs the functions case_NAME whose names contain one of the words. Returns the status."""
    cases = [(name[5:], call) for name, call in names.items() if name.startswith("case_")
             and (not words or any(word in name for word in words))]
    failed = 0
    print(f"1..{len(cases)}", flush=True)
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
