#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: drives that fail. A sector that cannot be read, a region whose
# writes fail, one whose writes get lost though success is reported, a slow one, and
# a drive that is pulled out of a transfer. Each time the command must end, say what
# happened, leave what was there before, and be right where it says that it is.
# Started by tests/lab/faults through lab/run on machine faults; arguments: the
# probe, the penstock command. The fault itself is shown first, without Penstock.
# shellcheck disable=SC2034,SC2154 # shared with lib.sh
set -euo pipefail
lab_probe=$1
penstock=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

mib=$((1 << 20))
dir=$LAB_SCRATCH/data
lost() { # DIR: what a failed copy left behind
	find "$1" -name '*penstock-*' | grep . && return 1
	return 0
}

# ---- a sector that the drive cannot read ----
bad=$(lab_drive bad1)
bad_block=$((24 * mib / 4096 + 16))
via=peermem:$(lab_bdf cmb1)

bad_reads() { # NAME OPTIONS...: fails, says where, leaves the old copy
	local name=$1
	shift
	lab_drop_caches
	echo old >"$dir/copy"
	lab_penstock "$name" 1 cp "$bad" "$dir/copy" --json "$@"
	lab_said "$name" io-error "$bad" '"ok": false'
	lab_true "$name: the old file is still there" grep -qx old "$dir/copy"
	lab_true "$name: nothing else is" lost "$dir"
}

# The first half has no fault, so that a failure above is the sector's.
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
	lab_expect "bad1: its bad sector fails" 1 '' dd if="$bad" of=/dev/null bs=4096 \
		count=1 iflag=direct skip=$bad_block
	lab_expect "bad1: the next one does not" 0 '' dd if="$bad" of=/dev/null bs=4096 \
		count=1 iflag=direct skip=$((bad_block + 1))
	bad_reads bad-sector
	lab_said bad-sector "at $((bad_block * 4096)) of"
	bad_reads bad-sector-threads --engine threads
	bad_reads bad-sector-bounce --path bounce
	bad_reads bad-sector-p2p --via "$via" --require direct
	bad_reads bad-sector-after-p2p --via "$via"
	good_half
	umount "$dir"
}

# ---- a region of the drive that fails, lies or is slow ----
# The file system keeps its own blocks in the first 48 MiB, the region is what lies
# between there and 92 MiB; of 96 MiB a file of 64 must use some of it.
under=$(lab_drive data1)
size=$((64 * mib))
source_of="mem:64MiB?seed=5"

region() { # TARGET ARGS...: what lies under the region from here on
	local first=$((48 * mib / 512)) count=$((44 * mib / 512)) target=$1
	shift
	# Freezing the file system would fail on what the last region refused.
	sync
	dm suspend --nolockfs faulty
	dm reload faulty <<-END
		0 $first linear $under 0
		$first $count $target $under $first $*
		$((first + count)) $((4 * mib / 512)) linear $under $((first + count))
	END
	dm resume faulty
}

region_start() {
	dm create faulty --table "0 $((96 * mib / 512)) linear $under 0"
	faulty=$(dm_node faulty)
	mkfs.ext4 -q -F -b 4096 -m 0 -J size=4 \
		-E lazy_itable_init=0,lazy_journal_init=0,packed_meta_blocks=1 \
		"$faulty"
	mount "$faulty" "$dir"
	lab_penstock mem-copy 0 cp "$source_of" "$LAB_SCRATCH/right" --json
	lab_true "mem-copy: has its length" test "$(stat -c %s "$LAB_SCRATCH/right")" = $size
	echo old >"$dir/copy"
	sync
}

# An index block of the file's extents may come to lie in the region as well: then ext4
# gives up, nobody can remove a file any more, and the next step wants a new one.
gave_up() { findmnt -no OPTIONS "$dir" | grep -qE '(^|,)(ro|emergency_ro|shutdown)(,|$)'; }

write_fails() { # NAME OPTIONS...
	local name=$1
	shift
	region flakey 0 1 1 error_writes
	lab_penstock "$name" 1 cp "$source_of" "$dir/copy" --json "$@"
	lab_said "$name" "Input/output error"
	lab_true "$name: the old file is still there" grep -qx old "$dir/copy"
	if gave_up; then
		echo "# $name: ext4 gave up, its own block lay in the region"
		umount "$dir"
		dm remove faulty
		region_start
	else
		lab_true "$name: nothing else is" lost "$dir"
	fi
}

region_faults() {
	region_start
	region flakey 0 1 1 error_writes
	lab_expect "the region's writes fail" 1 '' dd if=/dev/zero bs=4096 count=1 \
		of="$faulty" seek=$((60 * mib / 4096)) oflag=direct conv=notrunc
	write_fails write-error
	write_fails write-error-threads --engine threads
	# Nothing fails while it is only in the page cache, but durable is a promise.
	write_fails write-error-durable --path bounce --durable

	region flakey 0 1 1 drop_writes
	lab_penstock lost-writes 1 cp "$LAB_SCRATCH/right" "$dir/lost" --verify --json
	lab_said lost-writes differ
	lab_true "lost-writes: nothing is left of it" test ! -e "$dir/lost"
	lab_penstock lost-writes-control 0 cp "$LAB_SCRATCH/right" "$dir/lost" --json
	lab_drop_caches
	lab_expect "lost-writes-control: without --verify nobody notices" 1 '' \
		cmp "$LAB_SCRATCH/right" "$dir/lost"
	rm -f "$dir/lost"

	region delay 400
	lab_penstock slow 0 cp "$source_of" "$dir/copy" --json
	lab_drop_caches
	lab_true "slow: the copy is right" cmp "$LAB_SCRATCH/right" "$dir/copy"
	lab_drop_caches
	lab_penstock slow-read 0 cp "$dir/copy" "$LAB_SCRATCH/back" --json
	lab_true "slow-read: the copy is right" cmp "$LAB_SCRATCH/right" "$LAB_SCRATCH/back"
	rm "$LAB_SCRATCH/back"
	umount "$dir"
	lab_expect "the file system is whole" 0 '' e2fsck -fn "$faulty"
	dm remove faulty
}

# ---- a drive that is pulled out ----
moved() { # DISK FIELD SECTORS: so many sectors went over it (3 read, 7 written)
	local -a stat
	read -r -a stat <"/sys/block/$1/stat" || return 0
	((stat[$2 - 1] >= $3))
}

pull() { # FIELD: once 8 MiB have moved beyond what did before
	local disk before
	local -a stat
	disk=$(basename "$(lab_drive slow1)")
	read -r -a stat <"/sys/block/$disk/stat"
	before=${stat[$1 - 1]}
	"${@:2}" &
	copy=$!
	lab_until moved "$disk" "$1" $((before + 8 * mib / 512)) ||
		lab_bad "$2: 8 MiB never moved"
	kill -0 $copy || lab_bad "$3: it was over before the drive was pulled"
	echo 1 >"/sys/bus/pci/devices/$(lab_bdf slow1)/remove"
	wait $copy || true
}

back() {
	echo 1 >/sys/bus/pci/rescan
	lab_until eval 'slow=$(lab_drive slow1 2>/dev/null) && [[ -b $slow ]]' ||
		lab_bad "the drive does not come back"
}

# Its exit code comes out of the background by a file of its own.
pulled() { lab_penstock "$@" >"$LAB_SCRATCH/pulled"; }
pulled_steps() {
	cat "$LAB_SCRATCH/pulled"
	grep -q ^ok "$LAB_SCRATCH/pulled" || lab_failed=$((lab_failed + 1))
}

vanish() {
	local slow
	slow=$(lab_drive slow1)
	lab_mount data1 "$dir"
	echo old >"$dir/copy"
	sync
	pull 3 pulled pulled-read 1 cp "$slow" "$dir/copy" --json
	pulled_steps
	lab_said pulled-read io-error
	lab_true "pulled-read: the old file is still there" grep -qx old "$dir/copy"
	lab_true "pulled-read: nothing else is" lost "$dir"
	back

	mkfs.ext4 -q -F -m 0 -J size=4 -E nodiscard,packed_meta_blocks=1 "$slow"
	mkdir -p "$LAB_SCRATCH/slow"
	mount "$slow" "$LAB_SCRATCH/slow"
	lab_penstock durable 0 cp "mem:2MiB?seed=6" "$LAB_SCRATCH/slow/copy" --durable --json
	cp "$LAB_SCRATCH/slow/copy" "$LAB_SCRATCH/durable"
	pull 7 pulled pulled-write 1 cp "$source_of" "$LAB_SCRATCH/slow/copy" --json
	pulled_steps
	lab_said pulled-write io-error
	umount "$LAB_SCRATCH/slow"
	back
	mount "$slow" "$LAB_SCRATCH/slow"
	lab_true "pulled-write: what was durable before is there" \
		cmp "$LAB_SCRATCH/durable" "$LAB_SCRATCH/slow/copy"
	umount "$LAB_SCRATCH/slow" "$dir"
}

modprobe -a dm-mod dm-flakey dm-delay
sector_faults
region_faults
vanish
((lab_failed == 0)) || exit 1
