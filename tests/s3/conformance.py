#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that an S3 server behaves as Amazon documents the API.

conformance.py [--list] [WORD...]: runs the cases whose names contain one of the words, or all.
A case is a function case_NAME of a module in tests/s3/cases. The output is TAP.

The environment names the server: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_REGION. If given, S3_READ_KEY and S3_READ_SECRET are a key that may only read, S3_OTHER_KEY
and S3_OTHER_SECRET a key that may use no bucket of the test, and S3_DOMAIN a domain whose
subdomains are buckets. S3_SEED sets the seed of the random keys.

If S3_SERVER is the name of a server in tests/s3/deviations, the cases listed there must fail:
the server is known to differ from the documentation."""

import importlib
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import tools  # noqa: E402  (needs the path above)

MODULES = ("buckets", "objects", "keys", "conditions", "listing", "multipart", "copying",
           "deleting", "checksums", "signing", "presigning", "chunked", "access", "details")


def cases(modules=MODULES):
    found = []
    for name in modules:
        module = importlib.import_module(f"cases.{name}")
        found += [(key[5:], value) for key, value in vars(module).items()
                  if key.startswith("case_")]
    names = [name for name, _ in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"conformance: two cases are called {', '.join(sorted(twice))}")
    return found


def deviations(server, names):
    """Returns the known deviations of this server: for each case, the reason, and whether the case
    must fail or may also pass."""
    found, of, reason = {}, "", ""
    with open(os.path.join(HERE, "deviations"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("=="):
                _, of, reason = line.strip().split(None, 2)
            elif not line.startswith("#"):
                for word in line.split():
                    case = word.lstrip("?")
                    if case not in names:
                        sys.exit(f"conformance: tests/s3/deviations: no case is called {case}")
                    if server in of.split(","):
                        found[case] = reason, case == word
    return found


def run(case):
    """Runs a case. Returns an empty text if it passes, else the reason of its failure."""
    test = tools.Test()
    try:
        case(test)
        return ""
    except tools.Skip:
        raise
    except AssertionError as error:
        return f"{error}\n{traceback.extract_tb(error.__traceback__)[1].lineno}"
    except Exception:  # A failed case must not stop the others.
        return traceback.format_exc()
    finally:
        try:
            test.clean()
        except Exception as error:
            print(f"# cannot clean up: {error!r}")


def report(number, name, case, known):
    """Runs a case and prints its line. Returns False if it fails."""
    start = time.monotonic()
    try:
        why = run(case)
    except tools.Skip as reason:
        print(f"# skip: {reason}\nok {number} - {name} # SKIP", flush=True)
        return True
    took = time.monotonic() - start
    for line in why.splitlines():
        print(f"# {line}")
    passed, tail = not why, ""
    if known:
        reason, always = known
        passed, tail = bool(why) or not always, f" (known to deviate: {reason})"
        if not passed:
            print("# the case passes, so tests/s3/deviations must not have it")
    print(f"{'ok' if passed else 'not ok'} {number} - {name}{tail}")
    print(f"# {took:.2f} s", flush=True)
    return passed


def main(modules=MODULES, strict=True):
    """Runs the cases of some modules. If `strict` is true, each listed deviation must name a case
    of these modules."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    found = cases(modules)
    chosen = [(name, case) for name, case in found
              if not wanted or any(word in name for word in wanted)]
    if "--list" in sys.argv:
        print("\n".join(name for name, _ in chosen))
        return 0
    known = {}
    if strict:
        known = deviations(os.environ.get("S3_SERVER", ""), [name for name, _ in found])
    print(f"1..{len(chosen)}")
    print(f"# endpoint {tools.ENDPOINT}, seed {tools.SEED}", flush=True)
    failed = [name for number, (name, case) in enumerate(chosen, 1)
              if not report(number, name, case, known.get(name))]
    if failed:
        print(f"# failed: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
