#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests in the guest how the kernel refuses peer-to-peer DMA, and how DMA can report success
# without delivering bytes. Each case first compares the kernel's answer to p2pdma-probe with
# the expected answer. So if a new kernel behaves differently, the test does not blame
# Penstock.
#
# refusals.sh CASE PROBE PENSTOCK|none. tests/lab/refusals runs this script by lab/run, one
# boot for each case.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
what=$1
lab_probe=$2
penstock=$3
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

size=$((1 << 20))
dir=$LAB_SCRATCH/data
full="\"done\":$size,\"errno\":null,"
words="\"words\":$((size / 8)),\"right\""

probe_read() { # NAME CODE PATTERN [OPTIONS...]
	lab_expect "$what, $1" "$2" "$3" "$lab_probe" read --file "$dir/src" \
		--bytes $size --seed 7 --mem "$mem/allocate" "${@:4}"
}

log_has() { dmesg | grep -F -- "$1" >/dev/null; } # TEXT
kernel_said() { # TEXT: waits for it in the kernel's log and clears the log
	lab_true "$what, kernel log: $1" lab_until log_has "$1"
	dmesg --clear
}

prepare() { # SERIAL: formats and mounts the drive and creates the test files
	mountpoint -q "$dir" && umount "$dir"
	lab_mount "$1" "$dir"
	"$lab_probe" fill --file "$dir/src" --bytes $size --seed 7 >/dev/null
	"$lab_probe" fill --file "$dir/zeros" --bytes $size --zeros >/dev/null
	lab_drop_caches
	dmesg --clear
}

# Reads the file through host memory. This must succeed, which shows that the file is readable.
host_read() {
	lab_expect "$what, read through host memory" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/src" --bytes $size --seed 7 --mem host
}

case_no_bridge() {
	mem=$(lab_p2pmem cmb1)
	prepare "$1"
	probe_read "read refused" 1 '"done":0,"errno":"EINVAL".*"right":0,"untouched":131072'
	kernel_said "do not share an upstream bridge or whitelisted host bridge"
	lab_expect "$what, write refused" 1 '"done":0,"errno":"EINVAL"' "$lab_probe" \
		write --file "$dir/src" --bytes $size --seed 9 --mem "$mem/allocate"
	host_read
	penstock_refused no-pcie-route route
}

case_i440fx() { case_no_bridge data1; }
case_far() { case_no_bridge far1; }

# If redirect is set in Access Control Services (ACS), a bridge sends peer-to-peer requests up
# to the root complex. The kernel checks the bridge only when it first moves bytes between a pair of
# drives, and caches the answer. So the test uses each pair of drives only once.
case_acs() {
	local port
	mem=$(lab_p2pmem cmb1)
	port=$(basename "$(dirname "$(readlink -f /sys/bus/pci/devices/"$(lab_bdf data1)")")")
	setpci -s "$port" ECAP_ACS+6.w=0000
	prepare data2
	probe_read "redirect off, read succeeds" 0 "$full$words:$((size / 8)),"
	setpci -s "$port" ECAP_ACS+6.w=000c
	prepare data1
	probe_read "redirect on, read refused" 1 '"done":0,"errno":"EINVAL"'
	kernel_said "ACS redirect is set between the client and provider"
	host_read
	penstock_refused no-pcie-route acs
	penstock_fixes acs
}

# With this IOMMU, a read reports success, but no byte arrives. The result still looks right if
# the destination already contained the right bytes, or contained zeros and the file has only
# zeros.
case_iommu() {
	mem=$(lab_p2pmem cmb1)
	prepare data1
	probe_read "read reports success, no word is right" 1 \
		"$full$words:0,\"untouched\":131072"
	kernel_said "DMAR: [DMA Write NO_PASID] Request device"
	probe_read "destination had the right bytes before: looks right" 0 \
		"$full$words:$((size / 8))," --fill right
	lab_expect "$what, zeros over zeros: looks right" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/zeros" --bytes $size --zeros --fill zeros \
		--mem "$mem/allocate"
	"$lab_probe" fill --file "$dir/victim" --bytes $size --seed 3 >/dev/null
	# Through the IOMMU, the drive cannot read the device memory. So it writes the contents of
	# its own empty buffer, which are zeros.
	lab_expect "$what, write reports success" 0 '"done":1048576,"errno":null' \
		"$lab_probe" write --file "$dir/victim" --bytes $size --seed 9 \
		--mem "$mem/allocate"
	lab_drop_caches
	lab_expect "$what, the file then contains zeros" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/victim" --bytes $size --zeros --mem host
	host_read
	penstock_refused canary-failed iommu
}

case_without() {
	local bdf
	bdf=$(lab_bdf cmb1)
	mem=/sys/bus/pci/devices/$bdf/p2pmem
	prepare data1
	if [[ $(stat -c %s "${mem%/*}/resource2") == $((64 << 20)) ]]; then
		lab_ok "$what, the drive has a memory buffer"
	else
		lab_bad "$what, the drive has no memory buffer"
	fi
	if [[ -e $mem ]]; then
		lab_bad "$what, the kernel has a directory p2pmem"
	else
		lab_ok "$what, the kernel has no directory p2pmem"
	fi
	probe_read "the probe has no file to map" 1 '"done":0,"errno":"ENOENT"'
	host_read
	penstock_refused no-p2pdma kernel
}

# In this case another process has allocated all of the device memory. The case also tests
# mappings that the kernel refuses.
case_exhausted() {
	local free
	mem=$(lab_p2pmem cmb1)
	prepare data1
	free=$(cat "$mem/available")
	lab_expect "$what, allocations fail when the memory is used up" 0 \
		'"taken":[1-9][0-9]*,"errno":"ENOMEM"' \
		"$lab_probe" exhaust --mem "$mem/allocate" --bytes $((1 << 20))
	if (($(cat "$mem/available") == free)); then
		lab_ok "$what, the memory is free again when the process has exited"
	else
		lab_bad "$what, memory leaked: $(cat "$mem/available") of $free are free"
	fi
	memory_hold
	probe_read "read while another process has the memory" 1 '"done":0,"errno":"ENOMEM"'
	penstock_refused no-memory p2pmem
	memory_release
	probe_read "read when the memory is free" 0 "$full$words:$((size / 8)),"

	probe_read "private mapping" 1 '"done":0,"errno":"EINVAL"' --private
	probe_read "mapping offset" 1 '"done":0,"errno":"EINVAL"' --map-offset 4096
	chmod 755 "$LAB_SCRATCH"
	lab_expect "$what, ordinary user" 1 '"errno":"EACCES"' setpriv --reuid 65534 \
		--regid 65534 --clear-groups "$lab_probe" read --file "$dir/src" \
		--bytes $size --seed 7 --mem "$mem/allocate"
	modprobe null_blk nr_devices=1 gb=1
	dd if=/dev/zero of=/dev/nullb0 bs=1M count=1 oflag=direct status=none
	lab_expect "$what, a disk that is no PCI device" 1 '"done":0,"errno":"EREMOTEIO"' \
		"$lab_probe" read --file /dev/nullb0 --bytes $size --zeros \
		--mem "$mem/allocate"
	"$lab_probe" fill --file "$LAB_SCRATCH/t" --buffered --bytes $size --seed 7 >/dev/null
	lab_expect "$what, tmpfs succeeds by a copy of the CPU" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$LAB_SCRATCH/t" --bytes $size --seed 7 \
		--mem "$mem/allocate"
}

# Starts a process that allocates all of the device memory and keeps it.
memory_hold() {
	coproc HOLDER { exec "$lab_probe" exhaust --keep --mem "$mem/allocate" \
		--bytes 4096; }
	read -r _ <&"${HOLDER[0]}"
}

memory_release() {
	local pid=$HOLDER_PID
	kill "$pid"
	wait "$pid" 2>/dev/null || true
}

penstock_refused() { :; }
penstock_fixes() { :; }
if [[ $penstock != none ]]; then
	source "$LAB_DIR/guest/refusals-penstock.sh"
fi
"case_${what//-/_}"
if mountpoint -q "$dir"; then
	umount "$dir"
fi
((lab_failed == 0)) || exit 1
