#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests s3:// by S3 over RDMA against `penstock serve`: reads and writes by each transport, with
host memory and with a simulated GPU. The report of the client and the metrics of the gateway must
count the same bytes. client_rdma.py [WORD...] runs the cases whose names contain one of the words,
or all. Prints TAP; tests/run runs it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

from served import (ADDRESS, BUILD, KEY, PENSTOCK, SECRET, SEED, Gateway, Skip, run_cases,
                    same, until)

MIB = 1 << 20
LEN = 37 * MIB + 4099
STANDIN = os.path.join(BUILD, "tests", "standin", "libcuda.so.1")
SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli", "schema")


def true(value, what):
    if not value:
        raise AssertionError(what)


class Setup:
    """A gateway with the bucket data-1, and a folder for files."""

    def __init__(self, **gateway):
        self.gateway = Gateway(**gateway)
        self.folder = tempfile.mkdtemp()
        os.makedirs(os.path.join(self.gateway.root, "data-1"), exist_ok=True)
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith(("AWS_", "PENSTOCK_RDMA"))}
        self.env |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                     "AWS_ENDPOINT_URL": self.gateway.url, "AWS_CONFIG_FILE": "/dev/null",
                     "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "PENSTOCK_LIBCUDA": STANDIN}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)
        self.gateway.close()

    def path(self, name):
        return os.path.join(self.folder, name)

    def source(self, count):
        data = random.Random(SEED + count).randbytes(count)
        with open(self.path("source"), "wb") as file:
            file.write(data)
        return data

    def read(self, name="got"):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run(self, *arguments, **env):
        done = subprocess.run([PENSTOCK, *arguments], env=self.env | env, capture_output=True,
                              text=True, timeout=120, check=False)
        true(SECRET not in done.stdout + done.stderr, "the output has the secret")
        return done

    def copy(self, source, target, *more, status=0, **env):
        """Runs `penstock cp`, which must exit with `status`. Returns the report, or the messages
        if it fails."""
        done = self.run("cp", "--json", *more, source, target, **env)
        same(done.returncode, status, f"cp {source} {target}: {done.stderr}")
        checked = subprocess.run([sys.executable, SCHEMA, "/dev/stdin", "cp"], input=done.stdout,
                                 capture_output=True, text=True, check=False)
        same(checked.stdout + checked.stderr, "", f"breaches of the schema by {done.stdout}")
        return json.loads(done.stdout) if not status else done.stdout + done.stderr

    def moved(self, transport):
        """Returns the numbers of bytes that the gateway has received and sent by a transport."""
        line = f'penstock_bytes_total{{transport="{transport}",side="front",direction='
        return tuple(int(self.gateway.metric(line + f'"{way}"')) for way in ("in", "out"))

    def declined(self):
        return int(self.gateway.metric("penstock_rdma_declined_total"))


def both_ways(device, transport, length, parts, **gateway):
    with Setup(**gateway) as s:
        url = f"s3://data-1/key?rdma-transports={transport}"
        data = s.source(length)
        report = s.copy(s.path("source"), url, "--via", device)
        same(report["write"]["paths"], {"rdma": length}, "paths of the write")
        same(report["parts"], {"rdma": parts, "http": 0, "reason": ""}, "parts")
        report = s.copy(url, s.path("got"), "--via", device)
        same(report["read"]["paths"], {"rdma": length}, "paths of the read")
        same(report["read"]["engine"], transport, "transport")
        # By shm1, the gateway passes the object's file, so that one copy is enough.
        is_file = (device, transport) == ("host", "shm1")
        same(report["read"]["cpu_copies"], 2 if device == "host" and not is_file else 1,
             "CPU copies")
        same(report["read"]["dram_passes"], 0 if is_file else 1, "DRAM passes")
        same(s.read() == data, True, "the bytes")
        same(s.moved(transport), (length, length), "bytes of the gateway")
        same(s.moved("shm1" if transport == "tcp1" else "tcp1"), (0, 0), "others")
        same(s.gateway.metric("penstock_rdma_failed_total"), 0, "failed")
        # This gateway has no --device, so it declines windows in the memory of a GPU: at least one
        # part and one read, and at most all parts and one read.
        same(s.declined() in (range(2, parts + 2) if (device, transport) == ("cuda:0", "shm1")
                              else [0]), True, f"declined {s.declined()}")


def case_both_ways():
    for device in ("host", "cuda:0"):
        for transport in ("shm1", "tcp1"):
            both_ways(device, transport, LEN, 5)


if ADDRESS != "127.0.0.1":
    # With PENSTOCK_RC1_ADDRESS, ADDRESS is the address of an RDMA network card (tests/lab/rc1).
    def case_both_ways_through_a_card():
        for device in ("host", "cuda:0"):
            both_ways(device, "rc1", 9 * MIB + 77, 2)


def skip_without_ofi1():
    """Checks that a gateway without ofi1 declines it. Raises Skip if the client has no ofi1."""
    with Setup() as s:
        s.source(MIB)
        s.copy(s.path("source"), "s3://data-1/key")
        report = s.copy("s3://data-1/key?rdma-transports=ofi1", s.path("got"))
        reason = report["read"]["reasons"]["rdma"]["text"]
        print(f"# a gateway without ofi1: {reason}")
        if "needs libfabric" in reason or "has no ofi1" in reason:
            raise Skip(reason)
        same(report["read"]["paths"], {"bounce": MIB}, "paths without ofi1")


def case_both_ways_by_ofi1():
    """If both the client and the gateway name the transport ofi1, this transport moves the bytes.
    Otherwise another transport or HTTP moves them."""
    for provider in ("net", "tcp;ofi_rxm"):
        os.environ["PENSTOCK_OFI_PROVIDER"] = provider
        skip_without_ofi1()
        both_ways("host", "ofi1", LEN, 5, flags=["--rdma", "tcp1,ofi1"])
    del os.environ["PENSTOCK_OFI_PROVIDER"]


def case_check():
    """`penstock check` reports by which transport the server moves the bytes, or why it does not
    use RDMA."""
    with Setup() as s:
        s.source(5 * MIB)
        s.copy(s.path("source"), "s3://data-1/key")
        for options, state, words in (("", "no", "by shm1, and a CPU copies them"),
                                      ("?rdma-transports=tcp1", "no", "by tcp1, and a CPU copies"),
                                      ("?rdma=off", "no", "rdma=off")):
            done = s.run("check", "--json", "s3://data-1/key" + options)
            same(done.returncode, 4, f"status: {done.stdout} {done.stderr}")
            gates = json.loads(done.stdout)["gates"]
            same(gates["s3-rdma"]["state"], state, "state")
            true(words in gates["s3-rdma"]["seen"], gates["s3-rdma"]["seen"])
            same((gates["objects"]["state"], gates["keys"]["state"]), ("ok", "ok"), "others")
            true("a range of 4.2 MB" in gates["objects"]["seen"], gates["objects"]["seen"])
        for words, more in (("rdma=off", ["--require", "no-cpu-copy"]),
                            ("at most no-cpu-copy", ["--require", "direct"])):
            for via in ("host", "cuda:0"):
                said = s.copy("s3://data-1/key?rdma=off", s.path("no"), "--via", via, *more,
                              status=3, PENSTOCK_LIBCUDA=STANDIN)
                true(words in said, said)


def case_another_mount_namespace():
    """The gateway passes its file only to a client that sees the same files. Otherwise both
    processes share memory, and the CPU copies each byte twice."""
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user",
                                                              "--mount"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        raise Skip("this process may not open a mount namespace")
    with Setup() as s:
        data = s.source(LEN)
        s.copy(s.path("source"), "s3://data-1/key")
        for options in ("", "?rdma=require"):
            done = subprocess.run([*enter, PENSTOCK, "cp", "--json", "--via", "host",
                                   "s3://data-1/key" + options, s.path("got")], env=s.env,
                                  capture_output=True, text=True, timeout=120, check=False)
            same(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)["read"]
            same((report["paths"], report["engine"]), ({"rdma": LEN}, "shm1"), "the read")
            same((report["cpu_copies"], report["dram_passes"]), (2, 1), "copies")
            true(report["retries"] > 0, "retries")
            same(s.read() == data, True, "the bytes")
        true(int(s.gateway.metric('penstock_rdma_declined_total{reason="no-file"}')) >= 2,
             "declined tokens")


def apart():
    """Runs in a network namespace of its own. The gateway gets another one, so that it cannot use
    shm1, like a server on another host."""
    def ip(*words, pid=None):
        enter = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid else []
        if subprocess.run([*enter, "ip", *words], check=False).returncode:
            sys.exit(77)

    ip("link", "set", "lo", "up")
    ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    with Setup(before=["unshare", "--net"],
               flags=["--listen", "0.0.0.0:0", "--metrics", "0.0.0.0:0"]) as s:
        pid = s.gateway.process.pid
        ip("link", "set", "far", "netns", str(pid))
        ip("address", "add", "192.0.2.1/24", "dev", "near")
        ip("link", "set", "near", "up")
        ip("address", "add", "192.0.2.2/24", "dev", "far", pid=pid)
        ip("link", "set", "far", "up", pid=pid)
        s.env["AWS_ENDPOINT_URL"] = f"http://192.0.2.2:{s.gateway.port}"
        data = s.source(9 * MIB)
        for options, path, words in (
                ("rdma=require&rdma-transports=shm1,tcp1", "rdma", ""),
                ("rdma=on", "bounce", "tcp1, slower than HTTP, must be named"),
                ("rdma=auto", "bounce", "the server is on another host")):
            url = f"s3://data-1/key?{options}"
            report = s.copy(s.path("source"), url)
            same(report.get("parts", {}).get("rdma", 0) > 0, path == "rdma",
                 f"parts by RDMA with {options}")
            report = s.copy(url, s.path("got"))["read"]
            same(report["paths"], {path: len(data)}, f"paths with {options}")
            same(report["engine"], "tcp1" if path == "rdma" else "http", "engine")
            said = report["reasons"].get("rdma", {}).get("text", "")
            print(f"{options}: {said}")
            true(words in said, said)
            same(s.read() == data, True, "the bytes")
        said = s.copy("s3://data-1/key?rdma=require", s.path("no"), status=3)
        true("tcp1, slower than HTTP, must be named" in said, said)


def in_namespace(part, *namespaces):
    """Runs a part of this script in new namespaces of these kinds."""
    enter = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *namespaces]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        raise Skip("this process may not open a network namespace")
    done = subprocess.run([*enter, sys.executable, __file__, part], capture_output=True,
                          text=True, timeout=240, check=False)
    print("".join(f"# {line}\n" for line in (done.stdout + done.stderr).splitlines()), end="")
    if done.returncode == 77:
        raise Skip(done.stdout.strip() or "no network devices can be made here")
    same(done.returncode, 0, "status of the part in another network namespace")


def case_another_host():
    """A server on another host gets no token of shm1, but one of the next transport in the list.
    Without such a transport, the reason names the transport that remains."""
    in_namespace("--apart", "--net")


def connected(address):
    """Returns whether /proc/net/tcp has a connection whose local end is at this address."""
    text = "".join(f"{int(number):02X}" for number in reversed(address.split(".")))
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    # 0A is the state of a listening socket.
    return any(row[1].startswith(text + ":") and row[3] != "0A" for row in rows)


def case_addresses():
    """The option rdma-addresses and the variable PENSTOCK_RDMA_ADDRESSES give the addresses of the
    client's windows. Of several addresses that are equally near, the first one is used."""
    # A connection stays in /proc/net/tcp for a minute, so each process has addresses of its own.
    number = os.getpid() & 0x3fff
    addresses = [f"127.{64 + (number >> 8)}.{number & 255}.{last}" for last in (1, 2, 3)]
    first, second, third = addresses
    how = "rdma=require&rdma-transports=tcp1"
    with Setup() as s:
        data = s.source(LEN)
        for options, env, used in (
                (f"&rdma-addresses={first},{second}", {}, [True, False, False]),
                ("", {"PENSTOCK_RDMA_ADDRESSES": f"{third},{second}"}, [True, False, True])):
            url = f"s3://data-1/key?{how}{options}"
            report = s.copy(s.path("source"), url, **env)
            same(report["parts"], {"rdma": 5, "http": 0, "reason": ""}, "parts")
            report = s.copy(url, s.path("got"), **env)["read"]
            same((report["paths"], report["engine"]), ({"rdma": LEN}, "tcp1"), "the read")
            same(s.read() == data, True, "the bytes")
            same([connected(address) for address in addresses], used, "addresses in use")
        same((s.declined(), s.gateway.metric("penstock_rdma_failed_total")), (0, 0), "failures")
        wrong = f"s3://data-1/key?{how}&rdma-addresses=203.0.113.1,203.0.113.2"
        said = s.copy(wrong, s.path("no"), status=3)
        true("tcp1 cannot listen at 203.0.113.2: Cannot assign requested address" in said, said)
        report = s.copy(wrong.replace("require", "auto"), s.path("got"))["read"]
        same(report["paths"], {"bounce": LEN}, "paths without a valid address")
        true("cannot listen at" in report["reasons"]["rdma"]["text"], report)
        # One valid address is enough.
        url = f"s3://data-1/key?{how}&rdma-addresses=203.0.113.1,{first}"
        same(s.copy(url, s.path("got"))["read"]["paths"], {"rdma": LEN}, "paths with one")
        for words in ("127.0.0.1,eth0", ",", "127.0.0.1 127.0.0.2", ",".join(["127.0.0.1"] * 9)):
            want = ": want numeric addresses of this host, at most 8, such as"
            said = s.copy(f"s3://data-1/key?rdma-addresses={words}", s.path("no"), status=1)
            true("rdma-addresses=" in said and want in said, said)
            said = s.copy("s3://data-1/key", s.path("no"), status=1, PENSTOCK_RDMA_ADDRESSES=words)
            true("PENSTOCK_RDMA_ADDRESSES=" in said and want in said, said)


class Cards:
    """A client with two network cards, near-0 and near-1, and a gateway in another network
    namespace, to which a cable leads from each card. To be used in a network namespace without
    devices. The HTTP requests go by near-0."""

    OWN = ("192.0.2.1", "198.51.100.1")
    OTHER = ("192.0.2.2", "198.51.100.2")

    def __init__(self):
        self.ip("link", "set", "lo", "up")
        self.setup = s = Setup(before=["unshare", "--net"], flags=[
            "--listen", "0.0.0.0:0", "--metrics", "0.0.0.0:0",
            "--rdma-networks", "192.0.2.0/24,198.51.100.0/24"])
        for i in (0, 1):
            self.ip("link", "add", f"near-{i}", "type", "veth", "peer", "name", f"far-{i}")
            self.ip("link", "set", f"far-{i}", "netns", str(s.gateway.process.pid))
            self.ip("address", "add", f"{self.OWN[i]}/24", "dev", f"near-{i}")
            self.ip("link", "set", f"near-{i}", "up")
            self.far("address", "add", f"{self.OTHER[i]}/24", "dev", f"far-{i}")
            self.far("link", "set", f"far-{i}", "up")
        s.env["AWS_ENDPOINT_URL"] = f"http://{self.OTHER[0]}:{s.gateway.port}"
        s.gateway.metrics_host = self.OTHER[0]

    @staticmethod
    def ip(*words, enter=()):
        if subprocess.run([*enter, "ip", *words], check=False).returncode:
            sys.exit(77)

    def far(self, *words):
        self.ip(*words, enter=["nsenter", f"--net=/proc/{self.setup.gateway.process.pid}/ns/net"])

    @staticmethod
    def carried():
        """Returns the number of bytes that each of the two cards has received and sent."""
        with open("/proc/net/dev", encoding="ascii") as file:
            rows = dict(line.split(":") for line in file.readlines()[2:])
        counts = {name.strip(): row.split() for name, row in rows.items()}
        return [int(counts[f"near-{i}"][0]) + int(counts[f"near-{i}"][8]) for i in (0, 1)]

    @staticmethod
    def url(addresses, mode):
        return f"s3://data-1/key?rdma={mode}&rdma-transports=tcp1&rdma-addresses={addresses}"

    def copy(self, addresses, path, mode="require", length=9 * MIB, card=None):
        """Writes an object and reads it, through windows at these addresses. Compares the bytes.
        With mode "require", path must carry all of them. If `card` is not None, this card must
        carry them. Returns the reports, and the number of tokens that were declined."""
        s, data = self.setup, self.setup.source(length)
        url = self.url(addresses, mode)
        before, declined = self.carried(), s.declined()
        write = s.copy(s.path("source"), url)
        read = s.copy(url, s.path("got"))["read"]
        same(s.read() == data, True, "the bytes")
        with open(os.path.join(s.gateway.root, "data-1", "key"), "rb") as file:
            same(file.read() == data, True, "the bytes that were written")
        moved = [after - count for after, count in zip(self.carried(), before)]
        print(f"{mode} {addresses}: {moved} bytes by the cards, {read['paths']}, {write['parts']}, "
              f"{s.declined() - declined} declined")
        if mode == "require":
            same((read["paths"], write["parts"]["http"]), ({path: length}, 0), "paths")
        if card is not None:
            true(moved[card] > 2 * length and moved[1 - card] < length // 2, f"cards {moved}")
        return read, write, s.declined() - declined


def several_cards():
    """The part of case_several_cards in a network namespace."""
    cards = Cards()
    with cards.setup as s:
        both = [f"{cards.OWN[i]},{cards.OWN[1 - i]}" for i in (0, 1)]
        for i in (0, 1):
            same(cards.copy(both[i], "rdma", card=i)[2], 0, "declined tokens")
            same(cards.copy(cards.OWN[i], "rdma", card=i)[2], 0, "declined tokens")
        # The gateway has no way to card 1 any more, but the card has a link.
        cards.far("address", "del", f"{cards.OTHER[1]}/24", "dev", "far-1")
        true(cards.copy(both[1], "rdma", card=0)[2] >= 2, "no token was declined")
        true(cards.copy(both[1], "rdma", length=MIB, card=0)[2] >= 2, "no token of one part")
        same(cards.copy(both[0], "rdma", card=0)[2], 0, "declined tokens")
        done = s.run("cp", cards.url(both[1], "require"), s.path("got"), PENSTOCK_LOG="info")
        true("a request is repeated through another network card" in done.stderr and
             f"prefer other cards than that of {cards.OWN[1]}" in done.stderr, done.stderr)
        read, write, declined = cards.copy(both[1], "rdma", "on")
        true(declined >= 2 and write["parts"]["http"] == 0, f"parts {write['parts']}")
        same(sum(read["paths"].values()), 9 * MIB, "bytes")
        # The first responses have the bytes in their bodies.
        true(read["paths"].get("bounce"), f"paths {read['paths']}")
        same(read["reasons"]["rdma"]["code"], "declined", "reason")
        # The gateway reaches none of the addresses.
        cards.ip("address", "add", "198.51.100.3/24", "dev", "near-1")
        lost = f"{cards.OWN[1]},198.51.100.3"
        url = cards.url(lost, "require")
        true("declined RDMA" in s.copy(url, s.path("no"), status=1), "error of a read")
        true("declined RDMA" in s.copy(s.path("source"), url, status=1), "error of a write")
        same(cards.copy(lost, "bounce", "on")[0]["paths"], {"bounce": 9 * MIB}, "paths")


def card_without_link():
    """The part of case_card_without_link in a network namespace."""
    if subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=False).returncode:
        print("sysfs cannot be mounted here")
        return 77
    cards = Cards()
    with cards.setup:
        second = f"{cards.OWN[1]},{cards.OWN[0]}"
        same(cards.copy(second, "rdma", card=1)[2], 0, "declined tokens")
        cards.far("link", "set", "far-1", "down")
        same(cards.copy(second, "rdma", card=0)[2], 0, "declined tokens")
        cards.far("link", "set", "far-1", "up")
        same(cards.copy(second, "rdma", card=1)[2], 0, "declined tokens")
    return 0


def case_several_cards():
    """A client with two network cards uses the first one that the URL names. If the server does not
    reach it, the requests are repeated by the other one."""
    in_namespace("--several-cards", "--net")


def case_card_without_link():
    """A card whose link is down is not offered to the server while another card has a link."""
    in_namespace("--card-without-link", "--net", "--mount")


def case_lengths():
    """Objects of all lengths move by RDMA, but by default a short one is read by HTTP: the request
    for its length and the request for its bytes are in flight at the same time."""
    with Setup() as s:
        for count in (0, 1, 4095, 4097, 65536, 65537, MIB + 1, 8 * MIB, 8 * MIB + 1):
            data = s.source(count)
            for mode in ("auto", "require"):
                url = f"s3://data-1/key-{count}?rdma={mode}"
                s.copy(s.path("source"), url)
                report = s.copy(url, s.path("got"))
                by_http = mode == "auto" and count <= 65536
                same((report["read"]["paths"], report["read"]["engine"]),
                     ({"bounce" if by_http else "rdma": count} if count else {},
                      "none" if not count else "http" if by_http else "shm1"), "paths")
                if by_http and count:
                    true("prefetched" in report["read"]["reasons"]["rdma"]["text"], "the reason")
                same(s.read() == data, True, f"the bytes of {count}")


def case_many_ranges():
    """Many short reads at the same time get the same bytes by RDMA as by HTTP."""
    with Setup() as s:
        s.source(LEN)
        s.copy(s.path("source"), "s3://data-1/key")
        said = []
        for mode in ("off", "require"):
            before = s.moved("shm1")[1]
            done = subprocess.run([os.path.join(BUILD, "tests", "s3-object"), "many",
                                   f"s3://data-1/key?rdma={mode}", "1000"], env=s.env,
                                  capture_output=True, text=True, timeout=120, check=False)
            said.append(done.stdout)
            same(s.moved("shm1")[1] - before, 1000 * 65536 if mode == "require" else 0, mode)
        true(said[0].startswith("ok 1000 "), said[0])
        same(said[1], said[0], "sum of the bytes")


def case_rdma_is_off():
    """A gateway without RDMA declines tokens. The bytes then move by HTTP, and the reports give
    the reason."""
    with Setup(flags=["--rdma", "none"]) as s:
        data = s.source(LEN)
        report = s.copy(s.path("source"), "s3://data-1/key")
        same(report["parts"], {"rdma": 0, "http": 5, "reason": "the server declined RDMA"},
             "parts")
        report = s.copy("s3://data-1/key", s.path("got"))
        same(report["read"]["paths"], {"bounce": LEN}, "paths")
        same(report["read"]["reasons"]["rdma"]["code"], "declined", "reason")
        same(report["read"]["retries"], report["read"]["chunks"], "chunks that were declined")
        same(s.read() == data, True, "the bytes")
        same(s.moved("http")[1] >= LEN, True, "bytes by HTTP")
        for source, target in (("s3://data-1/key?rdma=require", s.path("none")),
                               (s.path("source"), "s3://data-1/none?rdma=require")):
            true("declined RDMA" in s.copy(source, target, status=1), "the reason")
        same(os.path.exists(s.path("none")), False, "a file was left")
        same(os.path.exists(os.path.join(s.gateway.root, "data-1", "none")), False, "an object")


def case_bench():
    """penstock bench reads an object, by RDMA and by HTTP."""
    with Setup() as s:
        s.source(LEN)
        s.copy(s.path("source"), "s3://data-1/key")
        for mode, path in (("require", "rdma"), ("off", "bounce")):
            done = s.run("bench", "--json", "--runtime", "0.2", f"s3://data-1/key?rdma={mode}",
                         "host")
            same(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            true(report["gb_per_s"] > 0, f"speed {report}")
            same([name for name, row in report["paths"].items() if row], [path], "paths")


def case_classes():
    with Setup() as s:
        s.source(LEN)
        s.copy(s.path("source"), "s3://data-1/key")
        for need in ("no-cpu-copy", "direct"):
            for device in ("host", "cuda:0"):
                said = s.copy("s3://data-1/key", s.path("got"), "--require", need, "--via", device,
                              status=3)
                true("CPU" in said or "class" in said, f"{need}, {device}: {said}")


def case_tls_excludes_tcp1():
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert"), os.path.join(folder, "key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        with Setup(tls=(cert, key)) as s:
            s.env["AWS_CA_BUNDLE"] = cert
            data = s.source(LEN)
            report = s.copy(s.path("source"), "s3://data-1/key")
            same(report["parts"]["rdma"], 5, "parts by shm1")
            same(s.copy("s3://data-1/key", s.path("got"))["read"]["engine"], "shm1", "engine")
            same(s.read() == data, True, "the bytes")
            report = s.copy("s3://data-1/key?rdma-transports=tcp1", s.path("got"))
            same(report["read"]["paths"], {"bounce": LEN}, "paths with tcp1")
            same(report["read"]["engine"], "https", "engine")
            true("encrypt" in report["read"]["reasons"]["rdma"]["text"], report)
            said = s.copy("s3://data-1/key?rdma-transports=tcp1&rdma=require", s.path("no"),
                          status=3)
            true("encrypt" in said, said)


def case_load():
    """Runs `penstock load` of a model, into host memory and into the GPU."""
    with Setup() as s:
        data = s.source(9 * MIB)
        head = json.dumps({"t": {"dtype": "U8", "shape": [len(data)],
                                 "data_offsets": [0, len(data)]}}).encode()
        head += b" " * (-len(head) % 8)
        with open(s.path("m.safetensors"), "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head + data)
        s.copy(s.path("m.safetensors"), "s3://data-1/m.safetensors")
        for device in ("host", "cuda:0"):
            before = s.moved("shm1")[1]
            done = s.run("load", "--json", "s3://data-1/m.safetensors", "--device", device)
            same(done.returncode, 0, done.stderr)
            paths = json.loads(done.stdout)["paths"]
            same(list(paths), ["rdma"], "paths")
            true(s.moved("shm1")[1] - before >= len(data), "bytes by shm1")


def case_upstream():
    """A gateway that passes requests to another gateway moves its clients' bytes by RDMA. With
    `--rdma none` it declines all tokens: then the bytes move by HTTP, and the client sends no more
    tokens after 32."""
    for flags, path in (([], "rdma"), (["--rdma", "none"], "bounce")):
        with Setup() as s, Setup(upstream=s.gateway.url, flags=flags, env={
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1"}) as front:
            data = front.source(LEN)
            front.copy(front.path("source"), "s3://data-1/key?rdma=off")
            report = front.copy("s3://data-1/key", front.path("got"))
            same(report["read"]["paths"], {path: LEN}, f"paths with {flags}")
            same(front.read() == data, True, "the bytes")
            report = front.copy(front.path("source"), "s3://data-1/key")
            same((report["parts"]["rdma"] > 0, report["parts"]["http"] > 0),
                 (path == "rdma", path != "rdma"), f"parts by RDMA and by HTTP with {flags}")
            same(s.gateway.metric("penstock_rdma_declined_total"), 0, "tokens of the upstream")
            front.copy("s3://data-1/key", front.path("got"))
            same(front.read() == data, True, "the bytes that were written")


def killed(victim, transport, *flags, length=2 << 30):
    """Kills the gateway or the client in the middle of a long read, and of an upload in parts. No
    file and no object may remain of the copy. Afterwards the transport must work again."""
    with Setup(flags=flags) as s:
        how = f"?rdma=require&timeout=2&rdma-transports={transport}"
        data = s.source(LEN)
        s.copy(s.path("source"), "s3://data-1/key" + how)
        # Makes both files so long that the kill comes in the middle of a transfer.
        for path in (os.path.join(s.gateway.root, "data-1", "long"), s.path("long")):
            with open(path, "wb") as file:
                file.truncate(length)
        for way, source, target in ((1, "s3://data-1/long" + how, s.path("none")),
                                    (0, s.path("long"), "s3://data-1/new" + how)):
            before = s.moved(transport)[way]
            with subprocess.Popen([PENSTOCK, "cp", source, target], env=s.env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
                while client.poll() is None and s.moved(transport)[way] - before < 32 * MIB:
                    pass
                if client.poll() is not None:
                    raise AssertionError(f"ended before the kill: {client.communicate()[0]}")
                if victim == "gateway":
                    s.gateway.stop(signal.SIGKILL)
                else:
                    client.kill()
                said = client.communicate(timeout=120)[0].strip()
            print(f"# {transport}, {source[:5]}: {said}")
            same(client.returncode, 1 if victim == "gateway" else -signal.SIGKILL, said)
            true(SECRET not in said, "the output has the secret")
            if victim == "gateway":
                s.gateway.start()
                s.env["AWS_ENDPOINT_URL"] = s.gateway.url
            same(os.path.exists(s.path("none")), False, "a file was left")
            same(os.path.exists(os.path.join(s.gateway.root, "data-1", "new")), False, "an object")
            until(lambda: s.gateway.metric("penstock_requests_in_flight") == 0,
                  "no request is left")
            s.copy("s3://data-1/key" + how, s.path("got"))
            same(s.read() == data, True, "the bytes afterwards")
            s.copy(s.path("source"), "s3://data-1/key" + how)


if ADDRESS != "127.0.0.1":
    def case_both_ways_by_verbs():
        """ofi1 with the provider verbs;ofi_rxm moves the bytes through the card."""
        os.environ["PENSTOCK_OFI_PROVIDER"] = "verbs;ofi_rxm"
        both_ways("host", "ofi1", 9 * MIB + 77, 2, flags=["--rdma", "ofi1"])
        del os.environ["PENSTOCK_OFI_PROVIDER"]

    def case_killed_through_a_card():
        for victim in ("gateway", "client"):
            killed(victim, "rc1", length=192 * MIB)


def case_killed():
    for victim in ("gateway", "client"):
        for transport in ("shm1", "tcp1"):
            killed(victim, transport)


def case_killed_by_ofi1():
    skip_without_ofi1()
    for victim in ("gateway", "client"):
        killed(victim, "ofi1", "--rdma", "tcp1,ofi1")


if __name__ == "__main__":
    if not os.path.exists(STANDIN):
        print("there is no stand-in")
        sys.exit(77)
    PARTS = {"--apart": apart, "--several-cards": several_cards,
             "--card-without-link": card_without_link}
    part_of_a_case = PARTS.get(" ".join(sys.argv[1:]))
    sys.exit(part_of_a_case() if part_of_a_case else run_cases(globals(), sys.argv[1:]))
