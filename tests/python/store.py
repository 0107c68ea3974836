# SPDX-License-Identifier: Apache-2.0
"""An object store for tests: moto, a server that imitates Amazon S3, and boto3 as another client.

Importing this module sets the keys in the environment. A test module calls start() in setUpModule,
and stop() in tearDownModule."""

import logging
import os
import sys
import tempfile
import threading

import boto3
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

import penstock

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
os.environ.update({"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET,
                   "AWS_CONFIG_FILE": os.path.join(TMP, "config"), "AWS_REGION": "us-east-1",
                   "AWS_SHARED_CREDENTIALS_FILE": os.path.join(TMP, "credentials")})
logging.getLogger("werkzeug").setLevel(logging.WARNING)


class Store:
    """The server's address, and boto3's client of it."""
    server = endpoint = boto = None


_PUT, _PUT_LOCK = S3Response.put_object, threading.Lock()


def _put_alone(response):
    """Handles one PUT at a time. moto's threads check "only if the object does not exist" before
    they store the object, so two of them could create the same object."""
    with _PUT_LOCK:
        return _PUT(response)


def start():
    S3Response.put_object = _put_alone
    Store.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    Store.server.start()
    Store.endpoint = "http://%s:%d" % Store.server.get_host_and_port()
    Store.boto = boto3.client("s3", endpoint_url=Store.endpoint)
    Store.boto.create_bucket(Bucket="bucket")


def stop():
    Store.server.stop()


def client(**options):
    return penstock.ObjectClient(Store.endpoint, **options)


def put(key, data):
    """Writes an object as another client does."""
    Store.boto.put_object(Bucket="bucket", Key=key, Body=data)


def body(key):
    """Returns the bytes of an object as another client reads them."""
    return Store.boto.get_object(Bucket="bucket", Key=key)["Body"].read()


def exit_without_objects():
    """Exits with 77 (skipped) if the library was built without libssl. A library with libssl
    raises another error for the wrong endpoint."""
    try:
        penstock.ObjectClient("wrong").exists("bucket/key")
    except penstock.PenstockError as error:
        if error.reason == "not-built":
            print("the library was built without libssl")
            sys.exit(77)
