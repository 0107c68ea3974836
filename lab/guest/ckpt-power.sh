#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The guest's part of tests/lab/ckpt-power.
#
# ckpt-power.sh write SAVE [PRELOAD] saves checkpoints with tests/ckpt/save.c, which prints a line
# after each, until the host cuts the power. PRELOAD is a library to preload into SAVE only.
# ckpt-power.sh verify PENSTOCK SERIAL... checks the checkpoints of each drive. $LAB_OUT/SERIAL
# has the lines that were printed before the cut. This script only prints the results. The host
# decides which drive must have kept its checkpoints.
set -euo pipefail
mode=$1
command=$2
shift 2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"
dir=$LAB_SCRATCH/data
mkdir -p "$dir"

# Prints, for each checkpoint that `penstock ckpt list` shows as complete or damaged, whether it has
# all its bytes.
# Prints whether the drive has lost the last checkpoint that was reported durable.
verify() { # SERIAL
	local state path number last kept=0
	last=$(sed -n 's/^durable //p' "$LAB_OUT/$1" | tail -n 1)
	mount "$(lab_disk "$1")" "$dir" || {
		echo "$1: cannot be mounted"
		echo "$1: lost $last"
		return
	}
	"$command" ckpt list "$dir/run" | sed "s/^/# /" || true
	while read -r state _ _ _ _ _ _ _ path; do
		[[ $state == complete || $state == damaged ]] || continue
		number=${path##*-}
		if "$command" ckpt verify "$path" --quiet; then
			echo "$1: whole $number"
			((number != last)) || kept=1
		else
			echo "$1: torn $number"
		fi
	done < <("$command" ckpt list "$dir/run")
	((kept)) || echo "$1: lost $last"
	umount "$dir"
}

modprobe -a virtio_blk ext4
if [[ $mode == write ]]; then
	lab_until lab_disk_exists power1
	# With commit=300, ext4 commits its journal during the test only if a program requests a
	# commit. So the power cut loses files that no program has synced.
	mount -o commit=300 "$(lab_disk power1)" "$dir"
	mkdir "$dir/run"
	sync -f "$dir"
	LD_PRELOAD=${1:-} "$command" "$dir/run" 3 1000000
else
	for serial; do
		lab_until lab_disk_exists "$serial"
		verify "$serial"
	done
fi
