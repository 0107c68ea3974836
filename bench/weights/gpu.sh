#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh: measures on a machine with one GPU how fast models load. It runs weights.py,
# bench_weights, transformers with and without Penstock's patch, and the test suites with the
# real driver. It needs the folder .carry/weights that bench/weights/prepare made. The log, the
# tables and the raw CSV go to $OUT (bench/results). Each step has a time limit. The most
# important steps come first; when the budget is spent, the remaining steps are skipped.
#
#   BENCH_DIR     folder for the models, on the drive to measure (/var/tmp); needs 51 GB
#   BENCH_BUDGET  seconds for all steps (400)     BENCH_DEVICE  device (cuda:0)
#   BENCH_SCALE   divides the models' width, for a quick test of this script (1)
#   BENCH_ONLY    steps to run, such as "warm cold small tests" (all)
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
out=${OUT:-bench/results}
dir=${BENCH_DIR:-/var/tmp}/penstock-weights.$$
device=${BENCH_DEVICE:-cuda:0}
scale=${BENCH_SCALE:-1}
budget=${BENCH_BUDGET:-400}
carried=$root/.carry/weights

mkdir -p "$out" "$dir/wheels" || exit 1
trap 'rm -rf "$dir"' EXIT
log=$out/weights.log
csv=$out/weights.csv
rm -f "$csv" "$out/weights-c.csv"
shown=yes
. bench/steps.sh

for wheel in "$carried"/wheels/*.whl; do
	python3 -m zipfile -e "$wheel" "$dir/wheels" 2>>"$log" || say "left out: ${wheel##*/}"
done
export PYTHONPATH=$carried/site:$dir/wheels PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# fastsafetensors loads the CUDA runtime by a file name that torch's package does not have. So
# this step creates a link with that name.
mkdir -p "$dir/lib"
python3 - "$dir/lib" <<'END' 2>>"$log"
import glob, os, sys
for path in sys.path:
    for name in ("libcudart.so", "libcufile.so"):
        found = glob.glob(os.path.join(path, "nvidia/*/lib", name + ".*"))
        if found and not os.path.lexists(os.path.join(sys.argv[1], name)):
            os.symlink(os.path.realpath(found[0]), os.path.join(sys.argv[1], name))
END
export LD_LIBRARY_PATH=$dir/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

{
	machine "$dir" "$carried/commit"
	python3 - <<'END'
import importlib.metadata as m
for name in ("torch", "transformers", "safetensors", "fastsafetensors", "instanttensor",
             "runai-model-streamer"):
    try:
        print(f"{name}: {m.version(name)}")
    except m.PackageNotFoundError:
        print(f"{name}: none")
END
	free -g | head -2
} 2>&1 | tee -a "$log"

make() { # make NAME LAYERS
	[ -f "$dir/$1/model.safetensors" ] ||
		python3 bench/weights/model.py "$dir/$1" --layers "$2" --scale "$scale"
}
weights() { # weights NAME LAYERS ARGUMENTS...
	make "$1" "$2" && python3 bench/weights/weights.py --dir "$dir" --device "$device" \
		--program "$carried/bench_weights" --csv "$csv" \
		--file "$dir/$1/model.safetensors" "${@:3}"
}
in_c() {
	local effort to=(--device "${device/cpu/host}" --csv "$out/weights-c.csv")
	make a 15
	python3 bench/weights/model.py "$dir/many" --equal 10000 $((65536 / scale))
	python3 bench/weights/model.py "$dir/one" --equal 1 $((10000 * (65536 / scale)))
	for effort in "" --balanced --fast; do
		"$carried/bench_weights" load "${to[@]}" --reps 4 $effort \
			"$dir/a/model.safetensors"
		"$carried/bench_weights" small "${to[@]}" --reps 7 $effort "$dir/many" "$dir/one"
	done
	"$carried/bench_weights" load "${to[@]}" --reps 3 --kept "$dir/a/model.safetensors"
	rm -f "$dir/many" "$dir/one"
}
small() {
	python3 bench/weights/weights.py --dir "$dir" --device "$device" --csv "$csv" \
		--reps 3 --seconds 60 small
}
transformers() {
	make t 32
	python3 tests/gpu/weights/from_pretrained.py "$dir/t" --device "$device"
}
export -f make weights in_c small transformers
export dir device scale csv out carried

# The host may give a virtual machine its memory only at the first touch of each page, which
# takes 0.4 s per GiB. This step touches the memory before the measurements.
[ "$scale" -gt 1 ] || step memory 40 python3 -c 'import mmap
mmap.mmap(-1, 40 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)'
step warm 150 bash -c 'weights a 15 --reps 4 --again --seconds 85 warm'
step steps 40 bash -c 'weights a 15 steps'
step c 40 bash -c in_c
step cold 130 bash -c 'weights a 15 --reps 3 --seconds 75 cold'
step small 90 bash -c small
rm -rf "$dir/a"
step large 150 bash -c 'weights b 54 --reps 3 --seconds 70 warm'
rm -rf "$dir/b"
step transformers 120 bash -c transformers
rm -rf "$dir/t"
step tests 90 tests/gpu/weights/run 85
say "done"
