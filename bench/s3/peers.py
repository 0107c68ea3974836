# SPDX-License-Identifier: Apache-2.0
"""For bench/s3/run: reads a whole object into memory with another project's client, twice, and
prints the seconds and the CPU seconds of the second read, and the length. Before the second read,
it prints "ready" and waits for a line of standard input. The object is at ENDPOINT/BUCKET/KEY, and
the server checks no signatures.

    peers.py CLIENT ENDPOINT BUCKET KEY DEVICE THREADS

CLIENT is boto3, awscrt, s3torch or s5cmd (DEVICE is host), kvikio or runai (host or cuda:0), or
pinned. pinned is the limit of the other clients: it copies bytes from pinned host memory to
cuda:0. Their number is KEY. pinned-out copies in the other direction, which is the limit of
uploads.
"""

import os
import resource
import subprocess
import sys
import threading
import time

CHUNK = 8 << 20


def cpu():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        use = resource.getrusage(who)
        total += use.ru_utime + use.ru_stime
    return total


def object_length(endpoint, bucket, key):
    import urllib.request

    head = urllib.request.Request(f"{endpoint}/{bucket}/{key}", method="HEAD")
    return int(urllib.request.urlopen(head).headers["Content-Length"])


def boto3_reader(endpoint, bucket, key, _device, threads):
    import boto3
    import boto3.s3.transfer
    import botocore.config

    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                      config=botocore.config.Config(
                          signature_version=botocore.UNSIGNED, max_pool_connections=threads,
                          s3={"addressing_style": "path"}))
    config = boto3.s3.transfer.TransferConfig(max_concurrency=threads, multipart_chunksize=CHUNK)
    length = s3.head_object(Bucket=bucket, Key=key)["ContentLength"]
    memory = bytearray(length)

    class Sink:
        """A file-like object over `memory`. boto3's threads write the object's bytes to it."""

        def __init__(self):
            self.at = 0

        def seek(self, at, whence=0):
            self.at = at

        def tell(self):
            return self.at

        def seekable(self):
            return True

        def write(self, data):
            memory[self.at:self.at + len(data)] = data
            self.at += len(data)
            return len(data)

    return length, lambda: s3.download_fileobj(bucket, key, Sink(), Config=config)


def awscrt_reader(endpoint, bucket, key, _device, _threads):
    from awscrt import http, io, s3

    host = endpoint.partition("://")[2]
    bootstrap = io.ClientBootstrap.get_or_create_static_default()
    client = s3.S3Client(bootstrap=bootstrap, region="us-east-1", part_size=CHUNK,
                         tls_mode=s3.S3RequestTlsMode.DISABLED, throughput_target_gbps=100)
    length = object_length(endpoint, bucket, key)
    memory = bytearray(length)
    view = memoryview(memory)

    def once():
        done = threading.Event()
        failure = []

        def on_body(chunk, offset, **_):
            view[offset:offset + len(chunk)] = chunk

        def on_done(error=None, **_):
            if error:
                failure.append(error)
            done.set()

        headers = http.HttpHeaders([("host", host)])
        request = http.HttpRequest("GET", f"/{bucket}/{key}", headers)
        keep = client.make_request(type=s3.S3RequestType.GET_OBJECT, request=request,
                                   on_body=on_body, on_done=on_done)
        done.wait()
        del keep
        if failure:
            raise failure[0]
    return length, once


def kvikio_reader(endpoint, bucket, key, device, threads):
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set({"num_threads": threads, "task_size": CHUNK})
    length = object_length(endpoint, bucket, key)
    if device == "host":
        import numpy as arrays
    else:
        import cupy as arrays
    memory = arrays.zeros(length, dtype="u1")

    def once():
        with kvikio.RemoteFile.open_s3(bucket, key, nbytes=length, aws_region_name="us-east-1",
                                       aws_access_key_id="key", aws_secret_access_key="secret",
                                       aws_endpoint_url=endpoint) as file:
            assert file.pread(memory).get() == length
        if device != "host":
            arrays.cuda.runtime.deviceSynchronize()
    return length, once


def runai_reader(endpoint, bucket, key, device, threads):
    os.environ.update({"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key",
                       "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
                       "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
                       "RUNAI_STREAMER_CONCURRENCY": str(threads),
                       "RUNAI_STREAMER_MEMORY_LIMIT": "-1"})
    import torch
    from runai_model_streamer.file_streamer.file_streamer import FileStreamer
    from runai_model_streamer.file_streamer.requests_iterator import FileChunks

    length = object_length(endpoint, bucket, key)
    piece = 64 << 20
    pieces = [min(piece, length - at) for at in range(0, length, piece)]
    memory = torch.empty(length, dtype=torch.uint8, device="cpu" if device == "host" else device)

    def once():
        with FileStreamer() as streamer:
            streamer.stream_files([FileChunks(0, f"s3://{bucket}/{key}", 0, pieces)])
            for _, index, tensor in streamer.get_chunks():
                # For device host, the bytes are already in the program's memory.
                if device != "host":
                    memory[index * piece:index * piece + tensor.numel()].copy_(tensor.view(-1))
        if device != "host":
            torch.cuda.synchronize()
    return length, once


def s3torch_reader(endpoint, bucket, key, _device, _threads):
    """The client inside s3torchconnector, without its classes that need torch. The function `once`
    copies the client's pieces into memory as the reader class of s3torchconnector does."""
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    client = MountpointS3Client("us-east-1", throughput_target_gbps=100, part_size=CHUNK,
                                unsigned=True, endpoint=endpoint, force_path_style=True)
    length = object_length(endpoint, bucket, key)
    memory = bytearray(length)
    view = memoryview(memory)

    def once():
        at = 0
        for piece in client.get_object(bucket, key):
            view[at:at + len(piece)] = piece
            at += len(piece)
        assert at == length
    return length, once


def s5cmd_reader(endpoint, bucket, key, _device, threads):
    program = os.environ.get("S5CMD", "s5cmd")
    env = dict(os.environ, AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="key",
               AWS_SECRET_ACCESS_KEY="secret")
    length = object_length(endpoint, bucket, key)
    target = f"/dev/shm/penstock-bench-{os.getpid()}"

    def once():
        try:
            subprocess.run([program, "--no-verify-ssl", "--endpoint-url", endpoint, "cp",
                            "--concurrency", str(threads), "--part-size", str(CHUNK >> 20),
                            f"s3://{bucket}/{key}", target],
                           check=True, env=env, stdout=subprocess.DEVNULL)
            assert os.path.getsize(target) == length
        finally:
            if os.path.exists(target):
                os.unlink(target)
    return length, once


def pinned_reader(_endpoint, _bucket, key, device, _threads, out=False):
    import torch

    length = int(key)
    source = torch.empty(length, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(length, dtype=torch.uint8, device=device)
    if out:
        source, target = target, source

    def once():
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
    return length, once


def pinned_writer(*words):
    return pinned_reader(*words, out=True)


def main():
    kind, endpoint, bucket, key, device, threads = sys.argv[1:]
    make = {"boto3": boto3_reader, "awscrt": awscrt_reader, "kvikio": kvikio_reader,
            "runai": runai_reader, "s3torch": s3torch_reader, "s5cmd": s5cmd_reader,
            "pinned": pinned_reader, "pinned-out": pinned_writer}[kind]
    length, once = make(endpoint, bucket, key, device, int(threads))
    once()
    print("ready", flush=True)
    sys.stdin.readline()
    start, used = time.monotonic(), cpu()
    once()
    print(f"{time.monotonic() - start:.6f} {cpu() - used:.6f} {length}", flush=True)


main()
