#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests drives with faults in the guest. The faults are a bad sector, a region whose writes
# fail, a region that reports success for lost writes, a slow region, and a removal during a
# transfer. In each case the command must end, report the error, and leave an existing file
# unchanged. If the command reports success, the bytes must be right. Before each case, a check
# without Penstock shows that the drive has the fault.
#
# faults.sh PROBE PENSTOCK. tests/lab/faults runs this script by lab/run on machine faults.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
lab_probe=$1
penstock=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

mib=$((1 << 20))
dir=$LAB_SCRATCH/data
nothing_left() { # DIR: true if a failed copy left no temporary file there
	find "$1" -name '*penstock-*' | grep . && return 1
	return 0
}

# ---- a sector that the drive cannot read ----
bad=$(lab_drive bad1)
bad_block=$((24 * mib / 4096 + 16))
via=peermem:$(lab_bdf cmb1)

# Copies from the drive with the bad sector. The copy must fail, name the drive in its error,
# and leave the existing file unchanged.
bad_reads() { # NAME OPTIONS...
	local name=$1
	shift
	lab_drop_caches
	echo old >"$dir/copy"
	lab_penstock "$name" 1 cp "$bad" "$dir/copy" --json "$@"
	lab_said "$name" io-error "$bad" '"ok": false'
	lab_true "$name: the old file is unchanged" grep -qx old "$dir/copy"
	lab_true "$name: no temporary file is left" nothing_left "$dir"
}

# Copies the first half of the drive, which has no bad sector. This copy must succeed, which shows
# that the bad sector caused the failures in bad_reads.
good_half() {
	dm create half --table "0 $((16 * mib / 512)) linear $bad 0"
	"$lab_probe" read --file "$bad" --bytes $((16 * mib)) --seed 7 --mem host \
		>/dev/null || lab_bad "bad1: its first half cannot be read"
	lab_drop_caches
	lab_penstock good-half 0 cp "$(dm_node half)" "$dir/half" --json
	lab_true "good-half: the copy is right" cmp -n $((16 * mib)) "$bad" "$dir/half"
	rm "$dir/half"
	dm remove half
}

sector_faults() {
	lab_mount data1 "$dir"
	"$lab_probe" fill --file "$bad" --bytes $((48 * mib)) --seed 7 >/dev/null
	lab_expect "bad1: a read of its bad sector fails" 1 '' dd if="$bad" of=/dev/null bs=4096 \
		count=1 iflag=direct skip=$bad_block
	lab_expect "bad1: a read of the next sector succeeds" 0 '' dd if="$bad" of=/dev/null \
		bs=4096 count=1 iflag=direct skip=$((bad_block + 1))
	bad_reads bad-sector
	lab_said bad-sector "at $((bad_block * 4096)) of"
	bad_reads bad-sector-threads --engine threads
	bad_reads bad-sector-bounce --path bounce
	bad_reads bad-sector-p2p --via "$via" --require direct
	bad_reads bad-sector-after-p2p --via "$via"
	good_half
	umount "$dir"
}

# ---- a region of the drive that fails, loses writes or is slow ----
# The device `faulty` has 96 MiB. The region is the part from 48 MiB to 92 MiB. The file
# system keeps its own blocks in the first 48 MiB, and a file of 64 MiB must use some blocks
# of the region.
under=$(lab_drive data1)
size=$((64 * mib))
source_of="mem:64MiB?seed=5"

# Replaces the device-mapper target that handles the region of `faulty` from 48 MiB to 92 MiB.
region_set() { # TARGET ARGS...
	local first=$((48 * mib / 512)) count=$((44 * mib / 512)) target=$1
	shift
	# Uses --nolockfs, because dmsetup cannot freeze the file system if the previous target
	# refused writes.
	sync
	dm suspend --nolockfs faulty
	dm reload faulty <<-END
		0 $first linear $under 0
		$first $count $target $under $first $*
		$((first + count)) $((4 * mib / 512)) linear $under $((first + count))
	END
	dm resume faulty
}

region_start() { # Creates the device faulty with a file system, without a fault.
	dm create faulty --table "0 $((96 * mib / 512)) linear $under 0"
	faulty=$(dm_node faulty)
	mkfs.ext4 -q -F -b 4096 -m 0 -J size=4 \
		-E lazy_itable_init=0,lazy_journal_init=0,packed_meta_blocks=1 \
		"$faulty"
	mount "$faulty" "$dir"
	lab_penstock mem-copy 0 cp "$source_of" "$LAB_SCRATCH/right" --json
	lab_true "mem-copy: the file has the right length" \
		test "$(stat -c %s "$LAB_SCRATCH/right")" = $size
	echo old >"$dir/copy"
	sync
}

# Returns true if ext4 has made the file system read-only after a write error. ext4 does so if it
# has placed an index block of the file's extents in the region whose writes fail. Then no file can
# be removed, and the next step needs a new file system.
ext4_gave_up() { findmnt -no OPTIONS "$dir" | grep -qE '(^|,)(ro|emergency_ro|shutdown)(,|$)'; }

write_fails() { # NAME OPTIONS...: a copy into the region must fail
	local name=$1
	shift
	region_set flakey 0 1 1 error_writes
	lab_penstock "$name" 1 cp "$source_of" "$dir/copy" --json "$@"
	lab_said "$name" "Input/output error"
	lab_true "$name: the old file is unchanged" grep -qx old "$dir/copy"
	if ext4_gave_up; then
		echo "# $name: ext4 gave up, because a block of its own was in the region"
		umount "$dir"
		dm remove faulty
		region_start
	else
		lab_true "$name: no temporary file is left" nothing_left "$dir"
	fi
}

region_faults() {
	region_start
	region_set flakey 0 1 1 error_writes
	lab_expect "a write to the region fails" 1 '' dd if=/dev/zero bs=4096 count=1 \
		of="$faulty" seek=$((60 * mib / 4096)) oflag=direct conv=notrunc
	write_fails write-error
	write_fails write-error-threads --engine threads
	# Writes to the page cache succeed, but --durable waits until they are on the drive.
	write_fails write-error-durable --path bounce --durable

	region_set flakey 0 1 1 drop_writes
	lab_penstock lost-writes 1 cp "$LAB_SCRATCH/right" "$dir/lost" --verify --json
	lab_said lost-writes differ
	lab_true "lost-writes: no file is left" test ! -e "$dir/lost"
	lab_penstock lost-writes-control 0 cp "$LAB_SCRATCH/right" "$dir/lost" --json
	lab_drop_caches
	lab_expect "lost-writes-control: without --verify the loss is not noticed" 1 '' \
		cmp "$LAB_SCRATCH/right" "$dir/lost"
	rm -f "$dir/lost"

	region_set delay 400
	lab_penstock slow 0 cp "$source_of" "$dir/copy" --json
	lab_drop_caches
	lab_true "slow: the copy is right" cmp "$LAB_SCRATCH/right" "$dir/copy"
	lab_drop_caches
	lab_penstock slow-read 0 cp "$dir/copy" "$LAB_SCRATCH/back" --json
	lab_true "slow-read: the copy is right" cmp "$LAB_SCRATCH/right" "$LAB_SCRATCH/back"
	rm "$LAB_SCRATCH/back"
	umount "$dir"
	lab_expect "the file system is intact" 0 '' e2fsck -fn "$faulty"
	dm remove faulty
}

# ---- a drive that is removed ----
# FIELD is a field of /sys/block/DISK/stat: field 3 is the number of sectors read, field 7 the
# number of sectors written.
moved() { # DISK FIELD SECTORS: true if the count has reached SECTORS
	local -a stat
	read -r -a stat <"/sys/block/$1/stat" || return 0
	((stat[$2 - 1] >= $3))
}

# Starts a command in the background, and removes drive slow1 after the command has moved 8
# MiB.
pull() { # FIELD COMMAND...
	local disk before
	local -a stat
	disk=$(basename "$(lab_drive slow1)")
	read -r -a stat <"/sys/block/$disk/stat"
	before=${stat[$1 - 1]}
	"${@:2}" &
	copy=$!
	lab_until moved "$disk" "$1" $((before + 8 * mib / 512)) ||
		lab_bad "$2: 8 MiB did not move"
	kill -0 $copy || lab_bad "$3: the copy ended before the drive was removed"
	echo 1 >"/sys/bus/pci/devices/$(lab_bdf slow1)/remove"
	wait $copy || true
}

drive_back() { # Rescans the PCI bus and waits for drive slow1.
	echo 1 >/sys/bus/pci/rescan
	lab_until eval 'slow=$(lab_drive slow1 2>/dev/null) && [[ -b $slow ]]' ||
		lab_bad "drive slow1 does not appear again"
}

# A background step cannot count its results in this shell, so it writes them to a file.
# pulled_steps prints and counts these results.
pulled() { lab_penstock "$@" >"$LAB_SCRATCH/pulled"; }
pulled_steps() {
	cat "$LAB_SCRATCH/pulled"
	grep -q ^ok "$LAB_SCRATCH/pulled" || lab_failed=$((lab_failed + 1))
}

removed_drive() {
	local slow
	slow=$(lab_drive slow1)
	lab_mount data1 "$dir"
	echo old >"$dir/copy"
	sync
	pull 3 pulled pulled-read 1 cp "$slow" "$dir/copy" --json
	pulled_steps
	lab_said pulled-read io-error
	lab_true "pulled-read: the old file is unchanged" grep -qx old "$dir/copy"
	lab_true "pulled-read: no temporary file is left" nothing_left "$dir"
	drive_back

	mkfs.ext4 -q -F -m 0 -J size=4 -E nodiscard,packed_meta_blocks=1 "$slow"
	mkdir -p "$LAB_SCRATCH/slow"
	mount "$slow" "$LAB_SCRATCH/slow"
	lab_penstock durable 0 cp "mem:2MiB?seed=6" "$LAB_SCRATCH/slow/copy" --durable --json
	cp "$LAB_SCRATCH/slow/copy" "$LAB_SCRATCH/durable"
	pull 7 pulled pulled-write 1 cp "$source_of" "$LAB_SCRATCH/slow/copy" --json
	pulled_steps
	lab_said pulled-write io-error
	umount "$LAB_SCRATCH/slow"
	drive_back
	mount "$slow" "$LAB_SCRATCH/slow"
	lab_true "pulled-write: the file that was durable before is unchanged" \
		cmp "$LAB_SCRATCH/durable" "$LAB_SCRATCH/slow/copy"
	umount "$LAB_SCRATCH/slow" "$dir"
}

modprobe -a dm-mod dm-flakey dm-delay
sector_faults
region_faults
removed_drive
((lab_failed == 0)) || exit 1
