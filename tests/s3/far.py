# SPDX-License-Identifier: Apache-2.0
"""Implements the server side of transfers by S3 over RDMA: what a server does with a client's
token, for the transports tcp1 and shm1. It was written from the comments in src/wire/tcp1.h and
shm1.h, and does not use the library. tests/s3/windows calls it."""

import base64
import socket
import struct

# direction of a token: with READ the server writes to the window, with WRITE it reads the window
READ, WRITE = 0, 1
OK, REFUSED, OUTSIDE = 0, 1, 2
FRAME = 1 << 20
COMMAND = struct.Struct("<IIQQ16sQII")
REPLY = struct.Struct("<IBBBBQII")
EXPORTED = 192  # length of struct penstock_export in bytes
MESSAGE = struct.Struct(f"<IIQ16sIIQQQQII{EXPORTED}s")
CASTAGNOLI = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    CASTAGNOLI.append(_byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CASTAGNOLI[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Window:
    """The window that a client's token describes: memory of the client that a server may read or
    write."""

    def __init__(self, token):
        fields = token.split(":")
        self.token, self.kind = token, fields[2]
        self.id, self.len = int(fields[0], 16), int(fields[1], 16)
        self.cap, self.socket, self.seq = bytes.fromhex(fields[-1]), None, 0
        # The server passes the object's file, instead of writing to the window.
        self.takes_file = self.kind == "shm1" and fields[4] == "f"
        if self.kind == "tcp1":
            self.address = (":".join(fields[3:-2]).strip("[]"), int(fields[-2]))
        else:
            self.address = b"\0penstock-window-" + fields[-2].encode()

    def connect(self):
        if self.socket:
            return
        if self.kind == "tcp1":
            self.socket = socket.create_connection(self.address, 30)
            greeting = self._take(16)
            if greeting != b"PENSTOCK tcp1 1\n":
                raise AssertionError(f"greeting {greeting!r}")
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.socket.connect(self.address)

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def _take(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the client has closed the connection")
            data += piece
        return data

    def _command(self, kind, off, count, data):
        self.connect()
        self.seq += 1
        self.socket.sendall(COMMAND.pack(0x31504354, kind, self.seq, self.id, self.cap, off,
                                         count, crc32c(data) if data else 0) + data)
        _, _, _, status, _, _, len_, _ = REPLY.unpack(self._take(REPLY.size))
        return status, self._take(len_)

    def write(self, data, off=0):
        """Writes to the window by tcp1. Returns the first status that is not OK, or OK."""
        for at in range(0, len(data), FRAME):
            piece = data[at:at + FRAME]
            status, _ = self._command(1, off + at, len(piece), piece)
            if status != OK:
                return status
        return OK

    def read(self):
        """Reads the bytes of the window by tcp1."""
        data = b""
        while len(data) < self.len:
            status, piece = self._command(2, len(data), min(FRAME, self.len - len(data)), b"")
            if status != OK:
                raise AssertionError(f"status {status}")
            data += piece
        return data

    def open_shm1(self, files=(), off=0, count=None):
        """Opens the window by shm1, as a server does before a transfer, but transfers nothing.
        Passes the descriptors `files`, and says that the window's `count` bytes are at `off` of the
        file. Returns the status of the client's answer."""
        self.connect()
        count = self.len if count is None else count
        message = MESSAGE.pack(0x314d4853, 1, self.id, self.cap, READ, 0, 0, count, off, 0, 0, 0,
                               bytes(EXPORTED))
        socket.send_fds(self.socket, [message], files)
        return MESSAGE.unpack(self.socket.recv(MESSAGE.size))[5]


def token_of(request):
    """Returns the window that a request's token describes, or None."""
    token = request.headers.get("x-amz-rdma-token")
    return Window(token) if token else None


def moved(count, reply="200", **more):
    """Returns the headers of the response to a request whose transfer moved `count` bytes."""
    return {"x-amz-rdma-reply": reply, "x-amz-rdma-bytes-transferred": str(count), **more}


def checksum(crc64nvme):
    return {"x-amz-rdma-checksum": f"CRC64NVME {crc64nvme}"}


def wrong(crc64nvme):
    """Returns a checksum that differs from this one, in base64."""
    data = bytearray(base64.b64decode(crc64nvme))
    data[0] ^= 1
    return base64.b64encode(bytes(data)).decode()
