# SPDX-License-Identifier: Apache-2.0
# Functions for scripts in the guest: they find drives by serial number, mark in QEMU's trace where
# a command begins and ends, and run steps, each of which prints a line with its result.
# lab/guest/*.sh source this file. It refuses to run outside a guest, because it formats drives.
# shellcheck shell=bash disable=SC2154 # The script that sources it sets lab_probe.

[[ -e /run/penstock-lab ]] || {
	echo "lab/guest: this script runs only in a guest of the lab" >&2
	exit 2
}

# The first sector after the file systems. Reads of single sectors from here on serve as marks
# in QEMU's trace.
lab_mark_sector=917504		# 448 MiB
rm -f "$LAB_OUT"/{facts,phases,said.log}
: >"$LAB_OUT/phases"

lab_controller() { # SERIAL: prints nvme1
	local f
	f=$(grep -lsx "$1 *" /sys/class/nvme/nvme*/serial) || {
		echo "found no drive with serial number $1" >&2
		return 1
	}
	basename "$(dirname "$f")"
}

lab_drive() { # SERIAL: prints /dev/nvme1n1
	local c
	c=$(lab_controller "$1") && echo /dev/"${c}"n[0-9]*
}

lab_bdf() { # SERIAL: prints 0000:04:00.0
	local c
	c=$(lab_controller "$1") && cat "/sys/class/nvme/$c/address"
}

lab_p2pmem() { # SERIAL: prints .../p2pmem
	local b
	b=$(lab_bdf "$1") && echo "/sys/bus/pci/devices/$b/p2pmem"
}

# Prints the block device of a drive whose power is cut. Such drives are virtio drives, because
# the NVMe drives of QEMU 7.2 ignore FUA. An NVMe drive would lose the commit block of ext4's
# journal, although ext4 wrote this block with FUA.
lab_disk() { # SERIAL
	local f
	f=$(grep -lsx "$1" /sys/block/vd*/serial) || return 1
	echo "/dev/$(basename "$(dirname "$f")")"
}
lab_disk_exists() { [[ -b $(lab_disk "$1") ]]; } # SERIAL

# Formats the first 448 MiB of a drive and mounts them. Reads of the sectors after them serve as
# marks in QEMU's trace.
lab_mount() { # SERIAL DIR
	local dev
	dev=$(lab_drive "$1")
	modprobe ext4
	mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$dev" 448M
	mkdir -p "$2"
	mount "$dev" "$2"
}

# Prints the facts that lab/check-trace needs: the NVMe namespace of the files, the sector of the
# first mark (a read that shows in the trace), and the BAR of the device memory. check-trace
# compares the BAR with QEMU's own mapping events.
lab_facts() { # DATA-SERIAL MEMORY-SERIAL
	local bdf c bir
	c=$(lab_controller "$2")
	bdf=$(lab_bdf "$2")
	echo "nsid $(cat /sys/block/"$(basename "$(lab_drive "$1")")"/nsid)"
	echo "mark_sector $lab_mark_sector"
	bir=$((0x$(sed -n 's/^cmbloc *: 0x//p' "/sys/class/nvme/$c/cmb") & 7))
	sed -n "$((bir + 1))s/^\(0x[0-9a-f]*\) \(0x[0-9a-f]*\) .*/bar $bdf $bir \1 \2/p" \
		"/sys/bus/pci/devices/$bdf/resource"
}

# Runs a command between two marks, which are reads of single sectors that show in QEMU's trace.
# Records on which sectors of the drive the command's files are. TARGETS is 'read:FILE' or
# 'write:FILE', or several of these separated by commas.
lab_phase() { # NAME TARGETS COMMAND...
	local name=$1 targets=$2 code=0 t n mark
	shift 2
	n=$(grep -c ^phase "$LAB_OUT/phases") || true
	mark=$((lab_mark_sector + 2 * n))
	"$lab_probe" mark --file "$lab_mark_drive" --offset $((mark * 512))
	"$@" || code=$?
	"$lab_probe" mark --file "$lab_mark_drive" --offset $(((mark + 1) * 512))
	echo "phase $n $name" >>"$LAB_OUT/phases"
	for t in ${targets//,/ }; do
		"$lab_probe" extents --file "${t#*:}" |
			sed "s/^/extent $n ${t%%:*} /" >>"$LAB_OUT/phases"
	done
	return $code
}

lab_drop_caches() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
}

lab_failed=0
lab_ok() { echo "ok   $*"; }
lab_bad() {
	echo "FAIL $*"
	lab_failed=$((lab_failed + 1))
}

# Runs a command and checks its exit code, and that its output matches PATTERN.
lab_expect() { # NAME CODE PATTERN COMMAND...
	local name=$1 want=$2 pattern=$3 code=0 text
	shift 3
	text=$("$@" 2>"$LAB_SCRATCH/stderr") || code=$?
	if [[ $code == "$want" && $text =~ $pattern ]]; then
		lab_ok "$name"
	else
		lab_bad "$name: exit $code, wanted $want with '$pattern'; it printed: $text"
		sed 's/^/     /' "$LAB_SCRATCH/stderr"
	fi
	printf '%s\n' "$text" >>"$LAB_OUT/said.log"
}

# Time limit in seconds for events that always happen unless there is a bug. The limit is long,
# because a guest on a busy machine is slow.
lab_patience=300

# Runs the penstock command, which must exit with CODE. Its output goes to
# $LAB_OUT/NAME.json and NAME.err.
lab_penstock() { # NAME CODE ARGS...
	local name=$1 want=$2 code=0
	shift 2
	timeout -s KILL $lab_patience "$penstock" "$@" >"$LAB_OUT/$name.json" \
		2>"$LAB_OUT/$name.err" || code=$?
	if ((code == want)); then
		lab_ok "$name: exit $code"
	else
		lab_bad "$name: exit $code, wanted $want"
		sed 's/^/     /' "$LAB_OUT/$name.err"
	fi
}

# Checks that the output of step NAME contains each of the given texts.
lab_said() { # NAME WORDS...
	local name=$1 word
	shift
	for word in "$@"; do
		if grep -qF -- "$word" "$LAB_OUT/$name".{json,err}; then
			lab_ok "$name: prints '$word'"
		else
			lab_bad "$name: does not print '$word'"
			sed 's/^/     /' "$LAB_OUT/$name".{json,err}
		fi
	done
}

# Runs a command that must succeed, and prints the result as step NAME.
lab_true() { # NAME COMMAND...
	local name=$1
	shift
	if "$@"; then lab_ok "$name"; else lab_bad "$name"; fi
}

# Runs dmsetup without udev, which the guest does not have.
dm() { dmsetup --noudevsync --noudevrules "$@"; }
dm_node() { echo /dev/dm-"$(dmsetup info -c --noheadings -o minor "$1")"; } # NAME

# Repeats a command until it succeeds. Returns false after lab_patience seconds.
lab_until() { # COMMAND...
	local deadline=$((SECONDS + lab_patience))
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.05
	done
}

# Makes two Soft-RoCE devices, which are connected: rxeleft with 10.78.0.1, and rxeright with
# 10.78.0.2 in the network namespace "right". The module rdma_rxe must be loaded.
lab_rdma_links() {
	ip netns add right
	ip link add left0 type veth peer name right0 netns right
	ip addr add 10.78.0.1/24 dev left0
	ip link set left0 up
	ip netns exec right ip addr add 10.78.0.2/24 dev right0
	ip netns exec right ip link set lo up
	ip netns exec right ip link set right0 up
	rdma link add rxeleft type rxe netdev left0
	ip netns exec right rdma link add rxeright type rxe netdev right0
	lab_until eval '(($(ls /dev/infiniband 2>/dev/null | grep -c uverbs) == 2))' ||
		lab_bad "the guest does not have two verbs devices"
}
