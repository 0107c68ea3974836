#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh: measures on a machine with one GPU how fast checkpoints are saved and loaded, and tests
# them with the real driver. It runs dcp.py on the drive and on a tmpfs, plain.py, mlperf.py, and
# the tests of tests/gpu. It needs the folder .carry/ckpt that bench/ckpt/prepare made. The log,
# the raw CSV and the tables go to $OUT (bench/results). Each step has a time limit. The most
# important steps come first; when the budget is spent, the remaining steps are skipped.
#
#   BENCH_DIR     folder on the drive to measure (/var/tmp); needs 45 GB
#   BENCH_SHM     folder on a tmpfs (/dev/shm); needs 34 GB
#   BENCH_BUDGET  seconds for all steps (570)     BENCH_RUNS   repetitions (3)
#   BENCH_RANKS   ranks of the model 8b that mlperf.py runs, 14.1 GB each (1)
#   BENCH_ROUNDS  rounds of mlperf.py (10), of which BENCH_RUNS also run torch
#   BENCH_SCALE   divides the bytes, for a quick test of this script (1)
#   BENCH_ONLY    steps to run, such as "disk shm mlperf files parts plain" (all)
#   CARRIED       folder made by prepare (.carry/ckpt)
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
out=$(realpath -m "${OUT:-bench/results}")
dir=${BENCH_DIR:-/var/tmp}/penstock-ckpt.$$
shm=${BENCH_SHM:-/dev/shm}/penstock-ckpt.$$
budget=${BENCH_BUDGET:-570}
runs=${BENCH_RUNS:-3}
scale=${BENCH_SCALE:-1}
carried=$(realpath -m "${CARRIED:-.carry/ckpt}")

mkdir -p "$out" "$dir" "$shm" || exit 1
trap 'rm -rf "$dir" "$shm"' EXIT
log=$out/ckpt.log
rm -f "$out"/ckpt-{disk,shm,plain,mlperf}.csv
shown=yes
. bench/steps.sh

export PYTHONPATH=$carried/site LD_LIBRARY_PATH=$carried${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TMPDIR=$dir PENSTOCK_BUILD=$carried/build
{
	machine "$dir" "$carried/commit"
	python3 -c 'import torch; print(f"torch: {torch.__version__}")'
	free -g | head -2
	df -h "$dir" "$shm"
} 2>&1 | tee -a "$log"

dcp() { # dcp NAME FOLDER ARGUMENTS...
	python3 bench/ckpt dcp --dir "$2" --csv "$out/ckpt-$1.csv" --runs "$runs" \
		--bytes $((8000000000 / scale)) --tensor $((128000000 / scale)) "${@:3}"
}
plain() {
	python3 bench/ckpt plain --dir "$dir" --csv "$out/ckpt-plain.csv" --runs "$runs" \
		--bytes $((14000000000 / scale)) --tensor $((128000000 / scale))
}
# mlperf.py divides the width of the model by --scale. The bytes of the model grow with the
# square of its width, so --scale is the square root of BENCH_SCALE.
mlperf() {
	python3 bench/ckpt mlperf --dir "$dir" --csv "$out/ckpt-mlperf.csv" --model 8b \
		--ranks "${BENCH_RANKS:-1}" --rounds "${BENCH_ROUNDS:-10}" --peer torch \
		--peer-rounds "$runs" \
		--scale "$(python3 -c "print(max(1, round($scale ** 0.5)))")"
}
export -f dcp plain mlperf
export out dir shm runs scale

# The host may give a virtual machine its memory only at the first touch of each page, which
# takes 0.4 s per GiB. This step touches the memory before the measurements.
[ "$scale" -gt 1 ] || step memory 40 python3 -c 'import mmap
mmap.mmap(-1, 48 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)'
step disk 200 bash -c 'dcp disk "$dir"'
step shm 90 bash -c 'dcp shm "$shm" --parts limits,save,load'
step mlperf 300 bash -c mlperf
step files 60 python3 tests/gpu/torch_file.py
step parts 60 tests/gpu/ckpt "$dir"
step plain 200 bash -c plain
python3 bench/ckpt/table.py "$out"/ckpt-{disk,shm,plain,mlperf}.csv | tee "$out/ckpt.md"
say "done"
