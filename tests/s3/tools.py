# SPDX-License-Identifier: Apache-2.0
"""Shared by the cases of the S3 conformance suite: clients, requests that the suite signs itself,
and checks that print both values. tests/s3/conformance.py makes one object of class Test for each
case."""

import base64
import datetime
import hashlib
import hmac
import http.client
import os
import random
import socket
import ssl
import urllib.parse
import uuid
import xml.etree.ElementTree
import zlib

import awscrt.checksums
import boto3
import botocore.client
import botocore.exceptions

ENDPOINT = os.environ["AWS_ENDPOINT_URL"].rstrip("/")
REGION = os.environ.get("AWS_REGION", "us-east-1")
KEY = os.environ["AWS_ACCESS_KEY_ID"]
SECRET = os.environ["AWS_SECRET_ACCESS_KEY"]
SEED = int(os.environ.get("S3_SEED", random.SystemRandom().randrange(1 << 32)))
MIB = 1 << 20
PART = 5 * MIB
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


class Skip(Exception):
    """Raised if the server lacks a feature that the case needs. The text names the feature."""


# --- checks -------------------------------------------------------------------

def same(got, wanted, what="value"):
    if got != wanted:
        raise AssertionError(f"{what}: got {short(got)}, wanted {short(wanted)}")


def short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}... ({len(text)} characters)"


def one_of(got, wanted, what="value"):
    if got not in wanted:
        raise AssertionError(f"{what}: got {short(got)}, wanted one of {short(wanted)}")


def true(condition, what):
    if not condition:
        raise AssertionError(what)


def fails(codes, status, call, *args, **named):
    """Calls a boto3 method that must fail with one of the codes, and with the status `status` or
    one of several statuses. Returns the reply."""
    codes = (codes,) if isinstance(codes, str) else codes
    statuses = (status,) if isinstance(status, int) else status
    try:
        reply = call(*args, **named)
    except botocore.exceptions.ClientError as error:
        got = error.response["Error"]["Code"]
        number = error.response["ResponseMetadata"]["HTTPStatusCode"]
        one_of((number, got), [(s, c) for s in statuses for c in codes], "error")
        return error.response
    raise AssertionError(f"the request succeeded, wanted {status} {codes}: {short(reply)}")


def checksum(algorithm, data):
    """Returns the checksum as the API writes it: big-endian bytes in base64."""
    if algorithm == "CRC32":
        raw = zlib.crc32(data).to_bytes(4, "big")
    elif algorithm == "CRC32C":
        raw = awscrt.checksums.crc32c(data).to_bytes(4, "big")
    elif algorithm == "CRC64NVME":
        raw = awscrt.checksums.crc64nvme(data).to_bytes(8, "big")
    else:
        raw = hashlib.new(algorithm.lower(), data).digest()
    return base64.b64encode(raw).decode()


def composite(algorithm, parts):
    """Returns the composite checksum: the checksum of the parts' checksums, followed by the number
    of parts."""
    raw = b"".join(base64.b64decode(checksum(algorithm, part)) for part in parts)
    return f"{checksum(algorithm, raw)}-{len(parts)}"


def md5(data):
    return hashlib.md5(data).hexdigest()


def content_md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def multipart_etag(parts):
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    return f'"{whole}-{len(parts)}"'


def data(length, seed=1):
    return random.Random(seed * 1000003 + length).randbytes(length)


# --- requests that are signed here ----------------------------------------------

def encode(text):
    """Percent-encodes a key or a value for a URL, except slashes."""
    return urllib.parse.quote(text, safe="/-_.~")


def hmac256(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    """Signs requests with signature version 4. `when` is the time of the signature."""

    def __init__(self, key=KEY, secret=SECRET, region=REGION, service="s3", when=None):
        self.key, self.secret, self.region, self.service = key, secret, region, service
        when = when or datetime.datetime.now(datetime.timezone.utc)
        self.stamp = when.strftime("%Y%m%dT%H%M%SZ")
        self.scope = f"{self.stamp[:8]}/{region}/{service}/aws4_request"

    def signature(self, text):
        key = hmac256(b"AWS4" + self.secret.encode(), self.stamp[:8])
        for step in (self.region, self.service, "aws4_request"):
            key = hmac256(key, step)
        return hmac256(key, text).hex()

    def request(self, method, path, query, headers, payload_hash):
        """Signs a request with all of its headers. Returns the signature and the list of header
        names."""
        lower = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
        names = ";".join(sorted(lower))
        lines = [method, path, "&".join(sorted(canonical_pairs(query)))]
        lines += [f"{name}:{lower[name]}" for name in sorted(lower)]
        lines += ["", names, payload_hash]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.stamp, self.scope, digest])
        return self.signature(text), names

    def authorization(self, method, path, query, headers, payload_hash):
        signature, names = self.request(method, path, query, headers, payload_hash)
        return (f"AWS4-HMAC-SHA256 Credential={self.key}/{self.scope}, "
                f"SignedHeaders={names}, Signature={signature}")

    def chunk(self, previous, body):
        return self.signature("\n".join([
            "AWS4-HMAC-SHA256-PAYLOAD", self.stamp, self.scope, previous, EMPTY_SHA256,
            hashlib.sha256(body).hexdigest()]))

    def trailer(self, previous, lines):
        return self.signature("\n".join([
            "AWS4-HMAC-SHA256-TRAILER", self.stamp, self.scope, previous,
            hashlib.sha256(lines).hexdigest()]))


def canonical_pairs(query):
    for pair in query.split("&") if query else ():
        yield pair if "=" in pair else pair + "="


def signature_of(headers):
    return headers["Authorization"].rpartition("Signature=")[2]


class Reply:
    def __init__(self, reply):
        self.status = reply.status
        self.headers = {name.lower(): value for name, value in reply.getheaders()}
        self.body = reply.read()
        self.code = self.error().get("Code", "")

    def error(self):
        """Returns the elements of an XML error as a dictionary, which is empty for another body."""
        if self.status < 300 or b"<Error>" not in self.body:
            return {}
        root = xml.etree.ElementTree.fromstring(self.body)
        return {child.tag: child.text or "" for child in root}

    def is_error(self, codes, status):
        codes = (codes,) if isinstance(codes, str) else codes
        statuses = (status,) if isinstance(status, int) else status
        one_of((self.status, self.code), [(s, c) for s in statuses for c in codes], "error")

    def is_ok(self, status=200):
        same((self.status, self.code), (status, ""), "status")
        return self


def tls_context():
    return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))


def connect():
    url = urllib.parse.urlsplit(ENDPOINT)
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=60,
                                           context=tls_context())
    return http.client.HTTPConnection(url.hostname, url.port, timeout=60)


def open_socket():
    """Returns a connected socket, with TLS if the endpoint uses https."""
    url = urllib.parse.urlsplit(ENDPOINT)
    stream = socket.create_connection((url.hostname, url.port), timeout=30)
    if url.scheme == "https":
        stream = tls_context().wrap_socket(stream, server_hostname=url.hostname)
    return stream


def host():
    return urllib.parse.urlsplit(ENDPOINT).netloc


def send(method, path, query="", headers=None, body=b"", connection=None):
    """Sends a request with exactly these headers. If `body` is None, sends no body and no
    Content-Length."""
    connection = connection or connect()
    connection.putrequest(method, path + ("?" + query if query else ""),
                          skip_host=True, skip_accept_encoding=True)
    headers = dict(headers or {})
    names = {name.lower() for name in headers}
    if "host" not in names:
        headers["Host"] = host()
    if body is not None and "content-length" not in names and (body or method in
                                                              ("PUT", "POST")):
        headers["Content-Length"] = str(len(body))
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(body or None)
    return Reply(connection.getresponse())


def signed(method, path, query="", headers=None, body=b"", signer=None, payload_hash=None):
    """Signs a request. Returns its headers with the signature."""
    signer = signer or Signer()
    payload_hash = payload_hash or hashlib.sha256(body or b"").hexdigest()
    headers = {"Host": host(), **(headers or {})}
    headers.setdefault("x-amz-date", signer.stamp)
    headers.setdefault("x-amz-content-sha256", payload_hash)
    headers["Authorization"] = signer.authorization(method, path, query, headers, payload_hash)
    return headers


def call(method, path, query="", headers=None, body=b"", **named):
    """Signs a request and sends it."""
    return send(method, path, query, signed(method, path, query, headers, body, **named), body)


def presigned(method, path, query="", expires="60", signer=None, headers=None):
    """Signs a request in its query. Returns the query. As in botocore, the signature covers the
    body's hash only if a header has it."""
    signer = signer or Signer()
    headers = {"Host": host(), **(headers or {})}
    names = ";".join(sorted(name.lower() for name in headers))
    pairs = ["X-Amz-Algorithm=AWS4-HMAC-SHA256",
             "X-Amz-Credential=" + urllib.parse.quote(f"{signer.key}/{signer.scope}", safe=""),
             f"X-Amz-Date={signer.stamp}", f"X-Amz-Expires={expires}",
             "X-Amz-SignedHeaders=" + urllib.parse.quote(names, safe="")]
    query = "&".join(([query] if query else []) + pairs)
    payload_hash = headers.get("x-amz-content-sha256", UNSIGNED)
    signature, _ = signer.request(method, path, query, headers, payload_hash)
    return f"{query}&X-Amz-Signature={signature}"


# --- one case ---------------------------------------------------------------------

def client(key=KEY, secret=SECRET, **config):
    settings = {"signature_version": "s3v4", "s3": {"addressing_style": "path"},
                "retries": {"total_max_attempts": 1}, "read_timeout": 60,
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required"}
    settings.update(config)
    return boto3.client("s3", endpoint_url=ENDPOINT, region_name=REGION, aws_access_key_id=key,
                        aws_secret_access_key=secret,
                        config=botocore.client.Config(**settings))


class Test:
    """The argument of a case. `bucket` is the name of an empty bucket, which is made at its first
    use. clean() removes the buckets of the case with all their objects."""

    s3 = client()

    def __init__(self):
        self.buckets, self.random = [], random.Random(SEED)

    @property
    def bucket(self):
        return self.buckets[0] if self.buckets else self.new_bucket()

    @staticmethod
    def name():
        return f"conf-{uuid.uuid4().hex[:20]}"

    def new_bucket(self):
        name = self.name()
        self.s3.create_bucket(Bucket=name)
        self.buckets.append(name)
        return name

    def put(self, key, body=b"x", **named):
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **named)

    def fill(self, *keys):
        """Stores an object under each key. The body of each object is its key."""
        for key in keys:
            self.put(key, key.encode())

    def get(self, key, **named):
        return self.s3.get_object(Bucket=self.bucket, Key=key, **named)

    def body(self, key, **named):
        return self.get(key, **named)["Body"].read()

    def head(self, key, **named):
        return self.s3.head_object(Bucket=self.bucket, Key=key, **named)

    def path(self, key=""):
        return f"/{self.bucket}" + (f"/{encode(key)}" if key else "")

    def absent(self, key):
        fails(("404", "NoSuchKey"), 404, self.head, key)

    def keys(self, **named):
        reply = self.s3.list_objects_v2(Bucket=self.bucket, **named)
        return [item["Key"] for item in reply.get("Contents", [])]

    def start(self, key="k", **named):
        """Starts a multipart upload. Returns its bucket, key and upload ID as arguments for boto3.
        """
        made = self.s3.create_multipart_upload(Bucket=self.bucket, Key=key, **named)
        return {"Bucket": self.bucket, "Key": key, "UploadId": made["UploadId"]}

    def part(self, upload, number, body, **named):
        made = self.s3.upload_part(**upload, PartNumber=number, Body=body, **named)
        return {"PartNumber": number, "ETag": made["ETag"]}

    def complete(self, upload, parts, **named):
        return self.s3.complete_multipart_upload(
            **upload, MultipartUpload={"Parts": parts}, **named)

    def multipart(self, key, bodies, **named):
        upload = self.start(key, **named)
        parts = [self.part(upload, n, body) for n, body in enumerate(bodies, 1)]
        return self.complete(upload, parts)

    def clean(self):
        for name in self.buckets:
            try:
                self.empty(name)
                self.s3.delete_bucket(Bucket=name)
            except botocore.exceptions.ClientError as error:
                code = error.response["Error"]["Code"]
                if code != "NoSuchBucket":
                    print(f"# bucket {name} stays: {code}")

    def empty(self, name):
        uploads = self.s3.list_multipart_uploads(Bucket=name).get("Uploads", [])
        for upload in uploads:
            self.s3.abort_multipart_upload(Bucket=name, Key=upload["Key"],
                                           UploadId=upload["UploadId"])
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=name)
        for page in pages:
            for item in page.get("Contents", []):
                self.s3.delete_object(Bucket=name, Key=item["Key"])


def other_client(name, **config):
    """Returns a boto3 client that uses the access key in the variable S3_NAME_KEY."""
    if f"S3_{name}_KEY" not in os.environ:
        raise Skip(f"no key S3_{name}_KEY is given")
    return client(os.environ[f"S3_{name}_KEY"], os.environ[f"S3_{name}_SECRET"], **config)
