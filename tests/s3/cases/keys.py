# SPDX-License-Identifier: Apache-2.0
"""Unusual keys: long keys, keys that look like paths, and keys with bytes that URLs, XML or file
systems treat specially. Each key must name its own object and occur in listings."""

import os
import urllib.parse

from tools import Skip, call, fails, same, send, signed


def listed(t):
    """Returns the keys of a listing. The listing is URL-encoded, because XML cannot contain all
    bytes."""
    found, token = [], {}
    while True:
        reply = t.s3.list_objects_v2(Bucket=t.bucket, EncodingType="url", **token)
        found += [urllib.parse.unquote_plus(i["Key"]) for i in reply.get("Contents", [])]
        if not reply["IsTruncated"]:
            return found
        token = {"ContinuationToken": reply["NextContinuationToken"]}


def distinct(t, *keys):
    """Stores an object with its own body under each key. Checks the bodies, the listing and the
    deletion."""
    for key in keys:
        # This test signs the request itself, because boto3 normalises some paths.
        call("PUT", t.path(key), body=key.encode()).is_ok()
    for key in keys:
        same(call("GET", t.path(key)).is_ok().body, key.encode(), f"body of {key!r}")
    same(listed(t), sorted(keys, key=str.encode), "listing")
    for n, key in enumerate(keys):
        call("DELETE", t.path(key)).is_ok(204)
        same(call("GET", t.path(key)).status, 404, f"status of {key!r} after its deletion")
        same(listed(t), sorted(keys[n + 1:], key=str.encode), f"listing without {key!r}")


def case_key_beside_folder(t):
    distinct(t, "a", "a/b", "a/b/c", "a/", "a//", "a/b/")


def case_key_folder_first(t):
    distinct(t, "x/y/z", "x/y", "x")


def case_key_trailing_slash(t):
    distinct(t, "dir/")
    t.put("dir/", b"body of a folder")
    same(t.body("dir/"), b"body of a folder", "body")


def case_key_slashes(t):
    distinct(t, "/lead", "//two", "mid//dle", "end//", "/", "//")


def case_key_dots(t):
    distinct(t, "a/./b", "a/../b", "./x", "../x", ".", "..", "...", "a/.", "a/..", "a/../../../x")


def case_key_hidden_files(t):
    distinct(t, ".hidden", "a/.hidden/b", ".tmp", ".penstock", "a/.s3", "~", "-rf", "lost+found")


def case_key_spaces(t):
    distinct(t, "a b", " lead", "trail ", "a  b", "a+b", "a%20b", "a%2Bb", " ")


def case_key_percent(t):
    distinct(t, "%", "%%", "%2F", "a%2Fb", "%00", "%zz", "100%")


def case_key_punctuation(t):
    distinct(t, *(f"x{c}y" for c in "!\"#$&'()*,:;<=>?@[\\]^`{|}~"))


def case_key_query_like(t):
    distinct(t, "a?b=c", "a&b", "a#b", "?acl", "a=b", "?uploads", "&amp;")


def case_key_xml_like(t):
    distinct(t, "<a>", "</Key>", "&lt;", "a'b\"c", "]]>")
    t.fill("<a>&'\"")
    same(t.keys(), ["<a>&'\""], "listing without encoding")


def case_key_unicode(t):
    distinct(t, "grün", "日本語/ファイル", "\U0001f600", "e\u0301", "\u00e9", "\u202ex")


def case_key_order_is_by_bytes(t):
    # In UTF-8, U+FF5E precedes U+1F600. In UTF-16, it follows U+1F600. So the listing shows whether
    # the server sorts by the bytes of UTF-8.
    distinct(t, "\U0001f600", "\uff5e", "z", "A", "a", "0", "~")


def case_key_control_characters(t):
    distinct(t, "tab\there", "line\nfeed", "car\rriage", "bell\x07", "one\x01", "del\x7f")


def case_key_case_matters(t):
    distinct(t, "readme", "README", "ReadMe")


def case_key_1024_bytes(t):
    distinct(t, "k" * 1024, "k" * 1023)


def case_key_1025_bytes(t):
    t.bucket
    call("PUT", t.path("k" * 1025), body=b"x").is_error("KeyTooLongError", 400)


def case_key_1024_bytes_of_unicode(t):
    distinct(t, "ü" * 512)
    call("PUT", t.path("ü" * 512 + "x"), body=b"x").is_error("KeyTooLongError", 400)


def case_key_long_components(t):
    distinct(t, "c" * 255, "c" * 256, "d" * 300 + "/" + "e" * 300, "d" * 300, "d" * 255 + "/x")


def case_key_deep(t):
    distinct(t, "/".join("x" * 500), "/".join("x" * 499))


def case_key_encoded_slash_in_url(t):
    """%2F in the path of a URL means a slash in the key. The canonical request contains a slash."""
    t.put("a/b", b"body")
    headers = signed("GET", t.path("a/b"))
    same(send("GET", f"/{t.bucket}/a%2Fb", headers=headers).body, b"body", "body")


def case_key_unreserved_encoded(t):
    """A percent-encoded letter in the path means the letter itself, as in the canonical request."""
    t.put("abc", b"body")
    headers = signed("GET", t.path("abc"))
    same(send("GET", f"/{t.bucket}/%61bc", headers=headers).body, b"body", "body")


def case_key_bucket_with_slash(t):
    """The path /bucket/ names the bucket, not an object."""
    t.put("k")
    call("GET", f"/{t.bucket}/", "list-type=2").is_ok()


def case_key_virtual_host(t):
    domain = os.environ.get("S3_DOMAIN")
    if not domain:
        raise Skip("no S3_DOMAIN is given")
    t.put("a/b", b"body")
    reply = call("GET", "/a/b", headers={"Host": f"{t.bucket}.{domain}"})
    same(reply.is_ok().body, b"body", "body")
    reply = call("GET", "/", "list-type=2", headers={"Host": f"{t.bucket}.{domain}"}).is_ok()
    same(b"<Key>a/b</Key>" in reply.body, True, "the listing has the key")


def case_key_virtual_host_put(t):
    domain = os.environ.get("S3_DOMAIN")
    if not domain:
        raise Skip("no S3_DOMAIN is given")
    reply = call("PUT", "/v", headers={"Host": f"{t.bucket}.{domain}"}, body=b"by host")
    reply.is_ok()
    same(t.body("v"), b"by host", "body")


def case_key_in_missing_folder(t):
    t.put("a", b"file")
    fails("NoSuchKey", 404, t.get, "a/b")
    t.put("c/d", b"file")
    fails("NoSuchKey", 404, t.get, "c")
    fails("NoSuchKey", 404, t.get, "c/")
