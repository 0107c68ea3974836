#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py CSV...: prints the measurements of dcp.py, plain.py and mlperf.py as tables in markdown.
A file that does not exist is left out. bench/README.md explains the columns."""

import csv
import os
import statistics
import sys


def ratio(value, other):
    return f"{value / other:.2f}" if other else ""


def median(rows, column):
    """Returns the median of a column, or None if a row has no value there."""
    values = [row[column] for row in rows]
    return statistics.median(map(float, values)) if all(values) else None


def of_medians(rows):
    """Prints the rows of dcp.py or plain.py, which are medians."""
    limits = {}
    for row in rows:
        if row["what"].startswith("limit"):
            kind = row["what"].split()[-1]
            limits[kind] = max(limits.get(kind, 0.0), float(row["gb_s"]))
    stock = {row["what"]: float(row["gb_s"]) for row in rows if row["who"] == "torch"}
    print("| what | who | GB/s | s | of them data, s | of the limit | × torch | CPU-s/GB | path |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        rate = float(row["gb_s"])
        limit = limits.get({"save": "write", "load cold": "read"}.get(row["what"]), 0)
        if row["what"] == "stall":
            limit = limits.get("copy", 0)
        if row["what"] == "loop":  # Its rate has no meaning; the note has the ratio of the speeds.
            print(f"| loop | {row['who']} | | | | | | | {row['note']} |")
            continue
        print(f"| {row['what']} | {row['who']} | {rate:.2f} | {float(row['seconds']):.3f} | "
              f"{row['data_s']} | {ratio(rate, limit)} | "
              f"{ratio(rate, stock.get(row['what'], 0))} | "
              f"{row['cpu_s_per_gb'] if float(row['cpu_s_per_gb']) else ''} | {row['note']} |")


def of_rounds(rows):
    """Prints the medians of mlperf.py's rows."""
    found = {}
    for row in rows:
        found.setdefault((row["what"], row["who"]), []).append(row)
    middles = {key: {column: median(same, column)
                     for column in ("gb_s", "seconds", "data_seconds")}
               for key, same in found.items()}
    print(f"Model {rows[0]['model']}, scale {rows[0]['scale']}, {rows[0]['ranks']} ranks, "
          f"{int(rows[0]['bytes'])} bytes.\n")
    print("| what | who | GB/s | spread | s | of them data, s | × torch | path |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (what, who), same in found.items():
        rates = [float(row["gb_s"]) for row in same]
        middle, torch = middles[what, who], middles.get((what, "torch"))
        data = middle["data_seconds"]
        print(f"| {what} | {who} | {middle['gb_s']:.2f} | {min(rates):.2f}–{max(rates):.2f} "
              f"| {middle['seconds']:.3f} | {'' if data is None else format(data, '.3f')} | "
              f"{ratio(middle['gb_s'], torch and torch['gb_s'])} | {same[0]['path']} |")


def main():
    for path in sys.argv[1:]:
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        print(f"\n### {os.path.basename(path)}\n")
        (of_rounds if "round" in rows[0] else of_medians)(rows)


if __name__ == "__main__":
    main()
