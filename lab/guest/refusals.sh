#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: the ways in which peer-to-peer DMA is refused, or pretends. One
# boot for each machine; started by tests/lab/refusals through lab/run; arguments:
# the case, the probe, and the penstock command or 'none'. What the kernel answers
# the bare probe is stated first, so that a change there is not blamed on Penstock.
# shellcheck disable=SC2034,SC2154 # shared with lib.sh
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

log_has() { dmesg | grep -F -- "$1" >/dev/null; }
kernel_said() { # TEXT: and forget what it said so far
	lab_true "$what, kernel log: $1" lab_until log_has "$1"
	dmesg --clear
}

ready() { # SERIAL
	mountpoint -q "$dir" && umount "$dir"
	lab_mount "$1" "$dir"
	"$lab_probe" fill --file "$dir/src" --bytes $size --seed 7 >/dev/null
	"$lab_probe" fill --file "$dir/zeros" --bytes $size --zeros >/dev/null
	lab_drop_caches
	dmesg --clear
}

# Through host memory everything is always right: the file is not at fault.
host_read() {
	lab_expect "$what, by way of host memory" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/src" --bytes $size --seed 7 --mem host
}

case_no_bridge() {
	mem=$(lab_p2pmem cmb1)
	ready "$1"
	probe_read "read refused" 1 '"done":0,"errno":"EINVAL".*"right":0,"untouched":131072'
	kernel_said "do not share an upstream bridge or whitelisted host bridge"
	lab_expect "$what, write refused" 1 '"done":0,"errno":"EINVAL"' "$lab_probe" \
		write --file "$dir/src" --bytes $size --seed 9 --mem "$mem/allocate"
	host_read
	penstock_refused no-pcie-route route
}

case_i440fx() { case_no_bridge data1; }
case_far() { case_no_bridge far1; }

# Access Control Services that send requests up to the root: the kernel asks the
# bridge when a pair first meets and keeps the answer, so each pair is used once.
case_acs() {
	local port
	mem=$(lab_p2pmem cmb1)
	port=$(basename "$(dirname "$(readlink -f /sys/bus/pci/devices/"$(lab_bdf data1)")")")
	setpci -s "$port" ECAP_ACS+6.w=0000
	ready data2
	probe_read "redirect off, read passes" 0 "$full$words:$((size / 8)),"
	setpci -s "$port" ECAP_ACS+6.w=000c
	ready data1
	probe_read "redirect on, read refused" 1 '"done":0,"errno":"EINVAL"'
	kernel_said "ACS redirect is set between the client and provider"
	host_read
	penstock_refused no-pcie-route acs
	penstock_fixes acs
}

# The read reports success and nothing has arrived. A destination that held the
# right bytes before, or zeros before a file of zeros, looks perfect.
case_iommu() {
	mem=$(lab_p2pmem cmb1)
	ready data1
	probe_read "read reports success, no word is right" 1 \
		"$full$words:0,\"untouched\":131072"
	kernel_said "DMAR: [DMA Write NO_PASID] Request device"
	probe_read "right bytes were there before: looks perfect" 0 \
		"$full$words:$((size / 8))," --fill right
	lab_expect "$what, zeros over zeros: looks perfect" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/zeros" --bytes $size --zeros --fill zeros \
		--mem "$mem/allocate"
	"$lab_probe" fill --file "$dir/victim" --bytes $size --seed 3 >/dev/null
	# The drive reads nothing either, and lays down what its buffer held: zeros.
	lab_expect "$what, write reports success" 0 '"done":1048576,"errno":null' \
		"$lab_probe" write --file "$dir/victim" --bytes $size --seed 9 \
		--mem "$mem/allocate"
	lab_drop_caches
	lab_expect "$what, and the file holds zeros" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$dir/victim" --bytes $size --zeros --mem host
	host_read
	penstock_refused canary-failed iommu
}

case_without() {
	local bdf
	bdf=$(lab_bdf cmb1)
	mem=/sys/bus/pci/devices/$bdf/p2pmem
	ready data1
	if [[ $(stat -c %s "${mem%/*}/resource2") == $((64 << 20)) ]]; then
		lab_ok "$what, the drive has its memory buffer all the same"
	else
		lab_bad "$what, the drive's memory buffer is not there"
	fi
	if [[ -e $mem ]]; then
		lab_bad "$what, there is a p2pmem directory"
	else
		lab_ok "$what, there is no p2pmem directory"
	fi
	probe_read "the probe finds nothing to map" 1 '"done":0,"errno":"ENOENT"'
	host_read
	penstock_refused no-p2pdma kernel
}

# Someone else holds the memory; and what else the mapping refuses.
case_exhausted() {
	local free
	mem=$(lab_p2pmem cmb1)
	ready data1
	free=$(cat "$mem/available")
	lab_expect "$what, memory runs out" 0 '"taken":[1-9][0-9]*,"errno":"ENOMEM"' \
		"$lab_probe" exhaust --mem "$mem/allocate" --bytes $((1 << 20))
	if (($(cat "$mem/available") == free)); then
		lab_ok "$what, memory comes back with its holder's end"
	else
		lab_bad "$what, memory lost: $(cat "$mem/available") of $free"
	fi
	hold
	probe_read "read with the memory held" 1 '"done":0,"errno":"ENOMEM"'
	penstock_refused no-memory p2pmem
	release
	probe_read "read once it is free" 0 "$full$words:$((size / 8)),"

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
	lab_expect "$what, tmpfs succeeds though it is a copy" 0 "$full$words:$((size / 8))," \
		"$lab_probe" read --file "$LAB_SCRATCH/t" --bytes $size --seed 7 \
		--mem "$mem/allocate"
}

# A process that takes all the memory and keeps it.
hold() {
	coproc HOLDER { exec "$lab_probe" exhaust --keep --mem "$mem/allocate" \
		--bytes 4096; }
	read -r _ <&"${HOLDER[0]}"
}

release() {
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
