# SPDX-License-Identifier: Apache-2.0
"""Small requests to an S3 endpoint: HEAD, lists, deletes and copies.

Control signs and sends them. The bytes of objects do not pass this module: the C library moves
them. Answers are bounded, and no message contains a secret."""

from __future__ import annotations

import configparser
import dataclasses
import datetime
import errno
import hashlib
import hmac
import http.client
import os
import random
import ssl
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._lib import NotFoundError, PenstockError, also_safetensor_error

# Most bytes of an answer. A page of a list has at most 1,000 keys of 1,024 bytes, each of which may
# need three characters.
ANSWER_MAX = 16 << 20
TRIES = 5
PATIENCE_S = 30.0
_EMPTY = hashlib.sha256(b"").hexdigest()


# ---- settings ------------------------------------------------------------------------

@dataclasses.dataclass
class Settings:
    """How to reach an endpoint. The order of the sources is that of AWS's tools."""
    access_key: str = ""
    secret: str = dataclasses.field(default="", repr=False)
    token: str = dataclasses.field(default="", repr=False)
    region: str = "us-east-1"
    endpoint: str = ""
    ca_bundle: str = ""


def read_settings(profile: Optional[str] = None) -> Settings:
    """Reads the environment, and then the profile in AWS's files. Without `profile`, the profile is
    the one that AWS_PROFILE names, or "default". Raises ValueError if a named one does not exist."""
    env = os.environ
    named = profile or env.get("AWS_PROFILE")
    found = _profile(named or "default", named is not None)
    settings = Settings()
    if not profile and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        settings.access_key = env["AWS_ACCESS_KEY_ID"]
        settings.secret = env["AWS_SECRET_ACCESS_KEY"]
        settings.token = env.get("AWS_SESSION_TOKEN", "")
    else:
        settings.access_key = found.get("aws_access_key_id", "")
        settings.secret = found.get("aws_secret_access_key", "")
        settings.token = found.get("aws_session_token", "")
    settings.region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or \
        found.get("region") or settings.region
    settings.endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or \
        found.get("endpoint_url", "")
    settings.ca_bundle = env.get("AWS_CA_BUNDLE") or found.get("ca_bundle", "")
    return settings


def _profile(name: str, required: bool) -> Dict[str, str]:
    """Returns a profile's settings from both files. The file with credentials wins."""
    found: Dict[str, str] = {}
    exists = False
    for variable, usual, section in (
            ("AWS_CONFIG_FILE", "~/.aws/config",
             name if name == "default" else f"profile {name}"),
            ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name)):
        parser = configparser.RawConfigParser()
        path = os.path.expanduser(os.environ.get(variable) or usual)
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            # The parser's message would contain a line of the file, which may be a secret.
            raise ValueError(f"the file {path} is malformed") from None
        if parser.has_section(section):
            exists = True
            found.update(parser.items(section))
    if required and not exists:
        raise ValueError(f"there is no profile '{name}' in AWS's files of settings")
    return found


# ---- signatures ----------------------------------------------------------------------

def quote(text: str, safe: str = "") -> str:
    """Returns percent-encoded text. A key's bytes that are not UTF-8 are surrogates in `text`."""
    return urllib.parse.quote(text.encode("utf-8", "surrogateescape"), safe=safe + "-._~")


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def authorization(settings: Settings, method: str, path: str, query: str,
                  headers: Mapping[str, str]) -> str:
    """Returns the header Authorization of a request (AWS Signature Version 4). `headers` are all
    headers to sign, with names in lower case, and include host, x-amz-date and
    x-amz-content-sha256. `path` and `query` are as on the wire, the query in order."""
    names = ";".join(sorted(headers))
    canonical = "\n".join([method, path, query,
                           *(f"{name}:{' '.join(headers[name].split())}"
                             for name in sorted(headers)),
                           "", names, headers["x-amz-content-sha256"]])
    date = headers["x-amz-date"]
    scope = f"{date[:8]}/{settings.region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope,
                      hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{settings.secret}".encode()
    for part in (date[:8], settings.region, "s3", "aws4_request"):
        key = _hmac(key, part)
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return (f"AWS4-HMAC-SHA256 Credential={settings.access_key}/{scope},"
            f"SignedHeaders={names},Signature={signature}")


# ---- requests ------------------------------------------------------------------------

class Answer(NamedTuple):
    """The answer to a request: status, headers (names in lower case) and body."""
    status: int
    headers: Dict[str, str]
    body: bytes


class Control:
    """Sends small requests to one endpoint. Any thread may use it.

    Args:
        settings: keys, region and endpoint. Without an endpoint, it is Amazon's.
        anonymous: whether to leave out the signature.
    """

    def __init__(self, settings: Settings, anonymous: bool = False) -> None:
        self.settings, self._anonymous = settings, anonymous
        if not anonymous and not settings.access_key:
            raise PenstockError(errno.EACCES, "there are no keys for the object store; set "
                                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or "
                                "use anonymous=True")
        url = settings.endpoint or f"https://s3.{settings.region}.amazonaws.com"
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or \
                parts.path.strip("/") or parts.query:
            raise ValueError("an endpoint has the form http://HOST[:PORT] or https://HOST[:PORT]")
        self._tls, self._host = parts.scheme == "https", parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        # Amazon serves new buckets only under their own host names.
        self._virtual = not settings.endpoint
        self._lock = threading.Lock()
        self._idle: List[Tuple[int, str, http.client.HTTPConnection]] = []

    def request(self, method: str, bucket: str, key: str = "",
                query: Sequence[Tuple[str, str]] = (), *,
                headers: Optional[Mapping[str, str]] = None) -> Answer:
        """Sends a request without a body, and returns the answer, whose status may be an error.

        A request that failed on its way, and one that the server could not serve for the moment,
        are sent again after a random time. Raises PenstockError if that does not help."""
        for attempt in range(TRIES):
            try:
                answer = self._send(method, bucket, key, query, headers or {})
                if answer.status not in (429, 500, 502, 503, 504) or attempt == TRIES - 1:
                    return answer
            except (OSError, http.client.HTTPException) as error:
                if attempt == TRIES - 1 or isinstance(error, (ssl.SSLError, PenstockError)):
                    raise _failed(errno.EIO, f"the request failed: {error}",
                                  f"s3://{bucket}/{key}") from error
            time.sleep(random.uniform(0, 0.1 * 2 ** attempt))
        raise AssertionError("unreachable")

    def _send(self, method: str, bucket: str, key: str, query: Sequence[Tuple[str, str]],
              more: Mapping[str, str]) -> Answer:
        virtual = self._virtual and "." not in bucket
        host = f"{bucket}.{self._host}" if virtual else self._host
        path = "/" + quote(key, "/") if virtual else \
            f"/{quote(bucket)}" + (f"/{quote(key, '/')}" if key else "")
        text = "&".join(f"{quote(name)}={quote(value)}" for name, value in sorted(query))
        now = datetime.datetime.now(datetime.timezone.utc)
        usual = 443 if self._tls else 80
        name = f"[{host}]" if ":" in host else host
        headers = {"host": name if self._port == usual else f"{name}:{self._port}",
                   "x-amz-content-sha256": _EMPTY, **more}
        if not self._anonymous:
            headers["x-amz-date"] = now.strftime("%Y%m%dT%H%M%SZ")
            if self.settings.token:
                headers["x-amz-security-token"] = self.settings.token
            headers["authorization"] = authorization(self.settings, method, path, text, headers)
        connection = self._take(host)
        try:
            connection.request(method, path + (f"?{text}" if text else ""), headers=headers)
            response = connection.getresponse()
            body = response.read(ANSWER_MAX + 1)
            if len(body) > ANSWER_MAX:
                raise http.client.HTTPException("the answer is too long")
            found = {name.lower(): value for name, value in response.getheaders()}
        except BaseException:
            connection.close()
            raise
        self._give(host, connection)
        return Answer(response.status, found, body)

    def _take(self, host: str) -> http.client.HTTPConnection:
        """Returns a connection that is open, or a new one."""
        with self._lock:
            for i, (pid, name, connection) in enumerate(self._idle):
                if pid == os.getpid() and name == host:
                    del self._idle[i]
                    return connection
        if not self._tls:
            return http.client.HTTPConnection(host, self._port, timeout=PATIENCE_S)
        trust = ssl.create_default_context(cafile=self.settings.ca_bundle or None)
        return http.client.HTTPSConnection(host, self._port, timeout=PATIENCE_S, context=trust)

    def _give(self, host: str, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection for the next request. In a child of fork, the parent's connections
        are dropped: both processes would use them."""
        with self._lock:
            self._idle = [row for row in self._idle if row[0] == os.getpid()][-7:]
            self._idle.append((os.getpid(), host, connection))

    def close(self) -> None:
        """Closes the connections that no request uses."""
        with self._lock:
            for pid, _, connection in self._idle:
                if pid == os.getpid():
                    connection.close()
            self._idle = []


# ---- answers -------------------------------------------------------------------------

def _failed(number: int, message: str, url: str) -> PenstockError:
    kind = NotFoundError if number == errno.ENOENT else PenstockError
    if kind is PenstockError:
        kind = also_safetensor_error(kind)
    error: PenstockError = kind(number, f"{url}: {message}", url)
    error.reason = "not-found" if number == errno.ENOENT else "none"
    return error


def check(answer: Answer, url: str) -> Answer:
    """Returns the answer. Raises PenstockError if its status tells of an error."""
    if 200 <= answer.status < 300:
        return answer
    code = message = ""
    if answer.body:
        try:
            root = parse(answer.body)
            code, message = text_of(root, "Code"), text_of(root, "Message")
        except ValueError:
            pass  # The status remains.
    number = {404: errno.ENOENT, 403: errno.EACCES, 401: errno.EACCES, 412: errno.ESTALE,
              409: errno.EEXIST}.get(answer.status, errno.EIO)
    what = {404: "it does not exist", 403: "the server refused the access; check the keys, the "
            "bucket's policy and the clock"}.get(answer.status,
                                                f"the server answered {answer.status}")
    region = answer.headers.get("x-amz-bucket-region")
    if answer.status in (301, 307, 400) and region:
        what += f"; the bucket is in the region {region}"
    detail = " ".join(word for word in (code[:80], message[:200]) if word)
    raise _failed(number, what + (f" ({detail})" if detail else ""), url)


def parse(body: bytes) -> ET.Element:
    """Returns the root of an XML answer. Raises ValueError if it is malformed. Documents that
    declare entities are refused, because their size after expansion has no bound."""
    if b"<!" in body:
        raise ValueError("the server's XML has a declaration")
    try:
        root = ET.fromstring(body)
    except ET.ParseError as error:
        raise ValueError(f"the server's XML is malformed: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def text_of(element: ET.Element, name: str) -> str:
    """Returns the text of a child, or "" if there is none."""
    return element.findtext(name) or ""


def pages(control: Control, bucket: str, query: Mapping[str, str], url: str) -> Iterator[Any]:
    """Yields the pages of a list of objects, as roots of their XML."""
    more = ""
    while True:
        words = {"list-type": "2", "encoding-type": "url", **query}
        if more:
            words["continuation-token"] = more
        answer = check(control.request("GET", bucket, query=list(words.items())), url)
        try:
            root = parse(answer.body)
        except ValueError as error:
            raise _failed(errno.EBADMSG, str(error), url) from error
        yield root
        after = text_of(root, "NextContinuationToken")
        if text_of(root, "IsTruncated") != "true":
            return
        if not after or after == more:
            raise _failed(errno.EBADMSG, "the server's list does not go on", url)
        more = after


def unquote(text: str) -> str:
    """Returns a key from a list, which is percent-encoded."""
    return urllib.parse.unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


__all__ = ["Answer", "Control", "Settings", "authorization", "check", "pages", "parse", "quote",
           "read_settings", "text_of", "unquote"]
