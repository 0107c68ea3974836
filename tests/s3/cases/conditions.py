# SPDX-License-Identifier: Apache-2.0
"""Conditional requests: If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since of
reads (RFC 9110), and the conditions of writes."""

import concurrent.futures
import datetime
import email.utils

from botocore.exceptions import ClientError

from tools import call, fails, one_of, same

PAST = "Sat, 29 Oct 1994 19:43:31 GMT"


def fresh(t):
    """Puts an object. Returns its ETag and its Last-Modified."""
    etag = t.put("k", b"body")["ETag"]
    return etag, call("HEAD", t.path("k")).headers["last-modified"]


def read(t, wanted, **headers):
    """Reads with conditions by GET and HEAD, which must have the same status."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    got = call("GET", t.path("k"), headers=headers)
    same(got.status, wanted, f"status of GET with {headers}")
    if wanted == 200:
        same(got.body, b"body", "body")
    elif wanted == 304:
        same(got.body, b"", "body")
    else:
        same(got.code, "PreconditionFailed", "code")
    same(call("HEAD", t.path("k"), headers=headers).status, wanted, "status of HEAD")
    return got


def case_if_match(t):
    etag, _ = fresh(t)
    read(t, 200, If_Match=etag)


def case_if_match_without_quotes(t):
    etag, _ = fresh(t)
    read(t, 200, If_Match=etag.strip('"'))


def case_if_match_other(t):
    fresh(t)
    read(t, 412, If_Match='"0123456789abcdef0123456789abcdef"')


def case_if_match_star(t):
    fresh(t)
    read(t, 200, If_Match="*")


def case_if_match_missing_object(t):
    t.bucket
    call("GET", t.path("k"), headers={"If-Match": "*"}).is_error("NoSuchKey", 404)


def case_if_none_match(t):
    etag, _ = fresh(t)
    got = read(t, 304, If_None_Match=etag)
    same(got.headers.get("etag"), etag, "ETag of 304")


def case_if_none_match_other(t):
    fresh(t)
    read(t, 200, If_None_Match='"0123456789abcdef0123456789abcdef"')


def case_if_none_match_star(t):
    fresh(t)
    read(t, 304, If_None_Match="*")


def case_if_modified_since_past(t):
    fresh(t)
    read(t, 200, If_Modified_Since=PAST)


def case_if_modified_since_same(t):
    _, modified = fresh(t)
    read(t, 304, If_Modified_Since=modified)


def case_if_modified_since_malformed(t):
    fresh(t)
    read(t, 200, If_Modified_Since="yesterday")


def case_if_unmodified_since_past(t):
    fresh(t)
    read(t, 412, If_Unmodified_Since=PAST)


def case_if_unmodified_since_same(t):
    _, modified = fresh(t)
    read(t, 200, If_Unmodified_Since=modified)


def case_if_unmodified_since_future(t):
    fresh(t)
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    read(t, 200, If_Unmodified_Since=email.utils.format_datetime(later, usegmt=True))


def case_if_match_beats_unmodified(t):
    """If If-Match holds, If-Unmodified-Since is ignored, even if it does not hold."""
    etag, _ = fresh(t)
    read(t, 200, If_Match=etag, If_Unmodified_Since=PAST)


def case_if_none_match_beats_modified(t):
    """If If-None-Match fails, If-Modified-Since is ignored, even if it holds."""
    etag, _ = fresh(t)
    read(t, 304, If_None_Match=etag, If_Modified_Since=PAST)


def case_if_match_with_range(t):
    etag, _ = fresh(t)
    got = call("GET", t.path("k"), headers={"If-Match": etag, "Range": "bytes=1-2"})
    same((got.status, got.body), (206, b"od"), "reply")
    got = call("GET", t.path("k"), headers={"If-Match": '"x"', "Range": "bytes=1-2"})
    got.is_error("PreconditionFailed", 412)


def case_put_if_none_match_new(t):
    t.put("k", b"first", IfNoneMatch="*")
    same(t.body("k"), b"first", "body")


def case_put_if_none_match_existing(t):
    t.put("k", b"first")
    fails("PreconditionFailed", 412, t.put, "k", b"second", IfNoneMatch="*")
    same(t.body("k"), b"first", "body")


def case_put_if_none_match_after_delete(t):
    t.put("k", b"first")
    t.s3.delete_object(Bucket=t.bucket, Key="k")
    t.put("k", b"second", IfNoneMatch="*")
    same(t.body("k"), b"second", "body")


def case_put_if_none_match_one_winner(t):
    """Several clients create the object at the same time. Exactly one of them succeeds."""
    t.bucket

    def work(n):
        try:
            t.put("k", b"writer %d" % n, IfNoneMatch="*")
            return n
        except ClientError as error:
            one_of(error.response["Error"]["Code"],
                   ("PreconditionFailed", "ConditionalRequestConflict"), "code")
            return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(work, range(8)) if n is not None]
    same(len(winners), 1, "winners")
    same(t.body("k"), b"writer %d" % winners[0], "body")


def case_put_if_match(t):
    etag = t.put("k", b"first")["ETag"]
    t.put("k", b"second", IfMatch=etag)
    same(t.body("k"), b"second", "body")


def case_put_if_match_other(t):
    etag = t.put("k", b"first")["ETag"]
    t.put("k", b"second")
    fails("PreconditionFailed", 412, t.put, "k", b"third", IfMatch=etag)
    same(t.body("k"), b"second", "body")


def case_put_if_match_missing(t):
    t.bucket
    fails("NoSuchKey", 404, t.put, "k", b"x", IfMatch='"0123456789abcdef0123456789abcdef"')
    t.absent("k")


def case_complete_if_none_match(t):
    t.put("k", b"first")
    upload = t.start("k")
    parts = [t.part(upload, 1, b"second")]
    fails("PreconditionFailed", 412, t.complete, upload, parts, IfNoneMatch="*")
    same(t.body("k"), b"first", "body")


def case_complete_if_none_match_new(t):
    upload = t.start("k")
    t.complete(upload, [t.part(upload, 1, b"new")], IfNoneMatch="*")
    same(t.body("k"), b"new", "body")


def case_complete_if_match_other(t):
    t.put("k", b"first")
    upload = t.start("k")
    parts = [t.part(upload, 1, b"second")]
    fails("PreconditionFailed", 412, t.complete, upload, parts, IfMatch='"0123"')
    same(t.body("k"), b"first", "body")


def case_delete_if_match_other(t):
    t.put("k", b"kept")
    fails(("PreconditionFailed", "NotImplemented"), (412, 501), t.s3.delete_object,
          Bucket=t.bucket, Key="k", IfMatch='"0123456789abcdef0123456789abcdef"')
    same(t.body("k"), b"kept", "body")
