# SPDX-License-Identifier: Apache-2.0
# The host's part of lab/guest/p2p-penstock.sh, sourced by tests/lab/p2p: judges
# the phases by the trace and the reports by what the trace shows.
# shellcheck shell=bash disable=SC2154 # sourced

report() { # NAME COMPARISON...
	check_code "$1: the report says ${*:2}" 0 lab/check-report "$out/$1.json" "${@:2}"
}

# The canary reads its reference through host memory, 64 KiB a drive, and the
# first write is read back, which is no write.
canary=65536
report explain-read path=p2p reasons.p2p~=none
for engine in uring threads; do
	inside "penstock-$engine" --host-bytes-max $canary
	report "penstock-$engine" path=p2p engine=$engine cpu_copies=0 dram_passes=0
done
# The last, partial block: read and written through the page cache.
inside penstock-odd --host-bytes-max $((canary + 8192)) --edge-bytes-max 8192
report penstock-odd path=p2p
report penstock-verify path=p2p
for path in staged bounce; do
	outside "penstock-control-$path"
	report "penstock-control-$path" path=$path
done
