# SPDX-License-Identifier: Apache-2.0
"""Bodies in Amazon's chunks (aws-chunked): with a signature for each chunk, and with checksums
that follow the body."""

from tools import (ALGORITHMS, MIB, Signer, checksum, data, one_of, same, send, signature_of,
                   signed, true)

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CHUNK = 65536


def split(body, size):
    return [body[at:at + size] for at in range(0, len(body), size)] + [b""]


class Upload:
    """One request with a chunked body. A test can change its attributes before it is sent."""

    def __init__(self, t, body, kind, algorithm=None, key="k", size=CHUNK):
        self.path, self.kind, self.body, self.size = t.path(key), kind, body, size
        self.query = ""
        self.algorithm = algorithm
        self.value = checksum(algorithm, body) if algorithm else ""
        self.headers = {"Content-Encoding": "aws-chunked",
                        "x-amz-decoded-content-length": str(len(body))}
        if algorithm:
            self.headers["x-amz-trailer"] = f"x-amz-checksum-{algorithm.lower()}"
        self.edit = lambda text: text

    def encode(self, signer, seed):
        """Returns the chunks and the trailer. `seed` is the signature of the headers."""
        text, previous = b"", seed
        for chunk in split(self.body, self.size):
            line = f"{len(chunk):x}"
            if self.kind != UNSIGNED_TRAILER:
                previous = signer.chunk(previous, chunk)
                line += f";chunk-signature={previous}"
            text += line.encode() + b"\r\n" + chunk + (b"\r\n" if chunk else b"")
        if self.algorithm:
            line = f"x-amz-checksum-{self.algorithm.lower()}:{self.value}"
            text += line.encode() + b"\r\n"
            if self.kind == SIGNED_TRAILER:
                end = signer.trailer(previous, line.encode() + b"\n")
                text += f"x-amz-trailer-signature:{end}\r\n".encode()
        return text + b"\r\n"

    def send(self):
        signer = Signer()
        # The length of the body does not depend on the signatures, so it is computed with wrong
        # ones.
        length = len(self.edit(self.encode(signer, "0" * 64)))
        headers = dict(self.headers, **{"Content-Length": str(length)})
        headers = signed("PUT", self.path, self.query, headers, payload_hash=self.kind,
                         signer=signer)
        body = self.edit(self.encode(signer, signature_of(headers)))
        return send("PUT", self.path, self.query, headers, body)


def case_chunked_signed(t):
    for length in (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5):
        body = data(length)
        Upload(t, body, SIGNED).send().is_ok()
        got = t.get("k")
        same(got["ContentLength"], length, "Content-Length")
        true(got["Body"].read() == body, f"the body of {length} bytes differs")


def case_chunked_signed_empty(t):
    Upload(t, b"", SIGNED).send().is_ok()
    same(t.body("k"), b"", "body")


def case_chunked_signed_large(t):
    body = data(9 * MIB + 1)
    Upload(t, body, SIGNED, size=MIB).send().is_ok()
    true(t.body("k") == body, "the body differs")


def case_chunked_encoding_is_not_stored(t):
    Upload(t, b"x", SIGNED).send().is_ok()
    one_of(t.head("k").get("ContentEncoding", ""), ("",), "Content-Encoding")


def case_chunked_keeps_other_encoding(t):
    upload = Upload(t, b"x", SIGNED)
    upload.headers["Content-Encoding"] = "aws-chunked,gzip"
    upload.send().is_ok()
    same(t.head("k")["ContentEncoding"], "gzip", "Content-Encoding")


def refused(t, upload, codes=None):
    reply = upload.send()
    if codes:
        reply.is_error(codes, (400, 403))
    else:
        one_of(reply.status, (400, 403), "status")
    t.absent("k")


def case_chunked_changed_byte(t):
    upload = Upload(t, data(3 * CHUNK), SIGNED)
    upload.edit = lambda text: text[:CHUNK] + bytes([text[CHUNK] ^ 1]) + text[CHUNK + 1:]
    refused(t, upload, "SignatureDoesNotMatch")


def case_chunked_changed_last_byte(t):
    upload = Upload(t, b"a" * 10, SIGNED)
    upload.edit = lambda text: text.replace(b"aaaaaaaaaa", b"aaaaaaaaab")
    refused(t, upload, "SignatureDoesNotMatch")


def case_chunked_wrong_signature_of_end(t):
    """A wrong signature of the empty last chunk is refused."""
    upload = Upload(t, b"abc", SIGNED)

    def edit(text):
        front, name, end = text.rpartition(b"chunk-signature=")
        return front + name + (b"0" if end[:1] != b"0" else b"1") + end[1:]
    upload.edit = edit
    refused(t, upload, "SignatureDoesNotMatch")


def case_chunked_swapped_chunks(t):
    upload = Upload(t, b"a" * 8 + b"b" * 8, SIGNED, size=8)
    upload.edit = lambda text: text.replace(b"a" * 8, b"c" * 8).replace(b"b" * 8, b"a" * 8) \
        .replace(b"c" * 8, b"b" * 8)
    refused(t, upload, "SignatureDoesNotMatch")


def case_chunked_without_signatures(t):
    upload = Upload(t, b"abc", SIGNED)
    upload.edit = lambda text: b"3\r\nabc\r\n0\r\n\r\n"
    refused(t, upload)


def case_chunked_missing_end(t):
    """A body without the empty last chunk is refused, because it may have been truncated."""
    upload = Upload(t, b"abc", SIGNED)
    upload.edit = lambda text: text[:text.index(b"\r\nabc") + 7]
    refused(t, upload)


def case_chunked_length_malformed(t):
    for bad in (b"zz", b"-3", b"", b"ffffffffffffffffff", b"3 ", b"0x3"):
        upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
        upload.edit = lambda text, bad=bad: text.replace(b"3\r\nabc", bad + b"\r\nabc", 1)
        refused(t, upload)


def case_chunked_length_too_small(t):
    upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
    upload.edit = lambda text: text.replace(b"3\r\n", b"2\r\n", 1)
    refused(t, upload)


def case_chunked_decoded_length_differs(t):
    for length in ("2", "4", "0"):
        upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
        upload.headers["x-amz-decoded-content-length"] = length
        refused(t, upload)


def case_chunked_decoded_length_missing(t):
    upload = Upload(t, b"abc", SIGNED)
    del upload.headers["x-amz-decoded-content-length"]
    one_of(upload.send().status, (400, 403, 411), "status")
    t.absent("k")


def trailer(t, kind, algorithm):
    body = data(2 * CHUNK + 17)
    Upload(t, body, kind, algorithm).send().is_ok()
    got = t.get("k", ChecksumMode="ENABLED")
    same(got.get(f"Checksum{algorithm}"), checksum(algorithm, body), "checksum")
    true(got["Body"].read() == body, "the body differs")


def case_trailer_crc32(t):
    trailer(t, UNSIGNED_TRAILER, "CRC32")


def case_trailer_crc32c(t):
    trailer(t, UNSIGNED_TRAILER, "CRC32C")


def case_trailer_crc64nvme(t):
    trailer(t, UNSIGNED_TRAILER, "CRC64NVME")


def case_trailer_sha1(t):
    trailer(t, UNSIGNED_TRAILER, "SHA1")


def case_trailer_sha256(t):
    trailer(t, UNSIGNED_TRAILER, "SHA256")


def case_trailer_signed(t):
    for algorithm in ALGORITHMS:
        trailer(t, SIGNED_TRAILER, algorithm)


def case_trailer_wrong_checksum(t):
    for algorithm in ALGORITHMS:
        for kind in (UNSIGNED_TRAILER, SIGNED_TRAILER):
            upload = Upload(t, b"abc", kind, algorithm)
            upload.value = checksum(algorithm, b"abd")
            refused(t, upload, ("BadDigest", "XAmzContentChecksumMismatch"))


def case_trailer_wrong_signature(t):
    upload = Upload(t, b"abc", SIGNED_TRAILER, "CRC32")

    def edit(text):
        front, name, end = text.rpartition(b"trailer-signature:")
        return front + name + (b"0" if end[:1] != b"0" else b"1") + end[1:]
    upload.edit = edit
    refused(t, upload, "SignatureDoesNotMatch")


def case_trailer_changed_byte(t):
    upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
    upload.edit = lambda text: text.replace(b"abc", b"abd")
    refused(t, upload, ("BadDigest", "XAmzContentChecksumMismatch"))


def case_trailer_missing(t):
    upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
    upload.edit = lambda text: b"3\r\nabc\r\n0\r\n\r\n"
    refused(t, upload)


def case_trailer_other_than_announced(t):
    upload = Upload(t, b"abc", UNSIGNED_TRAILER, "CRC32")
    upload.headers["x-amz-trailer"] = "x-amz-checksum-sha1"
    refused(t, upload)


def case_trailer_empty_body(t):
    Upload(t, b"", UNSIGNED_TRAILER, "CRC32").send().is_ok()
    same(t.body("k"), b"", "body")


def case_trailer_of_part(t):
    upload = t.start("k", ChecksumAlgorithm="CRC32")
    sent = Upload(t, b"part", UNSIGNED_TRAILER, "CRC32")
    sent.query = f"partNumber=1&uploadId={upload['UploadId']}"
    reply = sent.send().is_ok()
    value = checksum("CRC32", b"part")
    same(reply.headers.get("x-amz-checksum-crc32"), value, "checksum")
    t.complete(upload, [{"PartNumber": 1, "ETag": reply.headers["etag"],
                         "ChecksumCRC32": value}])
    same(t.body("k"), b"part", "body")
