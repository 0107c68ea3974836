# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.ObjectClient, penstock.fsspec and load_file with s3:// against moto, a server that
imitates Amazon S3. boto3 writes what this package reads, and the other way round."""

import errno
import http.server
import logging
import os
import random
import socketserver
import tempfile
import threading
import unittest

import boto3
import fsspec
import numpy
from moto.server import ThreadedMotoServer

import penstock
import penstock.fsspec
import tap
from penstock import _s3

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
os.environ.update({"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET,
                   "AWS_CONFIG_FILE": os.path.join(TMP, "config"), "AWS_REGION": "us-east-1",
                   "AWS_SHARED_CREDENTIALS_FILE": os.path.join(TMP, "credentials")})
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
print(f"# seed {SEED}")
RANDOM = random.Random(SEED)
# Keys that a URL, a query or a file name would change.
KEYS = ["plain", "a/b/c.bin", "space and+plus", "hash#mark?query=1&x=2", "percent%41%2F",
        "ümlaut-✓", "dots/../here", "double//slash", "end/", "quote\"<&>'", "a" * 300, "~tilde-._!$()*,;:@="]


logging.getLogger("werkzeug").setLevel(logging.WARNING)


def setUpModule():
    global SERVER, ENDPOINT, BOTO
    SERVER = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    SERVER.start()
    ENDPOINT = "http://%s:%d" % SERVER.get_host_and_port()
    BOTO = boto3.client("s3", endpoint_url=ENDPOINT)
    BOTO.create_bucket(Bucket="bucket")


def tearDownModule():
    SERVER.stop()


def client(**options):
    return penstock.ObjectClient(ENDPOINT, **options)


def body(key):
    return BOTO.get_object(Bucket="bucket", Key=key)["Body"].read()


class Signatures(unittest.TestCase):
    """The examples that Amazon publishes for Signature Version 4 with the header Authorization."""

    def check(self, signature, method, path, query, **more):
        settings = _s3.Settings("AKIAIOSFODNN7EXAMPLE", SECRET, region="us-east-1")
        headers = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": "20130524T000000Z",
                   "x-amz-content-sha256": _s3._EMPTY,
                   **{name.replace("_", "-"): value for name, value in more.items()}}
        self.assertEqual(_s3.authorization(settings, method, path, query, headers).rpartition("=")
                         [2], signature)

    def test_get(self):
        self.check("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", "GET",
                   "/test.txt", "", range="bytes=0-9")

    def test_list(self):
        self.check("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7", "GET", "/",
                   "max-keys=2&prefix=J")


class Settings(unittest.TestCase):
    def setUp(self):
        self.old = dict(os.environ)
        with open(os.environ["AWS_CONFIG_FILE"], "w", encoding="ascii") as f:
            f.write("[default]\nregion = eu-central-1\n[profile lab]\nregion=lab-1\n"
                    "endpoint_url = http://lab:9000\naws_access_key_id = AK2\n"
                    "aws_secret_access_key = old\n")
        with open(os.environ["AWS_SHARED_CREDENTIALS_FILE"], "w", encoding="ascii") as f:
            f.write("[default]\naws_access_key_id = AK1\naws_secret_access_key = s1\n"
                    "[lab]\naws_secret_access_key = s2\naws_session_token = t2\n")
        for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del os.environ[name]

    def tearDown(self):
        os.environ.clear()
        os.environ.update(self.old)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            os.unlink(os.environ[name])

    def test_profiles(self):
        found = _s3.read_settings()
        self.assertEqual((found.access_key, found.secret, found.region, found.endpoint),
                         ("AK1", "s1", "eu-central-1", ""))
        found = _s3.read_settings("lab")
        self.assertEqual((found.access_key, found.secret, found.token, found.region,
                          found.endpoint), ("AK2", "s2", "t2", "lab-1", "http://lab:9000"))
        os.environ["AWS_PROFILE"] = "lab"
        self.assertEqual(_s3.read_settings().secret, "s2")
        os.environ.update({"AWS_ACCESS_KEY_ID": "AK3", "AWS_SECRET_ACCESS_KEY": "s3"})
        self.assertEqual(_s3.read_settings().secret, "s3")
        with self.assertRaisesRegex(ValueError, "there is no profile 'none'"):
            penstock.ObjectClient(profile="none")

    def test_no_keys(self):
        os.unlink(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
        with self.assertRaisesRegex(penstock.PenstockError, "set AWS_ACCESS_KEY_ID"):
            penstock.ObjectClient(ENDPOINT)
        open(os.environ["AWS_SHARED_CREDENTIALS_FILE"], "w", encoding="ascii").close()

    def test_no_secret_in_messages(self):
        with open(os.environ["AWS_SHARED_CREDENTIALS_FILE"], "w", encoding="ascii") as f:
            f.write("aws_secret_access_key = hidden\n")
        with self.assertRaises(ValueError) as caught:
            penstock.ObjectClient(ENDPOINT)
        self.assertIn("is malformed", str(caught.exception))
        self.assertNotIn("hidden", str(caught.exception))
        self.assertNotIn("s2", repr(_s3.Settings("AK", "s2", "t2")))


class Questions(unittest.TestCase):
    """Small requests: they need no data path."""

    def test_names(self):
        for key in KEYS:
            with self.subTest(key=key):
                data = os.urandom(RANDOM.randrange(1, 999))
                BOTO.put_object(Bucket="bucket", Key=key, Body=data)
                self.assertTrue(client().exists("bucket/" + key))
                self.assertEqual(client(bucket="bucket").size(key), len(data))
                self.assertEqual([i.nbytes for i in client().list("bucket/" + key)
                                  if i.name == "bucket/" + key], [len(data)])
                client().delete("s3://bucket/" + key)
                self.assertFalse(client().exists("bucket/" + key))
        for name in ("bucket", "bucket/", "/key", "a b/key", "..", "../key", "", "b/k\0"):
            with self.assertRaises(ValueError, msg=name):
                client().exists(name)

    def test_info(self):
        BOTO.put_object(Bucket="bucket", Key="facts", Body=b"12345")
        told, theirs = client().info("bucket/facts"), BOTO.head_object(Bucket="bucket", Key="facts")
        self.assertEqual(told, ("bucket/facts", 5, theirs["ETag"].strip('"'),
                                theirs["LastModified"].timestamp()))
        with self.assertRaises(FileNotFoundError) as caught:
            client().info("bucket/absent")
        self.assertEqual((caught.exception.errno, caught.exception.reason, caught.exception.path),
                         (errno.ENOENT, "not-found", "s3://bucket/absent"))

    def test_list(self):
        BOTO.create_bucket(Bucket="many")
        names = [f"d{i % 3}/n{i}" for i in range(1103)]
        for name in names:
            BOTO.put_object(Bucket="many", Key=name, Body=b"1")
        self.assertEqual(client(bucket="many").list_objects(""), sorted(names))
        self.assertEqual(client().list_objects("many/d1/n10"),
                         sorted(f"many/{n}" for n in names if n.startswith("d1/n10")))
        self.assertEqual([i.name for i in client().list("many/", delimiter="/")],
                         ["many/d0/", "many/d1/", "many/d2/"])
        with self.assertRaisesRegex(FileNotFoundError, "NoSuchBucket"):
            client().list_objects("nosuch/")

    def test_copy(self):
        for key in KEYS:
            BOTO.put_object(Bucket="bucket", Key=key, Body=key.encode())
            client().copy("bucket/" + key, "bucket/copy of " + key)
            self.assertEqual(body("copy of " + key), key.encode())
        with self.assertRaises(FileNotFoundError):
            client().copy("bucket/absent", "bucket/other")

    def test_bad_endpoints(self):
        for url in ("ftp://host", "http://", "host:1", "http://user:secret@host", "http://h/path"):
            with self.assertRaises(ValueError) as caught:
                penstock.ObjectClient(url)
            self.assertNotIn("secret", str(caught.exception))


class Planned(http.server.BaseHTTPRequestHandler):
    """A server that gives the planned answers, one after the other."""
    protocol_version = "HTTP/1.1"
    plan, seen = [], []

    def do_GET(self):  # pylint: disable=invalid-name
        self.seen.append(self.path)
        status, answer = self.plan.pop(0)
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


class Answers(unittest.TestCase):
    """Errors of a server, and answers that it should not give."""

    def ask(self, *plan):
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Planned) as server:
            server.daemon_threads = True
            Planned.plan, Planned.seen = list(plan), []
            threading.Thread(target=server.serve_forever).start()
            try:
                with penstock.ObjectClient("http://127.0.0.1:%d" % server.server_address[1]) as c:
                    return c.list_objects("bucket/")
            finally:
                server.shutdown()

    PAGE = (b'<?xml version="1.0"?>'
            b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            b"<Contents><Key>a%2Fb</Key><Size>1</Size></Contents></ListBucketResult>")

    def test_repeated(self):
        """A broken connection and errors of the moment are repeated."""
        got = self.ask((None, b""), (503, b"<Error><Code>SlowDown</Code></Error>"), (500, b""),
                       (200, self.PAGE))
        self.assertEqual(got, ["bucket/a/b"])
        self.assertEqual(len(Planned.seen), 4)

    def test_given_up(self):
        with self.assertRaisesRegex(penstock.PenstockError, "answered 503.*SlowDown"):
            self.ask(*[(503, b"<Error><Code>SlowDown</Code></Error>")] * 5)
        self.assertEqual(len(Planned.seen), 5)

    def test_refused(self):
        with self.assertRaisesRegex(penstock.PenstockError, "refused the access.*Denied") as caught:
            self.ask((403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"))
        self.assertEqual(caught.exception.errno, errno.EACCES)
        self.assertNotIn(SECRET, str(caught.exception))

    def test_hostile(self):
        bomb = b'<!DOCTYPE x [<!ENTITY a "' + b"b" * 1000 + b'">]><x>' + b"&a;" * 1000 + b"</x>"
        for answer, words in ((bomb, "declaration"), (b"<a>", "malformed"), (b"", "malformed"),
                              (b"x" * ((16 << 20) + 1), "too long")):
            with self.assertRaisesRegex(penstock.PenstockError, words):
                self.ask(*[(200, answer)] * 5)

    def test_endless_list(self):
        page = self.PAGE.replace(b"<Contents>", b"<IsTruncated>true</IsTruncated>"
                                 b"<NextContinuationToken>t</NextContinuationToken><Contents>")
        with self.assertRaisesRegex(penstock.PenstockError, "does not go on"):
            self.ask((200, page), (200, page), (200, page))
        self.assertEqual(len(Planned.seen), 2)


if __name__ == "__main__":
    tap.main()
