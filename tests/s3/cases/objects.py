# SPDX-License-Identifier: Apache-2.0
"""Objects: bodies of all sizes, headers and metadata, ranges, and requests that end early."""

import concurrent.futures
import email.utils
import hashlib
import socket

from tools import (MIB, call, connect, content_md5, data, fails, md5, one_of,
                   open_socket, same, send, short, signed, true)


def round_trip(t, length):
    body = data(length)
    reply = t.put("k", body)
    same(reply["ETag"], f'"{md5(body)}"', "ETag of PUT")
    got = t.get("k")
    same(got["ContentLength"], length, "Content-Length")
    same(got["ETag"], f'"{md5(body)}"', "ETag of GET")
    true(got["Body"].read() == body, "the body differs")


def case_object_empty(t):
    round_trip(t, 0)


def case_object_one_byte(t):
    round_trip(t, 1)


def case_object_sizes_around_pages(t):
    for length in (511, 512, 4095, 4096, 4097, 65535, 65536, 65537):
        round_trip(t, length)


def case_object_mebibyte(t):
    round_trip(t, MIB + 7)


def case_object_large(t):
    round_trip(t, 17 * MIB + 1)


def case_object_missing(t):
    t.bucket
    fails("NoSuchKey", 404, t.get, "missing")


def case_object_head_missing(t):
    fails("404", 404, t.head, "missing")


def case_object_get_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.get_object, Bucket=t.name(), Key="k")


def case_object_put_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.put_object, Bucket=t.name(), Key="k", Body=b"x")


def case_object_overwrite(t):
    t.put("k", b"long first body", Metadata={"first": "1"}, ContentType="text/plain")
    t.put("k", b"second")
    got = t.get("k")
    same(got["Body"].read(), b"second", "body")
    same(got["Metadata"], {}, "metadata")
    same(got["ContentType"], "binary/octet-stream", "Content-Type")
    same(t.keys(), ["k"], "keys")


def case_object_delete(t):
    t.put("k")
    reply = t.s3.delete_object(Bucket=t.bucket, Key="k")
    same(reply["ResponseMetadata"]["HTTPStatusCode"], 204, "status")
    fails("NoSuchKey", 404, t.get, "k")
    same(t.keys(), [], "keys")


def case_object_delete_missing(t):
    reply = t.s3.delete_object(Bucket=t.bucket, Key="missing")
    same(reply["ResponseMetadata"]["HTTPStatusCode"], 204, "status")


def case_object_delete_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.delete_object, Bucket=t.name(), Key="k")


def case_object_head_equals_get(t):
    t.put("k", b"12345", ContentType="text/x", Metadata={"a": "b"})
    got, head = t.get("k"), t.head("k")
    for field in ("ContentLength", "ETag", "ContentType", "LastModified", "Metadata",
                  "AcceptRanges"):
        same(head.get(field), got.get(field), field)
    same(head["AcceptRanges"], "bytes", "Accept-Ranges")


def case_object_last_modified(t):
    t.put("k")
    text = call("HEAD", t.path("k")).headers["last-modified"]
    true(text.endswith(" GMT"), f"Last-Modified is {text}")
    age = email.utils.parsedate_to_datetime(call("HEAD", t.path("k")).headers["date"]) - \
        email.utils.parsedate_to_datetime(text)
    true(0 <= age.total_seconds() < 60, f"Last-Modified is {age} old")


def case_object_standard_headers(t):
    sent = {"CacheControl": "max-age=3", "ContentDisposition": 'attachment; filename="x"',
            "ContentEncoding": "gzip", "ContentLanguage": "de, en", "ContentType": "text/x; a=b"}
    t.put("k", b"x", **sent)
    got = t.get("k")
    same({name: got.get(name) for name in sent}, sent, "headers")


def case_object_expires(t):
    text = "Thu, 01 Dec 2033 16:00:00 GMT"
    call("PUT", t.path("k"), headers={"Expires": text}, body=b"x").is_ok()
    same(call("HEAD", t.path("k")).headers.get("expires"), text, "Expires")


def case_object_default_type(t):
    call("PUT", t.path("k"), body=b"x").is_ok()
    same(t.head("k")["ContentType"], "binary/octet-stream", "Content-Type")


def case_object_response_headers(t):
    t.put("k", b"x", ContentType="text/x")
    got = t.get("k", ResponseContentType="a/b", ResponseContentDisposition="c",
                ResponseContentEncoding="d", ResponseContentLanguage="e",
                ResponseCacheControl="f")
    fields = ("ContentType", "ContentDisposition", "ContentEncoding", "ContentLanguage",
              "CacheControl")
    same([got.get(name) for name in fields], ["a/b", "c", "d", "e", "f"], "headers")
    same(t.head("k")["ContentType"], "text/x", "the object's own Content-Type")


def case_metadata_round_trip(t):
    sent = {"one": "1", "two-words": "a b", "three": "x=1;y=\"2\",<&>"}
    t.put("k", b"x", Metadata=sent)
    same(t.head("k")["Metadata"], sent, "metadata")


def case_metadata_names_are_lower_case(t):
    call("PUT", t.path("k"), headers={"X-Amz-Meta-MiXed": "Value"}, body=b"x").is_ok()
    same(t.head("k")["Metadata"], {"mixed": "Value"}, "metadata")


def case_metadata_empty_value(t):
    t.put("k", b"x", Metadata={"empty": ""})
    same(t.head("k")["Metadata"], {"empty": ""}, "metadata")


def case_metadata_two_kib(t):
    # The limit of 2 KiB for metadata counts the values, and the names without their prefix
    # x-amz-meta-.
    sent = {"k": "v" * 2000, "l": "w" * 46}
    t.put("k", b"x", Metadata=sent)
    same(t.head("k")["Metadata"], sent, "metadata")


def case_metadata_too_large(t):
    fails("MetadataTooLarge", 400, t.put, "k", b"x", Metadata={"k": "v" * 2048})
    t.absent("k")


def case_object_content_md5(t):
    t.put("k", b"abc", ContentMD5=content_md5(b"abc"))
    same(t.body("k"), b"abc", "body")


def case_object_content_md5_wrong(t):
    fails("BadDigest", 400, t.put, "k", b"abc", ContentMD5=content_md5(b"abd"))
    t.absent("k")


def case_object_content_md5_malformed(t):
    fails("InvalidDigest", 400, t.put, "k", b"abc", ContentMD5="short")
    t.absent("k")


def case_object_wrong_body_keeps_old(t):
    t.put("k", b"old")
    fails("BadDigest", 400, t.put, "k", b"abc", ContentMD5=content_md5(b"abd"))
    same(t.body("k"), b"old", "body")


def case_object_no_length(t):
    path = t.path("k")
    reply = send("PUT", path, headers=signed("PUT", path), body=None)
    reply.is_error("MissingContentLength", 411)


def raw_socket(head, body=b""):
    stream = open_socket()
    stream.sendall(head.encode() + body)
    return stream


def head_text(method, path, headers):
    return f"{method} {path} HTTP/1.1\r\n" + \
        "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"


def case_object_chunked_transfer(t):
    """Amazon refuses a body without a declared length. A server that accepts it must store all of
    it."""
    path = t.path("k")
    headers = signed("PUT", path, headers={"Transfer-Encoding": "chunked"},
                     payload_hash=hashlib.sha256(b"abcdef").hexdigest())
    stream = raw_socket(head_text("PUT", path, headers),
                        b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
    status = stream.recv(4096)[9:12]
    stream.close()
    one_of(status, (b"200", b"411", b"501"), "status")
    if status == b"200":
        same(t.body("k"), b"abcdef", "body")
    else:
        t.absent("k")


def case_object_broken_off_is_not_stored(t):
    t.put("old", b"old")
    for key in ("new", "old"):
        path, body = t.path(key), data(100000)
        headers = signed("PUT", path, headers={"Content-Length": "100000"}, body=body)
        stream = raw_socket(head_text("PUT", path, headers), body[:50000])
        stream.shutdown(socket.SHUT_WR)
        # The server closes the connection when it has given up the request.
        while stream.recv(4096):
            pass
        stream.close()
    t.absent("new")
    same(t.body("old"), b"old", "body")


def case_object_expect_continue(t):
    path, body = t.path("k"), b"after continue"
    headers = signed("PUT", path, body=body, headers={
        "Content-Length": str(len(body)), "Expect": "100-continue"})
    stream = raw_socket(head_text("PUT", path, headers))
    first = stream.recv(4096)
    true(first.startswith(b"HTTP/1.1 100"), f"the first reply is {first[:60]!r}")
    stream.sendall(body)
    second = stream.recv(4096)
    while second.startswith(b"HTTP/1.1 100"):
        second = stream.recv(4096)
    true(second.startswith(b"HTTP/1.1 200"), f"the second reply is {second[:60]!r}")
    stream.close()
    same(t.body("k"), body, "body")


def case_object_keep_alive(t):
    connection = connect()
    for n in range(5):
        path = t.path(f"k{n}")
        send("PUT", path, headers=signed("PUT", path, body=b"x" * n), body=b"x" * n,
             connection=connection).is_ok()
        reply = send("GET", path, headers=signed("GET", path), connection=connection).is_ok()
        same(reply.body, b"x" * n, "body")


def case_object_keep_alive_after_errors(t):
    connection = connect()
    for _ in range(3):
        path = t.path("missing")
        send("GET", path, headers=signed("GET", path), connection=connection) \
            .is_error("NoSuchKey", 404)
        path = t.path()
        send("GET", path, headers=signed("GET", path), connection=connection).is_ok()


def case_object_storage_class(t):
    t.put("k", b"x", StorageClass="STANDARD")
    same(t.body("k"), b"x", "body")


def case_object_storage_class_unknown(t):
    fails("InvalidStorageClass", 400, t.put, "k", b"x", StorageClass="BOGUS")
    t.absent("k")


def case_object_encryption_is_not_ignored(t):
    """A server that does not implement encryption must refuse a request with the header for it."""
    reply = call("PUT", t.path("k"), headers={"x-amz-server-side-encryption": "AES256"},
                 body=b"x")
    if reply.status == 200:
        same(reply.headers.get("x-amz-server-side-encryption"), "AES256", "encryption")
    else:
        t.absent("k")


def case_object_acl_owner(t):
    t.put("k", b"x", ACL="private")
    reply = t.s3.get_object_acl(Bucket=t.bucket, Key="k")
    same([g["Permission"] for g in reply["Grants"]], ["FULL_CONTROL"], "grants")


def case_object_acl_missing(t):
    fails("NoSuchKey", 404, t.s3.get_object_acl, Bucket=t.bucket, Key="missing")


def case_object_tagging_empty(t):
    t.put("k")
    same(t.s3.get_object_tagging(Bucket=t.bucket, Key="k")["TagSet"], [], "TagSet")


def case_object_setting_keeps_body(t):
    """A request for a subresource, such as the object's tags, must not be handled like a request
    for the object."""
    t.put("k", b"body")
    for query in ("tagging", "acl", "retention", "legal-hold", "torrent", "restore"):
        call("PUT", t.path("k"), query, body=b"<Bogus/>")
        same(t.body("k"), b"body", f"body after PUT ?{query}")


def case_object_setting_delete_keeps_object(t):
    t.put("k", b"body")
    call("DELETE", t.path("k"), "tagging")
    same(t.body("k"), b"body", "body after DELETE ?tagging")


def case_object_many_at_once(t):
    t.bucket
    bodies = {f"at-once-{n}": data(1000 + 997 * n) for n in range(40)}
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda item: t.put(*item), bodies.items()))
        got = dict(zip(bodies, pool.map(t.body, bodies)))
    true(got == bodies, "a body differs")
    same(t.keys(), sorted(bodies), "keys")


def case_object_overwritten_at_once(t):
    """While an object is overwritten, a reader gets one of the complete bodies, never bytes of
    both."""
    bodies = [bytes([n]) * 200000 for n in range(6)]
    t.put("k", bodies[0])

    def work(n):
        t.put("k", bodies[n])
        got = t.body("k")
        return got in bodies or short(got)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        same([r for r in pool.map(work, list(range(6)) * 4) if r is not True], [], "mixtures")


def case_host_in_upper_case(t):
    """The case of header names does not matter."""
    path = t.path()
    headers = {name.upper(): value for name, value in signed("GET", path).items()}
    send("GET", path, headers=headers).is_ok()


def case_host_is_needed(t):
    """A request without the header Host is refused, even if its signature is computed with the
    right host."""
    headers = signed("GET", t.path())
    for leave_out, wanted in (("", (b"200",)), ("Host", (b"400", b"403"))):
        lines = [f"{name}: {value}" for name, value in headers.items() if name != leave_out]
        stream = raw_socket("\r\n".join([f"GET {t.path()} HTTP/1.1", *lines, "", ""]))
        first = stream.recv(4096)
        stream.close()
        one_of(first[9:12], wanted, f"status without {leave_out or 'nothing'}")


# --- ranges ---------------------------------------------------------------------

BODY = bytes(range(100))


def ranged(t, text, wanted, first, body=BODY):
    t.put("k", body)
    got = t.get("k", Range=text)
    same(got["ResponseMetadata"]["HTTPStatusCode"], 206, "status")
    same(got["Body"].read(), wanted, "body")
    same(got["ContentRange"], f"bytes {first}-{first + len(wanted) - 1}/{len(body)}",
         "Content-Range")
    same(got["ETag"], f'"{md5(body)}"', "ETag")


def case_range_first_byte(t):
    ranged(t, "bytes=0-0", BODY[:1], 0)


def case_range_middle(t):
    ranged(t, "bytes=10-19", BODY[10:20], 10)


def case_range_last_byte(t):
    ranged(t, "bytes=99-99", BODY[99:], 99)


def case_range_open(t):
    ranged(t, "bytes=95-", BODY[95:], 95)


def case_range_whole(t):
    ranged(t, "bytes=0-", BODY, 0)


def case_range_suffix(t):
    ranged(t, "bytes=-7", BODY[-7:], 93)


def case_range_suffix_too_long(t):
    ranged(t, "bytes=-1000", BODY, 0)


def case_range_end_beyond(t):
    ranged(t, "bytes=90-1000", BODY[90:], 90)


def case_range_end_beyond_64_bits(t):
    ranged(t, "bytes=90-18446744073709551615", BODY[90:], 90)


def case_range_large(t):
    body = data(3 * MIB)
    ranged(t, f"bytes={MIB - 1}-{2 * MIB}", body[MIB - 1:2 * MIB + 1], MIB - 1, body)


def case_range_start_beyond(t):
    t.put("k", BODY)
    fails("InvalidRange", 416, t.get, "k", Range="bytes=100-")


def case_range_of_empty_object(t):
    t.put("k", b"")
    fails("InvalidRange", 416, t.get, "k", Range="bytes=0-0")


def case_range_suffix_zero(t):
    t.put("k", BODY)
    fails("InvalidRange", 416, t.get, "k", Range="bytes=-0")


def ignored(t, text):
    t.put("k", BODY)
    reply = call("GET", t.path("k"), headers={"Range": text}).is_ok()
    same(reply.body, BODY, "body")


def case_range_malformed(t):
    ignored(t, "bytes=x-y")


def case_range_reversed(t):
    ignored(t, "bytes=20-10")


def case_range_other_unit(t):
    ignored(t, "lines=1-2")


def case_range_several(t):
    t.put("k", BODY)
    reply = call("GET", t.path("k"), headers={"Range": "bytes=0-1,5-6"})
    one_of((reply.status, reply.body), [(200, BODY), (501, reply.body)], "reply")


def case_range_head(t):
    t.put("k", BODY)
    reply = call("HEAD", t.path("k"), headers={"Range": "bytes=10-19"})
    same((reply.status, reply.headers["content-length"], reply.headers.get("content-range")),
         (206, "10", "bytes 10-19/100"), "reply")
