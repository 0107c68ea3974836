#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh [--long]: runs all measurements of bench_core and peers.py on a machine with a GPU,
# and prints the tables. The raw CSV, the log and the tables go to $OUT (bench/results). The
# script uses the programs that bench/prepare put into .carry/bench. If bench_core is missing
# there, the script builds it. If fio is missing, the script skips fio and says so.
#
#   BENCH_DIR    folder for the test file, on the drive to measure (/var/tmp)
#   BENCH_MIB    length of the test file in MiB (8192)
#   BENCH_REPS   number of repetitions (5)
#   BENCH_BUDGET seconds for all steps (340); later steps are skipped
#   BENCH_DEVICE device (cuda:0)
#   BENCH_ONLY   steps to run, such as "make cold save" (all)
# --long also measures a file of 16 GiB at the end. Each step has a time limit.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
out=${OUT:-bench/results}
dir=${BENCH_DIR:-/var/tmp}/penstock-bench.$$
mib=${BENCH_MIB:-8192}
reps=${BENCH_REPS:-5}
budget=${BENCH_BUDGET:-340}
device=${BENCH_DEVICE:-cuda:0}
carried=.carry/bench
long=${1:-}

mkdir -p "$out" "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
csv=$out/gpu.csv
log=$out/gpu.log
. bench/steps.sh

# Tests whether bench_core runs here, because it may have been built on another system.
core=$carried/bench_core
"$core" -h >/dev/null 2>&1
if [ $? -ne 2 ]; then
	say "the carried bench_core does not run here: building it"
	core=$(bench/build "$dir/build" 2>>"$log") || exit 1
fi
fio=()
if [ -f "$carried/fio.tgz" ]; then
	tar -C "$dir" -xzf "$carried/fio.tgz"
	fio=("$dir/fio/ld-linux-x86-64.so.2" --library-path "$dir/fio" "$dir/fio/fio")
elif command -v fio >/dev/null; then
	fio=(fio)
fi
[ ${#fio[@]} -eq 0 ] || "${fio[@]}" --version >>"$log" 2>&1 || fio=()
[ ${#fio[@]} -gt 0 ] || say "fio is skipped: it is neither carried nor installed"

facts() {
	machine "$dir" "$carried/commit" | sed 's/^/# /'
	echo "# fio: $([ ${#fio[@]} -gt 0 ] && "${fio[@]}" --version)"
	echo "group,name,rep,bytes,seconds,cpu_s,machine_s,ops,p50_us,p99_us,path,engine,note"
}
facts >"$csv"
grep '^#' "$csv" | tee -a "$log"
nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current,clocks.sm \
	--format=csv,noheader >>"$log" 2>&1
grep -H . /sys/block/*/queue/{scheduler,max_sectors_kb,read_ahead_kb,nr_requests} >>"$log" 2>&1
ls -d /sys/block/*/mq/* >>"$log" 2>&1

core_args=(-f "$dir/file" -o "$csv" -d "$device" -l "$mib" -L $((mib * 2)) -t 1)
run() { # run SECONDS REPS SECTION...
	local limit=$1 n=$2
	shift 2
	wanted "$@" || return 0
	BENCH_ONLY='' step "$*" "$limit" "$core" "${core_args[@]}" ${fio[@]+-F "${fio[*]}"} \
		-n "$n" "$@"
}
peers() { # peers SECONDS REPS PART
	step "peers $3" "$1" python3 bench/peers.py --file "$dir/file" --csv "$csv" \
		--core "$core ${core_args[*]}" --reps "$2" "$3"
}

run 60 1 make
for _ in 1 2 3; do run 20 1 startup; done
run 20 "$reps" null host4k
run 40 $((reps + 2)) warm
run 40 3 mixed
run 20 1 blocked
run 40 2 copies batches copies4k
run 20 1 written
run 40 3 sum sum_host
run 60 3 window
run 80 3 lanes
run 60 3 size_warm
peers 70 "$((reps < 3 ? reps : 3))" warm
run 60 "$reps" cold
run 70 "$reps" save
run 60 "$reps" checker
run 80 "$reps" rand
run 120 3 small
run 40 3 staged
run 60 3 size_cold
run 40 3 warm_read
peers 40 2 cold
peers 60 2 save
if [ "$long" = --long ]; then
	run 60 1 make_long
	run 60 2 size_long
fi
say "done"
python3 bench/table.py "$csv" | tee "$out/gpu.md"
