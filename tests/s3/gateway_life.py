#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what an operator does while `penstock serve` runs: signals, new certificates and keys,
metrics, and a root that gets another path.

gateway_life.py [WORD...]: runs the cases whose names contain one of the words, or all. Prints TAP;
tests/run runs it."""

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time

import boto3

from served import (KEY, KEYS, PENSTOCK, READ_KEY, READ_SECRET, ROOT, SECRET, Gateway, Skip,
                    eventually, failure, make_certificate, opened, put_head, raw_put, read_reply,
                    run_cases, same, until, write_private)


def failure_or_refused(call, **named):
    try:
        return failure(call, **named)
    except Exception as error:  # noqa: B902  (a refused connection has many names in boto3)
        return error


def case_drain():
    gateway, client = opened(flags=["--drain", "60"])
    with gateway, raw_put(gateway, client, "k", 10, b"12345") as raw:
        until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "the PUT has arrived")
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.get("/healthz")[0] == 503, "the gateway drains")

        def refused():
            try:
                return gateway.connect().close()
            except ConnectionResetError:  # the kernel closed the socket during the handshake
                return False
            except ConnectionRefusedError:
                return True
        until(refused, "connections are refused", 10)
        raw.sendall(b"67890")
        reply = read_reply(raw)
        same((reply[9:12], b"Connection: close" in reply), (b"200", True), f"reply {reply!r}")
        same(gateway.stop()[0], 0, "exit status")
        with open(os.path.join(gateway.root, "data-1", "k"), "rb") as file:
            same(file.read(), b"1234567890", "object")


def case_drain_ends():
    gateway, client = opened(flags=["--drain", "1"])
    with gateway, raw_put(gateway, client, "k", 10, b"12345"):
        until(lambda: gateway.metric("penstock_requests_in_flight") == 1, "the PUT has arrived")
        same(gateway.stop()[0], 0, "exit status")
        same(os.listdir(os.path.join(gateway.root, "data-1")), [], "files")


def case_tls():
    with Gateway() as place:
        first, second = make_certificate(place.place, "one"), make_certificate(place.place, "two")
        with Gateway(tls=first) as gateway:
            client = gateway.client(verify=first[0])
            client.create_bucket(Bucket="data-1")
            body = os.urandom(3 << 20)
            client.put_object(Bucket="data-1", Key="k", Body=body)
            same(client.get_object(Bucket="data-1", Key="k")["Body"].read() == body, True, "body")
            for new, old in zip(second, first):
                os.rename(new, old)
            gateway.process.send_signal(signal.SIGHUP)

            def works():
                return failure_or_refused(gateway.client(verify=first[0]).list_buckets) is None
            until(works, "the new certificate is used")
            same(gateway.stop()[0], 0, "exit status")
        os.chmod(first[1], 0o644)
        done = subprocess.run([PENSTOCK, "serve", "--root", place.root, "--listen", "127.0.0.1:0",
                               "--keys", place.keys, "--cert", first[0], "--key", first[1]],
                              capture_output=True, text=True, timeout=60, check=False)
        same((done.returncode, "chmod 600" in done.stderr), (1, True), "a key that others read")


def case_certificate_without_its_key():
    """A reload between the replacement of the certificate and of its key fails. The gateway keeps
    the old pair and accepts connections, also after several such reloads."""
    with Gateway() as place:
        first, second = make_certificate(place.place, "one"), make_certificate(place.place, "two")
        trusted = place.place + "/trusted"
        shutil.copy(first[0], trusted)
        with Gateway(tls=first) as gateway:
            gateway.client(verify=trusted).create_bucket(Bucket="data-1")
            os.rename(second[0], first[0])
            for number in range(3):
                write_private(gateway.keys, KEYS.replace(READ_KEY, f"AK{number}"))
                gateway.process.send_signal(signal.SIGHUP)
                client = gateway.client(f"AK{number}", READ_SECRET, verify=trusted)
                until(lambda c=client: failure_or_refused(c.list_buckets) is None,
                      "the keys are read")
            os.rename(second[1], first[1])
            gateway.process.send_signal(signal.SIGHUP)
            until(lambda: failure_or_refused(gateway.client(verify=first[0]).list_buckets) is None,
                  "the new certificate is used")
            same(gateway.stop()[1].count("belong together"), 3, "number of messages")


def case_old_certificate_ends():
    """After a reload of the certificate, the process runs a second HTTP server. The server with
    the old certificate ends when its last connection ends, and needs no signal for that."""
    with Gateway() as place:
        pair = make_certificate(place.place, "one")
        with Gateway(tls=pair) as gateway:
            def threads():
                return len(os.listdir(f"/proc/{gateway.process.pid}/task"))
            context = ssl.create_default_context(cafile=pair[0])
            before = threads()
            with gateway.connect() as raw, \
                    context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
                gateway.process.send_signal(signal.SIGHUP)
                until(lambda: threads() > before, "a second server runs")
                secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                same(secure.recv(12), b"HTTP/1.1 403", "reply of the first server")
                same(threads() > before, True, "both servers run")
            until(lambda: threads() == before, "the first server has ended")
            same(gateway.stop()[0], 0, "exit status")


def case_other_root():
    """A gateway whose root has lost its path is not healthy: other gateways that start later would
    serve another folder."""
    gateway, client = opened()
    with gateway:
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz")
        os.rename(gateway.root, gateway.root + "-away")
        same(gateway.get("/healthz"), (503, "the root is gone\n"), "without the root")
        os.mkdir(gateway.root)
        status, text = gateway.get("/healthz")
        same((status, "restart the gateway" in text), (503, True), f"with another root: {text}")
        os.rmdir(gateway.root)
        os.rename(gateway.root + "-away", gateway.root)
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz with the root")
        client.head_bucket(Bucket="data-1")


# --- files with secrets -----------------------------------------------------------

GROUP = 4242  # stands for the group of a Kubernetes volume (fsGroup)


class Volume:
    """A folder as Kubernetes makes it for a Secret: links to the files of a folder that is
    replaced as a whole."""

    def __init__(self, place, names, owner, mode):
        self.place, self.names, self.owner, self.mode = place, names, owner, mode
        self.count = 0
        os.mkdir(place)
        os.chmod(place, 0o755)
        for name in names:
            os.symlink(f"..data/{name}", self.path(name))

    def path(self, name):
        return os.path.join(self.place, name)

    def swap(self, texts):
        """Replaces all files at once."""
        self.count += 1
        new = f"..data-{self.count}"
        os.mkdir(self.path(new))
        os.chmod(self.path(new), 0o755)
        for name, text in zip(self.names, texts):
            path = os.path.join(self.place, new, name)
            write_private(path, text)
            os.chown(path, *self.owner)
            os.chmod(path, self.mode)
        os.symlink(new, self.path("..new"))
        os.rename(self.path("..new"), self.path("..data"))
        if self.count > 1:
            shutil.rmtree(self.path(f"..data-{self.count - 1}"))


def need_root():
    if os.geteuid() or subprocess.run(["setpriv", "--reuid", "65534", "true"], check=False,
                                      capture_output=True).returncode:
        raise Skip("only root can become another user")


def as_user(groups):
    """Returns the first words of a command that runs as another user with these groups."""
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--bounding-set=-all",
            "--inh-caps=-all", *(["--groups", groups] if groups else ["--clear-groups"])]


@contextlib.contextmanager
def reachable_folder():
    """Makes a folder that other users can reach, with a copy of the command and a root."""
    place = tempfile.mkdtemp(prefix="gateway-life-", dir="/tmp")
    try:
        os.chmod(place, 0o755)
        shutil.copy(PENSTOCK, os.path.join(place, "penstock"))
        os.mkdir(os.path.join(place, "root"))
        os.chmod(os.path.join(place, "root"), 0o777)
        yield place
    finally:
        shutil.rmtree(place)


def refusal(place, before, keys):
    """Starts a gateway that reads its keys, and then ends because it cannot listen. Returns why it
    has refused a file, or "" if it has refused none."""
    root = os.path.join(place, "root")
    shutil.rmtree(root)  # it may have files of another user
    os.mkdir(root)
    os.chmod(root, 0o777)
    done = subprocess.run([*before, os.path.join(place, "penstock"), "serve", "--root", root,
                           "--listen", "192.0.2.1:1", "--keys", keys], capture_output=True,
                          text=True, timeout=60, check=False)
    same(done.returncode, 1, f"exit status; {done.stderr}")
    return "" if "cannot listen" in done.stderr else done.stderr


def case_secret_modes():
    """A group may read a file with a secret only if root owns the file, and if the group is one of
    the gateway's. Nobody else may read it, and no group may write it."""
    need_root()
    with reachable_folder() as place:
        path = os.path.join(place, "keys")
        for before, owner, mode, accepted in (
                ([], (0, 0), 0o600, True), ([], (0, 0), 0o440, True),
                ([], (0, GROUP), 0o440, False), ([], (65534, 65534), 0o600, False),
                (as_user(""), (65534, 65534), 0o600, True),
                (as_user(""), (65534, 65534), 0o640, False),
                (as_user(str(GROUP)), (65534, GROUP), 0o440, False),
                (as_user(str(GROUP)), (0, GROUP), 0o440, True),
                (as_user(f"7,{GROUP}"), (0, GROUP), 0o640, True),
                (as_user(""), (0, 65534), 0o440, True),
                (as_user(str(GROUP)), (0, GROUP), 0o460, False),
                (as_user(str(GROUP)), (0, GROUP), 0o444, False),
                (as_user(str(GROUP)), (0, GROUP), 0o442, False),
                (as_user("7"), (0, GROUP), 0o444, False),
                (as_user("7"), (0, GROUP), 0o440, False)):
            write_private(path, KEYS)
            os.chown(path, *owner)
            os.chmod(path, mode)
            said = refusal(place, before, path)
            same(not said, accepted, f"{before} {owner} {mode:o}: {said}")


def case_secret_with_an_access_control_list():
    """A list of more users who may read the file shows in the group bits of its mode."""
    need_root()
    with reachable_folder() as place:
        path = os.path.join(place, "keys")
        write_private(path, KEYS)
        # the list: the owner rw, the user 4242 r, the group nothing, the mask r, others nothing
        entries = ((1, 6, -1), (2, 4, 4242), (4, 0, -1), (16, 4, -1), (32, 0, -1))
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        try:
            os.setxattr(path, "system.posix_acl_access", acl)
        except OSError as error:
            raise Skip("the file system has no access control lists") from error
        same(os.stat(path).st_mode & 0o777, 0o640, "mode")
        same("chmod 600" in refusal(place, [], path), True, "the file is refused")
        os.chmod(path, 0o600)
        same(refusal(place, [], path), "", "with the mask of mode 600, the list has no effect")


def case_secret_modes_of_an_ordinary_user():
    """A user's own file must be for this user only."""
    with reachable_folder() as place:
        path = os.path.join(place, "keys")
        write_private(path, KEYS)
        if not os.geteuid():
            os.chown(path, 65534, 65534)
        before = [] if os.geteuid() else as_user("")
        for mode, accepted in ((0o600, True), (0o400, True), (0o640, False), (0o604, False)):
            os.chmod(path, mode)
            said = refusal(place, before, path)
            same((not said, accepted or "chmod 600" in said), (accepted, True), f"{mode:o} {said}")


def case_kubernetes_volume():
    """The gateway runs as an ordinary user with the group of the volume. When the files of the
    volume are replaced, SIGHUP makes the gateway read the new keys and the new certificate."""
    need_root()
    with reachable_folder() as place:
        pairs = [make_certificate(place, name) for name in ("one", "two")]
        texts = [[open(path, encoding="utf-8").read() for path in pair] for pair in pairs]
        volume = Volume(os.path.join(place, "volume"), ("keys", "tls.crt", "tls.key"), (0, GROUP),
                        0o440)
        volume.swap([KEYS, *texts[0]])
        paths = [volume.path(name) for name in volume.names]
        same(refusal(place, as_user("7"), paths[0]) == "", False, "another group is refused")

        with subprocess.Popen(
                [*as_user(str(GROUP)), os.path.join(place, "penstock"), "serve", "--json", "--root",
                 os.path.join(place, "root"), "--listen", "127.0.0.1:0", "--keys", paths[0],
                 "--cert", paths[1], "--key", paths[2]],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                text = ""
                while text.count("}") < 1:
                    line = process.stdout.readline()
                    same(bool(line), True, f"the gateway runs; it said {text}")
                    text += line
                url = f"https://127.0.0.1:{json.loads(text)['port']}"

                def works(key, secret, trusted):
                    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1",
                                          aws_access_key_id=key, aws_secret_access_key=secret,
                                          verify=trusted)
                    return failure_or_refused(client.list_buckets) is None

                same(works(KEY, SECRET, pairs[0][0]), True, "the first keys")
                volume.swap([KEYS.replace(SECRET, "another+secret"), *texts[1]])
                process.send_signal(signal.SIGHUP)
                until(lambda: works(KEY, "another+secret", pairs[1][0]), "the files are read again")
                same(works(KEY, SECRET, pairs[1][0]), False, "the old secret")
            finally:
                process.terminate()
                said = process.communicate(timeout=60)[1]
        same((process.returncode, said), (0, ""), "status and messages")


# --- metrics ----------------------------------------------------------------------

def metrics_of(text):
    """Returns the type and the names of the labels of each metric in a page of metrics."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            found[name] = (kind, set())
        elif not line.startswith("#"):
            name, _, labels = line.partition(" ")[0].partition("{")
            base = name if name in found else name.rpartition("_")[0]
            found[base][1].update(re.findall(r'(\w+)="', labels))
    return found


def case_metrics_are_documented():
    """The table of the metrics in docs/serve.md is complete and right."""
    documented = {}
    with open(os.path.join(ROOT, "docs", "serve.md"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("| `penstock_"):
                name, kind, labels, meaning = [w.strip() for w in line.strip("|\n").split("|")]
                same(len(meaning) > 10, True, f"a meaning of {name}")
                documented[name.strip("`")] = (kind, set(re.findall(r"`(\w+)`", labels)))
    found = {}
    with Gateway() as back:
        pair = make_certificate(back.place)
        for named in ({"tls": pair}, {"upstream": back.url, "env": {
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1"}}):
            with Gateway(**named) as gateway:
                gateway.client(verify=pair[0] if "tls" in named else None).list_buckets()
                found.update(metrics_of(gateway.get("/metrics")[1]))
    same(documented, found, "metrics, documented and found")


def case_metrics_after_reload():
    """Metrics include the connections and requests of servers with an older certificate, no counter
    goes down, and the limit of connections is for all servers together."""
    with Gateway() as place:
        pair = make_certificate(place.place)
        with Gateway(tls=pair, flags=["--connections", "3"]) as gateway, \
                contextlib.ExitStack() as stack:
            client = gateway.client(verify=pair[0])
            client.create_bucket(Bucket="data-1")
            client.close()
            eventually(lambda: gateway.metric("penstock_connections"), 0, "connections")
            context = ssl.create_default_context(cafile=pair[0])

            def held(key):
                raw = stack.enter_context(
                    context.wrap_socket(gateway.connect(), server_hostname="127.0.0.1"))
                raw.sendall(put_head(client, key, 10) + b"12345")
                return raw

            def refused():
                try:
                    with context.wrap_socket(gateway.connect(), server_hostname="127.0.0.1"):
                        return False
                except OSError:
                    return True

            def counters():
                text = gateway.get("/metrics")[1]
                kinds = metrics_of(text)
                return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
                        for line in text.splitlines() if not line.startswith("#") and
                        kinds.get(re.split("[ {]", line)[0], ("counter",))[0] != "gauge"}

            requests = [held("a"), held("b"), held("c")]
            until(lambda: gateway.metric("penstock_requests_in_flight") == 3, "they have arrived")
            until(refused, "a connection too many")
            before = counters()
            same(before["penstock_refused_connections_total"] > 0, True, "refusals")
            expires = gateway.metric("penstock_certificate_expires_seconds")
            same(abs(expires - time.time() - 2 * 86400) < 600, True, f"expiry at {expires}")
            done = gateway.metric('penstock_reload_success_seconds{file="certificate"}')
            until(lambda: int(time.time()) > done, "another second")
            gateway.process.send_signal(signal.SIGHUP)
            until(lambda: gateway.metric('penstock_reload_success_seconds{file="certificate"}')
                  > done, "the reload")
            same([gateway.metric(f"penstock_{name}") for name in
                  ("connections", "requests_in_flight")], [3, 3], "connections and requests")
            same(refused(), True, "a connection too many after the reload")
            after = counters()
            same([name for name in before if after.get(name, -1) < before[name]], [],
                 "counters that went down")
            for raw in requests:
                raw.sendall(b"67890")
                same(raw.recv(12), b"HTTP/1.1 200", "a reply of the first server")
                raw.close()
            eventually(lambda: gateway.metric("penstock_connections"), 0, "connections")
            same(refused(), False, "a connection later")


def case_reload_metrics():
    """Each failed reload is counted, and the time of the last successful one stays."""
    with Gateway() as place:
        pair = make_certificate(place.place)
        with Gateway(tls=pair) as gateway:
            def reloads(file):
                return [gateway.metric(f'penstock_reload_{name}{{file="{file}"}}')
                        for name in ("failed_total", "success_seconds")]

            files = ("keys", "certificate", "access-log")
            start = {file: reloads(file) for file in files}
            for file in files:
                same((start[file][0], abs(start[file][1] - time.time()) < 60), (0, True), file)
            expires = gateway.metric("penstock_certificate_expires_seconds")
            until(lambda: int(time.time()) > max(at for _, at in start.values()), "another second")
            write_private(gateway.keys, "[broken\n")
            write_private(pair[0], "broken")
            os.rename(gateway.log, gateway.log + "-away")
            os.mkdir(gateway.log)
            gateway.process.send_signal(signal.SIGHUP)
            for file in files[::-1]:
                eventually(lambda f=file: reloads(f), [1, start[file][1]], file)
            same(gateway.metric("penstock_certificate_expires_seconds"), expires, "expiry")
            write_private(gateway.keys, KEYS)
            os.rmdir(gateway.log)
            gateway.process.send_signal(signal.SIGHUP)
            eventually(lambda: reloads("certificate")[0], 2, "a second failure")
            until(lambda: reloads("access-log")[1] > start["access-log"][1], "a new log")
            same((reloads("keys")[0], reloads("keys")[1] > start["keys"][1]), (1, True), "keys")
            err = gateway.stop()[1]
            same("cannot open the access log" in err and "unchanged" in err, True, err)


def case_reload_seconds():
    """A script that waits for a reload compares the metric with its own clock. The metric must not
    be earlier, even if the reload happens when a second begins."""
    with Gateway() as gateway:
        for _ in range(3):
            second = int(time.time() + 0.1) + 1
            time.sleep(max(0, second - 0.02 - time.time()))
            while time.time() < second:
                pass
            gateway.process.send_signal(signal.SIGHUP)
            until(lambda s=second: gateway.metric('penstock_reload_success_seconds{file="keys"}')
                  >= s, f"a reload at {second}")


# --- descriptors ------------------------------------------------------------------

def case_few_files():
    """The gateway accepts only as many connections as it has descriptors for. So uploads that are
    in progress on all connections do not prevent it from accepting connections for metrics."""
    few = ["sh", "-c", "ulimit -n 300; exec \"$@\"", "sh"]
    gateway, client = opened(before=few, flags=["--threads", "4", "--drain", "1"])
    with gateway, contextlib.ExitStack() as stack:
        head = put_head(client, "k", 2) + b"x"
        for _ in range(150):
            raw = stack.enter_context(gateway.connect())
            with contextlib.suppress(ConnectionError):
                raw.sendall(head)
        until(lambda: gateway.metric("penstock_connections") +
              gateway.metric("penstock_refused_connections_total") == 151, "all have arrived")
        number = gateway.metric("penstock_connections") - 1  # one is the client's
        eventually(lambda: gateway.metric("penstock_requests_in_flight"), number, "uploads")
        same(gateway.get("/healthz"), (200, "ok\n"), "/healthz")
        found = re.search("300 open files allows only ([0-9]+) connections, not 4096",
                          gateway.stop()[1])
        # The threads of the gateway may together accept a few connections more than the limit.
        same(bool(found) and 50 < int(found[1]) <= number + 1 < int(found[1]) + 8, True,
             f"{number} uploads; message {found}")
    done = subprocess.run(["sh", "-c", "ulimit -n 60; exec \"$@\"", "sh", PENSTOCK, "serve",
                           "--root", "/", "--keys", "/dev/null", "--listen", "127.0.0.1:0"],
                          capture_output=True, text=True, timeout=60, check=False)
    same((done.returncode, "raise it with ulimit -n" in done.stderr), (1, True), "60 files")


if __name__ == "__main__":
    sys.exit(run_cases(globals(), sys.argv[1:]))
