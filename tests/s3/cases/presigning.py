# SPDX-License-Identifier: Apache-2.0
"""Presigned URLs, which have the signature in the query: their expiry, and each kind of error."""

import datetime
import hashlib
import urllib.request

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tools import (EMPTY_SHA256, ENDPOINT, KEY, REGION, SECRET, Signer, host, one_of, presigned,
                   same, send, tls_context, true)


def ago(seconds):
    return datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds)


def fetch(t, query, method="GET", key="k", body=b""):
    return send(method, t.path(key), query, body=body)


def prepared(t, **named):
    t.put("k", b"the body")
    return presigned("GET", t.path("k"), **named)


def case_presigned_get(t):
    same(fetch(t, prepared(t)).is_ok().body, b"the body", "body")


def case_presigned_get_by_sdk(t):
    t.put("a b/ü+", b"the body")
    url = t.s3.generate_presigned_url("get_object", Params={"Bucket": t.bucket, "Key": "a b/ü+"})
    true(url.startswith(ENDPOINT), f"URL {url}")
    with urllib.request.urlopen(url, timeout=30, context=tls_context()) as reply:
        same(reply.read(), b"the body", "body")


def case_presigned_head(t):
    t.put("k", b"the body")
    query = presigned("HEAD", t.path("k"))
    reply = fetch(t, query, "HEAD").is_ok()
    same(reply.headers["content-length"], "8", "Content-Length")


def case_presigned_put(t):
    query = presigned("PUT", t.path("k"))
    fetch(t, query, "PUT", body=b"by URL").is_ok()
    same(t.body("k"), b"by URL", "body")


def case_presigned_delete(t):
    t.put("k")
    fetch(t, presigned("DELETE", t.path("k")), "DELETE").is_ok(204)
    t.absent("k")


def case_presigned_list(t):
    t.fill("a")
    reply = send("GET", t.path(), presigned("GET", t.path(), "list-type=2")).is_ok()
    true(b"<Key>a</Key>" in reply.body, f"listing {reply.body!r}")


def case_presigned_range(t):
    query = prepared(t)
    reply = send("GET", t.path("k"), query, {"Range": "bytes=4-7"})
    same((reply.status, reply.body), (206, b"body"), "reply")


def case_presigned_response_headers(t):
    t.put("k", b"x")
    query = presigned("GET", t.path("k"), "response-content-type=text%2Fx")
    same(fetch(t, query).is_ok().headers["content-type"], "text/x", "Content-Type")


def case_presigned_other_response_headers(t):
    """A parameter that is added after the signing makes the signature wrong."""
    fetch(t, prepared(t) + "&response-content-type=text%2Fx") \
        .is_error("SignatureDoesNotMatch", 403)


def case_presigned_expired(t):
    query = prepared(t, signer=Signer(when=ago(120)), expires="60")
    fetch(t, query).is_error("AccessDenied", 403)


def case_presigned_not_expired(t):
    query = prepared(t, signer=Signer(when=ago(3000)), expires="3600")
    fetch(t, query).is_ok()


def case_presigned_longest(t):
    query = prepared(t, signer=Signer(when=ago(600000)), expires="604800")
    fetch(t, query).is_ok()


def case_presigned_from_future(t):
    query = prepared(t, signer=Signer(when=ago(-3600)))
    one_of(fetch(t, query).status, (400, 403), "status")


def case_presigned_too_long(t):
    fetch(t, prepared(t, expires="604801")) \
        .is_error(("AuthorizationQueryParametersError", "AccessDenied"), (400, 403))


def case_presigned_expiry_malformed(t):
    for text in ("x", "-1", "", "1e3", "99999999999999999999"):
        one_of(fetch(t, prepared(t, expires=text)).status, (400, 403),
               f"status with X-Amz-Expires={text}")


def case_presigned_expiry_extended(t):
    query = prepared(t, signer=Signer(when=ago(120)), expires="60")
    fetch(t, query.replace("Expires=60", "Expires=600")).is_error("SignatureDoesNotMatch", 403)


def case_presigned_other_method(t):
    query = prepared(t)
    fetch(t, query, "DELETE").is_error("SignatureDoesNotMatch", 403)
    fetch(t, query, "PUT", body=b"x").is_error("SignatureDoesNotMatch", 403)
    same(t.body("k"), b"the body", "body")


def case_presigned_other_key(t):
    query = prepared(t)
    t.put("other")
    fetch(t, query, key="other").is_error("SignatureDoesNotMatch", 403)


def case_presigned_flipped(t):
    query = prepared(t)
    fetch(t, query[:-1] + ("0" if query[-1] != "0" else "1")) \
        .is_error("SignatureDoesNotMatch", 403)


def case_presigned_unknown_key(t):
    query = prepared(t, signer=Signer("NOSUCHKEY00000000000"))
    fetch(t, query).is_error("InvalidAccessKeyId", 403)


def case_presigned_parameter_missing(t):
    query = prepared(t)
    for name in ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires",
                 "X-Amz-SignedHeaders", "X-Amz-Signature"):
        rest = "&".join(p for p in query.split("&") if not p.startswith(name + "="))
        one_of(fetch(t, rest).status, (400, 403), f"status without {name}")


def case_presigned_algorithm_unknown(t):
    one_of(fetch(t, prepared(t).replace("SHA256", "SHA999", 1)).status, (400, 403), "status")


def case_presigned_wrong_region(t):
    one_of(fetch(t, prepared(t, signer=Signer(region="xx-wrong-1"))).status, (400, 403),
           "status")


def case_presigned_signed_header(t):
    """A header that was signed must be in the request, with the signed value."""
    t.bucket
    query = presigned("PUT", t.path("k"), headers={"Content-Type": "text/x"})
    send("PUT", t.path("k"), query, {"Content-Type": "text/y"}, b"x") \
        .is_error("SignatureDoesNotMatch", 403)
    reply = send("PUT", t.path("k"), query, body=b"x")
    one_of(reply.status, (400, 403), "status without the header")
    t.absent("k")
    send("PUT", t.path("k"), query, {"Content-Type": "text/x"}, b"x").is_ok()
    same(t.head("k")["ContentType"], "text/x", "Content-Type")


def case_presigned_content_hash(t):
    """If the header x-amz-content-sha256 is signed, the signature covers its value, and the body
    must have this hash."""
    t.bucket
    body, other = b"the body", b"BODY the"
    named = {"x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
    query = presigned("PUT", t.path("k"), headers=named)
    send("PUT", t.path("k"), query, named, other) \
        .is_error(("XAmzContentSHA256Mismatch", "BadDigest"), 400)
    changed = {"x-amz-content-sha256": hashlib.sha256(other).hexdigest()}
    send("PUT", t.path("k"), query, changed, other).is_error("SignatureDoesNotMatch", 403)
    t.absent("k")
    send("PUT", t.path("k"), query, named, body).is_ok()
    same(t.body("k"), body, "body")
    named = {"x-amz-content-sha256": EMPTY_SHA256}
    reply = send("GET", t.path("k"), presigned("GET", t.path("k"), headers=named), named)
    same(reply.is_ok().body, body, "body by a presigned GET")


def case_presigned_content_hash_by_sdk(t):
    t.bucket
    named = {"x-amz-content-sha256": hashlib.sha256(b"the body").hexdigest()}
    request = AWSRequest("PUT", ENDPOINT + t.path("k"), headers=named)
    S3SigV4QueryAuth(Credentials(KEY, SECRET), "s3", REGION, expires=60).add_auth(request)
    send("PUT", t.path("k"), request.url.split("?", 1)[1], named, b"the body").is_ok()
    same(t.body("k"), b"the body", "body")


def case_presigned_part(t):
    upload = t.start()
    query = presigned("PUT", t.path("k"), f"partNumber=1&uploadId={upload['UploadId']}")
    reply = fetch(t, query, "PUT", body=b"part").is_ok()
    t.complete(upload, [{"PartNumber": 1, "ETag": reply.headers["etag"]}])
    same(t.body("k"), b"part", "body")


def case_presigned_and_authorization(t):
    """A request with a signature in the query and another one in the header is refused."""
    query = prepared(t)
    signer = Signer()
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/{signer.scope}, "
                                f"SignedHeaders=host, Signature={'0' * 64}", "Host": host()}
    one_of(send("GET", t.path("k"), query, headers).status, (400, 403), "status")


def case_presigned_parameters_encoded(t):
    """The slashes in the credential may be percent-encoded or not."""
    encoded = prepared(t)
    true("%2F" in encoded, f"query {encoded!r}")
    for query in (encoded, encoded.replace("%2F", "/"), encoded.replace("%2F", "%2f")):
        same(fetch(t, query).is_ok().body, b"the body", f"body of {query!r}")
