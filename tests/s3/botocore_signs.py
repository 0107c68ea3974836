# SPDX-License-Identifier: Apache-2.0
"""botocore_signs.py SIGN: compares Penstock's signatures with botocore's, for random requests.

SIGN is the program of tests/s3/sign.c, which signs and verifies with Penstock's code. For each
request, SIGN and botocore must compute the same signature. SIGN must accept the request that
botocore has signed, and refuse it with another path. The same holds for presigned URLs.
PENSTOCK_SEED selects the requests."""

import os
import random
import subprocess
import sys
from calendar import timegm
from datetime import datetime
from email.utils import parsedate
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REQUESTS = 600
OK, WRONG_SIGNATURE = "0 ", "8 SignatureDoesNotMatch"
ODD = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ09\u00e4\u4e2d\U0001f600\x01\x7f"
seed = int(os.environ.get("PENSTOCK_SEED", "16"))
rng = random.Random(seed)
signer = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          encoding="utf-8")


def ask(operation, request, keys, now, region, expires=0, headers=()):
    """Sends one request to the program SIGN. Returns its answer."""
    fields = [operation, *request, str(now), keys.access_key, keys.secret_key, keys.token or "",
              region, str(expires), *(f"{name.lower()}:{value}" for name, value in headers)]
    assert not any(c in field for field in fields for c in "\t\n"), fields
    print("\t".join(fields), file=signer.stdin, flush=True)
    return signer.stdout.readline().rstrip("\n")


def text(longest, letters=ODD):
    return "".join(rng.choice(letters) for _ in range(rng.randrange(longest + 1)))


def random_request():
    """Returns a random method, the parts of a URL, and headers."""
    path = "/bucket/" + quote(text(20), safe="/~")
    pairs = [(text(6) or "x", text(12)) for _ in range(rng.randrange(4))]
    query = "&".join(quote(n, safe="-_.~") + rng.choice(["=" + quote(v, safe="-_.~"), ""])
                     for n, v in pairs)
    visible = "abcXYZ019 ;:,=/\"'()  "
    headers = [(name, text(14, visible)) for name in
               ["Range", "x-amz-meta-b", "X-Amz-Meta-A", "x-amz-acl", "Content-MD5"]
               if rng.random() < 0.4]
    if headers and rng.random() < 0.3:
        headers.append((headers[0][0], text(5, visible)))
    return rng.choice(["GET", "PUT", "HEAD", "DELETE"]), path, query, headers


def compare(what, ours, theirs):
    if ours != theirs:
        sys.exit(f"seed {seed}, {what}:\n  ours     {ours}\n  botocore {theirs}")


def check_header(keys, region):
    method, path, query, headers = random_request()
    host = "s3.example.com:8080"
    request = AWSRequest(method, f"http://{host}{path}" + ("?" + query if query else ""),
                         data=rng.randbytes(rng.randrange(50)))
    for name, value in headers:
        request.headers.add_header(name, value)
    if rng.random() < 0.2:
        request.headers["Date"] = "botocore replaces this"
    S3SigV4Auth(keys, "s3", region).add_auth(request)
    theirs = request.headers["Authorization"]
    del request.headers["Authorization"]
    sent = [*request.headers.items(), ("host", host)]
    date = request.headers["X-Amz-Date"]
    now = timegm(datetime.strptime(date, "%Y%m%dT%H%M%SZ").timetuple() if date
                 else parsedate(request.headers["Date"]))
    parts = (method, path, query, request.headers["X-Amz-Content-SHA256"])
    compare(f"header of {parts} {sent}", ask("sign", parts, keys, now, region, 0, sent), theirs)
    sent.append(("authorization", theirs))
    compare(f"check of {parts} {sent}", ask("verify", parts, keys, now, region, 0, sent), OK)
    wrong = (method, path + "x", query, parts[3])
    compare(f"wrong {parts} {sent}", ask("verify", wrong, keys, now, region, 0, sent),
            WRONG_SIGNATURE)


def signature_of(query):
    """Returns the parameters of a presigned query except the signature, sorted, and the
    signature."""
    pairs = query.split("&")
    assert pairs[-1].startswith("X-Amz-Signature="), query
    return sorted(pairs[:-1]), pairs[-1]


def check_presigned(keys, region):
    method, path, query, headers = random_request()
    # If several parameters have one name, botocore keeps only the first. So this query has each
    # name once. It has no plus signs either, which botocore would decode.
    pairs = {pair.split("=")[0]: pair if "=" in pair else pair + "="
             for pair in query.split("&") if pair}
    query = "&".join(pairs.values())
    host, expires = "bucket.s3.example.com", rng.randrange(1, 604801)
    headers = dict(headers)
    request = AWSRequest(method, f"https://{host}{path}" + ("?" + query if query else ""),
                         headers=headers)
    S3SigV4QueryAuth(keys, "s3", region, expires).add_auth(request)
    theirs = urlsplit(request.url).query
    date = dict(pair.split("=") for pair in theirs.split("&"))["X-Amz-Date"]
    now = timegm(datetime.strptime(date, "%Y%m%dT%H%M%SZ").timetuple())
    sent = [*headers.items(), ("Host", host)]
    ours = ask("presign", (method, path, query, "x"), keys, now, region, expires, sent)
    compare(f"presigned {method} {request.url} {sent}", signature_of(ours), signature_of(theirs))
    for answer, at in [(OK, now + expires), ("6 AccessDenied", now + expires + 1)]:
        compare(f"check of {method} {request.url} {sent}",
                ask("verify", (method, path, theirs, "x"), keys, at, region, 0, sent), answer)
    compare(f"wrong {method} {request.url} {sent}",
            ask("verify", (method, path + "x", theirs, "x"), keys, now, region, 0, sent),
            WRONG_SIGNATURE)


def main():
    print(f"seed: PENSTOCK_SEED={seed}")
    for number in range(REQUESTS):
        keys = Credentials("AK" + text(10, "ABC/019"), text(30, "ab+/=") or "s",
                           text(20, "tok+/=") or None)
        region = rng.choice(["us-east-1", "eu-central-1", "default"])
        check_header(keys, region)
        check_presigned(keys, region)
    signer.stdin.close()
    if signer.wait():
        sys.exit(f"{sys.argv[1]} ended with {signer.returncode}")
    print(f"{REQUESTS} requests and {REQUESTS} presigned URLs have the signatures of botocore")


main()
