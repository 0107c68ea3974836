# SPDX-License-Identifier: Apache-2.0
"""Details that programs rely on: parameters that SDKs add, version IDs in buckets without
versioning, headers that a server must not ignore silently, and objects that change while they are
read."""

import concurrent.futures

from botocore.exceptions import ClientError

from tools import (MIB, PART, call, connect, data, multipart_etag, one_of, open_socket, same,
                   send, short, signed, true)


def case_sdk_operation_names(t):
    """Amazon's SDK for JavaScript adds a parameter with the name of the operation. The server must
    ignore it."""
    call("PUT", t.path("k"), "x-id=PutObject", body=b"body").is_ok()
    same(call("GET", t.path("k"), "x-id=GetObject").is_ok().body, b"body", "body")
    call("HEAD", t.path("k"), "x-id=HeadObject").is_ok()
    reply = call("GET", t.path(), "list-type=2&x-id=ListObjectsV2").is_ok()
    true(b"<Key>k</Key>" in reply.body, f"listing {reply.body!r}")
    upload = t.start("m")
    reply = call("PUT", t.path("m"), f"partNumber=1&uploadId={upload['UploadId']}&x-id=UploadPart",
                 body=b"part").is_ok()
    t.complete(upload, [{"PartNumber": 1, "ETag": reply.headers["etag"]}])
    call("DELETE", t.path("k"), "x-id=DeleteObject").is_ok(204)
    same(t.keys(), ["m"], "keys")


def case_sdk_headers(t):
    """SDKs add headers, signed or unsigned, that have no effect."""
    path = t.path("k")
    headers = signed("PUT", path, body=b"body", headers={
        "amz-sdk-invocation-id": "6c54d2ce", "amz-sdk-request": "attempt=1; max=3",
        "x-amz-user-agent": "aws-sdk-js/3.0"})
    headers |= {"User-Agent": "x" * 500, "Accept": "*/*", "Accept-Encoding": "identity",
                "Connection": "keep-alive", "Cache-Control": "no-cache"}
    send("PUT", path, headers=headers, body=b"body").is_ok()
    same(t.body("k"), b"body", "body")


def case_version_null(t):
    """The version of an object in a bucket without versions is called null."""
    t.put("k", b"body")
    same(t.body("k", VersionId="null"), b"body", "body")
    call("DELETE", t.path("k"), "versionId=null").is_ok(204)
    t.absent("k")


def case_version_unknown(t):
    t.put("k", b"body")
    wanted = [(400, "InvalidArgument"), (404, "NoSuchVersion"), (501, "NotImplemented")]
    reply = call("GET", t.path("k"), "versionId=bogus")
    one_of((reply.status, reply.code), wanted, "error")


def case_version_unknown_deletes_nothing(t):
    t.put("k", b"body")
    call("DELETE", t.path("k"), "versionId=bogus")
    same(t.body("k"), b"body", "body")


def case_header_tagging_is_not_ignored(t):
    reply = call("PUT", t.path("k"), headers={"x-amz-tagging": "a=b"}, body=b"x")
    if reply.status == 200:
        tags = t.s3.get_object_tagging(Bucket=t.bucket, Key="k")["TagSet"]
        same(tags, [{"Key": "a", "Value": "b"}], "tags")
    else:
        t.absent("k")


def case_header_public_acl_is_not_ignored(t):
    """If a PUT makes the object public by an ACL, the object is then readable without a signature,
    or the PUT is refused."""
    reply = call("PUT", t.path("k"), headers={"x-amz-acl": "public-read"}, body=b"public")
    if reply.status == 200:
        same(send("GET", t.path("k")).is_ok().body, b"public", "body")
    else:
        one_of((reply.status, reply.code), [(400, "AccessControlListNotSupported"),
                                            (501, "NotImplemented")], "error")
        t.absent("k")


def case_header_customer_key_is_not_ignored(t):
    """A server that does not implement encryption with the customer's key must refuse a request
    with the headers for it."""
    headers = {"x-amz-server-side-encryption-customer-algorithm": "AES256",
               "x-amz-server-side-encryption-customer-key":
                   "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
               "x-amz-server-side-encryption-customer-key-md5": "uZwrf7U2Pdd6WhZsNpGvpw=="}
    reply = call("PUT", t.path("k"), headers=headers, body=b"x")
    if reply.status == 200:
        same(call("GET", t.path("k")).status, 400, "status of GET without the key")
    else:
        t.absent("k")


def case_header_object_lock_is_not_ignored(t):
    reply = call("PUT", t.path("k"), headers={
        "x-amz-object-lock-mode": "GOVERNANCE",
        "x-amz-object-lock-retain-until-date": "2036-01-01T00:00:00Z"}, body=b"x")
    true(reply.status >= 400, f"status {reply.status} in a bucket without locks")
    t.absent("k")


def case_header_content_md5_empty(t):
    t.bucket
    call("PUT", t.path("k"), headers={"Content-MD5": ""}, body=b"x").is_error("InvalidDigest", 400)


def case_header_content_type_empty(t):
    call("PUT", t.path("k"), headers={"Content-Type": ""}, body=b"x").is_ok()
    same(t.body("k"), b"x", "body")


def case_header_length_malformed(t):
    for text in ("-1", "x", "1x", "18446744073709551616", "0x1"):
        path = t.path("k")
        headers = signed("PUT", path, headers={"Content-Length": text}, body=b"x")
        stream = open_socket()
        stream.sendall((f"PUT {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\nx").encode())
        got = stream.recv(4096)
        stream.close()
        true(got == b"" or got[9:10] in (b"4", b"5"), f"reply {got!r} to length {text}")
    t.absent("k")


def case_header_two_lengths(t):
    """A request with two different lengths is refused, because such requests allow request
    smuggling."""
    path = t.path("k")
    headers = signed("PUT", path, body=b"x")
    stream = open_socket()
    stream.sendall((f"PUT {path} HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n"
                    + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                    + "\r\nxy").encode())
    got = stream.recv(4096)
    stream.close()
    true(got == b"" or got[9:12] == b"400", f"reply {got!r}, wanted 400")
    t.absent("k")


def case_object_overwritten_during_get(t):
    """If an object is overwritten during a read, the reader gets the old body or an error, never
    bytes of both."""
    old = data(24 * MIB, 1)
    t.put("k", old)
    path, connection = t.path("k"), connect()
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, value in signed("GET", path).items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    first = reply.read(1000)
    t.put("k", data(24 * MIB, 2))
    t.s3.delete_object(Bucket=t.bucket, Key="k")
    try:
        rest = reply.read()
    except OSError:
        return
    true(len(rest) + 1000 < len(old) or first + rest == old, "the body is a mixture")


def case_complete_at_once(t):
    """If two requests complete an upload at the same time, at least one succeeds, and the object
    is complete."""
    bodies, upload = [data(PART, 1), b"end"], t.start("k")
    parts = [t.part(upload, n, body) for n, body in enumerate(bodies, 1)]

    def work(_):
        try:
            return t.complete(upload, parts)["ETag"].strip('"')
        except ClientError as error:
            one_of(error.response["Error"]["Code"], ("NoSuchUpload", "OperationAborted"), "code")
            return None

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        tags = {tag for tag in pool.map(work, range(4)) if tag}
    same(tags, {multipart_etag(bodies).strip('"')}, "ETags")
    true(t.body("k") == b"".join(bodies), "the body differs")


def case_complete_and_abort_at_once(t):
    """An upload is completed and aborted at the same time. Either the object is complete, or the
    upload no longer exists."""
    for n in range(5):
        upload = t.start(f"k{n}")
        parts = [t.part(upload, 1, b"body")]

        def finish(abort, upload=upload, parts=parts):
            try:
                if abort:
                    t.s3.abort_multipart_upload(**upload)
                else:
                    t.complete(upload, parts)
                return "done"
            except ClientError as error:
                return error.response["Error"]["Code"]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            completed, aborted = pool.map(finish, (False, True))
        for result in (completed, aborted):
            one_of(result, ("done", "NoSuchUpload", "OperationAborted", "InvalidPart"), "result")
        if completed == "done":
            same(t.body(f"k{n}"), b"body", "body")
        else:
            t.absent(f"k{n}")
        true("done" in (completed, aborted), short((completed, aborted)))
