#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The clients of tests/lab/serve-power: writers that store objects in `penstock serve`, and a check
of what is left of them after a power cut. lab/guest/serve-power.sh calls this program.

objects.py write URL NAME SEED ROUNDS
    Stores, copies and deletes objects until the gateway is gone. Prints a line `durable NAME
    WRITER NUMBER RESULT` after each acknowledged request. After each of the first ROUNDS rounds,
    it prints `rest NAME ROUND`, and makes no request until $LAB_OUT/go-NAME-ROUND exists.
objects.py verify URL NAME SEED FILE DRIVE any|exact
    Compares the objects of the gateway with the lines in FILE, and prints what is lost. `exact`
    says that no request was in flight when the power was cut.

The requests of a writer follow from the seed alone, so the check computes every object that may
exist. It needs nothing but Python's own library, because a guest is slow."""

import collections
import datetime
import functools
import hashlib
import hmac
import http.client
import os
import random
import sys
import threading
import time
import urllib.parse
import xml.etree.ElementTree

KEY, SECRET = "AKLAB", "secret+of/the+lab"
BUCKET = "data-1"
WRITERS = 3
NAMES = ("a", "a/b", "f" * 300, "g/")  # a file that becomes a folder, a long name, an empty part
PART = 5 << 20
AHEAD = 60  # requests that may have been acknowledged after the lines were copied

# A request of a writer. `number` is the request's number, from which the bytes of its object
# follow. `source` is the key that a copy reads.
Request = collections.namedtuple("Request", "kind name source number length")
# An object. `number` is the number of the request that stored its bytes; a copy has the number of
# its source. `parts`: whether it was stored in parts.
Stored = collections.namedtuple("Stored", "number length parts")


@functools.lru_cache(maxsize=32)
def body_of(writer, number, length):
    """Returns the bytes that request `number` of a writer stores."""
    head = f"{writer} {number} {length}\n".encode()
    return head + random.Random(f"{writer} {number}").randbytes(length)


@functools.lru_cache(maxsize=32)
def etag_of(body, parts):
    if not parts:
        return hashlib.md5(body).hexdigest()
    digests = b"".join(hashlib.md5(body[at:at + PART]).digest()
                       for at in range(0, len(body), PART))
    return f"{hashlib.md5(digests).hexdigest()}-{len(digests) // 16}"


class Model:
    """Computes which objects one writer has stored after a number of requests."""

    def __init__(self, seed, writer):
        self.seed, self.writer = seed, writer
        self.number, self.objects = 0, {}

    def next(self):
        """Returns the writer's next request, and changes `objects` as if the gateway had carried it
        out."""
        number, self.number = self.number, self.number + 1
        source = random.Random(f"{self.seed} {self.writer} {number}")
        # A claim creates an object on the condition that it does not exist. All writers claim the
        # same names at the same request numbers, so only one writer may succeed.
        if random.Random(f"{self.seed} {number}").random() < 0.15:
            return Request("claim", f"shared/{number}", None, number, 100)
        kind = source.choice(("put", "put", "put", "copy", "delete", "parts"))
        name = source.choice(NAMES)
        length = source.choice((0, 10, 5000, 300000))
        if kind == "parts":
            name, length = "g/", PART + 777
        if kind in ("copy", "delete") and not self.objects:
            kind = "put"
        if kind == "delete":
            name = source.choice(sorted(self.objects))
            del self.objects[name]
            return Request(kind, self.key(name), None, number, 0)
        if kind == "copy":
            old = source.choice(sorted(self.objects))
            self.objects["a"] = self.objects[old]._replace(parts=False)
            # The source can be `a` itself. S3 permits such a copy only if it changes the metadata,
            # which carry_out does for each copy.
            return Request("copy", self.key("a"), self.key(old), number, 0)
        self.objects[name] = Stored(number, length, kind == "parts")
        return Request(kind, self.key(name), None, number, length)

    def key(self, name):
        return f"w{self.writer}/{name}"

    def keys(self):
        return {self.key(name): stored for name, stored in self.objects.items()}


class Client:
    """A connection with the gateway. It signs its requests (signature version 4)."""

    def __init__(self, url):
        self.host = urllib.parse.urlsplit(url).netloc
        self.connection = http.client.HTTPConnection(self.host, timeout=300)

    def sign(self, method, path, query, headers):
        now = datetime.datetime.now(datetime.timezone.utc)
        day, stamp = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        headers = dict(headers, host=self.host)
        headers["x-amz-date"] = stamp
        headers["x-amz-content-sha256"] = "UNSIGNED-PAYLOAD"
        names = sorted(headers)
        lines = [method, path, query, *(f"{n}:{headers[n]}" for n in names), "",
                 ";".join(names), "UNSIGNED-PAYLOAD"]
        scope = f"{day}/us-east-1/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope,
                          hashlib.sha256("\n".join(lines).encode()).hexdigest()))
        key = ("AWS4" + SECRET).encode()
        for word in (*scope.split("/"), text):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, "
                                    f"SignedHeaders={';'.join(names)}, Signature={key.hex()}")
        return headers

    def send(self, method, key=None, body=b"", headers=(), **query):
        """Sends a request. Returns status, headers and body of the reply."""
        path = "/" + BUCKET + ("" if key is None else "/" + urllib.parse.quote(key, safe="/~"))
        text = "&".join(f"{n.replace('_', '-')}={urllib.parse.quote(v, safe='~')}"
                        for n, v in sorted(query.items()))
        self.connection.request(method, path + ("?" + text if text else ""), body,
                                self.sign(method, path, text, dict(headers)))
        reply = self.connection.getresponse()
        return reply.status, reply.headers, reply.read()

    def expect(self, wanted, *words, **query):
        """Sends a request whose reply must have the status `wanted`. Returns headers and body of
        the reply."""
        status, headers, body = self.send(*words, **query)
        if status != wanted:
            raise ValueError(f"{words[0]} {words[1:2]}: status {status}, wanted {wanted}: "
                             f"{body[:300]!r}")
        return headers, body


def values(xml_text, name):
    """Returns the texts of all elements with a name."""
    root = xml.etree.ElementTree.fromstring(xml_text)
    return [e.text or "" for e in root.iter() if e.tag.rsplit("}", 1)[-1] == name]


# ---- writing ----

def begin_parts(client, key, pieces):
    """Begins an upload in parts, and sends the parts. Returns the upload's id, and the XML body of
    the request that completes the upload."""
    upload = values(client.expect(200, "POST", key, uploads="")[1], "UploadId")[0]
    text = "<CompleteMultipartUpload>"
    for number, piece in enumerate(pieces, 1):
        etag = client.expect(200, "PUT", key, piece, partNumber=str(number),
                             uploadId=upload)[0]["ETag"]
        text += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
    return upload, (text + "</CompleteMultipartUpload>").encode()


def carry_out(client, writer, request):
    """Carries out a request. Returns the word RESULT of the line `durable` that the writer
    prints."""
    body = body_of(writer, request.number, request.length)
    if request.kind == "claim":
        status, _, text = client.send("PUT", request.name, body, {"if-none-match": "*"})
        # 412: another writer has created the object before. 409: it did so at the same moment.
        if status not in (200, 409, 412):
            raise ValueError(f"claim of {request.name}: status {status}: {text[:300]!r}")
        return "won" if status == 200 else "late"
    if request.kind == "parts":
        pieces = [body[at:at + PART] for at in range(0, len(body), PART)]
        upload, text = begin_parts(client, request.name, pieces)
        client.expect(200, "POST", request.name, text, uploadId=upload)
    elif request.kind == "copy":
        source = f"/{BUCKET}/{urllib.parse.quote(request.source)}"
        client.expect(200, "PUT", request.name, b"", {"x-amz-copy-source": source,
                                                      "x-amz-metadata-directive": "REPLACE"})
    elif request.kind == "delete":
        client.expect(204, "DELETE", request.name)
    else:
        etag = client.expect(200, "PUT", request.name, body)[0]["ETag"]
        if etag != f'"{etag_of(body, False)}"':
            raise ValueError(f"PUT of {request.name}: ETag {etag}")
    return request.kind


def say(line):
    """Prints a line in one call, so that lines of several threads do not mix."""
    os.write(1, (line + "\n").encode())


class Writers:
    """Threads that each carry out the requests of a model."""

    def __init__(self, url, name, seed, rounds):
        self.url, self.name, self.seed, self.rounds = url, name, seed, rounds
        self.round = 0
        self.barrier = threading.Barrier(WRITERS, self.rest)

    def rest(self):
        """Waits until the host has copied the drive. The barrier calls this function in one
        writer's thread when all writers have ended a round; the other writers wait meanwhile."""
        self.round += 1
        if self.name != "root":
            # A control: the gateway `files` does not sync files, and `folders` does not sync
            # folders, so the check must find lost objects. No writer makes a request after this
            # one until the host has copied the drive, so no later sync can save this object.
            key = f"last/{self.round}"
            Client(self.url).expect(200, "PUT", key, body_of("last", self.round, 10))
            say(f"durable {self.name} last {self.round} put")
        say(f"rest {self.name} {self.round}")
        go = os.path.join(os.environ["LAB_OUT"], f"go-{self.name}-{self.round}")
        while not os.path.exists(go):
            time.sleep(0.05)

    def run(self, writer):
        client, model = Client(self.url), Model(self.seed, writer)
        try:
            for number in range(self.rounds):
                count = random.Random(f"{self.seed} {writer} round {number}").randint(3, 8)
                for _ in range(count):
                    self.step(client, model)
                self.barrier.wait()
            while True:
                self.step(client, model)
        except ValueError as error:
            say(f"wrong {self.name} {writer}: {error}")
        except (OSError, http.client.HTTPException, threading.BrokenBarrierError):
            pass  # the gateway is gone
        self.barrier.abort()

    def step(self, client, model):
        request = model.next()
        result = carry_out(client, model.writer, request)
        say(f"durable {self.name} {model.writer} {request.number} {result}")


def write(url, name, seed, rounds):
    client = Client(url)
    client.expect(200, "PUT")
    say(f"durable {name} bucket 0 made")
    # Begins an upload that no request completes. `penstock serve --repair` must remove it.
    begin_parts(client, "abandoned", [b"x" * 5000])
    writers = Writers(url, name, seed, int(rounds))
    threads = [threading.Thread(target=writers.run, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- checking ----

class Check:
    """Compares the objects of a gateway with the requests that it acknowledged."""

    def __init__(self, client, name, seed, file):
        self.client, self.seed = client, seed
        self.last, self.won, self.lost = [-1] * WRITERS, {}, []
        self.ends = []
        self.acknowledged, self.bucket = 0, False
        with open(file, encoding="ascii") as lines:
            for line in lines:
                word, whose, writer, number, result = line.split()
                if word == "durable" and whose == name:
                    self.acknowledged += 1
                    self.take(writer, int(number), result)
        self.found = {}

    def take(self, writer, number, result):
        if writer == "bucket":
            self.bucket = True
            return
        if writer == "last":
            self.ends.append(number)
            return
        self.last[int(writer)] = max(self.last[int(writer)], number)
        if result == "won":
            if number in self.won:
                self.lost.append(f"claim {number} was won twice")
            self.won[number] = int(writer)

    def read(self):
        """Reads all objects, by the listing and one by one."""
        status, _, text = self.client.send("GET", list_type="2")
        if status != 200:
            if self.bucket:
                self.lost.append(f"the bucket: status {status}")
            return
        keys, etags = values(text, "Key"), values(text, "ETag")
        if values(text, "IsTruncated") != ["false"]:
            raise ValueError("the listing has a second page")
        for key, etag in zip(keys, etags):
            headers, body = self.client.expect(200, "GET", key)
            self.found[key] = (headers["ETag"].strip('"'), body)
            if headers["ETag"] != etag:
                self.lost.append(f"{key}: ETag {headers['ETag']}, in the listing {etag}")
        for writer in range(WRITERS):
            for name in NAMES:
                key = f"w{writer}/{name}"
                if key not in self.found and self.client.send("GET", key)[0] != 404:
                    self.lost.append(f"{key} is not in the listing")

    def matches(self, key, writer, stored):
        if key not in self.found:
            return f"{key} of request {stored.number} is missing"
        etag, got = self.found[key]
        body = body_of(writer, stored.number, stored.length)
        if got != body:
            return f"{key}: {len(got)} bytes {got[:20]!r}, wanted {len(body)} {body[:20]!r}"
        if etag != etag_of(body, stored.parts):
            return f"{key}: ETag {etag}, wanted {etag_of(body, stored.parts)}"
        return None

    def difference(self, writer, keys):
        """Returns how a writer's objects in the gateway differ from `keys`, the objects that a
        model expects. Returns None if they do not differ."""
        for key, stored in keys.items():
            wrong = self.matches(key, writer, stored)
            if wrong:
                return wrong
        more = [k for k in self.found if k.startswith(f"w{writer}/") and k not in keys]
        return f"{more[0]} should not exist" if more else None

    def check_writer(self, writer, exact):
        """Checks that the objects of a writer are those that the model has after all acknowledged
        requests. If `exact` is false, they may also be those after up to AHEAD - 1 further
        requests."""
        model, first = Model(self.seed, writer), None
        while model.number <= self.last[writer]:
            model.next()
        for _ in range(1 if exact else AHEAD):
            wrong = self.difference(writer, model.keys())
            if not wrong:
                return
            first = first or wrong
            model.next()
        self.lost.append(f"writer {writer} after request {self.last[writer]}: {first}")

    def check_claims(self, exact):
        for number, writer in sorted(self.won.items()):
            wrong = self.matches(f"shared/{number}", writer, Stored(number, 100, False))
            if wrong:
                self.lost.append(wrong)
        for key in self.found:
            if not key.startswith("shared/"):
                continue
            number = int(key.split("/")[1])
            wrong = [self.matches(key, w, Stored(number, 100, False)) for w in range(WRITERS)]
            if None not in wrong or (exact and number not in self.won):
                self.lost.append(f"{key} should not exist: {wrong[0]}")


def verify(url, name, seed, file, drive, how):
    check = Check(Client(url), name, seed, file)
    check.read()
    for writer in range(WRITERS):
        check.check_writer(writer, how == "exact")
    check.check_claims(how == "exact")
    for number in check.ends:
        wrong = check.matches(f"last/{number}", "last", Stored(number, 10, False))
        check.lost += [wrong] if wrong else []
    for line in check.lost:
        say(f"{drive}: lost {line}")
    uploads = values(check.client.send("GET", uploads="")[2], "UploadId")
    say(f"{drive}: checked {len(check.found)} objects of {check.acknowledged} acknowledged "
        f"requests, {len(uploads)} uploads left")


if __name__ == "__main__":
    {"write": write, "verify": verify}[sys.argv[1]](*sys.argv[2:])
