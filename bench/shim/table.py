#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py CSV: prints the measurements of bench/shim/run as tables in markdown, with medians,
ranges, ratios and whether each target is met. Every value is computed from the CSV alone.
The table has no row for a measurement that the CSV does not have."""

import csv
import statistics
import sys
from collections import defaultdict, namedtuple

Row = namedtuple("Row", "rate seconds p50 p99 ops cpu")
PEERS = ("nvidia", "nvidia O_DIRECT")
COMPARED = (  # part of the group, our row, the other row, minimum ratio, text
    ("torch load", "torch.cuda.gds", "core", 0.9, "of the core's own"),
    ("torch load", "torch.cuda.gds", "torch.cuda.gds NVIDIA", 1.0, "of NVIDIA's"),
    ("kvikio", "KvikIO drop-in", "KvikIO POSIX", 3.0, "of its own POSIX mode"),
    ("kvikio", "KvikIO drop-in", "KvikIO NVIDIA", 1.0, "of NVIDIA's"),
)


def read(path):
    facts, found = [], defaultdict(list)
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("#"):
                facts.append(line[1:].strip())
            elif not line.startswith("group,"):
                part = next(csv.reader([line]))
                size, seconds, cpu = float(part[3]), float(part[4]), float(part[5])
                found[part[0], part[1]].append(Row(
                    size / seconds / 1e9 if seconds else 0, seconds, float(part[8]),
                    float(part[9]), int(part[7]), cpu / size * 1e9 if size else 0))
    return facts, found


def median(rows, what="rate"):
    return statistics.median(getattr(row, what) for row in rows)


def spread(rows):
    rates = [row.rate for row in rows]
    return f"{min(rates):.2f}–{max(rates):.2f}"


def table(head, lines):
    if lines:
        for cells in (head, ("---",) * len(head), *lines):
            print("| " + " | ".join(cells) + " |")
        print()


def groups(found):
    return list(dict.fromkeys(group for group, _ in found))


def compared(found):
    lines = []
    for group in groups(found):
        for part, ours, other, least, words in COMPARED:
            a, b = found.get((group, ours)), found.get((group, other))
            if part not in group or not a or not b:
                continue
            ratio = median(a) / median(b)
            lines.append((group, ours, f"{median(a):.2f}", spread(a), f"{median(b):.2f}",
                          spread(b), f"{ratio:.2f} {words}", f"≥ {least}",
                          "yes" if ratio >= least else "**no**"))
    table(("what", "through", "GB/s", "spread", "the other", "spread", "ratio", "asked", "met"),
          lines)


def overhead(found):
    lines = []
    for group in groups(found):
        core, ours = found.get((group, "core")), found.get((group, "drop-in"))
        if not group.startswith("overhead") or not core or not ours:
            continue
        more = statistics.median((a.p50 - b.p50) * 1e3 for a, b in zip(ours, core))
        lines.append((group, f"{median(core, 'p50'):.3f}", f"{median(ours, 'p50'):.3f}",
                      f"{more:.0f}", "≤ 200", "yes" if more <= 200 else "**no**"))
    table(("a call", "core µs, p50", "drop-in µs, p50", "more, ns", "asked", "met"), lines)


def calls(found):
    """Prints the table of cuFile calls: by the drop-in (Penstock's libcufile), by the core
    (Penstock's own API), and by the faster of the two modes of NVIDIA's library."""
    lines = []
    for group in groups(found):
        ours, core = found.get((group, "drop-in")), found.get((group, "core"))
        peers = [(median(found[group, name]), name) for name in PEERS if (group, name) in found]
        if group.startswith("overhead") or not ours:
            continue
        cells = [group, f"{median(ours):.3f}", spread(ours), f"{median(ours, 'p50'):.1f}",
                 f"{median(core):.3f}" if core else ""]
        cells.append(f"{median(ours) / median(core):.2f}" if core else "")
        if peers:
            best, name = max(peers)
            cells += [f"{best:.3f} ({name})", f"{median(found[group, name], 'p50'):.1f}",
                      f"{median(ours) / best:.2f}", "yes" if median(ours) >= best else "**no**"]
        else:
            cells += ["", "", "", ""]
        lines.append(tuple(cells))
    table(("what", "GB/s", "spread", "p50 µs", "core", "of the core", "NVIDIA's best way",
           "its p50", "of NVIDIA's", "≥ 1"), lines)


def main():
    facts, found = read(sys.argv[1])
    print("".join(f"- {fact}\n" for fact in facts))
    for part in (compared, overhead, calls):
        part(found)


if __name__ == "__main__":
    main()
