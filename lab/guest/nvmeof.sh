#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests NVMe over fabrics in the guest, with kernel targets over tcp, rdma (Soft-RoCE) and
# loop.
#
# nvmeof.sh FORM PENSTOCK. FORM 'short' runs `penstock explain`, `penstock check`, `penstock cp`
# and `penstock bench` for each transport. It compares the bytes on the target's drive, and cuts
# a tcp link for a while during a transfer. FORM 'rest' checks peer-to-peer DMA to each
# transport, cuts an rdma link, removes one of two paths to a drive, and cuts a link permanently.
# FORM 'all' does both. PENSTOCK is the command. tests/lab/nvmeof runs this script by lab/run on
# machine fabrics.
# shellcheck disable=SC2034,SC2154 # lib.sh and fabrics.sh share variables.
set -euo pipefail
form=$1
penstock=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"
# shellcheck source=lab/guest/fabrics.sh
source "$LAB_DIR/guest/fabrics.sh"

mib=$((1 << 20))
dir=$LAB_SCRATCH/data
src=$LAB_SCRATCH/src
big=$LAB_SCRATCH/big

fabric_mount() { # NAME: formats and mounts the drive that is connected by this transport
	mkfs.ext4 -q -F -m 0 -J size=4 -E nodiscard "$(fabric_drive "${1}1")"
	mount "$(fabric_drive "${1}1")" "$dir"
}

# Checks the drive that is connected over transport NAME. WHY is the sentence that the penstock
# command must print as the reason why no path is direct.
check_transport() { # NAME WHY
	local name=$1 why=$2 drive own
	drive=$(fabric_drive "${name}1")
	own=$(dm_node "gated-${name}1")
	lab_penstock "$name-explain" 3 explain "$drive" host --require direct --json
	lab_said "$name-explain" "nvme $name" not-on-allow-list "$why"
	lab_penstock "$name-direct" 3 cp "$drive" "$LAB_SCRATCH/copy" --require direct --json
	lab_said "$name-direct" "$why"
	lab_true "$name-direct: no file is left" test ! -e "$LAB_SCRATCH/copy"

	fabric_mount "$name"
	lab_penstock "$name-write" 0 cp "$src" "$dir/copy" --durable --json
	lab_drop_caches
	lab_penstock "$name-read" 0 cp "$dir/copy" "$LAB_SCRATCH/copy" --json
	lab_true "$name-read: the copy is right" cmp "$src" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	lab_penstock "$name-bench" 0 bench "$dir/copy" host --runtime 1 --cold --json
	umount "$dir"
	# Reads the copy from the target's own drive, not from the page cache of the connected
	# drive.
	blockdev --flushbufs "$own"
	mount -o ro "$own" "$dir"
	lab_true "$name: the target's drive has the bytes" cmp "$src" "$dir/copy"
	umount "$dir"
	lab_penstock "$name-check" 4 check "$drive" --quick --json
	lab_said "$name-check" "$why"
}

# Checks that the kernel refuses peer-to-peer DMA to a fabrics drive, and that a copy then
# uses another path.
check_peer() { # NAME
	fabric_mount "$1"
	cp "$src" "$dir/copy"
	lab_drop_caches
	lab_penstock "$1-peer" 3 cp "$dir/copy" "$dir/peer" --via "$via" \
		--require direct --json
	lab_penstock "$1-peer-cp" 0 cp "$dir/copy" "$dir/peer" --via "$via" --json
	lab_said "$1-peer-cp" no-pcie-route
	lab_drop_caches
	lab_true "$1-peer-cp: the copy is right" cmp "$src" "$dir/peer"
	umount "$dir"
}

# Prints the number of sectors that a disk has read and written.
sectors() { awk '{ print $3 + $7 }' "/sys/block/$(basename "$1")/stat"; } # DISK
more_than() { (($(sectors "$1") > $2)); } # DISK SECTORS

# Starts a step in the background, and returns after the step has moved 4 MiB. gate_shut makes the
# target's drive hold back I/O, so that the step cannot complete before step_end calls gate_open.
step_begin() { # SERIAL NAME CODE ARGS...
	local drive name=$2 before
	drive=$(lab_drive "$1")
	gate_shut "$1"
	before=$(sectors "$drive")
	lab_penstock "${@:2}" >"$LAB_SCRATCH/step" &
	step=$!
	lab_until more_than "$drive" $((before + 4 * mib / 512)) ||
		lab_bad "$name: 4 MiB did not move"
}

step_end() { # SERIAL: opens the gate, waits for the step and prints its results
	gate_open "$1"
	wait $step || true
	cat "$LAB_SCRATCH/step"
	grep -q ^ok "$LAB_SCRATCH/step" || lab_failed=$((lab_failed + 1))
}

has_big() { # SERIAL: true if the target's drive has the bytes of $big
	blockdev --flushbufs "$(dm_node "gated-$1")"
	cmp -n $((32 * mib)) "$big" "$(dm_node "gated-$1")"
}

# Cuts a link during a write, waits until the kernel notices, and restores the link. Then cuts and
# restores the link during a read. The write and the read must wait for the link and then complete.
cut_and_restore() { # NAME LINK
	local name=$1 link=$2 serial=${1}1 drive
	drive=$(fabric_drive "$serial")
	step_begin "$serial" "$name-cut-write" 0 cp "$big" "$drive" --durable --json
	link_down "$link"
	lab_true "$name-cut-write: the connection is lost" lab_until not_live "$serial"
	lab_true "$name-cut-write: the copy waits for the connection" kill -0 $step
	link_up "$link"
	step_end "$serial"
	lab_true "$name-cut-write: the connection is back" \
		lab_until is_state live "$serial"
	lab_true "$name-cut-write: the target's drive has the bytes" has_big "$serial"
	lab_drop_caches

	dm create "$name" --table "0 $((32 * mib / 512)) linear $drive 0"
	step_begin "$serial" "$name-cut-read" 0 cp "$(dm_node "$name")" "$LAB_SCRATCH/copy" --json
	link_down "$link"
	lab_true "$name-cut-read: the connection is lost" lab_until not_live "$serial"
	link_up "$link"
	step_end "$serial"
	lab_true "$name-cut-read: the copy is right" cmp "$big" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	dm remove "$name"
}

# Cuts one of two links to a drive during a transfer, which must go on over the other link.
cut_one_path() {
	local drive
	drive=$(fabric_drive pair1)
	lab_penstock pair-explain 0 explain "$drive" host --json
	lab_said pair-explain "nvme multipath" "c$(fabric_controllers pair1 10.77.0.1 |
		tr -dc 0-9)n1" "c$(fabric_controllers pair1 10.77.1.1 | tr -dc 0-9)n1"
	lab_penstock pair-check 4 check "$drive" --quick --json
	step_begin pair1 pair-write 0 cp "$big" "$drive" --durable --json
	link_down 0
	lab_true "pair-write: a path is lost" lab_until not_live pair1 10.77.0.1
	step_end pair1
	lab_true "pair-write: the other path is live" \
		lab_until is_state live pair1 10.77.1.1
	lab_true "pair-write: the lost path is still lost" not_live pair1 10.77.0.1
	lab_true "pair-write: the target's drive has the bytes" has_big pair1
	lab_penstock pair-check-lost 4 check "$drive" --quick --json
	link_up 0
	lab_true "pair-write: the lost path comes back" \
		lab_until is_state live pair1 10.77.0.1
}

# Cuts a link and does not restore it. The kernel then removes the drive, and the copy must
# fail.
cut_for_good() {
	echo old >"$LAB_SCRATCH/copy"
	echo 3 >"/sys/class/nvme/$(fabric_controllers tcp1)/ctrl_loss_tmo"
	step_begin tcp1 lost-read 1 cp "$(fabric_drive tcp1)" "$LAB_SCRATCH/copy" --json
	link_down 0
	lab_true "lost-read: the kernel gives the drive up" lab_until is_state gone tcp1
	step_end tcp1
	lab_said lost-read io-error
	lab_true "lost-read: the old file is unchanged" grep -qx old "$LAB_SCRATCH/copy"
	link_up 0
}

via=peermem:$(lab_bdf cmb1)
mkdir -p "$dir"
fabrics_start
head -c $((8 * mib + 777)) /dev/urandom >"$src"
head -c $((32 * mib)) /dev/urandom >"$big"
reconnect=(--keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=600)
target_create tcp1
target_connect tcp1 tcp 0 "${reconnect[@]}"
target_create rdma1
target_connect rdma1 rdma 2 "${reconnect[@]}"
target_create loop1
target_connect loop1 loop -
if [[ $form != rest ]]; then
	check_transport tcp "the CPU copies every byte out of socket buffers"
	check_transport rdma "an RDMA device of this machine is software"
	check_transport loop "the target is this kernel itself"
	cut_and_restore tcp 0
fi
if [[ $form != short ]]; then
	check_peer tcp
	check_peer rdma
	check_peer loop
	cut_and_restore rdma 2
	target_create pair1
	target_connect pair1 tcp 0 "${reconnect[@]}"
	target_connect pair1 tcp 1 "${reconnect[@]}"
	cut_one_path
	cut_for_good
fi
((lab_failed == 0)) || exit 1
