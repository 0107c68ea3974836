#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plot.py CSV >SVG: draws the GB/s of Penstock, of its limits and of other programs as bars:
for cached files, for files on the drive and for saving. The values are medians of the rows
that bench/gpu.sh wrote to the CSV; no value is entered by hand. The script writes the SVG
itself, so that it needs no packages."""
import csv
import statistics
import sys

PANELS = [  # title, rows: (label, group, name, kind)
    ("cached file to GPU", [
        ("pinned copy (limit)", "warm", "limit", "limit"),
        ("penstock, registration kept", "warm", "kept", "ours"),
        ("penstock, thrifty", "warm", "thrifty", "ours"),
        ("penstock, fast", "warm", "fast", "ours"),
        ("torch pageable copy", "peer_warm", "torch pageable copy", "peer"),
        ("safetensors load_file", "peer_warm", "safetensors load_file", "peer"),
        ("pread + cudaMemcpy", "peer_warm", "pread + cudaMemcpy pinned", "peer")]),
    ("file on the drive to GPU", [
        ("O_DIRECT to host (limit)", "cold", "limit", "limit"),
        ("penstock", "cold", "thrifty", "ours"),
        ("safetensors load_file", "peer_cold", "safetensors load_file", "peer")]),
    ("GPU to durable file", [
        ("O_DIRECT from host (limit)", "save", "limit", "limit"),
        ("penstock", "save", "durable", "ours"),
        ("safetensors save_file", "peer_save", "safetensors save_file + fdatasync", "peer")]),
]
COLOURS = {"limit": "#9aa5b1", "ours": "#0b7a3b", "peer": "#b35900"}


def read(path):
    """Returns a dict from (group, name) to the median GB/s, and a dict of the facts in the
    CSV's comment lines."""
    rates, facts = {}, {}
    with open(path, encoding="utf-8") as f:
        lines = f.read().splitlines()
    for line in lines:
        if line.startswith("# ") and ": " in line:
            key, value = line[2:].split(": ", 1)
            facts[key] = value
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        if float(row["seconds"]) > 0 and int(row["bytes"]):
            rate = int(row["bytes"]) / float(row["seconds"]) / 1e9
            rates.setdefault((row["group"], row["name"]), []).append(rate)
    return {key: statistics.median(values) for key, values in rates.items()}, facts


def draw(rates, facts):
    """Returns the SVG as a list of lines."""
    y, out = 40, []
    for title, rows in PANELS:
        rows = [r for r in rows if (r[1], r[2]) in rates]
        if not rows:
            continue
        most = max(rates[r[1], r[2]] for r in rows)
        out.append(f'<text x="10" y="{y}" font-size="15" font-weight="600">{title}, GB/s</text>')
        for label, group, name, kind in rows:
            y += 22
            value = rates[group, name]
            width = 480 * value / most
            out.append(f'<text x="205" y="{y + 4}" font-size="12" text-anchor="end">{label}</text>')
            out.append(f'<rect x="212" y="{y - 9}" width="{width:.1f}" height="16" '
                       f'fill="{COLOURS[kind]}"/>')
            out.append(f'<text x="{218 + width:.1f}" y="{y + 4}" font-size="12">{value:.2f}</text>')
        y += 38
    note = ", ".join(facts[k] for k in ("gpu", "cpu", "drive", "kernel") if k in facts)
    out.append(f'<text x="10" y="{y}" font-size="11" fill="#555">{note}; driver '
               f'{facts.get("driver", "?")}, commit {facts.get("commit", "?")}</text>')
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y + 16}" '
            'font-family="Helvetica, Arial, sans-serif">',
            '<rect width="100%" height="100%" fill="#ffffff"/>'] + out + ["</svg>"]


def main():
    """Reads the CSV and prints the SVG."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print("\n".join(draw(*read(sys.argv[1]))))
    return 0


sys.exit(main())
