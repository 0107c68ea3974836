#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# order.sh: measures on a machine with a GPU what bench/gpu.sh leaves out: reads in the order of
# CUDA streams, also while other kernels run, reads in CUDA graphs, and small reads against fio. It
# also measures long reads, which use up the windows of path mapped (registered pieces of the page
# cache). It measures short requests, which wake only some of the library's threads (lanes). It runs
# `penstock bench --limits`. It needs .carry/bench of bench/prepare. The raw CSV, the tables and the
# log go to $OUT (bench/results).
#
#   BENCH_DIR     folder for the test file, on the drive to measure (/var/tmp)
#   BENCH_MIB     length of the test file in MiB (2048)
#   BENCH_REPS    number of repetitions (2)
#   BENCH_BUDGET  seconds for all steps (290); later steps are skipped
#   BENCH_DEVICE  device (cuda:0)
#   BENCH_ONLY    steps to run, such as "make stream windows" (all)
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
out=${OUT:-bench/results}
dir=${BENCH_DIR:-/var/tmp}/penstock-order.$$
reps=${BENCH_REPS:-2}
budget=${BENCH_BUDGET:-290}
device=${BENCH_DEVICE:-cuda:0}
carried=.carry/bench

mkdir -p "$out" "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
csv=$out/order.csv
log=$out/order.log
shown=yes
. bench/steps.sh

fio=()
[ ! -f "$carried/fio.tgz" ] || {
	tar -C "$dir" -xzf "$carried/fio.tgz"
	fio=(-F "$dir/fio/ld-linux-x86-64.so.2 --library-path $dir/fio $dir/fio/fio")
}
core=("$carried/bench_core" -f "$dir/file" -o "$csv" -d "$device" -l "${BENCH_MIB:-2048}"
	-t 1 ${fio[@]+"${fio[@]}"})
penstock() { LD_LIBRARY_PATH=$carried/lib "$carried/penstock" "$@"; }
builds=(after="$carried/penstock")
[ ! -f "$carried/before" ] || builds=(before="$carried/before" "${builds[@]}")
blocks() { LD_LIBRARY_PATH=$carried/lib bench/blocks "$dir/file" --device "$device" "$@"; }

# Runs penstock bench --limits, which also measures plain calls, and prints a row for each case.
limits() {
	local state effort block
	for state in warm cold; do
		for effort in thrifty fast; do
			[ "$state $effort" != "cold fast" ] || continue
			for block in 1MiB 16MiB; do
				penstock bench "$dir/file" "$device" "--$state" --limits \
					--effort "$effort" --block "$block" --runtime 1 \
					--quiet --json || return 1
			done
		done
	done >>"$out/order-limits.jsonl"
	python3 -c 'import json, sys
print("| block | path | GB/s | limit | ratio | CPU-s/GB | the limit |")
for line in open(sys.argv[1]):
    one = json.loads(line)
    if "plain" in one: # cached bytes for a GPU: the plain calls are no limit
        one.update(limit="no limit: " + one["plain"], limit_gb_per_s=one["plain_gb_per_s"],
                   ratio=float("nan"))
    print("| {block} | {path} | {gb_per_s:.2f} | {limit_gb_per_s:.2f} | {ratio:.3f} |"
          " {cpu_s_per_gb:.4f} | {limit} |".format(**one))' "$out/order-limits.jsonl"
}
export -f penstock blocks limits
export dir device carried out

{
	machine "$dir" "$carried/commit" | sed 's/^/# /'
	echo "group,name,rep,bytes,seconds,cpu_s,machine_s,ops,p50_us,p99_us,path,engine,note"
} >"$csv"
: >"$out/order-limits.jsonl"
step make 40 "${core[@]}" -n 1 make
step windows 50 bash -c "blocks --blocks 8MiB,64MiB --runtime 2 --rounds 2 \
	--csv '$out/order-windows.csv' ${builds[*]}"
step lanes 60 bash -c "blocks --runtime 0.5 --rounds 2 \
	--csv '$out/order-lanes.csv' ${builds[*]}"
step stream 300 "${core[@]}" -n "$reps" stream
step calls 60 "${core[@]}" -n "$reps" calls
step beside 60 "${core[@]}" -n "$reps" stream_beside
step small 200 "${core[@]}" -n "$reps" small
step graph 80 "${core[@]}" -n "$reps" graph
step limits 90 bash -c limits
say "done"
python3 bench/table.py "$csv" | tee "$out/order.md"
