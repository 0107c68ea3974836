# SPDX-License-Identifier: Apache-2.0
"""Runs unittest cases and prints TAP, one line for each case, for tests/run."""

import sys
import time
import unittest


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number, self.start = 0, 0.0

    def startTest(self, test):
        super().startTest(test)
        self.start = time.monotonic()

    def _line(self, test, word, tail=""):
        self.number += 1
        print(f"{word} {self.number} - {test.id().partition('.')[2]}{tail}", flush=True)

    def addSuccess(self, test):
        self._line(test, "ok")
        print(f"# {time.monotonic() - self.start:.2f} s")

    def addSkip(self, test, reason):
        print(f"# skip: {reason}")
        self._line(test, "ok", " # SKIP")

    def _bad(self, test, error):
        self.failures.append((test, ""))
        self._line(test, "not ok")
        for line in self._exc_info_to_string(error, test).splitlines():
            print(f"# {line}")

    def addFailure(self, test, error):
        self._bad(test, error)

    def addError(self, test, error):
        self._bad(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            print(f"# {subtest}")
            for line in self._exc_info_to_string(error, test).splitlines():
                print(f"# {line}")
            self.failures.append((subtest, ""))


def timely(check, limit_s):
    """Calls check(), whose result depends on a time limit. If check() fails and took almost as long
    as the limit, the machine may have been busy, so check() is called again."""
    for last in 9 * [False] + [True]:
        start = time.monotonic()
        try:
            check()
            return
        except AssertionError:
            if last or time.monotonic() - start < 0.8 * limit_s:
                raise


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    cases = []

    def flatten(part):
        for one in part:
            if isinstance(one, unittest.TestSuite):
                flatten(one)
            else:
                cases.append(one)

    flatten(suite)
    wanted = sys.argv[1:]
    cases = [c for c in cases if not wanted or any(w in c.id() for w in wanted)]
    print(f"1..{len(cases)}", flush=True)
    result = Result()
    unittest.TestSuite(cases).run(result)
    sys.exit(1 if result.failures else 0)
