#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh: runs everything about the drop-in that needs a GPU: other projects' programs on the
# drop-in (tests/clients), and measurements of its speed (bench/shim/run). The drop-in is Penstock's
# libcufile.so.0, which programs load in place of NVIDIA's. The script needs the folder
# .carry/clients that bench/shim/prepare made, and no network. Results go to $OUT
# (bench/results). A part that fails or is missing is skipped with a message. The script exits
# with 0 if all programs of tests/clients passed.
#
#   TOTAL         seconds for all parts (520)  BENCH_BUDGET  maximum seconds to measure (300)
#   CLIENTS_LIMIT seconds for one program (60) SITE          folder for wheels (below /tmp)
# If possible, the script runs in a mount namespace of its own, in which it creates /run/udev.
# KvikIO needs that folder, and NVIDIA's library reads it. Programs outside of the namespace do
# not see it.
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
if [ -z "${PENSTOCK_APART:-}" ]; then
	export PENSTOCK_APART=1
	if mkdir /run/udev 2>/dev/null; then
		export PENSTOCK_MADE_UDEV=1
	fi
	if unshare -m true 2>/dev/null; then
		exec unshare -m --propagation private "$root/bench/shim/gpu.sh" "$@"
	fi
fi
mount -t tmpfs udev /run/udev 2>/dev/null ||
	echo "/run/udev cannot be replaced; the machine's is used"
cleanup() {
	rm -rf "$site"
	[ -z "${PENSTOCK_MADE_UDEV:-}" ] || { umount /run/udev && rmdir /run/udev; } 2>/dev/null
}

out=$(realpath -m "${OUT:-bench/results}")
carried=$(realpath -m "${CARRIED:-.carry/clients}")
site=${SITE:-/tmp/penstock-site.$$}
mkdir -p "$out" "$site"
trap cleanup EXIT
export PENSTOCK=$carried/prefix/bin/penstock PENSTOCK_REPLAY=$carried/replay.so
export PENSTOCK_WHERE=$carried/where.so
export PENSTOCK_CLIENT_DIR=${BENCH_DIR:-/var/tmp}
PENSTOCK_COMMIT=$(cat "$carried/commit" 2>/dev/null)
export PENSTOCK_COMMIT CARRIED=$carried PYTHONUNBUFFERED=1
{
	date -u
	uname -a
	python3 --version
	nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current --format=csv,noheader
	df -T "$PENSTOCK_CLIENT_DIR" | tail -1
	ls -ld /run/udev /dev/nvidia-fs0 /etc/cufile.json
	head -3 /proc/modules
	"$PENSTOCK" --version || echo "$PENSTOCK does not run here"
} 2>&1

# Installs each wheel with a separate command. So a wheel that does not fit this machine does not
# prevent the installation of the other wheels.
for wheel in "$carried"/whl/*.whl; do
	[ -e "$wheel" ] || { echo "no wheels in $carried/whl"; break; }
	python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
		--upgrade --disable-pip-version-check --root-user-action=ignore \
		--target "$site" "$wheel" 2>&1 | grep -v WARNING
done
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}

echo "==== clients, $SECONDS s"
tests/clients/run --out "$out" --limit "${CLIENTS_LIMIT:-60}" --total 160 torch-gds \
	"torch-gds --audit" cuda-bindings "cuda-bindings --audit" kvikio fastsafetensors \
	instanttensor deepspeed-replay
clients=$?

echo "==== speed, $SECONDS s"
left=$((${TOTAL:-520} - SECONDS)) budget=${BENCH_BUDGET:-300}
BENCH_BUDGET=$((left < budget ? left : budget)) bench/shim/run "$out" 2>&1
echo "==== $SECONDS s in total, exit status of the clients $clients"
ls -la "$out"
exit "$clients"
