# SPDX-License-Identifier: Apache-2.0
"""Report: how a load or a save went."""

from __future__ import annotations

from typing import Any

from ._lib import ffi


class Report:
    """The result of a load: bytes, path and speed.

    Attributes:
        bytes: number of bytes delivered to all destinations.
        read: number of bytes read from the files. At unaligned ends whole pages count.
        device_bytes: the most device memory that the load held at one time, in bytes.
        seconds: how long the load took.
        path: the path that carried most bytes: "p2p", "staged", "bounce" and so on.
        engine: the method of making system calls: "uring" or "threads".
        cpu_copies: how often the CPU copied each byte, on average. 0.0 means that only DMA
            engines moved the bytes.
        dram_passes: how often each byte was written to host memory on its way, on average.
        retries: number of chunks that failed on one path and were carried by another path.
        requests: number of requests that the load made.
    """

    def __init__(self, r: Any) -> None:
        self.bytes, self.read, self.device_bytes = int(r.bytes), int(r.read), int(r.device_bytes)
        self.seconds: float = (r.end_ns - r.start_ns) / 1e9
        self.path: str = ffi.string(r.path).decode()
        self.engine: str = ffi.string(r.engine).decode()
        self.cpu_copies: float = r.cpu_copied / r.read if r.read else 0.0
        self.dram_passes: float = r.dram_laid / r.read if r.read else 0.0
        self.retries, self.requests = int(r.retries), int(r.requests)

    def __repr__(self) -> str:
        return (f"penstock.Report({self.bytes} bytes in {self.seconds:.3f} s by {self.path}, "
                f"{self.cpu_copies:.2f} CPU copies)")


def new_report() -> Any:
    """Returns an empty struct penstock_load_report, for the library to fill."""
    report = ffi.new("struct penstock_load_report *")
    report.size = ffi.sizeof("struct penstock_load_report")
    report.path = report.engine = _NONE
    return report


_NONE = ffi.new("char[]", b"none")

__all__ = ["Report", "new_report"]
