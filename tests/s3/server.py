# SPDX-License-Identifier: Apache-2.0
"""A test server that implements a small part of S3 and misbehaves on request.

The server calls Server.fault for each request. This function returns None or a list of actions, for
example [("short", 1000)]. Server.requests records every request, so that a test can count them. The
server verifies no signatures. Other tests in tests/s3 show that real servers accept the signatures
of Penstock."""

import base64
import hashlib
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import zlib

REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 301: "Moved", 400: "Bad Request",
           403: "Forbidden", 404: "Not Found", 409: "Conflict", 412: "Precondition Failed",
           416: "Range Not Satisfiable", 500: "Internal Error", 501: "Not Implemented",
           503: "Slow Down"}
POLY = 0x9A6C9329AC4BC9B5  # CRC-64/NVME, reflected
TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (POLY if _byte & 1 else 0)
    TABLE.append(_byte)


def crc64nvme(data):
    """Computes the CRC-64/NVME byte by byte. Returns it in base64."""
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return base64.b64encode(struct.pack(">Q", crc ^ 0xFFFFFFFFFFFFFFFF)).decode()


class Request:
    def __init__(self, number, method, target, headers, body):
        self.number, self.method, self.target = number, method, target
        path, _, query = target.partition("?")
        self.path, self.query = path, dict(urllib.parse.parse_qsl(query, True))
        self.raw_query = query
        self.key = urllib.parse.unquote_to_bytes(path.lstrip("/")).partition(b"/")[2]
        self.headers, self.body = headers, body
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        self.range = (int(found[1]), int(found[2]) if found[2] else None) if found else None


class Server:
    """Serves one bucket on a port of 127.0.0.1. Accepts any bucket name."""

    def __init__(self, tls=None):
        self.objects, self.checksums, self.uploads, self.etags = {}, {}, {}, {}
        self.crc32s = {}
        self.requests, self.connections = [], 0
        self.fault = lambda request: None
        self.lock = threading.Lock()
        self.tls = tls
        # set when a client has closed the connection of a stalled response
        self.closed = threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def stop(self):
        # shutdown() makes accept() return in the thread. Without it, the thread could call
        # accept() with a closed descriptor whose number has been reused.
        if self.thread.is_alive():
            self.socket.shutdown(socket.SHUT_RDWR)
            self.thread.join()
        self.socket.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                sock = self.tls.wrap_socket(sock, server_side=True)
            stream = sock.makefile("rb")
            while self._serve_one(sock, stream):
                pass
        except (OSError, ssl.SSLError, ValueError):
            pass
        finally:
            sock.close()

    def _serve_one(self, sock, stream):
        line = stream.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return False
        headers = {}
        while True:
            header = stream.readline(65536).decode("latin-1").rstrip("\r\n")
            if not header:
                break
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        if len(body) < int(headers.get("content-length", 0)):
            return False
        with self.lock:
            request = Request(len(self.requests), line[0], line[1], headers, body)
            self.requests.append(request)
        actions = self.fault(request) or []
        names = [action[0] for action in actions]
        if "hang" in names:
            self.closed.clear()
            sock.recv(1)
            self.closed.set()
            return False
        if "drop" in names:
            return False
        if "refuse" in names:  # like "status", but the server does not execute the request
            actions = [("status", *action[1:]) if action[0] == "refuse" else action
                       for action in actions]
            status, out, data = 0, {}, b""
        else:
            with self.lock:
                status, out, data = self._answer(request)
        for action in actions:
            if action[0] == "status":
                status, out, data = action[1], dict(action[2]), action[3]
            elif action[0] == "header":
                out[action[1]] = action[2]
        return self._send(sock, request, status, out, data, actions)

    def _send(self, sock, request, status, out, data, actions):
        out.setdefault("Content-Length", len(data))
        if request.method == "HEAD":
            data = b""
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in out.items()) + "\r\n"
        head = head.encode("latin-1")
        for action in actions:
            if action[0] == "short":
                sock.sendall(head + data[:action[1]])
                return False
            if action[0] == "reset":
                sock.sendall(head + data[:action[1]])
                # SO_LINGER with 0 s: close() sends RST
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if action[0] == "stall":
                self.closed.clear()
                sock.sendall(head + data[:action[1]])
                action[2].set()
                try:
                    sock.recv(1)
                finally:
                    self.closed.set()
                return False
            if action[0] == "slow":
                sock.sendall(head)
                for at in range(0, len(data), action[1]):
                    sock.sendall(data[at:at + action[1]])
                    time.sleep(0.1)  # this delay is the injected fault: a slow server
                return True
            if action[0] == "flip":
                data = bytearray(data)
                data[action[1]] ^= 1
                data = bytes(data)
            if action[0] == "chunked":
                head = head.replace(b"Content-Length", b"X-Length").replace(
                    b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
                data = b"".join(b"%x\r\n%b\r\n" % (len(data[i:i + 7]), data[i:i + 7])
                                for i in range(0, len(data), 7)) + b"0\r\n\r\n"
        sock.sendall(head + data)
        return out.get("Connection") != "close"

    # ---- S3, under the lock ----

    def put(self, key, data, checksum=False, crc32=False):
        self.objects[key] = data
        self.checksums[key] = crc64nvme(data) if checksum else None
        self.crc32s[key] = base64.b64encode(struct.pack(">L", zlib.crc32(data))).decode() \
            if crc32 else None

    def etag(self, key):
        data, etag = self.etags.get(key, (None, None))
        if data is not self.objects[key]:
            data = self.objects[key]
            etag = '"' + hashlib.md5(data).hexdigest() + '"'
            self.etags[key] = (data, etag)
        return etag

    def error(self, status, code):
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>test</Message></Error>"
        return status, {}, body.encode()

    def _answer(self, r):
        if r.method in ("GET", "HEAD"):
            return self._get(r)
        if r.method == "PUT":
            return self._put(r)
        if r.method == "POST" and "uploads" in r.query:
            # The upload ID contains characters that the client must percent-encode in a query.
            upload = f"up/{len(self.uploads)}+="
            self.uploads[upload] = {}
            return 200, {}, f"<R><UploadId>{upload}</UploadId></R>".encode()
        if r.method == "POST":
            return self._complete(r)
        if r.method == "DELETE" and self.uploads.pop(r.query.get("uploadId"), None) is not None:
            return 204, {}, b""
        return self.error(404, "NoSuchUpload")

    def _get(self, r):
        if r.key not in self.objects:
            return self.error(404, "NoSuchKey")
        data, etag = self.objects[r.key], self.etag(r.key)
        out = {"ETag": etag}
        if r.headers.get("x-amz-checksum-mode") and self.checksums.get(r.key):
            out["x-amz-checksum-crc64nvme"] = self.checksums[r.key]
            out["x-amz-checksum-type"] = "FULL_OBJECT"
        if r.headers.get("x-amz-checksum-mode") and self.crc32s.get(r.key):
            out["x-amz-checksum-crc32"] = self.crc32s[r.key]
            out["x-amz-checksum-type"] = "FULL_OBJECT"
        if r.headers.get("if-match", etag) != etag:
            return self.error(412, "PreconditionFailed")
        if not r.range:
            return 200, out, data
        first, last = r.range
        last = len(data) - 1 if last is None else min(last, len(data) - 1)
        if first >= len(data):
            status, _, body = self.error(416, "InvalidRange")
            return status, {"Content-Range": f"bytes */{len(data)}"}, body
        out["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return 206, out, data[first:last + 1]

    def _put(self, r):
        sent = r.headers.get("x-amz-checksum-crc64nvme")
        if sent and len(r.body) < 1 << 20 and sent != crc64nvme(r.body):
            return self.error(400, "BadDigest")
        if "partNumber" in r.query:
            parts = self.uploads.get(r.query["uploadId"])
            if parts is None:
                return self.error(404, "NoSuchUpload")
            parts[int(r.query["partNumber"])] = r.body
            return 200, {"ETag": '"' + hashlib.md5(r.body).hexdigest() + '"'}, b""
        if r.headers.get("if-none-match") == "*" and r.key in self.objects:
            return self.error(412, "PreconditionFailed")
        self.objects[r.key] = r.body
        self.checksums[r.key] = sent
        return 200, {"ETag": self.etag(r.key)}, b""

    def _complete(self, r):
        parts = self.uploads.get(r.query.get("uploadId"))
        if parts is None:
            return self.error(404, "NoSuchUpload")
        if r.headers.get("if-none-match") == "*" and r.key in self.objects:
            return self.error(412, "PreconditionFailed")
        named = re.findall(rb"<PartNumber>(\d+)</PartNumber><ETag>\"(\w+)\"</ETag>", r.body)
        for number, etag in named:
            if hashlib.md5(parts.get(int(number), b"?")).hexdigest() != etag.decode():
                return self.error(400, "InvalidPart")
        if any(len(parts[int(n)]) < 5 << 20 for n, _ in named[:-1]):
            return self.error(400, "EntityTooSmall")
        self.objects[r.key] = b"".join(parts[int(n)] for n, _ in named)
        self.checksums[r.key] = r.headers.get("x-amz-checksum-crc64nvme")
        digests = b"".join(bytes.fromhex(etag.decode()) for _, etag in named)
        self.etags[r.key] = (self.objects[r.key],
                             f'"{hashlib.md5(digests).hexdigest()}-{len(named)}"')
        del self.uploads[r.query["uploadId"]]
        etag = self.etag(r.key).replace('"', "&quot;")
        return 200, {}, f"<R><ETag>{etag}</ETag></R>".encode()


