# SPDX-License-Identifier: Apache-2.0
"""Access keys that may only read, and access keys that may not use the bucket."""

import os

from tools import Skip, Signer, call, fails, other_client, same, true


def case_read_key_reads(t):
    reader = other_client("READ")
    t.put("k", b"body")
    same(reader.get_object(Bucket=t.bucket, Key="k")["Body"].read(), b"body", "body")
    same(reader.head_object(Bucket=t.bucket, Key="k")["ContentLength"], 4, "length")
    same(len(reader.list_objects_v2(Bucket=t.bucket)["Contents"]), 1, "keys")
    reader.head_bucket(Bucket=t.bucket)


def case_read_key_writes_nothing(t):
    reader = other_client("READ")
    t.put("k", b"body")
    upload = t.start("up")
    part = t.part(upload, 1, b"x")
    where = {"Bucket": t.bucket, "Key": "k"}
    for method, named in (
            ("put_object", {**where, "Body": b"x"}), ("delete_object", where),
            ("copy_object", {"Bucket": t.bucket, "Key": "c", "CopySource": f"{t.bucket}/k"}),
            ("delete_objects", {"Bucket": t.bucket, "Delete": {"Objects": [{"Key": "k"}]}}),
            ("create_multipart_upload", where), ("delete_bucket", {"Bucket": t.bucket}),
            ("create_bucket", {"Bucket": t.name()}), ("abort_multipart_upload", upload),
            ("upload_part", {**upload, "PartNumber": 2, "Body": b"y"}),
            ("upload_part_copy", {**upload, "PartNumber": 2, "CopySource": f"{t.bucket}/k"}),
            ("complete_multipart_upload", {**upload, "MultipartUpload": {"Parts": [part]}})):
        try:
            fails("AccessDenied", 403, getattr(reader, method), **named)
        except AssertionError as error:
            raise AssertionError(f"{method}: {error}") from None
    same((t.keys(), t.body("k")), (["k"], b"body"), "objects")
    t.complete(upload, [part])


def case_other_key_is_denied(t):
    other = other_client("OTHER")
    t.put("k", b"body")
    upload = t.start("up")
    where = {"Bucket": t.bucket, "Key": "k"}
    for method, named in (
            ("get_object", where), ("put_object", {**where, "Body": b"x"}),
            ("delete_object", where), ("list_objects_v2", {"Bucket": t.bucket}),
            ("list_objects", {"Bucket": t.bucket}), ("list_parts", upload),
            ("list_multipart_uploads", {"Bucket": t.bucket}),
            ("get_bucket_acl", {"Bucket": t.bucket}), ("delete_bucket", {"Bucket": t.bucket})):
        try:
            fails("AccessDenied", 403, getattr(other, method), **named)
        except AssertionError as error:
            raise AssertionError(f"{method}: {error}") from None
    fails("403", 403, other.head_object, **where)
    fails("403", 403, other.head_bucket, Bucket=t.bucket)
    same(t.body("k"), b"body", "body")


def case_other_key_learns_no_key_names(t):
    """A key without access gets the same answer for existing and for missing objects, so it learns
    no names."""
    other = other_client("OTHER")
    t.put("k", b"body")
    for key in ("k", "missing"):
        fails("AccessDenied", 403, other.get_object, Bucket=t.bucket, Key=key)


def case_other_key_copies_nothing_out(t):
    """A copy is refused if the access key may not read the source."""
    other = other_client("OTHER")
    t.put("k", b"body")
    try:
        other.create_bucket(Bucket="other-bucket")
        fails("AccessDenied", 403, other.copy_object, Bucket="other-bucket", Key="c",
              CopySource=f"{t.bucket}/k")
        made = other.create_multipart_upload(Bucket="other-bucket", Key="c")
        upload = {"Bucket": "other-bucket", "Key": "c", "UploadId": made["UploadId"]}
        fails("AccessDenied", 403, other.upload_part_copy, **upload, PartNumber=1,
              CopySource=f"{t.bucket}/k")
        other.abort_multipart_upload(**upload)
    finally:
        other.delete_bucket(Bucket="other-bucket")


def case_other_key_lists_own_buckets(t):
    other = other_client("OTHER")
    t.bucket
    names = [item["Name"] for item in other.list_buckets()["Buckets"]]
    true(t.bucket not in names, f"buckets {names} have {t.bucket}")


def case_other_key_deletes_many_denied(t):
    t.put("k", b"body")
    fails("AccessDenied", 403, other_client("OTHER").delete_objects, Bucket=t.bucket,
          Delete={"Objects": [{"Key": "k"}]})
    same(t.keys(), ["k"], "keys")


def case_other_secret_with_own_key(t):
    """The secret of another access key does not authenticate this access key."""
    if "S3_OTHER_KEY" not in os.environ:
        raise Skip("no key S3_OTHER_KEY is given")
    t.bucket
    signer = Signer(secret=os.environ["S3_OTHER_SECRET"])
    call("GET", t.path(), signer=signer).is_error("SignatureDoesNotMatch", 403)
