# SPDX-License-Identifier: Apache-2.0
"""copy_files.py BUCKET UP DOWN: copies a folder to an S3 server and back with any version of
boto3. tests/s3/programs runs it with an old version and with the current one, and compares the
folders."""

import os
import sys

import boto3
from boto3.s3.transfer import TransferConfig

MIB = 1 << 20


def sizes(s3, bucket):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}


def check(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: got {got}, wanted {wanted}")


def main():
    bucket, up, down = sys.argv[1:]
    # Old versions of boto3 do not read AWS_ENDPOINT_URL.
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    print("boto3", boto3.__version__)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    wanted = {}
    for folder, _, names in os.walk(up):
        for name in names:
            path = os.path.join(folder, name)
            wanted[os.path.relpath(path, up)] = os.path.getsize(path)
    s3.create_bucket(Bucket=bucket)
    for key in wanted:
        s3.upload_file(os.path.join(up, key), bucket, key, Config=config,
                       ExtraArgs={"Metadata": {"key-length": str(len(key))}})
    check(sizes(s3, bucket), wanted, "listing")
    for key in wanted:
        path = os.path.join(down, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        s3.download_file(bucket, key, path, Config=config)
        check(s3.head_object(Bucket=bucket, Key=key)["Metadata"],
              {"key-length": str(len(key))}, f"metadata of {key}")
    s3.copy({"Bucket": bucket, "Key": "large+odd name.bin"}, bucket, "copy", Config=config)
    check(sizes(s3, bucket)["copy"], wanted["large+odd name.bin"], "size of the copy")
    keys = sorted(wanted) + ["copy"]
    reply = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    check(sorted(item["Key"] for item in reply["Deleted"]), sorted(keys), "deleted keys")
    check(sizes(s3, bucket), {}, "listing at the end")
    s3.delete_bucket(Bucket=bucket)


if __name__ == "__main__":
    main()
