#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py CSV: prints the measurements of bench/gpu.sh as tables in markdown.

The columns are the median of the repetitions, the spread (lowest to highest), the ratio to the
limit, CPU-seconds per GB, and whether the target is met. The limit was measured in the same
repetitions. Every value is computed from the CSV alone."""

import re
import statistics
import sys
from collections import defaultdict

# The targets that the table checks: (group, name of the measurement, name of its limit, minimum
# ratio to the limit, maximum CPU-s/GB, text in the table). None means no target.
TARGETS = (
    ("warm", "fast", "limit", 0.95, 0.18, "warm file → GPU, `fast`"),
    ("warm", "thrifty", "limit", 0.88, 0.04, "warm file → GPU, `thrifty`"),
    ("warm", "thrifty", "windows", None, None, "`thrifty`, relative to raw driver calls"),
    ("warm", "kept", "limit", 0.98, None, "second read, registration kept"),
    ("warm_read", "fast", "limit", 0.95, 0.18, "cached by readahead, `fast`"),
    ("warm_read", "thrifty", "limit", 0.88, 0.04, "cached by readahead, `thrifty`"),
    ("mixed", "mapped", "raw mapped", None, None, "path `mapped`, relative to raw calls"),
    ("mixed", "bounce", "raw bounce", None, None, "path `bounce`, relative to raw calls"),
    ("mixed", "balanced", "raw both", None, 0.12, "both paths, `balanced`, relative to raw calls"),
    ("mixed", "fast", "raw both", 0.97, 0.12, "both paths, `fast`, relative to raw calls"),
    ("mixed", "fast", "limit", 0.95, 0.12, "both paths, `fast`"),
    ("cold", "thrifty", "limit", 0.97, 0.02, "cold file → GPU"),
    ("cold", "thrifty", "loop", None, None, "the same, relative to one loop of raw calls"),
    ("save", "durable", "limit", 0.97, None, "GPU → durable file"),
)


class Row:
    def __init__(self, fields):
        self.group, self.name, self.rep = fields[0], fields[1], int(fields[2])
        self.bytes, self.seconds = int(fields[3]), float(fields[4])
        self.cpu, self.machine, self.ops = float(fields[5]), float(fields[6]), int(fields[7])
        self.p50, self.p99 = float(fields[8]), float(fields[9])
        self.path, self.engine, self.note = fields[10:13]

    @property
    def rate(self):
        return self.bytes / self.seconds / 1e9


def rows(path):
    """Returns the facts of the machine, and a dict from (group, name) to its rows in the order
    of the file."""
    facts, found = {}, defaultdict(list)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line.startswith("#"):
                key, _, value = line[1:].partition(":")
                facts[key.strip()] = value.strip()
                continue
            fields = line.split(",", 12)
            if len(fields) < 13 or fields[0] == "group":
                continue
            row = Row(fields)
            found[row.group, row.name].append(row)
    return facts, found


def median(values):
    values = list(values)
    return statistics.median(values) if values else 0.0


def per_gb(rows_):
    return median(r.cpu / r.bytes * 1e9 for r in rows_)


def machine_per_gb(rows_):
    """Returns CPU-s/GB of the whole machine. Adds up all repetitions before it divides, because
    the kernel counts this time in steps of 10 ms."""
    return sum(r.machine for r in rows_) / sum(r.bytes for r in rows_) * 1e9


def ratio(ours, limit):
    """Returns the median of the ratios of each repetition to the limit in the same repetition,
    so that slow changes of the machine's speed cancel out."""
    by_rep = {r.rep: r for r in limit}
    return median(r.rate / by_rep[r.rep].rate for r in ours if r.rep in by_rep)


def spread(values):
    values = sorted(values)
    return f"{values[0]:.2f}–{values[-1]:.2f}"


def verdict(ok):
    return "yes" if ok else "**no**"


def table(head, lines):
    if not lines:
        return
    print("| " + " | ".join(head) + " |")
    print("|" + "|".join(" --- " for _ in head) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def bulk(found):
    lines = []
    for group, name, limit, least, most, words in TARGETS:
        ours, bound = found.get((group, name)), found.get((group, limit))
        if not ours or not bound:
            continue
        of, cpu = ratio(ours, bound), per_gb(ours)
        want = f"≥ {least}" + (f", ≤ {most} CPU-s/GB" if most else "") if least else ""
        met = verdict(of >= least and (most is None or cpu <= most)) if least else ""
        lines.append((words, ours[-1].path, f"{median(r.rate for r in ours):.2f}",
                      spread(r.rate for r in ours), f"{median(r.rate for r in bound):.2f}",
                      f"{of:.3f}", f"{cpu:.4f}", f"{machine_per_gb(ours):.3f}", want, met))
    table(("what", "path", "GB/s", "spread", "limit", "ratio", "CPU-s/GB", "machine", "target",
           "met"), lines)


def checker(found):
    limit = found.get(("checker", "limit"))
    if not limit:
        return
    lines = []
    for name in ("thrifty", "fast"):
        ours = found.get(("checker", name), [])
        by_rep = {r.rep: r for r in limit}
        over = median(r.seconds / by_rep[r.rep].seconds for r in ours if r.rep in by_rep)
        lines.append((f"checkerboard of 1 MiB, `{name}`", f"{median(r.seconds for r in ours):.3f}",
                      f"{median(r.seconds for r in limit):.3f}",
                      f"{median(r.seconds for r in found.get(('checker', 'limit-tiles'), [])):.3f}",
                      f"{over:.3f}", "≤ 1.1", verdict(0 < over <= 1.1)))
    table(("what", "s", "cold half at the drive's rate, s", "the same tiles by raw reads, s",
           "ratio", "target", "met"), lines)


def random_reads(found):
    lines = []
    for depth in (32, 128):
        group = f"rand{depth}"
        fio = found.get((group, "fio"), [])
        for name in ("fio", "fio-fixed", "thrifty", "fast", "own thrifty", "own fast"):
            ours = found.get((group, name), [])
            if not ours:
                continue
            iops = median(r.ops / r.seconds for r in ours)
            base = median(r.ops / r.seconds for r in fio)
            tail, tail_base = median(r.p99 for r in ours), median(r.p99 for r in fio)
            is_fio = name.startswith("fio")
            ok = base and iops / base >= 0.9 and tail / tail_base <= 1.3
            lines.append((f"4 KiB random, depth {depth}, {name}", f"{iops:.0f}",
                          f"{median(r.p50 for r in ours):.0f}", f"{tail:.0f}",
                          f"{iops / base:.3f}" if base else "",
                          f"{tail / tail_base:.2f}" if base else "",
                          f"{median(r.cpu / r.ops for r in ours) * 1e6:.2f}",
                          "" if is_fio else "≥ 0.9, p99 ≤ 1.3",
                          "" if is_fio or not base else verdict(ok)))
    table(("what", "IOPS", "p50 µs", "p99 µs", "of fio", "p99 of fio", "CPU µs a read", "target",
           "met"), lines)


def small_reads(found):
    lines = []
    for depth in (1, 32):
        group = f"small{depth}"
        fio = found.get((group, "fio"), [])
        if not fio:
            continue
        base = median(r.ops / r.seconds for r in fio)
        cpu_base = median(r.cpu / r.ops for r in fio) * 1e6
        for (other, name), got in found.items():
            if other != group:
                continue
            iops = median(r.ops / r.seconds for r in got)
            cpu = median(r.cpu / r.ops for r in got) * 1e6
            target = ""
            if depth == 1 and name.split(" ", 1)[-1] in ("call", "own lane"):
                target = "CPU ≤ 1.5"
            elif depth == 32 and "own lane" in name:
                target = "IOPS ≥ 0.9"
            ok = cpu <= 1.5 * cpu_base if depth == 1 else iops >= 0.9 * base
            lines.append((f"depth {depth}, {name}", f"{iops:.0f}", f"{iops / base:.2f}",
                          f"{cpu:.2f}", f"{cpu / cpu_base:.2f}",
                          f"{median(r.p50 for r in got):.0f}", f"{median(r.p99 for r in got):.0f}",
                          target, verdict(ok) if target else ""))
    table(("4 KiB random", "IOPS", "of fio", "CPU µs a read", "of fio", "p50 µs", "p99 µs",
           "target", "met"), lines)


def costs(found):
    lines = []
    pread, ours = found.get(("host4k", "pread")), found.get(("host4k", "penstock_read"))
    if pread and ours:
        extra = median(a.p50 - b.p50 for a, b in zip(ours, pread))
        lines.append(("4 KiB page-cache read to host memory, p50",
                      f"{median(r.p50 for r in ours):.2f} µs, pread "
                      f"{median(r.p50 for r in pread):.2f}, {ours[-1].note}",
                      "≤ pread + 1 µs", verdict(extra <= 1)))
    for (group, name), got in found.items():
        if group == "null":
            ns = median(r.seconds / r.ops for r in got) * 1e9
            lines.append((f"`null` request, {name}",
                          f"{ns:.0f} ns, {got[-1].note.split('request ')[-1]}",
                          "≤ 300 ns, no allocation",
                          verdict(ns <= 300 and "allocations 0 " in got[-1].note)))
    for (group, name), got in found.items():
        if group == "startup":
            lines.append((f"start: {name}",
                          f"{median(r.seconds for r in got) * 1e3:.2f} ms", "", ""))
    table(("what", "measured", "target", "met"), lines)


def sizes(found):
    for group, head, flat_from in (("size_warm", "cached", 1024),
                                   ("size_cold", "on the drive", 64)):
        names = [n for g, n in found if g == group]
        modes = list(dict.fromkeys(n.split(" ", 2)[2] for n in names))
        mibs = list(dict.fromkeys(int(n.split()[0]) for n in names))
        if not mibs:
            continue
        lines = []
        for mode in modes:
            rate = {m: median(r.rate for r in found.get((group, f"{m} MiB {mode}"), []))
                    for m in mibs}
            flat = [rate[m] for m in mibs if m >= flat_from and rate[m]]
            off = (max(flat) - min(flat)) / max(flat) if flat else 0
            small = rate.get(64, 0) / flat[-1] if flat else 0
            lines.append((mode, *(f"{rate[m]:.2f}" if rate[m] else "" for m in mibs),
                          f"{off * 100:.1f} %", f"{small:.2f}"))
        table((f"{head}, GB/s", *(f"{m} MiB" for m in mibs), f"apart from {flat_from} MiB on",
               "64 MiB of the largest"), lines)


def other_tables(found):
    lines = []
    for (group, name), got in found.items():
        if group.startswith("peer_"):
            lines.append((group[5:], name, f"{median(r.rate for r in got):.2f}",
                          spread(r.rate for r in got), f"{per_gb(got):.3f}"))
    table(("peers", "what", "GB/s", "spread", "CPU-s/GB"), lines)
    for group in ("cold", "save", "lanes", "staged", "window", "copies", "batches"):
        lines = []
        for (g, name), got in found.items():
            if g != group or group in ("cold", "save") and "limit" not in name:
                continue
            keys = [(name, got)]
            if name == "limit-search":
                keys = [(f"search {r.note}", [r]) for r in got]
            for key, some in keys:
                lines.append((key, f"{median(r.rate for r in some):.2f}",
                              spread(r.rate for r in some), f"{per_gb(some):.4f}",
                              some[-1].note if group == "window" else ""))
        if lines:
            table((group, "GB/s", "spread", "CPU-s/GB", ""), lines)
    table(("4 KiB copies by raw driver calls", "µs a copy", "p50 µs", "CPU µs"),
          [(name, f"{median(r.seconds / r.ops for r in got) * 1e6:.2f}",
            f"{got[-1].p50:.1f}" if got[-1].p50 else "",
            f"{median(r.cpu / r.ops for r in got) * 1e6:.2f}")
           for (group, name), got in found.items() if group == "copies4k"])
    table(("256 KiB and more that a processor has written", "filled in, µs", "copied in, µs"),
          [(name, got[-1].note.split()[1], f"{median(r.p50 for r in got):.1f}")
           for (group, name), got in found.items() if group == "written"])


def stream_reads(found):
    """Prints the reads in stream order, and how much they slow kernels on another stream."""
    columns = ("one call", "queue", "1 stream", "1 stream early", "8 streams", "8 streams early",
               "8 streams late", "8 streams held", "limit: calls alone",
               "limit: plain reads", "limit: copies of pinned memory")
    columns = tuple(name for name in columns if any(key[1] == name for key in found))
    lines = []
    for group in dict.fromkeys(g for g, _ in found if re.fullmatch(r"stream (cold|cached) .*", g)):
        _, cached, kib, _ = group.split()
        length = f"{kib} KiB" if int(kib) < 1024 else f"{int(kib) // 1024} MiB"
        lines.append([f"{cached}, {length}"] +
                     [f"{median(r.rate for r in found[group, name]):.2f}"
                      if found.get((group, name)) else "" for name in columns])
    lines.sort(key=lambda line: line[0].startswith("cold"))
    table(("bytes of a read, GB/s",) + columns, lines)
    lines = []
    alone = median(r.seconds for r in found.get(("stream beside kernels", "no reads"), []))
    for (group, name), got in found.items():
        if group == "stream beside kernels":
            took = median(r.seconds for r in got)
            more = round((took / alone - 1) * 100, 1) + 0  # the 0 makes -0.0 positive
            lines.append((name, f"{took * 1e3:.2f}", f"{more:+.1f} %",
                          f"{median(r.ops for r in got):.0f}"))
    table(("reads", "200 kernels, ms", "more than without reads", "reads of 1 MiB"), lines)


def stream_ratios(found):
    """Prints ratios of reads in stream order to other reads and to limits of the same
    repetition."""
    pairs = (("8 streams early", "queue"), ("1 stream", "one call"),
             ("1 stream early", "one call"), ("8 streams", "one call"),
             ("8 streams early", "one call"), ("8 streams early", "limit: calls alone"),
             ("queue", "limit: plain reads"), ("8 streams early", "limit: plain reads"),
             ("8 streams early", "limit: copies of pinned memory"))
    lines = []
    for group in dict.fromkeys(g for g, _ in found if re.fullmatch(r"stream (cold|cached) .*", g)):
        if any((group, ours) in found and (group, base) in found for ours, base in pairs):
            lines.append([group.removeprefix("stream ")] + [
                f"{ratio(found[group, ours], found[group, base]):.2f}"
                if (group, ours) in found and (group, base) in found else ""
                for ours, base in pairs])
    lines.sort(key=lambda line: line[0].startswith("cold"))
    table(("ratios of GB/s",) + tuple(f"{ours} / {base}" for ours, base in pairs), lines)


def driver_calls(found):
    """Prints how long the driver's calls take, and the round trips of a stream that waits."""
    lines = []
    for (group, name), got in found.items():
        if group == "calls 1 streams":
            eight = found.get(("calls 8 streams", name), [])
            words = [r.note.split() for r in got], [r.note.split() for r in eight]
            lines.append([name] + [f"{median(float(w[i]) for w in some):.2f}"
                                   for some in words for i in (0, 6)])
    table(("driver call", "1 stream: µs a call", "until executed, µs", "8 streams: µs a call",
           "until executed, µs"), lines)
    lines = []
    for (group, name), got in found.items():
        if group == "trips 4 KiB":
            longer = found.get(("trips 64 KiB", name), [])
            lines.append([name] + [f"{median(r.p50 for r in some):.1f}"
                                   for some in (got, longer)])
    table(("operations of the stream", "4 KiB, µs", "64 KiB, µs"), lines)


def main():
    facts, found = rows(sys.argv[1])
    for key, value in facts.items():
        print(f"- {key}: {value}")
    print()
    for part in (bulk, checker, random_reads, small_reads, costs, sizes, other_tables,
                 stream_reads, stream_ratios, driver_calls):
        part(found)


if __name__ == "__main__":
    main()
