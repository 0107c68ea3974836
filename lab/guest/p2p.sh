#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads and writes between a file and the memory of another drive, by peer-to-peer DMA and, as
# a control, through host memory. The script only records phases, which are commands with a mark in
# QEMU's trace before and after them. The host finds out from the trace where the bytes went.
#
# p2p.sh PROBE PENSTOCK|none. tests/lab/p2p runs this script by lab/run.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
lab_probe=$1
penstock=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

dir=$LAB_SCRATCH/data
lab_mount data1 "$dir"
lab_mark_drive=$(lab_drive data1)
mem=$(lab_p2pmem cmb1)
mib=$((1 << 20))
size=$((4 * mib))
lab_facts data1 cmb1 >"$LAB_OUT/facts"
echo "p2pmem size $(cat "$mem/size") available $(cat "$mem/available")"

all="\"done\":$size,\"errno\":null,\"words\":$((size / 8)),\"right\":$((size / 8)),"
fresh() { # NAME: creates a file of written extents that is not in the page cache
	"$lab_probe" fill --file "$dir/$1" --bytes $size --seed 7 >/dev/null
	lab_drop_caches
}
reads() { lab_expect "$1" 0 "$all" lab_phase "$1" "read:$dir/src" "$lab_probe" read \
	--file "$dir/src" --bytes $size --seed 7 --mem "$mem/allocate" "${@:2}"; }
writes() {
	fresh "$1"
	lab_expect "$1" 0 '"errno":null' lab_phase "$1" "write:$dir/$1" \
		"$lab_probe" write --file "$dir/$1" --bytes $size --seed 9 \
		--mem "$mem/allocate" "${@:2}"
	lab_drop_caches
	lab_expect "$1, read back" 0 "$all" \
		"$lab_probe" read --file "$dir/$1" --bytes $size --seed 9 --mem host
}

fresh src
reads rig-read
reads rig-read-offsets --chunk 61440 --mem-offset 512
writes rig-write
lab_drop_caches
reads control-staged-read --bounce
lab_drop_caches
reads control-bounce-read --buffered
writes control-staged-write --bounce
writes control-bounce-write --buffered

if [[ $penstock != none ]]; then
	source "$LAB_DIR/guest/p2p-penstock.sh"
fi
umount "$dir"
((lab_failed == 0)) || exit 1
