#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# model.sh FILE [DEVICE]: measures reads of FILE into DEVICE (cuda:0) with blocks of 64 KiB to
# 64 MiB, warm and cold. Then fits the parameters of `penstock model` to the measurements. The
# measurements and the fits go to $OUT (bench/results). Also prints the time that the simulator of
# `penstock model` needs for one second of eight streams.
#
#   PENSTOCK     the command (build/penstock)
#   RUNTIME      seconds of a measurement (2)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
file=${1:?usage: bench/model.sh FILE [DEVICE]}
device=${2:-cuda:0}
penstock=${PENSTOCK:-$root/build/penstock}
out=${OUT:-$root/bench/results}
runtime=${RUNTIME:-2}
mkdir -p "$out"

for state in warm cold; do
	: >"$out/model-$state.jsonl"
	for block in 64KiB 128KiB 256KiB 512KiB 1MiB 2MiB 4MiB 8MiB 16MiB 32MiB 64MiB; do
		"$penstock" bench "$file" "$device" "--$state" --block "$block" \
			--runtime "$runtime" --quiet --json >>"$out/model-$state.jsonl" ||
			echo "model.sh: no $state measurement of blocks of $block" >&2
	done
	echo "== $state"
	"$penstock" model --calibrate "$out/model-$state.jsonl" |
		tee "$out/model-$state.txt" || true
done
echo "== one simulated second of eight streams"
time "$penstock" model contention --streams 8 --duration-ms 1000 |
	grep -E 'total-gbps|events'
