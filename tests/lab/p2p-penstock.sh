# SPDX-License-Identifier: Apache-2.0
# The host's part of lab/guest/p2p-penstock.sh: compares the phases and the reports of the guest's
# script with QEMU's trace of the drive. tests/lab/p2p sources this file.
# shellcheck shell=bash disable=SC2154 # tests/lab/p2p sets the variables.

report() { # NAME COMPARISON...
	check_code "$1: the report says ${*:2}" 0 lab/check-report "$out/$1.json" "${@:2}"
}

# The canary (the test of the direct path) reads 64 KiB of each drive through host memory. The
# library tests the first write by reading its bytes back, so this check adds no write to the trace.
canary=65536
report explain-read path=p2p reasons.p2p~=none
report check exit=0 class=direct known=true cold=p2p gates.{kernel,p2pmem,route,iommu}.state=ok \
	gates.{peer,probe}.state=ok paths.p2p.measured=true paths.p2p.cpu_copies=0 \
	paths.p2p.dram_passes=0
report check-user exit=1 gates.acs.state=unknown gates.acs.todo="run penstock check as root" \
	gates.p2pmem.state=no gates.p2pmem.todo~="run as root"
for engine in uring threads; do
	inside "penstock-$engine" --host-bytes-max $canary
	report "penstock-$engine" path=p2p engine=$engine cpu_copies=0 dram_passes=0
done
# The last block of the file is not full, and goes through the page cache when it is read and
# when it is written.
inside penstock-odd --host-bytes-max $((canary + 8192)) --edge-bytes-max 8192
report penstock-odd path=p2p
report penstock-verify path=p2p
# The checkpoint file (part) has four headers of 4 KiB each. They are in host memory and go through
# the page cache. When they are read, the kernel reads up to 64 KiB ahead.
inside penstock-part-write --host-bytes-max $((canary + 16384)) --edge-bytes-max 16384
inside penstock-part-read --host-bytes-max $((canary + 4 * 65536)) --edge-bytes-max 16384
for way in write read; do
	report "penstock-part-$way" path=p2p
done
for path in staged bounce; do
	outside "penstock-control-$path"
	report "penstock-control-$path" path=$path
done
