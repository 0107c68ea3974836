# SPDX-License-Identifier: Apache-2.0
"""CopyObject and UploadPartCopy: sources, metadata, conditions and ranges."""

from tools import (MIB, PART, call, data, fails, md5, multipart_etag, one_of, same, true)

PAST = "Sat, 29 Oct 1994 19:43:31 GMT"


def copy(t, source, key, bucket=None, **named):
    return t.s3.copy_object(Bucket=bucket or t.bucket, Key=key,
                            CopySource={"Bucket": t.bucket, "Key": source}, **named)


def copy_raw(t, source, key="copy", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return call("PUT", t.path(key), headers={"x-amz-copy-source": source, **headers})


def case_copy_same_bucket(t):
    t.put("a", b"body")
    reply = copy(t, "a", "b")["CopyObjectResult"]
    same(reply["ETag"], f'"{md5(b"body")}"', "ETag")
    true(reply["LastModified"], "no LastModified")
    same((t.body("b"), t.body("a")), (b"body", b"body"), "bodies")


def case_copy_other_bucket(t):
    t.put("a", b"body")
    other = t.new_bucket()
    copy(t, "a", "b", other)
    same(t.s3.get_object(Bucket=other, Key="b")["Body"].read(), b"body", "body")


def case_copy_empty(t):
    t.put("a", b"")
    copy(t, "a", "b")
    same(t.body("b"), b"", "body")


def case_copy_large(t):
    body = data(11 * MIB + 3)
    t.put("a", body)
    copy(t, "a", "b")
    true(t.body("b") == body, "the body differs")


def case_copy_is_independent(t):
    t.put("a", b"first")
    copy(t, "a", "b")
    t.put("a", b"second, longer")
    same(t.body("b"), b"first", "body after an overwrite of the source")
    t.s3.delete_object(Bucket=t.bucket, Key="a")
    same(t.body("b"), b"first", "body after the deletion of the source")


def case_copy_keeps_metadata(t):
    t.put("a", b"x", ContentType="text/x", Metadata={"a": "b"}, CacheControl="no-cache")
    copy(t, "a", "b", Metadata={"ignored": "1"}, ContentType="text/ignored")
    got = t.head("b")
    same((got["ContentType"], got["Metadata"], got["CacheControl"]),
         ("text/x", {"a": "b"}, "no-cache"), "headers")


def case_copy_replaces_metadata(t):
    t.put("a", b"x", ContentType="text/x", Metadata={"a": "b"}, CacheControl="no-cache")
    copy(t, "a", "b", MetadataDirective="REPLACE", Metadata={"c": "d"}, ContentType="text/y")
    got = t.head("b")
    same((got["ContentType"], got["Metadata"], got.get("CacheControl")),
         ("text/y", {"c": "d"}, None), "headers")


def case_copy_directive_unknown(t):
    t.put("a", b"x")
    copy_raw(t, f"/{t.bucket}/a", x_amz_metadata_directive="BOGUS") \
        .is_error("InvalidArgument", 400)
    t.absent("copy")


def case_copy_onto_itself(t):
    t.put("a", b"x")
    fails("InvalidRequest", 400, copy, t, "a", "a")
    same(t.body("a"), b"x", "body")


def case_copy_onto_itself_with_metadata(t):
    t.put("a", b"x", Metadata={"a": "b"})
    copy(t, "a", "a", MetadataDirective="REPLACE", Metadata={"c": "d"})
    same((t.body("a"), t.head("a")["Metadata"]), (b"x", {"c": "d"}), "object")


def case_copy_source_missing(t):
    t.bucket
    fails("NoSuchKey", 404, copy, t, "missing", "b")
    t.absent("b")


def case_copy_source_bucket_missing(t):
    t.bucket
    fails("NoSuchBucket", 404, t.s3.copy_object, Bucket=t.bucket, Key="b",
          CopySource={"Bucket": t.name(), "Key": "a"})


def case_copy_to_missing_bucket(t):
    t.put("a", b"x")
    fails("NoSuchBucket", 404, copy, t, "a", "b", t.name())


def case_copy_source_forms(t):
    """The source is URL-encoded and may begin with a slash."""
    t.put("dir/a b+ü", b"odd")
    for n, source in enumerate(("dir/a%20b%2B%C3%BC", "dir%2Fa%20b%2B%C3%BC")):
        for slash in ("", "/"):
            copy_raw(t, f"{slash}{t.bucket}/{source}", f"copy{n}").is_ok()
            same(t.body(f"copy{n}"), b"odd", f"body of {slash}{source}")


def case_copy_odd_keys(t):
    for key in ("a/b", "a//b", "%41", "a?b", "a+b", "x/", "&", "日本"):
        t.put(key, key.encode())
        copy(t, key, "copy of " + key)
        same(t.body("copy of " + key), key.encode(), f"body of the copy of {key}")


def case_copy_source_malformed(t):
    t.bucket
    for source in ("/", f"/{t.bucket}", "nothing"):
        reply = copy_raw(t, source)
        one_of((reply.status, reply.code), [(400, "InvalidArgument"), (400, "InvalidRequest")],
               f"error of source {source}")
    t.absent("copy")


def case_copy_source_path_traversal(t):
    t.bucket
    for source in ("../../etc/passwd", f"{t.bucket}/../../../etc/passwd", "..%2F..%2Fetc/passwd",
                   f"{t.bucket}/..%2F..%2F..%2Fetc%2Fpasswd"):
        reply = copy_raw(t, source)
        true(reply.status >= 400, f"status {reply.status} of {source}, wanted an error")
    t.absent("copy")


def case_copy_if_match(t):
    etag = t.put("a", b"x")["ETag"]
    copy(t, "a", "b", CopySourceIfMatch=etag)
    fails("PreconditionFailed", 412, copy, t, "a", "c", CopySourceIfMatch='"0123"')
    t.absent("c")


def case_copy_if_none_match(t):
    etag = t.put("a", b"x")["ETag"]
    copy(t, "a", "b", CopySourceIfNoneMatch='"0123"')
    fails("PreconditionFailed", 412, copy, t, "a", "c", CopySourceIfNoneMatch=etag)
    t.absent("c")


def case_copy_if_modified_since(t):
    t.put("a", b"x")
    modified = call("HEAD", t.path("a")).headers["last-modified"]
    source = f"/{t.bucket}/a"
    copy_raw(t, source, x_amz_copy_source_if_modified_since=PAST).is_ok()
    copy_raw(t, source, x_amz_copy_source_if_modified_since=modified) \
        .is_error("PreconditionFailed", 412)


def case_copy_if_unmodified_since(t):
    t.put("a", b"x")
    modified = call("HEAD", t.path("a")).headers["last-modified"]
    source = f"/{t.bucket}/a"
    copy_raw(t, source, x_amz_copy_source_if_unmodified_since=modified).is_ok()
    copy_raw(t, source, x_amz_copy_source_if_unmodified_since=PAST) \
        .is_error("PreconditionFailed", 412)


def case_copy_multipart_object(t):
    bodies = [data(PART), b"end"]
    t.multipart("a", bodies, ContentType="text/x")
    copy(t, "a", "b")
    true(t.body("b") == b"".join(bodies), "the body differs")
    same(t.head("b")["ContentType"], "text/x", "Content-Type")


def case_copy_reply_xml(t):
    t.put("a", b"x")
    reply = copy_raw(t, f"/{t.bucket}/a").is_ok()
    true(b"<CopyObjectResult" in reply.body, f"reply {reply.body!r}")
    same(reply.headers["content-type"].split(";")[0], "application/xml", "Content-Type")


# --- UploadPartCopy ---------------------------------------------------------------

def part_copy(t, upload, number, source, **named):
    reply = t.s3.upload_part_copy(**upload, PartNumber=number, CopySource=source, **named)
    return {"PartNumber": number, "ETag": reply["CopyPartResult"]["ETag"]}


def case_part_copy_whole(t):
    body = data(PART + 7)
    t.put("a", body)
    upload = t.start()
    parts = [part_copy(t, upload, 1, f"{t.bucket}/a"), t.part(upload, 2, b"end")]
    same(parts[0]["ETag"], f'"{md5(body)}"', "ETag of the part")
    same(t.complete(upload, parts)["ETag"], multipart_etag([body, b"end"]), "ETag")
    true(t.body("k") == body + b"end", "the body differs")


def case_part_copy_ranges(t):
    body = data(2 * PART)
    t.put("a", body)
    upload = t.start()
    ranges = [(0, PART - 1), (PART, 2 * PART - 1), (10, 10)]
    parts = [part_copy(t, upload, n, f"{t.bucket}/a", CopySourceRange=f"bytes={a}-{b}")
             for n, (a, b) in enumerate(ranges, 1)]
    t.complete(upload, parts)
    true(t.body("k") == body + body[10:11], "the body differs")


def case_part_copy_of_multipart_object(t):
    bodies = [data(PART), data(1000, 2)]
    t.multipart("a", bodies)
    upload = t.start()
    part = part_copy(t, upload, 1, f"{t.bucket}/a",
                     CopySourceRange=f"bytes={PART - 10}-{PART + 9}")
    t.complete(upload, [part])
    same(t.body("k"), b"".join(bodies)[PART - 10:PART + 10], "body")


def case_part_copy_range_malformed(t):
    t.put("a", b"0123456789")
    upload = t.start()
    for text in ("bytes=0", "bytes=-3", "0-3", "bytes=x-3", "bytes=5-2", "bytes=hello", ""):
        reply = call("PUT", t.path("k"), f"partNumber=1&uploadId={upload['UploadId']}",
                     {"x-amz-copy-source": f"/{t.bucket}/a", "x-amz-copy-source-range": text})
        one_of((reply.status, reply.code),
               [(400, "InvalidArgument"), (400, "InvalidRequest"), (416, "InvalidRange")],
               f"error of range {text!r}")


def case_part_copy_range_beyond(t):
    t.put("a", b"0123456789")
    upload = t.start()
    fails(("InvalidArgument", "InvalidRange", "InvalidRequest"), (400, 416), part_copy, t, upload,
          1, f"{t.bucket}/a", CopySourceRange="bytes=5-10")


def case_part_copy_source_missing(t):
    upload = t.start()
    fails("NoSuchKey", 404, part_copy, t, upload, 1, f"{t.bucket}/missing")


def case_part_copy_unknown_upload(t):
    t.put("a", b"x")
    upload = {"Bucket": t.bucket, "Key": "k", "UploadId": "no-such-upload"}
    fails("NoSuchUpload", 404, part_copy, t, upload, 1, f"{t.bucket}/a")


def case_part_copy_if_match(t):
    etag = t.put("a", b"x")["ETag"]
    upload = t.start()
    fails("PreconditionFailed", 412, part_copy, t, upload, 1, f"{t.bucket}/a",
          CopySourceIfMatch='"0123"')
    t.complete(upload, [part_copy(t, upload, 1, f"{t.bucket}/a", CopySourceIfMatch=etag)])
    same(t.body("k"), b"x", "body")


def case_part_copy_other_bucket(t):
    t.put("a", b"across")
    other = t.new_bucket()
    made = t.s3.create_multipart_upload(Bucket=other, Key="k")
    upload = {"Bucket": other, "Key": "k", "UploadId": made["UploadId"]}
    t.complete(upload, [part_copy(t, upload, 1, f"{t.bucket}/a")])
    same(t.s3.get_object(Bucket=other, Key="k")["Body"].read(), b"across", "body")


def case_part_copy_lists_part(t):
    t.put("a", b"12345")
    upload = t.start()
    part = part_copy(t, upload, 3, f"{t.bucket}/a")
    listed = t.s3.list_parts(**upload)["Parts"]
    same([(p["PartNumber"], p["Size"], p["ETag"]) for p in listed], [(3, 5, part["ETag"])],
         "parts")
