# SPDX-License-Identifier: Apache-2.0
"""Buckets: creating, naming, listing and deleting them. Also requests for features that the bucket
does not use: versions, tags and access lists."""

import xml.etree.ElementTree

from tools import (EMPTY_SHA256, REGION, call, connect, content_md5, fails, one_of, same,
                   send, signed, true)


def case_bucket_create_returns_location(t):
    name = t.name()
    reply = t.s3.create_bucket(Bucket=name)
    t.buckets.append(name)
    same(reply["Location"], f"/{name}", "Location")


def case_bucket_create_twice(t):
    # Amazon answers 200 in us-east-1 and 409 in the other regions.
    reply = call("PUT", f"/{t.bucket}")
    one_of((reply.status, reply.code), [(200, ""), (409, "BucketAlreadyOwnedByYou")], "reply")


def case_bucket_create_keeps_objects_of_first(t):
    t.put("k", b"kept")
    call("PUT", f"/{t.bucket}")
    same(t.body("k"), b"kept", "body after the second creation")


def bad_name(name):
    call("PUT", f"/{name}").is_error("InvalidBucketName", 400)


def case_bucket_name_upper_case(t):
    bad_name("Conf-Upper-" + t.name()[5:])


def case_bucket_name_underscore(t):
    bad_name("conf_under_" + t.name()[5:])


def case_bucket_name_two_letters(_):
    bad_name("ab")


def case_bucket_name_64_letters(_):
    bad_name("a" * 64)


def case_bucket_name_63_letters(t):
    name = t.name().ljust(63, "x")
    t.s3.create_bucket(Bucket=name)
    t.buckets.append(name)
    t.s3.head_bucket(Bucket=name)


def case_bucket_name_ip_address(_):
    bad_name("192.168.5.4")


def case_bucket_name_first_hyphen(t):
    bad_name("-" + t.name())


def case_bucket_name_last_hyphen(t):
    bad_name(t.name() + "-")


def case_bucket_name_two_dots(t):
    bad_name(t.name() + "..x")


def case_bucket_name_with_dot(t):
    name = t.name() + ".dot"
    t.s3.create_bucket(Bucket=name)
    t.buckets.append(name)
    t.s3.put_object(Bucket=name, Key="k", Body=b"x")
    same(t.s3.get_object(Bucket=name, Key="k")["Body"].read(), b"x", "body")


def case_bucket_create_malformed_xml(t):
    call("PUT", f"/{t.name()}", body=b"<CreateBucketConfiguration").is_error("MalformedXML", 400)


def case_bucket_head(t):
    same(t.s3.head_bucket(Bucket=t.bucket)["ResponseMetadata"]["HTTPStatusCode"], 200, "status")


def case_bucket_head_names_region(t):
    same(call("HEAD", f"/{t.bucket}").headers.get("x-amz-bucket-region"), REGION, "region")


def case_bucket_head_missing(t):
    reply = fails("404", 404, t.s3.head_bucket, Bucket=t.name())
    same(reply.get("Body"), None, "body")


def case_bucket_delete(t):
    name = t.new_bucket()
    reply = t.s3.delete_bucket(Bucket=name)
    same(reply["ResponseMetadata"]["HTTPStatusCode"], 204, "status")
    fails("404", 404, t.s3.head_bucket, Bucket=name)


def case_bucket_delete_missing(t):
    fails("NoSuchBucket", 404, t.s3.delete_bucket, Bucket=t.name())


def case_bucket_delete_not_empty(t):
    t.put("a/b")
    fails("BucketNotEmpty", 409, t.s3.delete_bucket, Bucket=t.bucket)
    same(t.body("a/b"), b"x", "body afterwards")


def case_bucket_delete_after_objects(t):
    t.fill("a", "a/b", "c/d/e", "slash/")
    for key in ("a", "a/b", "c/d/e", "slash/"):
        t.s3.delete_object(Bucket=t.bucket, Key=key)
    t.s3.delete_bucket(Bucket=t.bucket)
    fails("404", 404, t.s3.head_bucket, Bucket=t.bucket)


def case_bucket_create_again_after_delete(t):
    t.put("old")
    t.s3.delete_object(Bucket=t.bucket, Key="old")
    t.s3.delete_bucket(Bucket=t.bucket)
    t.s3.create_bucket(Bucket=t.bucket)
    same(t.keys(), [], "keys")


def case_bucket_list_has_all(t):
    names = sorted([t.new_bucket(), t.new_bucket()])
    reply = t.s3.list_buckets()
    listed = [item["Name"] for item in reply["Buckets"]]
    same([name for name in listed if name in names], names, "buckets")
    same(listed, sorted(listed), "order")
    true(all("CreationDate" in item for item in reply["Buckets"]), "no CreationDate")
    true(reply["Owner"]["ID"], "no Owner")


def case_bucket_list_prefix(t):
    name = t.new_bucket()
    t.new_bucket()
    same([item["Name"] for item in t.s3.list_buckets(Prefix=name)["Buckets"]], [name], "buckets")


def case_bucket_list_pages(t):
    names = sorted(t.new_bucket() for _ in range(3))
    found, token = [], {}
    while True:
        reply = t.s3.list_buckets(MaxBuckets=1, **token)
        true(len(reply["Buckets"]) <= 1, f"{len(reply['Buckets'])} buckets, wanted at most 1")
        found += [item["Name"] for item in reply["Buckets"]]
        if not reply.get("ContinuationToken"):
            break
        token = {"ContinuationToken": reply["ContinuationToken"]}
    same([name for name in found if name in names], names, "buckets")


def case_bucket_location(t):
    # Amazon returns no LocationConstraint for us-east-1.
    same(t.s3.get_bucket_location(Bucket=t.bucket)["LocationConstraint"],
         None if REGION == "us-east-1" else REGION, "LocationConstraint")


def case_bucket_location_xml(t):
    root = xml.etree.ElementTree.fromstring(call("GET", f"/{t.bucket}", "location").body)
    same(root.tag, "{http://s3.amazonaws.com/doc/2006-03-01/}LocationConstraint", "root element")


def case_bucket_location_missing(t):
    fails("NoSuchBucket", 404, t.s3.get_bucket_location, Bucket=t.name())


def case_bucket_versioning_is_off(t):
    reply = t.s3.get_bucket_versioning(Bucket=t.bucket)
    same(reply.get("Status"), None, "Status")


def case_bucket_versioning_missing(t):
    fails("NoSuchBucket", 404, t.s3.get_bucket_versioning, Bucket=t.name())


def case_bucket_acl_owner(t):
    reply = t.s3.get_bucket_acl(Bucket=t.bucket)
    grants = [(g["Grantee"].get("ID"), g["Permission"]) for g in reply["Grants"]]
    same(grants, [(reply["Owner"]["ID"], "FULL_CONTROL")], "grants")


def case_bucket_tagging_none(t):
    fails("NoSuchTagSet", 404, t.s3.get_bucket_tagging, Bucket=t.bucket)


def case_bucket_unset_configurations(t):
    # A server without these settings may also answer that it does not implement them.
    wanted = {"policy": "NoSuchBucketPolicy", "lifecycle": "NoSuchLifecycleConfiguration",
              "cors": "NoSuchCORSConfiguration", "website": "NoSuchWebsiteConfiguration"}
    for query, code in wanted.items():
        reply = call("GET", f"/{t.bucket}", query)
        one_of((reply.status, reply.code), [(404, code), (501, "NotImplemented")], query)


def case_bucket_unknown_setting_makes_no_bucket(t):
    name = t.name()
    body = b"<VersioningConfiguration><Status>Bogus</Status></VersioningConfiguration>"
    reply = call("PUT", f"/{name}", "versioning", {"Content-MD5": content_md5(body)}, body)
    true(reply.status >= 400, f"status {reply.status}, wanted an error")
    fails("404", 404, t.s3.head_bucket, Bucket=name)


def case_bucket_setting_deletes_no_bucket(t):
    t.bucket
    call("DELETE", f"/{t.bucket}", "tagging")
    t.s3.head_bucket(Bucket=t.bucket)


def case_error_xml(t):
    reply = call("GET", t.path("missing"))
    reply.is_error("NoSuchKey", 404)
    error = reply.error()
    same(error.get("Key"), "missing", "Key")
    true(error.get("Message"), "no Message")
    true(error.get("RequestId"), "no RequestId")
    same(error["RequestId"], reply.headers.get("x-amz-request-id"), "x-amz-request-id")
    same(reply.headers["content-type"].split(";")[0], "application/xml", "Content-Type")


def case_error_bucket_name(t):
    name = t.name()
    reply = call("GET", f"/{name}/key")
    reply.is_error("NoSuchBucket", 404)
    same(reply.error().get("BucketName"), name, "BucketName")


def case_error_of_head_has_no_body(t):
    connection = connect()
    path = t.path("missing")
    reply = send("HEAD", path, headers=signed("HEAD", path), connection=connection)
    same(reply.status, 404, "status")
    # If the reply to HEAD had a body, the next request on this connection would fail.
    path = f"/{t.bucket}"
    send("GET", path, headers=signed("GET", path), connection=connection).is_ok()


def case_request_ids_differ(t):
    ids = {call("HEAD", t.path()).headers.get("x-amz-request-id") for _ in range(5)}
    true(None not in ids, "no x-amz-request-id")
    same(len(ids), 5, "different request IDs")


def case_method_unknown(t):
    t.put("k")
    reply = call("PATCH", t.path("k"))
    one_of((reply.status, reply.code), [(405, "MethodNotAllowed"), (501, "NotImplemented")],
           "error")


def case_method_post_object(t):
    t.put("k")
    reply = call("POST", t.path("k"))
    one_of((reply.status, reply.code), [(405, "MethodNotAllowed"), (501, "NotImplemented")],
           "error")
    same(t.body("k"), b"x", "body afterwards")


def case_root_other_methods(_):
    for method in ("PUT", "DELETE", "POST"):
        reply = send(method, "/", headers=signed(method, "/", payload_hash=EMPTY_SHA256))
        one_of(reply.status, (405, 501), f"status of {method} /")
