#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpus.sh: measures how fast several processes load one model to all GPUs of a host, one
# process for each GPU. First it measures the limits of the machine without Penstock. Then it runs
# `bench_weights group`, which loads the whole model to every GPU (replicas) or a part of it to each
# GPU (shards). Some runs keep the model file registered with the CUDA driver for the next load;
# other runs register it again. The runs use several sizes of windows, which are the buffers through
# which the processes exchange bytes. In one load, a rank is killed. The script needs the folder
# .carry/weights that bench/weights/prepare made. The log and the raw CSV go to $OUT
# (bench/results). Each step has a time limit. When the budget is spent, the script skips the
# remaining steps.
#
#   BENCH_DIR     folder for the model (/var/tmp)  BENCH_LAYERS  layers (54: 25.7 GB)
#   BENCH_BUDGET  seconds for all steps (300)      BENCH_RANKS   processes (number of GPUs)
#   BENCH_SCALE   divides the model's width, for a quick test of this script (1)
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
out=${OUT:-bench/results}
dir=${BENCH_DIR:-/var/tmp}/penstock-groups.$$
budget=${BENCH_BUDGET:-300}
ranks=${BENCH_RANKS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
carried=$root/.carry/weights

mkdir -p "$out" "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
log=$out/groups-$ranks.log
csv=$out/groups-$ranks.csv
rm -f "$csv"
shown=yes
. bench/steps.sh
[ "$ranks" -ge 1 ] || { say "this machine has no GPU"; exit 1; }

{
	machine "$dir" "$carried/commit"
	nvidia-smi topo -m
	free -g | head -2
} 2>&1 | tee -a "$log"

group() { # group SECONDS ARGUMENTS...
	local limit=$1
	shift
	step "group $*" "$limit" "$carried/bench_weights" group --ranks "$ranks" --csv "$csv" \
		"$@" "$dir/m"
}

step model 120 python3 bench/weights/model.py "$dir/m" --layers "${BENCH_LAYERS:-54}" \
	--scale "${BENCH_SCALE:-1}"
step cache 40 python3 - "$dir/m/model.safetensors" <<'END'
import sys
sys.path.insert(0, "bench/weights")
import weights
print("in the page cache" if weights.prepare(sys.argv[1], False) else "NOT IN THE PAGE CACHE")
END
step limit 60 "$carried/bench_weights" limit --ranks "$ranks" --csv "$csv" \
	"$dir/m/model.safetensors"
group 60 --reps 3 --verify
group 60 --reps 3 --window 64 --verify
group 60 --reps 3 --window 64 --kept --verify
group 60 --reps 3 --window 64 --shard --verify
group 60 --dies 1 --window 64
group 40 --reps 3 --window 128
group 40 --reps 3 --window 128 --kept
group 40 --reps 3 --window 128 --windows 6 --kept --into
group 40 --reps 3 --window 32 --windows 8 --kept
group 40 --reps 3 --window 64 --windows 2
group 40 --reps 3 --kept
group 60 --reps 3 --window 64 --fast --verify
group 60 --reps 3 --window 64 --balanced --verify
group 60 --reps 3 --fast
group 40 --reps 3 --window 64 --shard --kept
group 30 --dies 0 --window 64
step limit 60 "$carried/bench_weights" limit --ranks "$ranks" --csv "$csv" \
	"$dir/m/model.safetensors"
say "done"
