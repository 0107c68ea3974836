# SPDX-License-Identifier: Apache-2.0
"""For bench/s3/run: reads a whole object into memory with boto3 or awscrt, twice, and prints the
seconds and the CPU seconds of the second read, and the length. The object is at
ENDPOINT/BUCKET/KEY, and requests are not signed.

    peers.py boto3|awscrt ENDPOINT BUCKET KEY THREADS
"""

import resource
import sys
import threading
import time


def cpu():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def boto3_reader(endpoint, bucket, key, threads):
    import boto3
    import boto3.s3.transfer
    import botocore.config

    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                      config=botocore.config.Config(
                          signature_version=botocore.UNSIGNED, max_pool_connections=threads,
                          s3={"addressing_style": "path"}))
    config = boto3.s3.transfer.TransferConfig(max_concurrency=threads,
                                              multipart_chunksize=8 << 20)
    length = s3.head_object(Bucket=bucket, Key=key)["ContentLength"]
    memory = bytearray(length)

    class Sink:
        """A file in memory at whose offsets boto3's threads write."""

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


def awscrt_reader(endpoint, bucket, key, threads):
    import urllib.request

    from awscrt import http, io, s3

    host = endpoint.partition("://")[2]
    bootstrap = io.ClientBootstrap.get_or_create_static_default()
    client = s3.S3Client(bootstrap=bootstrap, region="us-east-1", part_size=8 << 20,
                         tls_mode=s3.S3RequestTlsMode.DISABLED, throughput_target_gbps=100)
    head = urllib.request.Request(f"{endpoint}/{bucket}/{key}", method="HEAD")
    length = int(urllib.request.urlopen(head).headers["Content-Length"])
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


def main():
    kind, endpoint, bucket, key, threads = sys.argv[1:]
    make = {"boto3": boto3_reader, "awscrt": awscrt_reader}[kind]
    length, once = make(endpoint, bucket, key, int(threads))
    once()
    start, used = time.monotonic(), cpu()
    once()
    print(f"{time.monotonic() - start:.6f} {cpu() - used:.6f} {length}")


main()
