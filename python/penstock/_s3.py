# SPDX-License-Identifier: Apache-2.0
"""Small requests to an object store: for the properties of an object, lists, deletions and copies.

The C library signs and sends the requests. This module writes their queries and parses the XML of
the responses. The contents of objects do not pass through this module."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from typing import Dict, Iterator, Mapping, NamedTuple, Optional

from ._lib import FormatError, check, ffi, lib, to_c

# Maximum number of bytes of a response. A page of a list has at most 1,000 keys of 1,024 bytes, and
# percent-encoding may turn each of these bytes into three characters.
ANSWER_MAX = 4 << 20
# Maximum number of keys in a page of a list, which is also S3's limit.
PAGE_KEYS = 1000
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


def quote(text: str, safe: str = "") -> str:
    """Returns percent-encoded text. A key's bytes that are not UTF-8 are surrogates in `text`."""
    return urllib.parse.quote(os.fsencode(text), safe=safe + "-._~")


def unquote(text: str) -> str:
    """Returns percent-decoded text. A plus sign in `text` means a space."""
    return os.fsdecode(urllib.parse.unquote_to_bytes(text.replace("+", " ")))


_given: Dict[bytes, str] = {}
_given_lock = threading.Lock()


def profile_of_keys(access_key: str, secret_key: str, session_token: Optional[str]) -> str:
    """Gives keys to the library, and returns the name of the profile that has them."""
    words = [access_key, secret_key, session_token]
    mark = hashlib.sha256(repr(words).encode("utf-8", "surrogateescape")).digest()
    with _given_lock:
        name = _given.get(mark, f"penstock-{len(_given) + 1}")
        keep = [ffi.NULL if word is None else ffi.new("char[]", to_c(word)) for word in words]
        check(lib.penstock_s3_give_keys(to_c(name), *keep), has_place=False)
        _given[mark] = name
    return name


class Answer(NamedTuple):
    """The answer to a request: Content-Length, ETag without quotes, Last-Modified and body."""
    length: int
    etag: str
    modified: str
    body: bytes


def ask(url: str, method: str, query: Optional[Mapping[str, str]] = None,
        headers: Optional[Mapping[str, str]] = None, body_max: int = 64 << 10) -> Answer:
    """Sends a request without a body. Raises PenstockError if the response's status is an error."""
    keep, question = [], ffi.new("struct penstock_s3_question *")
    question.size = ffi.sizeof("struct penstock_s3_question")
    words = "&".join(f"{quote(name)}={quote(value)}" for name, value in (query or {}).items())
    for text in (url, method, words, *(word for row in (headers or {}).items() for word in row)):
        keep.append(ffi.new("char[]", to_c(text)))
    question.url, question.method, question.query = keep[:3]
    names = ffi.new("char *[]", [*keep[3:], ffi.NULL])
    question.headers = ffi.cast("const char *const *", names)
    answer = ffi.new("struct penstock_s3_answer *")
    answer.size = ffi.sizeof("struct penstock_s3_answer")
    body = _uncleared("char[]", body_max)
    got = lib.penstock_s3_ask(question, answer, body, body_max)
    if got == -errno.ENOENT and not answer.status:
        got = -errno.EINVAL  # Not an object is missing, but a profile.
    check(got, url.partition("?")[0], has_place=False)
    return Answer(int(answer.length), _text(answer.etag).strip('"'), _text(answer.modified),
                  bytes(ffi.buffer(body, got)))


def _text(data: object) -> str:
    return str(ffi.string(data).decode("utf-8", "replace"))


def parse(body: bytes, url: str) -> ET.Element:
    """Returns the root of an XML answer. Raises FormatError if it is malformed. Documents that
    declare entities are refused, because their size after expansion has no bound."""
    name = url.partition("?")[0]
    if b"<!" in body:
        raise FormatError(errno.EBADMSG, f"{name}: the server's XML has a declaration", name)
    try:
        root = ET.fromstring(body)
    except ET.ParseError as error:
        raise FormatError(errno.EBADMSG, f"{name}: the server's XML is malformed: {error}",
                          name) from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def text_of(element: ET.Element, name: str) -> str:
    """Returns the text of the child element `name`, or "" if there is none."""
    return element.findtext(name) or ""


def _decode_keys(page: ET.Element) -> None:
    """Decodes the keys of a list, but only if the response says that the server has encoded them.
    Some servers ignore encoding-type=url, and an unencoded key may contain percent and plus
    signs."""
    if text_of(page, "EncodingType") != "url":
        return
    for key in (*page.findall("Contents/Key"), *page.findall("CommonPrefixes/Prefix")):
        key.text = unquote(key.text or "")


def pages(url: str, query: Mapping[str, str]) -> Iterator[ET.Element]:
    """Yields the pages of a list of a bucket's objects, as roots of their XML. Their keys are
    decoded."""
    more = ""
    while True:
        words: Dict[str, str] = {"list-type": "2", "encoding-type": "url",
                                 "max-keys": str(PAGE_KEYS), **query}
        if more:
            words["continuation-token"] = more
        root = parse(ask(url, "GET", words, body_max=ANSWER_MAX).body, url)
        _decode_keys(root)
        yield root
        after = text_of(root, "NextContinuationToken")
        if text_of(root, "IsTruncated") != "true":
            return
        if not after or after == more:
            name = url.partition("?")[0]
            raise FormatError(errno.EBADMSG, f"{name}: the server's list does not go on", name)
        more = after


__all__ = ["Answer", "ask", "pages", "parse", "quote", "text_of", "unquote"]
