# SPDX-License-Identifier: Apache-2.0
"""Exchanges objects between Penstock and boto3 through moto, an independent simulation of S3. moto
verifies Penstock's signatures with botocore's code. tests/s3/moto runs this script."""

import json
import logging
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import boto3
import botocore.exceptions
from moto.server import ThreadedMotoServer

sys.path[:0] = [str(pathlib.Path(__file__).parent.parent / "python")]
import tap  # noqa: E402

BUILD = pathlib.Path(os.environ["PENSTOCK_BUILD"])
MIB = 1 << 20
POLICY = {"Version": "2012-10-17",
          "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        cls.server.start()
        cls.addClassCleanup(cls.server.stop)
        cls.url = "http://%s:%d" % cls.server.get_host_and_port()
        for name in list(os.environ):
            if name.startswith("AWS_"):
                del os.environ[name]
        # Disables the log line that the server prints for each request.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        options = {"endpoint_url": cls.url, "region_name": "us-east-1"}
        first = boto3.session.Session("first", "first")
        iam = first.client("iam", **options)
        iam.create_user(UserName="user")
        iam.put_user_policy(UserName="user", PolicyName="all",
                            PolicyDocument=json.dumps(POLICY))
        key = iam.create_access_key(UserName="user")["AccessKey"]
        cls.key, cls.secret = key["AccessKeyId"], key["SecretAccessKey"]
        cls.s3 = boto3.session.Session(cls.key, cls.secret).client("s3", **options)
        # From now on, moto verifies the signature of each request.
        cls.check_signatures("0")
        cls.s3.create_bucket(Bucket="bucket")

    @classmethod
    def check_signatures(cls, after):
        """Makes moto verify signatures after the next `after` requests."""
        urllib.request.urlopen(urllib.request.Request(
            cls.url + "/moto-api/reset-auth", after.encode(), {"Content-Type": "text/plain"},
            method="POST")).read()

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)
        self.env = os.environ | {"AWS_ACCESS_KEY_ID": self.key, "AWS_ENDPOINT_URL": self.url,
                                 "AWS_SECRET_ACCESS_KEY": self.secret,
                                 "AWS_CONFIG_FILE": "/dev/null",
                                 "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}

    def cp(self, source, to, **env):
        return subprocess.run([str(BUILD / "penstock"), "cp", "--quiet", "--via", "host",
                               str(source), str(to)], env=self.env | env, capture_output=True,
                              text=True, timeout=120, check=False)

    def test_we_write_boto3_reads(self):
        for size in (0, 1, 8 * MIB, 20 * MIB + 3):
            data = random.Random(size).randbytes(size)
            (self.dir / "file").write_bytes(data)
            done = self.cp(self.dir / "file", f"s3://bucket/ours-{size}")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = self.s3.get_object(Bucket="bucket", Key=f"ours-{size}")["Body"].read()
            self.assertTrue(found == data, f"{len(found)} of {size} bytes")
        self.assertNotIn("Uploads", self.s3.list_multipart_uploads(Bucket="bucket"))

    def test_boto3_writes_we_read(self):
        for size in (0, 1, 20 * MIB + 3):
            data = random.Random(size).randbytes(size)
            (self.dir / "theirs").write_bytes(data)
            self.s3.upload_file(str(self.dir / "theirs"), "bucket", f"theirs-{size}")
            done = self.cp(f"s3://bucket/theirs-{size}", self.dir / "got")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.dir / "got").read_bytes() == data)

    def test_odd_keys(self):
        for key in ("a b+c&d=e", "ä/ö//~", "%41", "x?y#z", "(!*')"):
            with self.subTest(key=key):
                (self.dir / "file").write_bytes(key.encode())
                url = "s3://bucket/" + "".join(f"%{byte:02x}" for byte in key.encode())
                done = self.cp(self.dir / "file", url)
                self.assertEqual(done.returncode, 0, done.stderr)
                found = self.s3.get_object(Bucket="bucket", Key=key)["Body"].read()
                self.assertEqual(found, key.encode())
                done = self.cp(url, self.dir / "got")
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_presigned_by_boto3(self):
        data = b"presigned" * 1000
        self.s3.put_object(Bucket="bucket", Key="signed key", Body=data)
        url = self.s3.generate_presigned_url("get_object", {"Bucket": "bucket",
                                                            "Key": "signed key"})
        # moto cannot verify the signature of a presigned URL.
        self.check_signatures("inf")
        self.addCleanup(self.check_signatures, "0")
        done = self.cp(url, self.dir / "got", AWS_ACCESS_KEY_ID="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.dir / "got").read_bytes(), data)

    def test_wrong_secret(self):
        self.s3.put_object(Bucket="bucket", Key="key", Body=b"data")
        done = self.cp("s3://bucket/key", self.dir / "got", AWS_SECRET_ACCESS_KEY="wrong-secret")
        self.assertEqual(done.returncode, 1)
        self.assertIn("403 SignatureDoesNotMatch", done.stderr)
        self.assertIn("the environment", done.stderr)
        self.assertNotIn("wrong-secret", done.stderr)

    def test_missing(self):
        done = self.cp("s3://bucket/no-such-key", self.dir / "got")
        self.assertIn("NoSuchKey", done.stderr)
        done = self.cp("s3://no-such-bucket/key", self.dir / "got")
        self.assertIn("NoSuchBucket", done.stderr)
        with self.assertRaises(botocore.exceptions.ClientError):
            self.s3.head_object(Bucket="bucket", Key="no-such-key")


if __name__ == "__main__":
    tap.main()
