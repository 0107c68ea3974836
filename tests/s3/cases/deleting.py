# SPDX-License-Identifier: Apache-2.0
"""DeleteObjects: one request deletes several keys."""

import base64
import hashlib

from tools import UNSIGNED, call, content_md5, fails, one_of, same


def delete_xml(*keys, quiet=False):
    items = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return f"<Delete>{items}{'<Quiet>true</Quiet>' if quiet else ''}</Delete>".encode()


def post(t, body, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers.setdefault("Content-MD5", content_md5(body))
    return call("POST", t.path(), "delete", headers, body)


def delete(t, *keys, **named):
    return t.s3.delete_objects(Bucket=t.bucket, Delete={
        "Objects": [{"Key": key} for key in keys], **named})


def case_delete_many(t):
    t.fill("a", "b", "c/d", "kept")
    reply = delete(t, "a", "b", "c/d")
    same(sorted(item["Key"] for item in reply["Deleted"]), ["a", "b", "c/d"], "Deleted")
    same((reply.get("Errors", []), t.keys()), ([], ["kept"]), "Errors and keys")


def case_delete_many_missing_keys(t):
    t.fill("a")
    reply = delete(t, "a", "missing")
    same(sorted(item["Key"] for item in reply["Deleted"]), ["a", "missing"], "Deleted")


def case_delete_many_quiet(t):
    t.fill("a", "b")
    reply = delete(t, "a", "b", Quiet=True)
    same((reply.get("Deleted", []), reply.get("Errors", []), t.keys()), ([], [], []), "reply")


def case_delete_many_same_key_twice(t):
    t.fill("a")
    delete(t, "a", "a")
    same(t.keys(), [], "keys")


def case_delete_many_odd_keys(t):
    keys = ["a b", "a+b", "<&>'\"", "ü/日", "x/", "x", "%2F", "c" * 300]
    t.fill(*keys)
    reply = delete(t, *keys)
    same(sorted(item["Key"] for item in reply["Deleted"]), sorted(keys), "Deleted")
    same(t.keys(), [], "keys")


def case_delete_many_character_references(t):
    t.fill("ü&")
    post(t, delete_xml("&#252;&#x26;")).is_ok()
    same(t.keys(), [], "keys")


def case_delete_many_1000(t):
    t.fill("k7", "k999", "kept")
    delete(t, *(f"k{n}" for n in range(1000)))
    same(t.keys(), ["kept"], "keys")


def case_delete_many_1001(t):
    t.fill("k7")
    fails("MalformedXML", 400, delete, t, *(f"k{n}" for n in range(1001)))
    same(t.keys(), ["k7"], "keys")


def case_delete_many_malformed(t):
    t.fill("a")
    for body in (b"", b"<Delete>", b"<Other/>", b"text", b"<Delete></Delete>",
                 b"<Delete><Object></Object></Delete>"):
        reply = post(t, body)
        one_of((reply.status, reply.code),
               [(400, "MalformedXML"), (400, "UserKeyMustBeSpecified"), (400, "InvalidRequest")],
               f"error of {body!r}")
    same(t.keys(), ["a"], "keys")


def case_delete_many_entity_bomb(t):
    """A document that declares entities is refused."""
    t.fill("a")
    body = (b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
            b"<Delete><Object><Key>&b;</Key></Object></Delete>")
    post(t, body).is_error(("MalformedXML", "InvalidRequest"), 400)


def case_delete_many_wrong_md5(t):
    t.fill("a")
    post(t, delete_xml("a"), Content_MD5=content_md5(b"other")).is_error("BadDigest", 400)
    same(t.keys(), ["a"], "keys")


def case_delete_many_needs_checksum(t):
    t.fill("a")
    body = delete_xml("a")
    call("POST", t.path(), "delete", body=body, payload_hash=UNSIGNED) \
        .is_error(("InvalidRequest", "MissingContentMD5"), 400)
    same(t.keys(), ["a"], "keys")


def case_delete_many_sha256_checksum(t):
    t.fill("a")
    body = delete_xml("a")
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    call("POST", t.path(), "delete", {"x-amz-checksum-sha256": digest}, body).is_ok()
    same(t.keys(), [], "keys")


def case_delete_many_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.delete_objects, Bucket=t.name(),
          Delete={"Objects": [{"Key": "a"}]})


def case_delete_many_beside_folder(t):
    t.fill("a", "a/b", "a/b/c", "a/")
    delete(t, "a", "a/b")
    same(t.keys(), ["a/", "a/b/c"], "keys")
