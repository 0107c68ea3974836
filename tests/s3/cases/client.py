# SPDX-License-Identifier: Apache-2.0
"""`penstock cp` from and to objects. tests/s3/client.py runs these cases."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from tools import (ENDPOINT, KEY, MIB, PART, REGION, SECRET, Skip, data, encode, same, true)

PROGRAM = os.environ.get("PENSTOCK") or os.path.join(
    os.environ.get("PENSTOCK_BUILD", "build"), "penstock")
SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cli", "schema")
SIZES = (0, 1, 511, 4096, 4097, 65537, MIB - 1, MIB, 5 * MIB, 8 * MIB + 1, 33 * MIB + 7)


def run(*arguments, **environment):
    """Runs penstock. An environment variable that is None is removed."""
    env = {name: value for name, value in {**os.environ, **environment}.items()
           if value is not None}
    return subprocess.run([PROGRAM, *arguments], env=env, capture_output=True, text=True,
                          timeout=120, check=False)


def copy(source, target, **environment):
    """Copies, and fails the case if the copy fails. Returns the JSON report."""
    done = run("cp", "--json", source, target, **environment)
    same((done.returncode, done.stderr), (0, ""), f"cp {source} {target}")
    return json.loads(done.stdout)


def refused(words, *arguments, **environment):
    """Runs a copy that must fail. The message must contain one of the words, and no secret."""
    done = run("cp", *arguments, **environment)
    true(done.returncode != 0, f"cp {arguments}: exit status 0, wanted a failure")
    true(any(word in done.stderr for word in words),
         f"message {done.stderr!r}, wanted one of {words}")
    true(SECRET not in done.stderr + done.stdout, "the message has the secret")
    true("ls -l" not in done.stderr, f"advice about files in {done.stderr!r}")
    return done.stderr


class Folder:
    """A temporary folder for files."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, body):
        with open(self.path(name), "wb") as file:
            file.write(body)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()


def url(t, key):
    return f"s3://{t.bucket}/{encode(key)}"


def case_client_up(t):
    files = Folder()
    for size in SIZES:
        body = data(size)
        report = copy(files.write("f", body), url(t, f"k{size}"))
        same(report["bytes"], size, "bytes of the report")
        true(t.body(f"k{size}") == body, f"the object of {size} bytes differs")


def case_client_down(t):
    files = Folder()
    for size in SIZES:
        body = data(size)
        t.put("k", body)
        same(copy(url(t, "k"), files.path(f"f{size}"))["bytes"], size, "bytes of the report")
        true(files.read(f"f{size}") == body, f"the file of {size} bytes differs")


def case_client_down_multipart_object(t):
    files, bodies = Folder(), [data(PART, 1), data(6 * MIB + 3, 2), data(77, 3)]
    t.multipart("k", bodies)
    copy(url(t, "k"), files.path("f"))
    true(files.read("f") == b"".join(bodies), "the file differs")


def case_client_down_replaces_longer_file(t):
    files = Folder()
    files.write("f", data(3 * MIB))
    t.put("k", b"short")
    copy(url(t, "k"), files.path("f"))
    same(files.read("f"), b"short", "file")


def case_client_up_replaces(t):
    files = Folder()
    t.put("k", data(20 * MIB), Metadata={"old": "1"})
    copy(files.write("f", b"short"), url(t, "k"))
    same((t.body("k"), t.head("k")["Metadata"]), (b"short", {}), "object")


def case_client_up_leaves_no_uploads(t):
    files = Folder()
    copy(files.write("f", data(40 * MIB)), url(t, "k"))
    uploads = t.s3.list_multipart_uploads(Bucket=t.bucket).get("Uploads", [])
    same([item["Key"] for item in uploads], [], "uploads in progress")


def case_client_up_etag(t):
    """A large object is uploaded in parts. The number of parts follows the hyphen in the ETag."""
    files = Folder()
    copy(files.write("f", data(40 * MIB)), url(t, "large"))
    etag = t.head("large")["ETag"]
    true("-" in etag, f"ETag {etag}, wanted that of several parts")


def case_client_object_to_object(t):
    body = data(12 * MIB + 5)
    t.put("a", body)
    copy(url(t, "a"), url(t, "b"))
    true(t.body("b") == body, "the object differs")


def case_client_virtual_hosts(t):
    """With path-style=0, each bucket is a host of its own. Only the name of the bucket's host can
    be resolved, so a request that has the bucket in its path fails."""
    if "S3_DOMAIN" not in os.environ:
        raise Skip("no S3_DOMAIN is given")
    if "S3_HOSTS" not in os.environ:
        raise Skip("mount is refused here")
    with open(os.environ["S3_HOSTS"], "a", encoding="utf-8") as hosts:
        print(f"127.0.0.1 {t.bucket}.{os.environ['S3_DOMAIN']}", file=hosts)
    files = Folder()
    named = {"AWS_ENDPOINT_URL": ENDPOINT.replace("127.0.0.1", os.environ["S3_DOMAIN"])}
    for key, size in (("a b/ü+", 1000), ("parts", 20 * MIB + 3)):
        link = url(t, key) + "?path-style=0"
        copy(files.write("f", data(size)), link, **named)
        true(t.body(key) == data(size), f"the object of {size} bytes differs")
        copy(link, files.path("g"), **named)
        true(files.read("g") == data(size), f"the file of {size} bytes differs")
    true("-" in t.head("parts")["ETag"], "a long object is not uploaded in parts")
    refused(["NoSuchKey", "404"], url(t, "missing") + "?path-style=0", files.path("h"), **named)
    # The list of a bucket is a request for the path "/".
    t.put("run/step-1/model.safetensors", b"")
    listed = run("ckpt", "list", "--json", f"s3://{t.bucket}/run?path-style=0", **named)
    same(listed.stderr, "", "ckpt list")
    same([item["path"] for item in json.loads(listed.stdout)["checkpoints"]],
         [f"s3://{t.bucket}/run/step-1"], "checkpoints")


def case_client_odd_keys(t):
    files = Folder()
    for key in ("a b", "a+b", "ü/日本", "x%2Fy", "?q=1", "#f", "a&b=c", "'\"<>", "dir/", "//x",
                "c" * 300, "~", "a=b;c,d"):
        copy(files.write("f", key.encode()), url(t, key))
        same(t.body(key), key.encode(), f"object {key!r}")
        copy(url(t, key), files.path("g"))
        same(files.read("g"), key.encode(), f"file of {key!r}")


def case_client_at_once(t):
    """Eight processes copy to one server at the same time."""
    files, bodies = Folder(), [data(9 * MIB + n, n) for n in range(8)]
    paths = [files.write(f"f{n}", body) for n, body in enumerate(bodies)]
    running = [subprocess.Popen([PROGRAM, "cp", "--quiet", path, url(t, f"k{n}")])
               for n, path in enumerate(paths)]
    same([process.wait(120) for process in running], [0] * 8, "exit status of uploads")
    running = [subprocess.Popen([PROGRAM, "cp", "--quiet", url(t, f"k{n}"), path + "down"])
               for n, path in enumerate(paths)]
    same([process.wait(120) for process in running], [0] * 8, "exit status of downloads")
    true([files.read(f"f{n}down") for n in range(8)] == bodies, "a file differs")


def case_client_missing_object(t):
    files = Folder()
    refused(["NoSuchKey", "404"], url(t, "missing"), files.path("f"))


def case_client_missing_bucket(t):
    files = Folder()
    refused(["NoSuchBucket", "404"], f"s3://{t.name()}/k", files.path("f"))
    refused(["NoSuchBucket", "404"], files.write("f", b"x"), f"s3://{t.name()}/k")


def case_client_wrong_secret(t):
    """If the server refuses the signature, the message names the source of the access keys."""
    if os.environ.get("S3_SERVER") == "moto":
        raise Skip("moto verifies no signatures")
    files = Folder()
    t.put("k", b"x")
    wrong = {"AWS_SECRET_ACCESS_KEY": SECRET + "x"}
    refused(["SignatureDoesNotMatch", "403"], url(t, "k"), files.path("f"), **wrong)
    refused(["SignatureDoesNotMatch", "403"], files.write("g", b"y"), url(t, "k"), **wrong)
    same(t.body("k"), b"x", "object")


def case_client_no_keys(t):
    files, home = Folder(), Folder()
    t.put("k", b"x")
    refused(["AWS_ACCESS_KEY_ID"], url(t, "k"), files.path("f"), AWS_ACCESS_KEY_ID=None,
            AWS_SECRET_ACCESS_KEY=None, HOME=home.folder.name)


def case_client_no_server(t):
    files = Folder()
    refused(["refused", "connect"], url(t, "k"), files.path("f"),
            AWS_ENDPOINT_URL="http://127.0.0.1:1")


def case_client_profile(t):
    """Access key, region and endpoint are read from a profile in the files of AWS."""
    files = Folder()
    t.put("k", b"by profile")
    credentials = files.write("credentials", (
        "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n\n[work]\n"
        f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n").encode())
    config = files.write("config", (
        f"[profile work]\nregion = {REGION}\nendpoint_url = {ENDPOINT}\n").encode())
    os.chmod(credentials, 0o600)
    copy(url(t, "k"), files.path("f"), AWS_SHARED_CREDENTIALS_FILE=credentials,
         AWS_CONFIG_FILE=config, AWS_PROFILE="work", AWS_ACCESS_KEY_ID=None,
         AWS_SECRET_ACCESS_KEY=None, AWS_REGION=None, AWS_DEFAULT_REGION=None,
         AWS_ENDPOINT_URL=None)
    same(files.read("f"), b"by profile", "file")


def case_client_presigned(t):
    files, body = Folder(), data(9 * MIB)
    t.put("a b", body)
    link = t.s3.generate_presigned_url("get_object", Params={"Bucket": t.bucket, "Key": "a b"})
    copy(link, files.path("f"), AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
    true(files.read("f") == body, "the file differs")


def case_client_verify_is_refused(t):
    """`cp --verify` works only for files. With an object it fails before anything is copied."""
    files = Folder()
    refused(["--verify"], "--verify", files.write("f", b"x"), url(t, "k"))
    t.absent("k")


def bench(t, key, *options):
    """Measures the upload of an object. Returns the JSON report."""
    done = run("bench", "--json", "--rw", "write", "--block", "64KiB", *options, url(t, key),
               "host")
    same((done.returncode, done.stderr), (0, ""), f"bench --rw write {options}")
    checked = subprocess.run([sys.executable, SCHEMA, "/dev/stdin", "bench"], input=done.stdout,
                             capture_output=True, text=True, check=False)
    same(checked.stdout + checked.stderr, "", f"breaches of the schema by {done.stdout}")
    return json.loads(done.stdout)


def case_client_bench_upload(t):
    """bench --rw write uploads one object, of the given length or for the given time."""
    size = 12 * MIB
    report = bench(t, "k", "--size", str(size + 1), "--runtime", "60")
    same(report["bytes"], size, "bytes, in whole blocks")
    same(t.head("k")["ContentLength"], size, "length of the object")
    same(sum(report["parts"][by] for by in ("http", "rdma")) > 1, True, f"parts in {report}")
    timed = bench(t, "k", "--runtime", "0.3", "--overwrite")
    same(t.head("k")["ContentLength"], timed["bytes"], "length of the object written for 0.3 s")
    for wanted, *options in (("--overwrite", "--rw", "write"), ("--rw write", "--rw", "randwrite")):
        done = run("bench", *options, url(t, "k"), "host")
        true(done.returncode in (1, 2) and wanted in done.stderr, f"{options}: {done.stderr!r}")
    uploads = t.s3.list_multipart_uploads(Bucket=t.bucket).get("Uploads", [])
    same([item["Key"] for item in uploads], [], "uploads in progress")


def case_client_bench_upload_stopped(t):
    """A signal stops the upload of bench. Neither the object nor a part remains."""
    command = [PROGRAM, "bench", "--rw", "write", "--runtime", "60", url(t, "k"), "host"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not t.s3.list_multipart_uploads(
                Bucket=t.bucket).get("Uploads"):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    same((process.returncode, said), (143, "penstock: stopped by Terminated\n"), "bench")
    t.absent("k")
    uploads = t.s3.list_multipart_uploads(Bucket=t.bucket).get("Uploads", [])
    same([item["Key"] for item in uploads], [], "uploads in progress")


def case_client_explain_upload(t):
    """explain --write of an object changes nothing, and needs the object's length."""
    done = run("explain", "--json", "--write", "--size", "1MiB", url(t, "k"), "host")
    same((done.returncode, done.stderr), (0, ""), "explain --write")
    report = json.loads(done.stdout)
    true(report["op"] == "write" and report["path"] in ("rdma", "bounce"), str(report))
    t.absent("k")
    done = run("explain", "--write", url(t, "k"), "host")
    true(done.returncode == 2 and "--size" in done.stderr, f"without --size: {done.stderr!r}")
