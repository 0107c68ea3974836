#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schema.py FILE...: validates the JSON output of `penstock topo` against the schema that
src/core/machine/topo_print.h documents. Prints a line for each breach, and exits with 1 if
there is one. tests/unit/test_topo.c runs it. It must never accept a field that is not
documented."""

import json
import sys

TEXT, NUMBER, BOOL = (str,), (int,), (bool,)
NULL = (type(None),)
LINK = {"known": BOOL, "mts": NUMBER + NULL, "width": NUMBER + NULL,
        "mts_max": NUMBER + NULL, "width_max": NUMBER + NULL}
PLAIN = {"name": TEXT, "kind": TEXT, "maker": TEXT + NULL, "model": TEXT + NULL,
         "transport": TEXT + NULL, "rate": TEXT + NULL, "state": TEXT + NULL,
         "bdf": TEXT + NULL, "numa": NUMBER + NULL}
ON_PCI = {"driver": TEXT + NULL, "cpus": TEXT + NULL, "host_bridge": TEXT + NULL,
          "iommu_group": NUMBER + NULL, "iommu_type": TEXT + NULL, "link": LINK,
          "bar_bytes": NUMBER, "p2pmem_bytes": NUMBER, "bridges": [TEXT]}
WHOLE = {
    "schema": TEXT, "complete": BOOL, "cpus_online": TEXT + NULL, "iommu": TEXT,
    "nodes": [{"node": NUMBER, "cpus": TEXT, "memory_bytes": NUMBER + NULL,
               "memory_free_bytes": NUMBER + NULL, "distance": [NUMBER]}],
    "devices": [lambda v: {**PLAIN, **ON_PCI} if v.get("bdf") else PLAIN],
    "bridges": [{"bdf": TEXT, "role": TEXT, "acs_redirect": BOOL + NULL,
                 "link": LINK}],
    "nearness": [{"a": TEXT, "b": TEXT, "near": TEXT, "acs_redirect": BOOL + NULL}],
}
VALUES = {"kind": {"gpu", "drive", "nic"}, "schema": {"penstock-topo-1"},
          "iommu": {"none", "passthrough", "translated", "mixed"},
          "near": {"X", "PIX", "PXB", "PHB", "NODE", "SYS"},
          "role": {"root-port", "switch-up", "switch-down", "bridge"}}


def breaches(value, schema, where):
    if callable(schema):
        schema = schema(value)
    if isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{where}: not an array"
            return
        for n, one in enumerate(value):
            yield from breaches(one, schema[0], f"{where}[{n}]")
    elif isinstance(schema, dict):
        if set(value) != set(schema):
            yield f"{where}: {sorted(set(value) ^ set(schema))}"
            return
        for name, one in value.items():
            yield from breaches(one, schema[name], f"{where}.{name}")
    elif type(value) not in schema:
        yield f"{where}: {value!r}"
    field = where.rsplit(".", 1)[-1]
    if field in VALUES and isinstance(value, str) and value not in VALUES[field]:
        yield f"{where}: {value!r} is not an allowed value"


def main():
    failed = len(sys.argv) < 2
    for name in sys.argv[1:]:
        with open(name, encoding="ascii") as f:
            for breach in breaches(json.load(f), WHOLE, name.rsplit("/", 1)[-1]):
                print(breach)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
