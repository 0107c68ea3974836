# SPDX-License-Identifier: Apache-2.0
"""ListObjects and ListObjectsV2: order, prefixes, delimiters, pages, markers and encodings. The
function `model` computes what a listing must contain. Random listings are compared with it."""

import concurrent.futures

from tools import call, encode, fails, md5, one_of, same, true

TREE = ("a", "b/", "b/1", "b/2/x", "b/2/y", "b2", "c/d/e", "d")


def names(reply):
    return ([item["Key"] for item in reply.get("Contents", [])],
            [item["Prefix"] for item in reply.get("CommonPrefixes", [])])


def list1(t, **named):
    return t.s3.list_objects(Bucket=t.bucket, **named)


def list2(t, **named):
    return t.s3.list_objects_v2(Bucket=t.bucket, **named)


def model(keys, prefix="", delimiter="", after=""):
    """Returns the keys and the common prefixes that a listing without pages must contain."""
    found, prefixes = [], []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            found.append(key)
        elif key[:end + len(delimiter)] not in prefixes:
            prefixes.append(key[:end + len(delimiter)])
    return found, prefixes


def pages1(t, **named):
    keys, prefixes, count = [], [], 0
    while True:
        reply = list1(t, **named)
        count += 1
        true(count < 200, "the listing does not end")
        more = names(reply)
        keys, prefixes = keys + more[0], prefixes + more[1]
        true(len(more[0]) + len(more[1]) <= named.get("MaxKeys", 1000), "a page is too long")
        if not reply["IsTruncated"]:
            return keys, prefixes
        named["Marker"] = reply.get("NextMarker") or more[0][-1]


def pages2(t, **named):
    keys, prefixes, count = [], [], 0
    while True:
        reply = list2(t, **named)
        count += 1
        true(count < 200, "the listing does not end")
        more = names(reply)
        same(reply["KeyCount"], len(more[0]) + len(more[1]), "KeyCount")
        true(reply["KeyCount"] <= named.get("MaxKeys", 1000), "a page is too long")
        keys, prefixes = keys + more[0], prefixes + more[1]
        if not reply["IsTruncated"]:
            return keys, prefixes
        named["ContinuationToken"] = reply["NextContinuationToken"]


def both(t, prefix="", delimiter=""):
    """Lists with both versions of the API, completely and in pages of one and two entries. Compares
    the results with those that `model` computes for TREE."""
    wanted = model(TREE, prefix, delimiter)
    for size in (1000, 1, 2):
        for pages in (pages1, pages2):
            same(pages(t, Prefix=prefix, Delimiter=delimiter, MaxKeys=size), wanted,
                 f"{pages.__name__} of {size}")


def case_list_empty_bucket(t):
    for reply in (list1(t), list2(t)):
        same(names(reply), ([], []), "names")
        same(reply["IsTruncated"], False, "IsTruncated")


def case_list_missing_bucket(t):
    fails("NoSuchBucket", 404, t.s3.list_objects, Bucket=t.name())
    fails("NoSuchBucket", 404, t.s3.list_objects_v2, Bucket=t.name())


def case_list_all(t):
    t.fill(*TREE)
    both(t)


def case_list_prefix(t):
    t.fill(*TREE)
    both(t, "b")


def case_list_prefix_folder(t):
    t.fill(*TREE)
    both(t, "b/")


def case_list_prefix_in_name(t):
    t.fill(*TREE)
    both(t, "b/2/")


def case_list_prefix_of_nothing(t):
    t.fill(*TREE)
    both(t, "zzz")
    both(t, "b/1/")


def case_list_delimiter(t):
    t.fill(*TREE)
    both(t, "", "/")


def case_list_delimiter_and_prefix(t):
    t.fill(*TREE)
    both(t, "b/", "/")


def case_list_delimiter_prefix_without_slash(t):
    t.fill(*TREE)
    both(t, "b", "/")


def case_list_delimiter_letter(t):
    t.fill(*TREE)
    both(t, "", "2")


def case_list_delimiter_word(t):
    t.fill(*TREE)
    both(t, "", "/2")


def case_list_delimiter_absent(t):
    t.fill(*TREE)
    both(t, "", "zz")


def odd_delimiter(t, delimiter):
    keys = (f"a{delimiter}b", f"a{delimiter}c", "plain", f"{delimiter}x")
    t.fill(*keys)
    for pages in (pages1, pages2):
        same(pages(t, Delimiter=delimiter, MaxKeys=1), model(keys, "", delimiter), "names")


def case_list_delimiter_percent(t):
    odd_delimiter(t, "%")


def case_list_delimiter_space(t):
    odd_delimiter(t, " ")


def case_list_delimiter_unicode(t):
    odd_delimiter(t, "ü")


def case_list_max_keys_zero(t):
    t.fill("a", "b")
    for reply in (list1(t, MaxKeys=0), list2(t, MaxKeys=0)):
        same((names(reply), reply["IsTruncated"]), (([], []), False), "reply")


def case_list_max_keys_exact(t):
    t.fill("a", "b")
    for reply in (list1(t, MaxKeys=2), list2(t, MaxKeys=2)):
        same((names(reply), reply["IsTruncated"]), ((["a", "b"], []), False), "reply")


def case_list_max_keys_exact_with_prefixes(t):
    """The page ends with the last common prefix and is full. No entry follows, so the listing must
    not be marked as truncated."""
    t.fill("a", "b/1", "b/2", "b/3")
    for reply in (list1(t, MaxKeys=2, Delimiter="/"), list2(t, MaxKeys=2, Delimiter="/")):
        same((names(reply), reply["IsTruncated"]), ((["a"], ["b/"]), False), "reply")


def case_list_max_keys_more_than_1000(t):
    t.fill("a")
    for reply in (list1(t, MaxKeys=5000), list2(t, MaxKeys=5000)):
        same(reply["MaxKeys"], 1000, "MaxKeys")


def case_list_max_keys_not_a_number(t):
    for query in ("max-keys=x", "list-type=2&max-keys=x"):
        call("GET", t.path(), query).is_error("InvalidArgument", 400)


def case_list_max_keys_negative(t):
    for query in ("max-keys=-1", "list-type=2&max-keys=-1"):
        call("GET", t.path(), query).is_error("InvalidArgument", 400)


def case_list1_fields(t):
    t.fill("p/a", "p/b")
    reply = list1(t, Prefix="p", Marker="p/a", MaxKeys=7)
    fields = ("Name", "Prefix", "Marker", "MaxKeys", "IsTruncated")
    same([reply.get(f) for f in fields], [t.bucket, "p", "p/a", 7, False], "fields")
    same(names(reply), (["p/b"], []), "names")


def case_list2_fields(t):
    t.fill("p/a", "p/b", "p/c")
    reply = list2(t, Prefix="p", StartAfter="p/a", MaxKeys=1, Delimiter="!")
    fields = ("Name", "Prefix", "StartAfter", "MaxKeys", "IsTruncated", "Delimiter", "KeyCount")
    same([reply.get(f) for f in fields], [t.bucket, "p", "p/a", 1, True, "!", 1], "fields")
    same(names(reply), (["p/b"], []), "names")


def case_list_item_fields(t):
    t.put("k", b"12345")
    modified = t.head("k")["LastModified"]
    for reply in (list1(t), list2(t)):
        item = reply["Contents"][0]
        same((item["ETag"], item["Size"], item["StorageClass"]),
             (f'"{md5(b"12345")}"', 5, "STANDARD"), "fields")
        same(item["LastModified"].replace(microsecond=0), modified, "LastModified")


def case_list1_has_owner(t):
    t.put("k")
    true(list1(t)["Contents"][0]["Owner"]["ID"], "no owner")


def case_list2_owner_on_demand(t):
    t.put("k")
    same("Owner" in list2(t)["Contents"][0], False, "Owner")
    true(list2(t, FetchOwner=True)["Contents"][0]["Owner"]["ID"], "no owner")


def case_list1_next_marker_needs_delimiter(t):
    """Without a delimiter the reply has no NextMarker, because the client can use the last key as
    the marker."""
    t.fill("a", "b")
    same(list1(t, MaxKeys=1).get("NextMarker"), None, "NextMarker")
    same(list1(t, MaxKeys=1, Delimiter="/").get("NextMarker"), "a", "NextMarker")


def case_list1_marker_absent_key(t):
    t.fill("a", "c", "d")
    same(names(list1(t, Marker="b"))[0], ["c", "d"], "keys")


def case_list1_marker_is_exclusive(t):
    t.fill("a", "c", "d")
    same(names(list1(t, Marker="c"))[0], ["d"], "keys")


def case_list1_marker_after_all(t):
    t.fill("a", "c")
    reply = list1(t, Marker="zzz")
    same((names(reply), reply["IsTruncated"]), (([], []), False), "reply")


def case_list1_marker_before_prefix(t):
    t.fill("a", "b/1", "b/2")
    same(names(list1(t, Marker="a", Prefix="b/"))[0], ["b/1", "b/2"], "keys")


def case_list1_marker_is_common_prefix(t):
    """If the marker is a common prefix, the listing continues after all keys with this prefix."""
    t.fill("a/1", "b/1", "c/1")
    same(names(list1(t, Marker="b/", Delimiter="/"))[1], ["c/"], "prefixes")


def case_list2_start_after(t):
    t.fill("a", "b", "c")
    same(names(list2(t, StartAfter="a"))[0], ["b", "c"], "keys")
    same(names(list2(t, StartAfter="aa"))[0], ["b", "c"], "keys")
    same(names(list2(t, StartAfter="zz"))[0], [], "keys")


def case_list2_start_after_with_token(t):
    """With a continuation token, start-after has no effect."""
    t.fill("a", "b", "c", "d")
    reply = list2(t, StartAfter="a", MaxKeys=1)
    reply = list2(t, StartAfter="a", MaxKeys=1, ContinuationToken=reply["NextContinuationToken"])
    same(names(reply)[0], ["c"], "keys")


def case_list2_token_is_echoed(t):
    t.fill("a", "b")
    token = list2(t, MaxKeys=1)["NextContinuationToken"]
    same(list2(t, ContinuationToken=token)["ContinuationToken"], token, "ContinuationToken")


def case_list2_token_invalid(t):
    t.bucket
    reply = call("GET", t.path(), "continuation-token=%21%21not-a-token&list-type=2")
    reply.is_error("InvalidArgument", 400)


def case_list2_token_survives_deletion(t):
    t.fill("a", "b", "c")
    token = list2(t, MaxKeys=2)["NextContinuationToken"]
    t.s3.delete_object(Bucket=t.bucket, Key="b")
    same(names(list2(t, ContinuationToken=token))[0], ["c"], "keys")


def case_list_encoding_url(t):
    key = "a b/c+d/ü&<"
    t.fill(key, "z")
    for query in ("", "list-type=2&"):
        reply = call("GET", t.path(), f"{query}delimiter=%2F&encoding-type=url&"
                                      f"prefix={encode('a b/').replace('/', '%2F')}")
        true(b"<EncodingType>url</EncodingType>" in reply.body, f"no EncodingType: {reply.body}")
        one_of([p in reply.body for p in (b"<Prefix>a%20b/c%2Bd/</Prefix>",
                                          b"<Prefix>a+b/c%2Bd/</Prefix>",
                                          b"<Prefix>a%20b%2Fc%2Bd%2F</Prefix>",
                                          b"<Prefix>a+b%2Fc%2Bd%2F</Prefix>")].count(True), (1,),
               f"encoded prefixes in {reply.body!r}")


def case_list_encoding_unknown(t):
    call("GET", t.path(), "encoding-type=rot13").is_error("InvalidArgument", 400)


def case_list_without_encoding(t):
    t.fill("ü/a b+c&d")
    reply = call("GET", t.path(), "list-type=2").is_ok()
    true("<Key>ü/a b+c&amp;d</Key>".encode() in reply.body, f"listing {reply.body!r}")
    true(b"EncodingType" not in reply.body, "EncodingType without a request for it")


def case_list_unknown_prefix_encoding(t):
    """An encoded plus sign (%2B) in a query means a plus sign, and not a blank."""
    t.fill("a b", "a+b")
    reply = call("GET", t.path(), "list-type=2&prefix=a%2Bb").is_ok()
    same((b"<Key>a+b</Key>" in reply.body, b"<Key>a b</Key>" in reply.body), (True, False),
         "keys")


def case_list_xml_namespace(t):
    for query in ("", "list-type=2"):
        reply = call("GET", t.path(), query).is_ok()
        true(b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"' in reply.body,
             f"root element of {reply.body[:200]!r}")


def case_list_sees_changes(t):
    """A listing that starts after the reply to a write must contain the written object."""
    for n in range(10):
        t.fill(f"k{n}")
        same(len(t.keys()), n + 1, "keys")
    for n in range(10):
        t.s3.delete_object(Bucket=t.bucket, Key=f"k{n}")
        same(len(t.keys()), 9 - n, "keys")


def case_list_1200_keys(t):
    t.bucket
    keys = [f"{n % 7}/{n:05}" for n in range(1200)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(t.put, keys))
    reply = list2(t)
    same((len(reply["Contents"]), reply["IsTruncated"]), (1000, True), "first page")
    same(pages2(t)[0], sorted(keys), "keys of V2")
    same(pages1(t)[0], sorted(keys), "keys of V1")
    same(pages2(t, Delimiter="/")[1], [f"{n}/" for n in range(7)], "prefixes")


def case_list_random(t):
    """Random keys, prefixes, delimiters and page sizes, compared with the model."""
    alphabet = "ab/.-ü "
    word = lambda most: "".join(t.random.choice(alphabet)  # noqa: E731
                                for _ in range(t.random.randint(1, most)))
    keys = {word(6).encode()[:1024].decode() for _ in range(40)}
    keys -= {".", "..", "/"} | {key for key in keys
                                if any(part in (".", "..") for part in key.split("/"))}
    t.fill(*keys)
    for _ in range(30):
        prefix = t.random.choice(("", word(2), word(1)))
        delimiter = t.random.choice(("", "/", "a", "."))
        size = t.random.randint(1, 9)
        for pages in (pages1, pages2):
            same(pages(t, Prefix=prefix, Delimiter=delimiter, MaxKeys=size),
                 model(keys, prefix, delimiter),
                 f"{pages.__name__} prefix {prefix!r} delimiter {delimiter!r} size {size}")


def case_list_random_start_after(t):
    keys = {f"{t.random.randint(0, 99):02}/{t.random.randint(0, 3)}" for _ in range(40)}
    t.fill(*keys)
    for _ in range(20):
        after = f"{t.random.randint(0, 99):02}" + t.random.choice(("", "/", "/2", "0"))
        same(pages2(t, StartAfter=after, MaxKeys=5), model(keys, after=after), f"after {after}")


def case_list_versions(t):
    """A bucket without versioning lists one version of each object, with the ID null."""
    t.fill("a", "b")
    reply = call("GET", t.path(), "versions")
    if reply.status != 501:
        versions = t.s3.list_object_versions(Bucket=t.bucket)["Versions"]
        same([(v["Key"], v["VersionId"], v["IsLatest"]) for v in versions],
             [("a", "null", True), ("b", "null", True)], "versions")
