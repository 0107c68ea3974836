# SPDX-License-Identifier: Apache-2.0
"""Multipart uploads: parts, their order and sizes, completion and abort, and the listings of
uploads and parts."""

import concurrent.futures
import io

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tools import (MIB, PART, call, content_md5, data, fails, multipart_etag, md5, one_of, same,
                   true)

NO_ID = "no-such-upload-id"


def parts_xml(parts, quote="&quot;"):
    items = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{quote}{etag}{quote}</ETag></Part>"
                    for n, etag in parts)
    return f"<CompleteMultipartUpload>{items}</CompleteMultipartUpload>".encode()


def complete_raw(t, upload, body):
    return call("POST", t.path(upload["Key"]), f"uploadId={upload['UploadId']}", body=body)


def two_parts(t, key="k"):
    """Uploads two parts. Returns the upload, the bodies, and the list of parts for the completion.
    """
    upload, bodies = t.start(key), [data(PART, 1), data(1000, 2)]
    return upload, bodies, [t.part(upload, n, b) for n, b in enumerate(bodies, 1)]


def case_multipart_one_part(t):
    done = t.multipart("k", [b"small"])
    same(done["ETag"], multipart_etag([b"small"]), "ETag")
    same(t.body("k"), b"small", "body")


def case_multipart_two_parts(t):
    upload, bodies, parts = two_parts(t)
    same([part["ETag"] for part in parts], [f'"{md5(b)}"' for b in bodies], "ETags of parts")
    done = t.complete(upload, parts)
    same((done["Bucket"], done["Key"], done["ETag"]), (t.bucket, "k", multipart_etag(bodies)),
         "reply")
    true(done["Location"], "no Location")
    true(t.body("k") == b"".join(bodies), "the body differs")
    head = t.head("k")
    same((head["ETag"], head["ContentLength"]), (multipart_etag(bodies), PART + 1000), "HEAD")
    item = t.s3.list_objects_v2(Bucket=t.bucket)["Contents"][0]
    same((item["ETag"], item["Size"]), (multipart_etag(bodies), PART + 1000), "listing")


def case_multipart_empty_part(t):
    done = t.multipart("k", [b""])
    same((t.body("k"), done["ETag"]), (b"", multipart_etag([b""])), "object")


def case_multipart_headers(t):
    upload = t.start("k", ContentType="text/x", Metadata={"a": "b"}, CacheControl="no-cache",
                     ContentDisposition="inline", ContentEncoding="gzip", ContentLanguage="de")
    t.complete(upload, [t.part(upload, 1, b"x")])
    got = t.head("k")
    fields = ("ContentType", "Metadata", "CacheControl", "ContentDisposition",
              "ContentEncoding", "ContentLanguage")
    same([got.get(f) for f in fields],
         ["text/x", {"a": "b"}, "no-cache", "inline", "gzip", "de"], "headers")


def case_multipart_default_type(t):
    call("POST", t.path("k"), "uploads").is_ok()
    upload = t.start("k")
    t.complete(upload, [t.part(upload, 1, b"x")])
    same(t.head("k")["ContentType"], "binary/octet-stream", "Content-Type")


def case_multipart_invisible_before_completion(t):
    two_parts(t)
    t.absent("k")
    same(t.keys(), [], "keys")


def case_multipart_keeps_old_until_completion(t):
    t.put("k", b"old")
    upload, bodies, parts = two_parts(t)
    same(t.body("k"), b"old", "body before")
    t.complete(upload, parts)
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_multipart_replaced_by_put(t):
    t.multipart("k", [b"multi"], Metadata={"a": "b"})
    t.put("k", b"single")
    got = t.get("k")
    same((got["Body"].read(), got["ETag"], got["Metadata"]),
         (b"single", f'"{md5(b"single")}"', {}), "object")


def case_multipart_range_across_parts(t):
    upload, bodies, parts = two_parts(t)
    t.complete(upload, parts)
    whole = b"".join(bodies)
    for first, last in ((PART - 1, PART), (PART - 10, PART + 9), (PART, PART), (0, PART),
                        (PART - 1, PART - 1), (PART + 990, PART + 999)):
        same(t.body("k", Range=f"bytes={first}-{last}"), whole[first:last + 1],
             f"bytes {first}-{last}")


def case_multipart_get_part(t):
    upload, bodies, parts = two_parts(t)
    t.complete(upload, parts)
    for n, body in enumerate(bodies, 1):
        got = t.get("k", PartNumber=n)
        same((got["ResponseMetadata"]["HTTPStatusCode"], got["PartsCount"],
              got["ContentLength"]), (206, 2, len(body)), f"part {n}")
        true(got["Body"].read() == body, "the body differs")
        head = t.head("k", PartNumber=n)
        same((head["PartsCount"], head["ContentLength"]), (2, len(body)), f"HEAD of part {n}")
    fails(("InvalidPartNumber", "InvalidPart", "InvalidRange"), (400, 416), t.get, "k",
          PartNumber=3)


def case_multipart_get_part_of_plain_object(t):
    t.put("k", b"plain")
    got = t.get("k", PartNumber=1)
    same((got["ResponseMetadata"]["HTTPStatusCode"], got["Body"].read()), (206, b"plain"),
         "part 1")
    fails(("InvalidPartNumber", "InvalidPart", "InvalidRange"), (400, 416), t.get, "k",
          PartNumber=2)


def case_multipart_get_part_with_range(t):
    t.put("k", b"plain")
    fails("InvalidRequest", 400, t.get, "k", PartNumber=1, Range="bytes=0-1")


def case_multipart_part_numbers_may_skip(t):
    upload, bodies = t.start(), [data(PART, 1), data(PART, 2), b"end"]
    parts = [t.part(upload, n, b) for n, b in zip((3, 70, 10000), bodies)]
    done = t.complete(upload, parts)
    same(done["ETag"], multipart_etag(bodies), "ETag")
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_multipart_parts_in_any_order(t):
    upload, bodies = t.start(), {2: b"end", 1: data(PART)}
    parts = {n: t.part(upload, n, b) for n, b in bodies.items()}
    t.complete(upload, [parts[1], parts[2]])
    true(t.body("k") == bodies[1] + bodies[2], "the body differs")


def case_multipart_part_uploaded_again(t):
    upload = t.start()
    first = t.part(upload, 1, b"first")
    second = t.part(upload, 1, b"second")
    fails("InvalidPart", 400, t.complete, upload, [first])
    t.complete(upload, [second])
    same(t.body("k"), b"second", "body")


def case_multipart_some_of_the_parts(t):
    upload, bodies, parts = two_parts(t)
    t.complete(upload, parts[1:])
    same(t.body("k"), bodies[1], "body")


def case_multipart_at_once(t):
    upload, bodies = t.start(), [data(PART, n) for n in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda item: t.part(upload, *item), enumerate(bodies, 1)))
    same(t.complete(upload, parts)["ETag"], multipart_etag(bodies), "ETag")
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_multipart_two_uploads_of_one_key(t):
    one, two = t.start(), t.start()
    true(one["UploadId"] != two["UploadId"], "the upload IDs are equal")
    first, second = t.part(one, 1, b"one"), t.part(two, 1, b"two")
    t.complete(two, [second])
    same(t.body("k"), b"two", "body")
    t.complete(one, [first])
    same(t.body("k"), b"one", "body")


def case_multipart_part_too_small(t):
    upload, bodies = t.start(), [b"small", b"end"]
    parts = [t.part(upload, n, b) for n, b in enumerate(bodies, 1)]
    fails("EntityTooSmall", 400, t.complete, upload, parts)
    t.absent("k")
    same(len(t.s3.list_parts(**upload)["Parts"]), 2, "parts after the refusal")


def case_multipart_part_one_byte_too_small(t):
    upload, bodies = t.start(), [data(PART - 1), b"end"]
    parts = [t.part(upload, n, b) for n, b in enumerate(bodies, 1)]
    fails("EntityTooSmall", 400, t.complete, upload, parts)


def case_multipart_wrong_etag(t):
    upload = t.start()
    t.part(upload, 1, b"x")
    fails("InvalidPart", 400, t.complete, upload, [{"PartNumber": 1, "ETag": md5(b"y")}])
    t.absent("k")


def case_multipart_missing_part(t):
    upload = t.start()
    part = t.part(upload, 1, data(PART))
    fails("InvalidPart", 400, t.complete, upload, [part, {"PartNumber": 2, "ETag": md5(b"y")}])


def case_multipart_wrong_order(t):
    upload, _, parts = two_parts(t)
    fails("InvalidPartOrder", 400, t.complete, upload, parts[::-1])


def case_multipart_part_twice_in_list(t):
    upload = t.start()
    part = t.part(upload, 1, data(PART))
    fails("InvalidPartOrder", 400, t.complete, upload, [part, part])


def case_multipart_no_parts_in_list(t):
    upload = t.start()
    t.part(upload, 1, b"x")
    complete_raw(t, upload, parts_xml([])).is_error("MalformedXML", 400)


def case_multipart_list_malformed(t):
    upload = t.start()
    t.part(upload, 1, b"x")
    for body in (b"", b"<Complete", b"<Other></Other>", b"text", parts_xml([("x", md5(b"x"))])):
        complete_raw(t, upload, body).is_error(("MalformedXML", "InvalidRequest"), 400)
    t.absent("k")


def case_multipart_etags_without_quotes(t):
    upload = t.start()
    t.part(upload, 1, b"x")
    complete_raw(t, upload, parts_xml([(1, md5(b"x"))], "")).is_ok()
    same(t.body("k"), b"x", "body")


def case_multipart_list_with_namespace(t):
    upload = t.start()
    t.part(upload, 1, b"x")
    body = parts_xml([(1, md5(b"x"))]).replace(
        b"<CompleteMultipartUpload>",
        b'<?xml version="1.0" encoding="UTF-8"?>\n<CompleteMultipartUpload '
        b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/">')
    complete_raw(t, upload, body).is_ok()
    same(t.body("k"), b"x", "body")


def case_multipart_reply_xml(t):
    upload = t.start("a/b&c")
    t.part(upload, 1, b"x")
    reply = complete_raw(t, upload, parts_xml([(1, md5(b"x"))])).is_ok()
    true(b"<Key>a/b&amp;c</Key>" in reply.body, f"reply {reply.body!r}")
    same(reply.headers["content-type"].split(";")[0], "application/xml", "Content-Type")


def case_multipart_unknown_upload(t):
    no_upload = {"Bucket": t.bucket, "Key": "k", "UploadId": NO_ID}
    fails("NoSuchUpload", 404, t.part, no_upload, 1, b"x")
    fails("NoSuchUpload", 404, t.s3.list_parts, **no_upload)
    fails("NoSuchUpload", 404, t.s3.abort_multipart_upload, **no_upload)
    fails("NoSuchUpload", 404, t.complete, no_upload, [{"PartNumber": 1, "ETag": md5(b"x")}])


def case_multipart_upload_id_like_a_path(t):
    for name in ("../x", "..", ".", "/", "a/../../b", "x" * 300):
        upload = {"Bucket": t.bucket, "Key": "k", "UploadId": name}
        fails("NoSuchUpload", 404, t.part, upload, 1, b"x")
        fails("NoSuchUpload", 404, t.s3.abort_multipart_upload, **upload)


def case_multipart_upload_of_other_key(t):
    upload = dict(t.start("k"), Key="other")
    fails("NoSuchUpload", 404, t.part, upload, 1, b"x")


def case_multipart_upload_of_other_bucket(t):
    upload = dict(t.start("k"), Bucket=t.new_bucket())
    fails("NoSuchUpload", 404, t.part, upload, 1, b"x")


def case_multipart_start_in_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.create_multipart_upload, Bucket=t.name(), Key="k")


def case_multipart_abort(t):
    upload, _, parts = two_parts(t)
    reply = t.s3.abort_multipart_upload(**upload)
    same(reply["ResponseMetadata"]["HTTPStatusCode"], 204, "status")
    fails("NoSuchUpload", 404, t.complete, upload, parts)
    fails("NoSuchUpload", 404, t.s3.list_parts, **upload)
    fails("NoSuchUpload", 404, t.part, upload, 1, b"x")
    t.absent("k")


def case_multipart_abort_without_parts(t):
    t.s3.abort_multipart_upload(**t.start())
    same(t.s3.list_multipart_uploads(Bucket=t.bucket).get("Uploads", []), [], "uploads")


def case_multipart_complete_twice(t):
    """A second completion returns the same reply as the first, or the error that the upload does
    not exist."""
    upload, bodies, parts = two_parts(t)
    t.complete(upload, parts)
    try:
        same(t.complete(upload, parts)["ETag"], multipart_etag(bodies), "ETag")
    except ClientError as error:
        same(error.response["Error"]["Code"], "NoSuchUpload", "code")
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_multipart_part_after_completion(t):
    upload = t.start()
    t.complete(upload, [t.part(upload, 1, b"x")])
    fails("NoSuchUpload", 404, t.part, upload, 2, b"y")


def case_multipart_part_number_bounds(t):
    upload = t.start()
    for number in ("0", "10001", "-1", "x", "4294967297"):
        call("PUT", t.path("k"), f"partNumber={number}&uploadId={upload['UploadId']}",
             body=b"x").is_error("InvalidArgument", 400)


def case_multipart_part_without_upload(t):
    """A PUT with a part number but without an upload ID must not store an object."""
    reply = call("PUT", t.path("k"), "partNumber=1", body=b"x")
    true(reply.status >= 400, f"status {reply.status}, wanted an error")
    t.absent("k")


def case_multipart_part_content_md5(t):
    upload = t.start()
    part = t.part(upload, 1, b"abc", ContentMD5=content_md5(b"abc"))
    fails("BadDigest", 400, t.part, upload, 1, b"abd", ContentMD5=content_md5(b"abc"))
    t.complete(upload, [part])
    same(t.body("k"), b"abc", "body")


def case_multipart_list_parts(t):
    upload, bodies, parts = two_parts(t)
    reply = t.s3.list_parts(**upload)
    same([(p["PartNumber"], p["ETag"], p["Size"]) for p in reply["Parts"]],
         [(p["PartNumber"], p["ETag"], len(b)) for p, b in zip(parts, bodies)], "parts")
    fields = ("Bucket", "Key", "UploadId", "IsTruncated", "StorageClass")
    same([reply.get(f) for f in fields],
         [t.bucket, "k", upload["UploadId"], False, "STANDARD"], "fields")
    true(reply["Owner"]["ID"] and reply["Initiator"]["ID"], "no Owner or no Initiator")
    true("LastModified" in reply["Parts"][0], "no LastModified")


def case_multipart_list_parts_none(t):
    reply = t.s3.list_parts(**t.start())
    same((reply.get("Parts", []), reply["IsTruncated"]), ([], False), "reply")


def case_multipart_list_parts_pages(t):
    upload = t.start()
    numbers = [1, 2, 5, 9, 10, 11, 100]
    for number in numbers:
        t.part(upload, number, b"x")
    found, marker = [], 0
    while True:
        reply = t.s3.list_parts(**upload, MaxParts=2, PartNumberMarker=marker)
        true(len(reply["Parts"]) <= 2, "a page is too long")
        found += [part["PartNumber"] for part in reply["Parts"]]
        if not reply["IsTruncated"]:
            break
        marker = reply["NextPartNumberMarker"]
        same(marker, found[-1], "NextPartNumberMarker")
    same(found, numbers, "part numbers")


def case_multipart_list_parts_bad_maximum(t):
    upload = t.start()
    call("GET", t.path("k"), f"max-parts=x&uploadId={upload['UploadId']}") \
        .is_error("InvalidArgument", 400)


def uploads(reply):
    return [(item["Key"], item["UploadId"]) for item in reply.get("Uploads", [])]


def case_multipart_list_uploads(t):
    started = [t.start(key) for key in ("b", "a", "c/d")]
    reply = t.s3.list_multipart_uploads(Bucket=t.bucket)
    same(uploads(reply), sorted((u["Key"], u["UploadId"]) for u in started), "uploads")
    same((reply["Bucket"], reply["IsTruncated"]), (t.bucket, False), "fields")
    item = reply["Uploads"][0]
    true(item["Initiated"] and item["Owner"] and item["Initiator"], "a field is missing")
    same(item["StorageClass"], "STANDARD", "StorageClass")


def case_multipart_list_uploads_none(t):
    reply = t.s3.list_multipart_uploads(Bucket=t.bucket)
    same((uploads(reply), reply["IsTruncated"]), ([], False), "reply")


def case_multipart_list_uploads_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.list_multipart_uploads, Bucket=t.name())


def case_multipart_list_uploads_after_end(t):
    done, gone = t.start("done"), t.start("gone")
    t.complete(done, [t.part(done, 1, b"x")])
    t.s3.abort_multipart_upload(**gone)
    same(uploads(t.s3.list_multipart_uploads(Bucket=t.bucket)), [], "uploads")


def case_multipart_list_uploads_prefix(t):
    for key in ("a/1", "a/2/x", "b"):
        t.start(key)
    reply = t.s3.list_multipart_uploads(Bucket=t.bucket, Prefix="a/")
    same([key for key, _ in uploads(reply)], ["a/1", "a/2/x"], "keys")
    reply = t.s3.list_multipart_uploads(Bucket=t.bucket, Prefix="a/", Delimiter="/")
    same(([key for key, _ in uploads(reply)], [p["Prefix"] for p in reply["CommonPrefixes"]]),
         (["a/1"], ["a/2/"]), "keys and prefixes")


def case_multipart_list_uploads_pages(t):
    """Uploads are listed in the order of their keys. Uploads of one key are listed in the order of
    their start. With the markers of one page, the next page continues without missing an upload."""
    started = sorted((u["Key"], u["UploadId"])
                     for u in (t.start(key) for key in ("a", "b", "b", "b", "c", "d")))
    found, markers = [], {}
    while True:
        reply = t.s3.list_multipart_uploads(Bucket=t.bucket, MaxUploads=1, **markers)
        true(len(uploads(reply)) <= 1 and len(found) < 10, "a page is too long, or has no end")
        found += uploads(reply)
        if not reply["IsTruncated"]:
            break
        markers = {"KeyMarker": reply["NextKeyMarker"],
                   "UploadIdMarker": reply["NextUploadIdMarker"]}
    same(sorted(found), started, "uploads")
    same([key for key, _ in found], [key for key, _ in started], "keys")


def case_multipart_list_uploads_key_marker(t):
    for key in ("a", "b", "c"):
        t.start(key)
    reply = t.s3.list_multipart_uploads(Bucket=t.bucket, KeyMarker="a")
    same([key for key, _ in uploads(reply)], ["b", "c"], "keys")


def case_multipart_odd_key(t):
    key = "a b/ü+&<%2F>/" + "long" * 70
    upload = t.start(key)
    same(uploads(t.s3.list_multipart_uploads(Bucket=t.bucket))[0][0], key, "key of the upload")
    t.complete(upload, [t.part(upload, 1, b"odd")])
    same((t.body(key), t.keys()), (b"odd", [key]), "object")


def case_multipart_large(t):
    bodies = [data(6 * MIB + 3, 1), data(5 * MIB + 1, 2), data(9 * MIB, 3), data(17, 4)]
    done = t.multipart("k", bodies)
    same(done["ETag"], multipart_etag(bodies), "ETag")
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_multipart_sdk_transfer(t):
    """boto3's own function uploads a file in parts."""
    body = data(21 * MIB + 5)
    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)
    t.s3.upload_fileobj(io.BytesIO(body), t.bucket, "k", Config=config)
    got = io.BytesIO()
    t.s3.download_fileobj(t.bucket, "k", got, Config=config)
    true(got.getvalue() == body, "the body differs")
    same(t.head("k")["ETag"].rpartition("-")[2], '5"', "parts by the ETag")


def case_multipart_size_given(t):
    upload = t.start()
    parts = [t.part(upload, 1, b"12345")]
    fails("InvalidRequest", 400, t.complete, upload, parts, MpuObjectSize=6)
    t.complete(upload, parts, MpuObjectSize=5)
    same(t.body("k"), b"12345", "body")


def case_multipart_delete_object_during_upload(t):
    t.put("k", b"old")
    upload = t.start()
    part = t.part(upload, 1, b"new")
    t.s3.delete_object(Bucket=t.bucket, Key="k")
    same(len(uploads(t.s3.list_multipart_uploads(Bucket=t.bucket))), 1, "uploads")
    t.complete(upload, [part])
    same(t.body("k"), b"new", "body")


def case_multipart_unknown_post(t):
    t.put("k", b"body")
    reply = call("POST", t.path("k"), "select&select-type=2", body=b"<x/>")
    one_of((reply.status >= 400, t.body("k")), [(True, b"body")], "refusal and body")
