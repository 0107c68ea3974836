#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The guest's part of tests/lab/power.
#
# power.sh write PENSTOCK [PRELOAD] copies files durably, and prints a line after each, until
# the host cuts the power. PRELOAD is a library to preload into the command only. power.sh
# verify PENSTOCK SERIAL... checks whether each drive still has the files that were reported
# durable, which $LAB_OUT/SERIAL lists. It only prints the results. The host decides which drive
# must have kept its files.
set -euo pipefail
mode=$1
penstock=$2
shift 2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"
dir=$LAB_SCRATCH/data
mkdir -p "$dir"

bytes_of() { echo $(($1 * 300000 + 777)); }
source_of() { echo "mem:$(bytes_of "$1")?seed=$1"; }

# Copies files until the power is cut. Every second copy has the same name, and so replaces the
# earlier copy of this name.
write_files() { # [PRELOAD]
	local i name
	local -a how=("" "--path bounce" "--engine threads")
	# With commit=300, ext4 commits its journal during the test only if a program requests a
	# commit. So the power cut loses files that no program has synced.
	mount -o commit=300 "$(lab_disk power1)" "$dir"
	for ((i = 1; i <= 200; i++)); do
		name=$((i % 2)) && name=${name/0/same} && name=${name/#1/file$i}
		# shellcheck disable=SC2086 # The options are separate words.
		LD_PRELOAD=${1:-} "$penstock" cp "$(source_of $i)" "$dir/$name" \
			--durable --quiet ${how[i % 3]} >/dev/null
		echo "durable $name $i"
	done
	echo "the power was not cut"
}

# Prints, for each file that write_files reported as durable before the power cut, whether the drive
# still has it.
verify() { # SERIAL
	local word name i version
	mount "$(lab_disk "$1")" "$dir" || {
		echo "$1: cannot be mounted"
		sed "s/^durable/$1: lost/" "$LAB_OUT/$1"
		return
	}
	while read -r word name i; do
		[[ $word == durable ]] || continue
		version=$i
		# A later version may have replaced this version of the file. Then the later
		# version must be complete.
		if [[ $name == same && -e $dir/same ]]; then
			version=$((($(stat -c %s "$dir/same") - 777) / 300000))
		fi
		"$penstock" cp "$(source_of "$version")" "$LAB_SCRATCH/want" --quiet >/dev/null &&
			((version >= i)) && cmp -s "$LAB_SCRATCH/want" "$dir/$name" &&
			echo "$1: kept $name $i" || echo "$1: lost $name $i"
	done <"$LAB_OUT/$1"
	umount "$dir"
	e2fsck -fn "$(lab_disk "$1")" >/dev/null 2>&1 && echo "$1: file system intact" ||
		echo "$1: file system broken"
}

modprobe -a virtio_blk ext4
if [[ $mode == write ]]; then
	lab_until lab_disk_exists power1
	write_files "$@"
else
	for serial; do
		lab_until lab_disk_exists "$serial"
		verify "$serial"
	done
fi
