# SPDX-License-Identifier: Apache-2.0
"""Signatures in the header Authorization: the accepted forms, and each kind of error."""

import datetime
import hashlib

from tools import (EMPTY_SHA256, KEY, REGION, SECRET, UNSIGNED, Signer, call, content_md5, one_of,
                   same, send, signed, true)

NOW = datetime.datetime.now


def ago(**delta):
    return NOW(datetime.timezone.utc) - datetime.timedelta(**delta)


def get_with(t, headers):
    """Sends GET of an object with these headers. If the reply is an error, it must not contain the
    object's body."""
    reply = send("GET", t.path("k"), headers=headers)
    true(reply.status == 200 or b"the secret body" not in reply.body, "the body leaks")
    return reply


def prepared(t, **named):
    t.put("k", b"the secret body")
    return signed("GET", t.path("k"), **named)


def published(payload_hash, path="/examplebucket/chunkObject.txt", **headers):
    """Signs a request that one of Amazon's published examples shows."""
    signer = Signer("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                    "us-east-1", "s3", datetime.datetime(2013, 5, 24))
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers |= {"Host": "s3.amazonaws.com", "x-amz-date": signer.stamp,
                "x-amz-content-sha256": payload_hash}
    return signer, headers, signer.request("PUT", path, "", headers, payload_hash)[0]


def case_sign_published_chunks(_):
    """Checks the signer of this test suite with Amazon's example "Transferring payload in multiple
    chunks"."""
    signer, _, seed = published(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", x_amz_storage_class="REDUCED_REDUNDANCY",
        Content_Encoding="aws-chunked", x_amz_decoded_content_length="66560",
        Content_Length="66824")
    found = [seed]
    for chunk in (b"a" * 65536, b"a" * 1024, b""):
        found.append(signer.chunk(found[-1], chunk))
    same(found, ["4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
                 "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                 "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                 "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"],
         "signatures")


def case_sign_published_trailer(_):
    """Checks the signer of this test suite with Amazon's example of a trailer."""
    signer, _, seed = published(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        x_amz_storage_class="REDUCED_REDUNDANCY", Content_Encoding="aws-chunked",
        x_amz_decoded_content_length="66560", x_amz_trailer="x-amz-checksum-crc32c")
    found = [seed]
    for chunk in (b"a" * 65536, b"a" * 1024, b""):
        found.append(signer.chunk(found[-1], chunk))
    found.append(signer.trailer(found[-1], b"x-amz-checksum-crc32c:sOO8/Q==\n"))
    same(found, ["106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
                 "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                 "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                 "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
                 "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"],
         "signatures")


def case_sign_valid(t):
    same(get_with(t, prepared(t)).is_ok().body, b"the secret body", "body")


def case_sign_wrong_secret(t):
    get_with(t, prepared(t, signer=Signer(KEY, SECRET + "x"))) \
        .is_error("SignatureDoesNotMatch", 403)


def case_sign_unknown_key(t):
    get_with(t, prepared(t, signer=Signer("NOSUCHKEY00000000000", SECRET))) \
        .is_error("InvalidAccessKeyId", 403)


def case_sign_empty_key(t):
    reply = get_with(t, prepared(t, signer=Signer("", SECRET)))
    one_of(reply.status, (400, 403), "status")


def case_sign_flipped_signature(t):
    headers = prepared(t)
    last = headers["Authorization"][-1]
    headers["Authorization"] = headers["Authorization"][:-1] + ("0" if last != "0" else "1")
    get_with(t, headers).is_error("SignatureDoesNotMatch", 403)


def case_sign_short_signature(t):
    headers = prepared(t)
    headers["Authorization"] = headers["Authorization"][:-10]
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_upper_case_signature(t):
    """A signature in upper-case hexadecimal digits is refused."""
    headers = prepared(t)
    front, _, end = headers["Authorization"].rpartition("=")
    headers["Authorization"] = f"{front}={end.upper()}"
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_other_method(t):
    headers = prepared(t)
    send("DELETE", t.path("k"), headers=headers).is_error("SignatureDoesNotMatch", 403)
    same(t.body("k"), b"the secret body", "body")


def case_sign_other_path(t):
    t.put("other", b"x")
    headers = prepared(t)
    send("GET", t.path("other"), headers=headers).is_error("SignatureDoesNotMatch", 403)


def case_sign_other_query(t):
    headers = prepared(t)
    send("GET", t.path("k"), "response-content-type=a", headers) \
        .is_error("SignatureDoesNotMatch", 403)


def case_sign_other_host(t):
    headers = prepared(t)
    headers["Host"] = "other.example.com"
    one_of(send("GET", t.path("k"), headers=headers).status, (400, 403, 404), "status")


def case_sign_changed_header(t):
    t.bucket
    headers = signed("PUT", t.path("k"), headers={"x-amz-meta-a": "1"}, body=b"x")
    headers["x-amz-meta-a"] = "2"
    send("PUT", t.path("k"), headers=headers, body=b"x").is_error("SignatureDoesNotMatch", 403)
    t.absent("k")


def case_sign_unsigned_amz_header(t):
    """A header x-amz-* that the signature does not cover is refused."""
    t.bucket
    headers = signed("PUT", t.path("k"), body=b"x")
    headers["x-amz-meta-late"] = "1"
    send("PUT", t.path("k"), headers=headers, body=b"x") \
        .is_error(("AccessDenied", "SignatureDoesNotMatch"), 403)
    t.absent("k")


def case_sign_host_must_be_signed(t):
    t.put("k", b"the secret body")
    signer = Signer()
    headers = {"x-amz-date": signer.stamp, "x-amz-content-sha256": EMPTY_SHA256}
    headers["Authorization"] = signer.authorization("GET", t.path("k"), "", headers, EMPTY_SHA256)
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_header_order_and_blanks(t):
    """The signature does not depend on the order of headers, nor on blanks around values. Several
    blanks inside a value count as one."""
    t.bucket
    headers = signed("PUT", t.path("k"), body=b"x", headers={
        "x-amz-meta-b": "  two   words ", "x-amz-meta-a": "1", "Content-Type": "text/x"})
    headers = dict(reversed(headers.items()))
    send("PUT", t.path("k"), headers=headers, body=b"x").is_ok()


def case_sign_authorization_spaces(t):
    """A blank after the commas in Authorization is optional."""
    headers = prepared(t)
    headers["Authorization"] = headers["Authorization"].replace(", ", ",")
    get_with(t, headers).is_ok()


def case_sign_query_order(t):
    """In the canonical query the parameters are sorted, and a parameter without a value counts as
    empty."""
    t.fill("p/a", "p/b")
    query = "prefix=p%2F&max-keys=1&list-type=2&delimiter=&encoding-type=url"
    reply = call("GET", t.path(), query).is_ok()
    true(b"<Key>p%2Fa</Key>" in reply.body or b"<Key>p/a</Key>" in reply.body,
         f"listing {reply.body!r}")
    call("GET", t.path(), "location").is_ok()
    call("GET", t.path(), "location=").is_ok()


def case_sign_wrong_region(t):
    reply = get_with(t, prepared(t, signer=Signer(region="xx-wrong-1")))
    reply.is_error("AuthorizationHeaderMalformed", 400)
    # SDKs and s3cmd sign the request again with the region that the error contains.
    same(reply.error().get("Region"), REGION, "Region")


def case_sign_wrong_service(t):
    reply = get_with(t, prepared(t, signer=Signer(service="iam")))
    one_of((reply.status, reply.code), [(400, "AuthorizationHeaderMalformed"),
                                        (403, "SignatureDoesNotMatch")], "error")


def case_sign_old_clock(t):
    get_with(t, prepared(t, signer=Signer(when=ago(minutes=20)))) \
        .is_error("RequestTimeTooSkewed", 403)


def case_sign_future_clock(t):
    get_with(t, prepared(t, signer=Signer(when=ago(minutes=-20)))) \
        .is_error("RequestTimeTooSkewed", 403)


def case_sign_clock_within_limit(t):
    for minutes in (-10, 10):
        get_with(t, prepared(t, signer=Signer(when=ago(minutes=minutes)))).is_ok()


def case_sign_date_differs_from_scope(t):
    signer = Signer()
    signer.scope = signer.scope.replace(signer.stamp[:8], "20200101")
    one_of(get_with(t, prepared(t, signer=signer)).status, (400, 403), "status")


def case_sign_date_malformed(t):
    t.put("k", b"the secret body")
    for stamp in ("yesterday", "20200101", "20201399T000000Z", ""):
        signer = Signer()
        signer.stamp = stamp
        one_of(get_with(t, signed("GET", t.path("k"), signer=signer)).status, (400, 403),
               f"status with date {stamp!r}")


def case_sign_no_date(t):
    t.put("k", b"the secret body")
    signer = Signer()
    headers = {"Host": prepared(t)["Host"], "x-amz-content-sha256": EMPTY_SHA256}
    headers["Authorization"] = signer.authorization("GET", t.path("k"), "", headers, EMPTY_SHA256)
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_authorization_malformed(t):
    headers = prepared(t)
    good = headers["Authorization"]
    bad = ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256 Credential=x",
           "AWS4-HMAC-SHA256 " + "," * 50, "Bearer abc", "Basic Og==", "garbage", "AWS",
           good.replace("Credential=", "Credentials="), good.replace("Signature=", "Sig="),
           good.replace("SignedHeaders=host;", "SignedHeaders=;;host;"),
           good.replace("/s3/", "/"), good.replace("aws4_request", "aws5_request"),
           good.replace("HMAC-SHA256", "HMAC-SHA512"), good + good[16:],
           "AWS4-HMAC-SHA256 " + "A" * 6000)
    for text in bad:
        one_of(get_with(t, dict(headers, Authorization=text)).status, (400, 403),
               f"status with {text[:80]!r}")


def case_sign_version_2(t):
    """A signature of version 2 is refused, or verified correctly."""
    headers = prepared(t)
    headers["Authorization"] = f"AWS {KEY}:AAAAAAAAAAAAAAAAAAAAAAAAAAA="
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_no_content_sha256(t):
    t.put("k", b"the secret body")
    signer = Signer()
    headers = {"Host": prepared(t)["Host"], "x-amz-date": signer.stamp}
    headers["Authorization"] = signer.authorization("GET", t.path("k"), "", headers, EMPTY_SHA256)
    one_of(get_with(t, headers).status, (400, 403), "status")


def case_sign_content_sha256_malformed(t):
    t.bucket
    for text in ("abc", "x" * 64, "UNSIGNED", ""):
        reply = call("PUT", t.path("k"), headers={"x-amz-content-sha256": text}, body=b"x",
                     payload_hash=text or None)
        one_of(reply.status, (400, 403), f"status with {text!r}")
    t.absent("k")


def case_sign_body_differs(t):
    t.put("old", b"old")
    for key in ("k", "old"):
        headers = signed("PUT", t.path(key), body=b"signed body")
        send("PUT", t.path(key), headers=headers, body=b"signed bodY") \
            .is_error("XAmzContentSHA256Mismatch", 400)
    t.absent("k")
    same(t.body("old"), b"old", "body")


def case_sign_body_differs_of_delete(t):
    """The signature of a request such as DeleteObjects also covers the body."""
    t.fill("a", "b")
    body, other = [f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
                   for key in ("a", "b")]
    headers = signed("POST", t.path(), "delete", {"Content-MD5": content_md5(other)}, body)
    send("POST", t.path(), "delete", headers, other).is_error("XAmzContentSHA256Mismatch", 400)
    same(t.keys(), ["a", "b"], "keys")


def case_sign_unsigned_payload(t):
    call("PUT", t.path("k"), body=b"anything", payload_hash=UNSIGNED).is_ok()
    same(t.body("k"), b"anything", "body")


def case_sign_hash_in_upper_case(t):
    """A server may refuse a hash in upper case. If the server accepts such a hash, it must compare
    the hash with the body."""
    digest = hashlib.sha256(b"x").hexdigest().upper()
    reply = call("PUT", t.path("k"), body=b"x", payload_hash=digest)
    one_of(reply.status, (200, 400), "status")
    same(t.keys(), ["k"] if reply.status == 200 else [], "keys")
    reply = call("PUT", t.path("other"), body=b"y", payload_hash=digest)
    same(reply.status, 400, "status with another body")
    t.absent("other")


def case_sign_nothing_made_by_refused_requests(t):
    """Refused requests must not change the stored objects."""
    t.fill("k")
    bad = Signer(KEY, SECRET + "x")
    name = t.name()
    call("PUT", f"/{name}", signer=bad).is_error("SignatureDoesNotMatch", 403)
    call("DELETE", t.path("k"), signer=bad).is_error("SignatureDoesNotMatch", 403)
    call("PUT", t.path("new"), body=b"x", signer=bad).is_error("SignatureDoesNotMatch", 403)
    call("POST", t.path("new"), "uploads", signer=bad).is_error("SignatureDoesNotMatch", 403)
    same(t.keys(), ["k"], "keys")
    same(call("HEAD", f"/{name}").status, 404, "status of the bucket")


def case_sign_anonymous(t):
    t.put("k", b"the secret body")
    get_with(t, {}).is_error("AccessDenied", 403)
    send("GET", t.path()).is_error("AccessDenied", 403)
    send("PUT", t.path("new"), body=b"x").is_error("AccessDenied", 403)
    send("DELETE", t.path("k")).is_error("AccessDenied", 403)
    same(t.keys(), ["k"], "keys")


def case_sign_error_has_no_secret(t):
    reply = get_with(t, prepared(t, signer=Signer(KEY, SECRET + "x")))
    true(SECRET.encode() not in reply.body, "the error has the secret")
