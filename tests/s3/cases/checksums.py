# SPDX-License-Identifier: Apache-2.0
"""Additional checksums of objects and parts, and GetObjectAttributes."""

import io

from boto3.s3.transfer import TransferConfig

from tools import (ALGORITHMS, PART, call, checksum, client, composite, data, fails, md5,
                   multipart_etag, one_of, same, true)

BODY = b"what the checksum is of"
FULL = ("CRC32", "CRC32C", "CRC64NVME")
COMPOSITE = ("CRC32", "CRC32C", "SHA1", "SHA256")


def field(algorithm):
    return f"Checksum{algorithm}"


def stored(t, algorithm):
    t.put("k", BODY, **{field(algorithm): checksum(algorithm, BODY)})
    head = t.head("k", ChecksumMode="ENABLED")
    same(head.get(field(algorithm)), checksum(algorithm, BODY), "checksum of HEAD")
    same(head.get("ChecksumType"), "FULL_OBJECT", "ChecksumType")
    got = t.get("k", ChecksumMode="ENABLED")
    same((got.get(field(algorithm)), got["Body"].read()),
         (checksum(algorithm, BODY), BODY), "GET")
    same(t.head("k").get(field(algorithm)), None, "checksum that was not asked for")


def case_checksum_crc32(t):
    stored(t, "CRC32")


def case_checksum_crc32c(t):
    stored(t, "CRC32C")


def case_checksum_crc64nvme(t):
    stored(t, "CRC64NVME")


def case_checksum_sha1(t):
    stored(t, "SHA1")


def case_checksum_sha256(t):
    stored(t, "SHA256")


def wrong(t, algorithm):
    t.put("old", b"old")
    for key in ("k", "old"):
        fails("BadDigest", 400, t.put, key, BODY,
              **{field(algorithm): checksum(algorithm, BODY + b"!")})
    t.absent("k")
    same(t.body("old"), b"old", "body")


def case_checksum_crc32_wrong(t):
    wrong(t, "CRC32")


def case_checksum_crc32c_wrong(t):
    wrong(t, "CRC32C")


def case_checksum_crc64nvme_wrong(t):
    wrong(t, "CRC64NVME")


def case_checksum_sha1_wrong(t):
    wrong(t, "SHA1")


def case_checksum_sha256_wrong(t):
    wrong(t, "SHA256")


def case_checksum_echoed_by_put(t):
    for algorithm in ALGORITHMS:
        value = checksum(algorithm, BODY)
        same(t.put("k", BODY, **{field(algorithm): value}).get(field(algorithm)), value,
             algorithm)


def case_checksum_malformed(t):
    t.bucket
    for value in ("x", "AAAA", checksum("SHA256", BODY), "!!!!!!=="):
        call("PUT", t.path("k"), headers={"x-amz-checksum-crc32": value}, body=BODY) \
            .is_error("InvalidRequest", 400)
    t.absent("k")


def case_checksum_two_at_once(t):
    call("PUT", t.path("k"), headers={
        "x-amz-checksum-crc32": checksum("CRC32", BODY),
        "x-amz-checksum-sha1": checksum("SHA1", BODY)}, body=BODY) \
        .is_error("InvalidRequest", 400)
    t.absent("k")


def case_checksum_algorithm_differs(t):
    """x-amz-sdk-checksum-algorithm must name the algorithm of the checksum in the request."""
    call("PUT", t.path("k"), headers={
        "x-amz-checksum-crc32": checksum("CRC32", BODY),
        "x-amz-sdk-checksum-algorithm": "SHA256"}, body=BODY) \
        .is_error(("BadDigest", "InvalidRequest"), 400)
    t.absent("k")


def case_checksum_of_sdk(t):
    """boto3 by default sends a CRC with each object, and verifies the CRC of each reply."""
    s3 = client(request_checksum_calculation="when_supported",
                response_checksum_validation="when_supported")
    for algorithm in ALGORITHMS:
        s3.put_object(Bucket=t.bucket, Key="k", Body=BODY, ChecksumAlgorithm=algorithm)
        got = s3.get_object(Bucket=t.bucket, Key="k")
        same((got["Body"].read(), got.get(field(algorithm))),
             (BODY, checksum(algorithm, BODY)), algorithm)


def case_checksum_empty_body(t):
    for algorithm in ALGORITHMS:
        t.put("k", b"", **{field(algorithm): checksum(algorithm, b"")})
        same(t.head("k", ChecksumMode="ENABLED").get(field(algorithm)),
             checksum(algorithm, b""), algorithm)


def case_checksum_not_of_range(t):
    """A reply with a range of an object must not contain the checksum of the whole object."""
    t.put("k", BODY, ChecksumCRC32=checksum("CRC32", BODY))
    got = t.get("k", Range="bytes=0-3", ChecksumMode="ENABLED")
    one_of(got.get("ChecksumCRC32"), (None, checksum("CRC32", BODY[:4])), "checksum")


def case_checksum_in_listing(t):
    t.put("k", BODY, ChecksumSHA256=checksum("SHA256", BODY))
    item = t.s3.list_objects_v2(Bucket=t.bucket)["Contents"][0]
    same(item.get("ChecksumAlgorithm"), ["SHA256"], "ChecksumAlgorithm")


def case_checksum_goes_with_overwrite(t):
    t.put("k", BODY, ChecksumSHA256=checksum("SHA256", BODY))
    t.put("k", b"other", ChecksumSHA1=checksum("SHA1", b"other"))
    head = t.head("k", ChecksumMode="ENABLED")
    same((head.get("ChecksumSHA256"), head.get("ChecksumSHA1")),
         (None, checksum("SHA1", b"other")), "checksums")


def case_checksum_kept_by_copy(t):
    t.put("a", BODY, ChecksumSHA1=checksum("SHA1", BODY))
    t.s3.copy_object(Bucket=t.bucket, Key="b", CopySource=f"{t.bucket}/a")
    same(t.head("b", ChecksumMode="ENABLED").get("ChecksumSHA1"), checksum("SHA1", BODY),
         "checksum")


def case_checksum_asked_of_copy(t):
    t.put("a", BODY)
    made = t.s3.copy_object(Bucket=t.bucket, Key="b", CopySource=f"{t.bucket}/a",
                            ChecksumAlgorithm="SHA256")
    wanted = checksum("SHA256", BODY)
    same((made["CopyObjectResult"].get("ChecksumSHA256"),
          t.head("b", ChecksumMode="ENABLED").get("ChecksumSHA256")), (wanted, wanted),
         "checksums")


# --- parts ------------------------------------------------------------------------

def checked_upload(t, algorithm, kind):
    bodies = [data(PART, 1), data(777, 2)]
    upload = t.start("k", ChecksumAlgorithm=algorithm, ChecksumType=kind)
    parts = []
    for number, body in enumerate(bodies, 1):
        value = checksum(algorithm, body)
        part = t.part(upload, number, body, **{field(algorithm): value})
        parts.append({**part, field(algorithm): value})
    return upload, bodies, parts


def case_checksum_multipart_composite(t):
    for algorithm in COMPOSITE:
        upload, bodies, parts = checked_upload(t, algorithm, "COMPOSITE")
        done = t.complete(upload, parts)
        wanted = composite(algorithm, bodies)
        same((done.get(field(algorithm)), done.get("ChecksumType")), (wanted, "COMPOSITE"),
             f"reply of {algorithm}")
        head = t.head("k", ChecksumMode="ENABLED")
        same((head.get(field(algorithm)), head.get("ChecksumType")), (wanted, "COMPOSITE"),
             f"HEAD of {algorithm}")


def case_checksum_multipart_full(t):
    for algorithm in FULL:
        upload, bodies, parts = checked_upload(t, algorithm, "FULL_OBJECT")
        wanted = checksum(algorithm, b"".join(bodies))
        done = t.complete(upload, parts, **{field(algorithm): wanted,
                                            "ChecksumType": "FULL_OBJECT"})
        same((done.get(field(algorithm)), done.get("ChecksumType")), (wanted, "FULL_OBJECT"),
             f"reply of {algorithm}")
        head = t.head("k", ChecksumMode="ENABLED")
        same((head.get(field(algorithm)), head.get("ChecksumType")), (wanted, "FULL_OBJECT"),
             f"HEAD of {algorithm}")


def case_checksum_multipart_full_wrong(t):
    for algorithm in FULL:
        upload, _, parts = checked_upload(t, algorithm, "FULL_OBJECT")
        fails("BadDigest", 400, t.complete, upload, parts, **{
            field(algorithm): checksum(algorithm, b"other"), "ChecksumType": "FULL_OBJECT"})
        t.absent("k")


def case_checksum_multipart_sha_has_no_full(t):
    t.bucket
    fails("InvalidRequest", 400, t.start, "k", ChecksumAlgorithm="SHA256",
          ChecksumType="FULL_OBJECT")


def case_checksum_multipart_crc64_has_no_composite(t):
    t.bucket
    fails("InvalidRequest", 400, t.start, "k", ChecksumAlgorithm="CRC64NVME",
          ChecksumType="COMPOSITE")


def case_checksum_part_wrong(t):
    upload = t.start("k", ChecksumAlgorithm="SHA256")
    fails("BadDigest", 400, t.part, upload, 1, BODY, ChecksumSHA256=checksum("SHA256", b"x"))
    same(t.s3.list_parts(**upload).get("Parts", []), [], "parts")


def case_checksum_part_listed(t):
    upload = t.start("k", ChecksumAlgorithm="SHA256")
    t.part(upload, 1, BODY, ChecksumSHA256=checksum("SHA256", BODY))
    reply = t.s3.list_parts(**upload)
    same((reply.get("ChecksumAlgorithm"), reply["Parts"][0].get("ChecksumSHA256")),
         ("SHA256", checksum("SHA256", BODY)), "checksum")


def case_checksum_complete_with_wrong_part(t):
    upload = t.start("k", ChecksumAlgorithm="SHA256")
    part = t.part(upload, 1, BODY, ChecksumSHA256=checksum("SHA256", BODY))
    fails(("InvalidPart", "BadDigest"), 400, t.complete, upload,
          [{**part, "ChecksumSHA256": checksum("SHA256", b"other")}])
    t.absent("k")


def case_checksum_sdk_transfer(t):
    """boto3 uploads a file in parts, with checksums that it computes itself."""
    s3 = client(request_checksum_calculation="when_supported",
                response_checksum_validation="when_supported")
    body, got = data(2 * PART + 9), io.BytesIO()
    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)
    s3.upload_fileobj(io.BytesIO(body), t.bucket, "k", Config=config)
    s3.download_fileobj(t.bucket, "k", got, Config=config)
    true(got.getvalue() == body, "the body differs")


# --- GetObjectAttributes ------------------------------------------------------------

WANTED = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]


def attributes(t, wanted=None, **named):
    return t.s3.get_object_attributes(Bucket=t.bucket, Key="k",
                                      ObjectAttributes=wanted or WANTED, **named)


def case_attributes_of_object(t):
    t.put("k", BODY, ChecksumSHA256=checksum("SHA256", BODY))
    got = attributes(t)
    same((got["ETag"], got["ObjectSize"], got["StorageClass"],
          got["Checksum"].get("ChecksumSHA256")),
         (md5(BODY), len(BODY), "STANDARD", checksum("SHA256", BODY)), "attributes")
    same("ObjectParts" in got, False, "ObjectParts of a plain object")
    true("LastModified" in got, "no Last-Modified")


def case_attributes_some(t):
    t.put("k", BODY)
    got = attributes(t, ["ObjectSize"])
    same((got["ObjectSize"], "ETag" in got, "StorageClass" in got), (len(BODY), False, False),
         "attributes")


def case_attributes_of_multipart_object(t):
    upload, bodies, parts = checked_upload(t, "SHA256", "COMPOSITE")
    t.complete(upload, parts)
    got = attributes(t)
    same((got["ETag"], got["ObjectSize"]), (multipart_etag(bodies).strip('"'), PART + 777),
         "attributes")
    listed = got["ObjectParts"]
    same((listed["TotalPartsCount"], [(p["PartNumber"], p["Size"], p.get("ChecksumSHA256"))
                                      for p in listed.get("Parts", [])]),
         (2, [(n, len(b), checksum("SHA256", b)) for n, b in enumerate(bodies, 1)]), "parts")


def case_attributes_parts_pages(t):
    upload, _, parts = checked_upload(t, "SHA256", "COMPOSITE")
    t.complete(upload, parts)
    got = attributes(t, ["ObjectParts"], MaxParts=1)["ObjectParts"]
    same(([p["PartNumber"] for p in got["Parts"]], got["IsTruncated"],
          got["NextPartNumberMarker"]), ([1], True, 1), "first page")
    got = attributes(t, ["ObjectParts"], MaxParts=1, PartNumberMarker=1)["ObjectParts"]
    same(([p["PartNumber"] for p in got["Parts"]], got["IsTruncated"]), ([2], False),
         "second page")


def case_attributes_missing(t):
    t.bucket
    fails("NoSuchKey", 404, attributes, t)


def case_attributes_unknown(t):
    t.put("k", BODY)
    for headers in ({}, {"x-amz-object-attributes": "Bogus"}):
        reply = call("GET", t.path("k"), "attributes", headers)
        one_of((reply.status, reply.code), [(400, "InvalidArgument"), (400, "InvalidRequest")],
               f"error with {headers}")
