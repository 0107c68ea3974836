#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest, for tests/lab/power: 'write' copies files durably until the power
# is cut from outside, and says after each that it is durable; 'verify' looks on the
# drives afterwards for what was said. Arguments: write COMMAND [PRELOAD], where
# PRELOAD is a library for the command alone; verify COMMAND SERIAL... with what was
# said to be durable in $LAB_OUT/SERIAL.
# It must never judge: which drive had to keep what is decided on the host.
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

# virtio, not NVMe: QEMU 7.2's NVMe drives were seen to take no notice of FUA, so that
# the commit block of ext4's journal is lost, whatever anybody flushes.
disk_of() { # SERIAL
	local f
	f=$(grep -lsx "$1" /sys/block/vd*/serial) || return 1
	echo "/dev/$(basename "$(dirname "$f")")"
}
there() { [[ -b $(disk_of "$1") ]]; }

# Each second file takes the place of the one before it.
write_on() {
	local i name
	local -a how=("" "--path bounce" "--engine threads")
	# Nothing becomes durable of its own accord while this takes.
	mount -o commit=300 "$(disk_of power1)" "$dir"
	for ((i = 1; i <= 200; i++)); do
		name=$((i % 2)) && name=${name/0/same} && name=${name/#1/file$i}
		# shellcheck disable=SC2086 # options are words
		LD_PRELOAD=${1:-} "$penstock" cp "$(source_of $i)" "$dir/$name" \
			--durable --quiet ${how[i % 3]} >/dev/null
		echo "durable $name $i"
	done
	echo "the power was never cut"
}

# Says for each promise of a drive's whether it was kept.
verify() { # SERIAL
	local word name i version
	mount "$(disk_of "$1")" "$dir" || {
		echo "$1: cannot be mounted"
		sed "s/^durable/$1: lost/" "$LAB_OUT/$1"
		return
	}
	while read -r word name i; do
		[[ $word == durable ]] || continue
		version=$i
		# A later one may have taken its place, but only as a whole.
		if [[ $name == same && -e $dir/same ]]; then
			version=$((($(stat -c %s "$dir/same") - 777) / 300000))
		fi
		"$penstock" cp "$(source_of "$version")" "$LAB_SCRATCH/want" --quiet >/dev/null &&
			((version >= i)) && cmp -s "$LAB_SCRATCH/want" "$dir/$name" &&
			echo "$1: kept $name $i" || echo "$1: lost $name $i"
	done <"$LAB_OUT/$1"
	umount "$dir"
	e2fsck -fn "$(disk_of "$1")" >/dev/null 2>&1 && echo "$1: file system whole" ||
		echo "$1: file system broken"
}

modprobe -a virtio_blk ext4
if [[ $mode == write ]]; then
	lab_until there power1
	write_on "$@"
else
	for serial; do
		lab_until there "$serial"
		verify "$serial"
	done
fi
