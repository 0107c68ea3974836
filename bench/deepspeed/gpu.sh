#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh: tests and measures DeepSpeed with Penstock's drop-in (its libcufile.so, which replaces
# NVIDIA's) on a machine with a GPU. It builds DeepSpeed's operations with the header and the
# library of the drop-in. It runs DeepSpeed's own test of its GDS operation on the drop-in
# (tests/clients/deepspeed). It measures a ZeRO-3 step that swaps to the drive (zero3.py). It needs
# the folder .carry/deepspeed that prepare made, and no network. The logs, the CSV and the tables go
# to $OUT (bench/results). Exits with 0 if the test and the measurement passed.
#
#   BENCH_DIR     folder on the drive to measure (/var/tmp); needs 12 GB
#   BENCH_BUDGET  seconds for all steps (290)      BENCH_ROUNDS  rounds of zero3.py (8)
#   BENCH_LAYERS  layers of its model (8)          BENCH_ONLY    "client zero3" (both)
#   BENCH_VARIANTS  variants of zero3.py, in the order in which they start
#   CARRIED       folder made by prepare (.carry/deepspeed)
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
out=$(realpath -m "${OUT:-bench/results}")
carried=$(realpath -m "${CARRIED:-.carry/deepspeed}")
work=$(mktemp -d "${BENCH_DIR:-/var/tmp}/penstock-deepspeed.XXXXXX") || exit 1
budget=${BENCH_BUDGET:-290}
variants=aio,gds,aio-optimizer,gds-optimizer
mkdir -p "$out"
trap 'rm -rf "$work"' EXIT
log=$out/deepspeed.log
shown=yes
. bench/steps.sh

left() { echo $((budget - (SECONDS - started) > 5 ? budget - (SECONDS - started) : 5)); }

# first FILE...: prints the name of the first FILE that exists.
first() {
	local file
	for file; do
		[ -e "$file" ] && echo "$file" && return
	done
}

# make_cuda_home FOLDER: makes a CUDA_HOME of symbolic links: the machine's toolkit, the headers and
# the runtime of NVIDIA's wheels, libaio, and Penstock's cufile.h and libcufile.so in place of
# NVIDIA's.
make_cuda_home() {
	local home=$1 real packages item libcuda
	real=$(python3 -c 'from torch.utils.cpp_extension import CUDA_HOME as h; print(h or "")' \
		2>/dev/null | tail -1)
	real=${real:-/usr/local/cuda}
	packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
	mkdir -p "$home/include" "$home/lib64" "$home/run"
	for item in "$real"/*; do
		[ -e "$home/${item##*/}" ] || ln -s "$item" "$home/${item##*/}"
	done
	for item in "$packages"/*/include/* "$real"/include/*; do
		[ -e "$item" ] && ln -sfn "$item" "$home/include/${item##*/}"
	done
	for item in "$packages"/*/lib/*.so* "$real"/lib/*.so* "$real"/lib64/*.so*; do
		[ -e "$item" ] && ln -sfn "$item" "$home/lib64/${item##*/}"
	done
	item=$(first "$home"/lib64/libcudart.so "$home"/lib64/libcudart.so.*)
	[ -e "$home/lib64/libcudart.so" ] || ln -s "$item" "$home/lib64/libcudart.so"
	libcuda=$(ldconfig -p | awk '/libcuda\.so\.1 / { print $NF; exit }')
	libcuda=$(first "$libcuda" /usr/local/nvidia/lib64/libcuda.so.1 \
		/usr/lib/x86_64-linux-gnu/libcuda.so.1 "$real"/lib64/stubs/libcuda.so)
	ln -sfn "$libcuda" "$home/lib64/libcuda.so"
	rm -f "$home"/lib64/libcufile* "$home"/include/cufile.h
	ln -s "$carried/prefix/include/penstock/cufile.h" "$home/include/"
	ln -s "$carried/prefix/lib/penstock/libcufile.so.0" "$home/lib64/libcufile.so"
	[ -e /usr/include/libaio.h ] || ln -sfn "$carried/aio/libaio.h" "$home/include/libaio.h"
	# The folder run/ contains the two libraries that programs load at run time.
	ln -s "$carried/aio/libaio.so.1" "$carried/prefix/lib/libpenstock.so.0" "$home/run/"
	ln -s "$carried/aio/libaio.so.1" "$home/lib64/libaio.so"
	echo "CUDA $real, driver $libcuda, runtime $item"
}

{
	machine "$work" "$carried/commit"
	cat "$carried/tests/revision"
} 2>&1 | tee -a "$log"

# ---- DeepSpeed and what it needs ----
site=$work/site
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DS_ACCELERATOR=cuda MAX_JOBS=16
pip=(python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir
	--disable-pip-version-check --root-user-action=ignore --target "$site")
for wheel in "$carried"/whl/*.whl; do
	"${pip[@]}" --upgrade "$wheel" 2>&1 | grep -v WARNING | tee -a "$log"
done
export PYTHONPATH=$site
# pip runs DeepSpeed's setup.py. If that fails, this script uses the unpacked source package. The
# package contains git_version_info_installed.py, which lists the operations that DeepSpeed's maker
# compiled. The script removes this file.
if ! timeout 60 "${pip[@]}" --no-build-isolation "$carried"/deepspeed-*.tar.gz \
	>"$work/pip.log" 2>&1; then
	tail -3 "$work/pip.log" | tee -a "$log"
	tar -C "$work" -xzf "$carried"/deepspeed-*.tar.gz
	mv "$work"/deepspeed-0*/deepspeed "$site/"
	rm -f "$site/deepspeed/git_version_info_installed.py"
fi
make_cuda_home "$work/cuda" | tee -a "$log"
export CUDA_HOME=$work/cuda CPATH=$work/cuda/include LIBRARY_PATH=$work/cuda/lib64
export LD_LIBRARY_PATH=$work/cuda/run${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export TORCH_EXTENSIONS_DIR=$work/ops PENSTOCK=$carried/prefix/bin/penstock
export PENSTOCK_CLIENT_DIR=$work PENSTOCK_DEEPSPEED=$carried
# torch compiles CUDA code for the GPU architectures in this variable. The H200 has architecture
# 9.0.
export TORCH_CUDA_ARCH_LIST=9.0
"$PENSTOCK" --version | tee -a "$log"
say "DeepSpeed is installed"

# ---- DeepSpeed's operations, built at the same time ----
build() { # BUILDER: builds and loads one operation
	local log=$work/build-$1.log
	timeout "$(left)" "$PENSTOCK" run -- python3 -c "
import os, sys
from deepspeed.ops import op_builder
op_builder.$1().load(verbose=True)
sys.stdout.flush()
os._exit(0)" >"$log" 2>&1 || {
		echo "$1 was not built:"
		grep -E -i "error" "$log" | head -5
		tail -3 "$log"
	}
}
for builder in GDSBuilder AsyncIOBuilder CPUAdamBuilder UtilsBuilder; do
	build "$builder" >"$work/built-$builder" &
	builders+=($!)
done
wait "${builders[@]}"
cat "$work"/built-* | tee -a "$log"
say "operations built: $(find "$work/ops" -name '*.so' -printf '%f ')"

# ---- DeepSpeed's own test, and the ZeRO-3 step ----
status=0
if wanted client; then
	step client 120 tests/clients/run --out "$work" --limit 110 deepspeed || status=1
	for name in clients.csv clients.md; do
		mv "$work/$name" "$out/deepspeed-$name"
	done
	tail -40 "$work/clients.log" | tee -a "$log"
fi
if wanted zero3; then
	# zero3.py ends earlier than the budget, so that 50 s remain for its last round and for the
	# checkpoint writers.
	step zero3 "$(left)" timeout -s INT -k 20 "$(($(left) - 20))" \
		python3 bench/deepspeed/zero3.py --dir "$work" --logs "$work" \
		--penstock "$PENSTOCK" --variants "${BENCH_VARIANTS:-$variants}" --save \
		--rounds "${BENCH_ROUNDS:-8}" --seconds "$(($(left) - 50))" \
		--layers "${BENCH_LAYERS:-8}" --csv "$out/deepspeed.csv" \
		--table "$out/deepspeed.md" || status=1
	for name in gds gds-optimizer gds-writer; do
		echo "-- the drop-in's log of $name:"
		grep -E " by path | ERROR " "$work/cufile-$name.log" | head -4
	done 2>&1 | tee -a "$log"
	tail -n 4 "$work"/zero3-*.log | tee -a "$log"
fi
(cd "$work" && tar -czf "$out/deepspeed-logs.tgz" -- *.log)
say "exit status $status"
exit "$status"
