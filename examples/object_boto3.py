# SPDX-License-Identifier: Apache-2.0
"""Gives an unmodified boto3 client GET and PUT by RDMA, through the client's event hooks.

    transport = Transport()
    memory = transport.memory(1 << 30)            # or transport.memory(1 << 30, "cuda:0")
    s3 = Objects(boto3.client("s3", config=CONFIG), transport)
    s3.put("bucket", "key", memory, 0, 1 << 20)
    s3.get("bucket", "key", memory, 0, 1 << 20)   # returns how: "shm1", "tcp1" or "http"

An event hook adds a header with a token to each request before boto3 signs it. The token describes
the memory for the bytes. libpenstock checks from the response whether the server used RDMA. If the
server does not support the token, the bytes go by HTTP. The program must not use the memory
before get or put returns. PENSTOCK_LIBRARY names the library; the default is libpenstock.so.0."""

import ctypes
import os
import threading

import botocore.client
import botocore.exceptions

# The bytes of a request go by RDMA, so its HTTP body is empty. With this configuration, boto3
# computes no hash of the body, and sends no checksum in a trailer.
CONFIG = botocore.client.Config(signature_version="s3v4",
                                request_checksum_calculation="when_required",
                                s3={"payload_signing_enabled": False})
READ, WRITE = 0, 1
DONE, BODY, RESEND, ERROR = range(4)


class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Sized(ctypes.Structure):
    """Base class for structs of the library whose first member is the struct's size in bytes."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(self), **members)


class Options(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("transports", ctypes.c_char_p),
                ("address", ctypes.c_char_p), ("port", ctypes.c_int),
                ("require_encryption", ctypes.c_int), ("users", ctypes.c_void_p),
                ("user_count", ctypes.c_uint), ("fence_ms", ctypes.c_uint)]


class WindowInfo(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("transport", ctypes.c_char_p),
                ("token", ctypes.c_char_p), ("encrypted", ctypes.c_int),
                ("on_host", ctypes.c_int)]


class Reply(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("status", ctypes.c_int),
                ("headers", ctypes.POINTER(Header)), ("header_count", ctypes.c_uint),
                ("error", ctypes.c_char_p), ("expect", ctypes.c_uint64),
                ("ranged", ctypes.c_int)]


class Verdict(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("next", ctypes.c_int), ("bytes", ctypes.c_uint64),
                ("remember", ctypes.c_int), ("stored_empty", ctypes.c_int),
                ("has_crc64", ctypes.c_int), ("crc64", ctypes.c_uint64),
                ("text", ctypes.c_char * 240)]


class CopyArgs(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("dst_dev", ctypes.c_void_p),
                ("dst", ctypes.c_void_p), ("dst_pitch", ctypes.c_uint64),
                ("src_dev", ctypes.c_void_p), ("src", ctypes.c_void_p),
                ("src_pitch", ctypes.c_uint64), ("row_len", ctypes.c_uint64),
                ("rows", ctypes.c_uint64)]


class Memory:
    """Memory on the host or on a GPU. For each request, one range of it can be a window, which the
    server reads or writes by RDMA."""

    def __init__(self, transport, length, device):
        self.transport, self.handle = transport, ctypes.c_void_p()
        self.device = transport.device(device)
        transport.call("alloc", transport.client,
                       None if device == "host" else self.device, ctypes.c_size_t(length),
                       ctypes.byref(self.handle))
        self.at = transport.lib.penstock_object_ptr(self.handle)

    def _copy(self, to, dst, source, src, length):
        args = CopyArgs(dst_dev=to, dst=dst, src_dev=source, src=src, row_len=length)
        if self.transport.lib.penstock_copy(ctypes.byref(args), 1) < 0:
            raise OSError(self.transport.message())

    def write(self, off, data):
        """Copies the bytes `data` into the memory, from offset `off` on."""
        self._copy(self.device, self.at + off, self.transport.device("host"),
                   ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))

    def read(self, off, length):
        """Returns `length` bytes of the memory, from offset `off` on."""
        out = ctypes.create_string_buffer(length)
        self._copy(self.transport.device("host"), ctypes.addressof(out), self.device,
                   self.at + off, length)
        return out.raw


class Transport:
    """The client's side of S3 over RDMA, by the functions of libpenstock."""

    def __init__(self, transports=None, address=None):
        self.lib = ctypes.CDLL(os.environ.get("PENSTOCK_LIBRARY", "libpenstock.so.0"))
        self.lib.penstock_object_ptr.restype = ctypes.c_void_p
        self.lib.penstock_errmsg.restype = ctypes.c_char_p
        self.devices, self.client = {}, ctypes.c_void_p()
        options = Options(transports=transports and transports.encode(),
                          address=address and address.encode())
        self.call("client_open", ctypes.byref(options), ctypes.byref(self.client))

    def message(self):
        return self.lib.penstock_errmsg().decode()

    def call(self, name, *words):
        result = getattr(self.lib, "penstock_object_" + name)(*words)
        if result < 0:
            raise OSError(-result, self.message())
        return result

    def device(self, name):
        if name not in self.devices:
            self.devices[name] = ctypes.c_void_p()
            if self.lib.penstock_device_open(name.encode(), None,
                                             ctypes.byref(self.devices[name])) < 0:
                raise OSError(self.message())
        return self.devices[name]

    def memory(self, length, device="host"):
        return Memory(self, length, device)


class Window:
    """A range of a Memory that the server may read or write by RDMA for one request."""

    def __init__(self, memory, op, off, length):
        self.transport, self.handle = memory.transport, ctypes.c_void_p()
        self.transport.call("window_open", memory.handle, op, ctypes.c_uint64(off),
                            ctypes.c_uint64(length), ctypes.byref(self.handle))

    def name(self):
        info = WindowInfo()
        self.transport.call("window_get_info", self.handle, ctypes.byref(info))
        return info.transport.decode()

    def headers(self):
        found = (Header * 4)()
        count = self.transport.call("headers", self.handle, found, 4)
        return {h.name.decode(): h.value.decode() for h in found[:count]}

    def judge(self, response, expect, ranged):
        meta = response.get("ResponseMetadata", {})
        seen = [Header(name.encode(), value.encode())
                for name, value in meta.get("HTTPHeaders", {}).items()]
        reply = Reply(status=meta.get("HTTPStatusCode", 0), headers=(Header * len(seen))(*seen),
                      header_count=len(seen), expect=expect, ranged=ranged,
                      error=response.get("Error", {}).get("Code", "").encode() or None)
        verdict = Verdict()
        self.transport.call("judge", self.handle, ctypes.byref(reply), ctypes.byref(verdict))
        return verdict

    def release(self):
        self.transport.call("release", self.handle)


class Objects:
    """A boto3 client whose GetObject, PutObject and UploadPart move their bytes by RDMA."""

    def __init__(self, client, transport):
        self.client, self.transport, self.local = client, transport, threading.local()
        for operation in ("GetObject", "PutObject", "UploadPart"):
            client.meta.events.register("before-call.s3." + operation, self._before_call)

    def _before_call(self, params, **_):
        for name, value in (getattr(self.local, "headers", None) or {}).items():
            # boto3 sets the window's other two headers itself.
            if name == "x-amz-rdma-token":
                params["headers"][name] = value

    def _request(self, function, window, words):
        """Makes a request with the headers of a window. Returns a pair: the response, which may
        report an error, and the exception that boto3 raised (None if it raised none)."""
        self.local.headers = window.headers()
        try:
            return function(**words), None
        except botocore.exceptions.ClientError as error:
            return error.response, error
        except botocore.exceptions.BotoCoreError as error:
            return {}, error
        finally:
            self.local.headers = None

    def get(self, bucket, key, memory, off, length, first=None):
        """Reads `length` bytes of an object, from byte `first` or from its start, to offset `off`
        of `memory`. Returns the transport that moved the bytes: "shm1", "tcp1" or "http"."""
        words = {"Bucket": bucket, "Key": key}
        if first is not None:
            words["Range"] = f"bytes={first}-{first + length - 1}"
        window = Window(memory, READ, off, length)
        try:
            response, error = self._request(self.client.get_object, window, words)
            verdict = window.judge(response, length, first is not None)
            how = window.name()
        finally:
            window.release()
        if verdict.next == ERROR:
            raise error or OSError(verdict.text.decode())
        if verdict.next == DONE:
            return how
        if verdict.next == RESEND:
            response = self.client.get_object(**words)
        data = response["Body"].read()
        if len(data) != length:
            raise OSError(f"{len(data)} bytes instead of {length}")
        memory.write(off, data)
        return "http"

    def put(self, bucket, key, memory, off, length, **more):
        """Stores `length` bytes as an object, or as a part if UploadId and PartNumber are given.
        Returns the transport that moved the bytes ("shm1", "tcp1" or "http"), and the response."""
        function = self.client.upload_part if "UploadId" in more else self.client.put_object
        words = {"Bucket": bucket, "Key": key, **more}
        window = Window(memory, WRITE, off, length)
        try:
            response, error = self._request(function, window, words)
            verdict = window.judge(response, 0, False)
            how = window.name()
        finally:
            window.release()
        if verdict.next == ERROR:
            raise error or OSError(verdict.text.decode())
        if verdict.next == DONE:
            return how, response
        return "http", function(Body=memory.read(off, length), **words)
