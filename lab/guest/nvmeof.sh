#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: NVMe over fabrics with kernel targets, over tcp, rdma (Soft-RoCE)
# and loop. 'short': what explain, check, cp and bench say of each; the bytes, read back
# from the target's own drive; a link that is cut in mid-transfer and comes back.
# 'rest': peer-to-peer DMA to each, a cut link of RDMA, one that does not come back, and
# a path of two that is lost. 'all': both. Started by tests/lab/nvmeof through lab/run
# on machine fabrics; arguments: one of these words, the penstock command.
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and fabrics.sh
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

mounted() { # NAME: the drive over this transport, with a new file system
	mkfs.ext4 -q -F -m 0 -J size=4 -E nodiscard "$(fabric_drive "${1}1")"
	mount "$(fabric_drive "${1}1")" "$dir"
}

# A drive over one transport, whose sentence says why no path to it is direct.
transport() { # NAME WHY
	local name=$1 why=$2 drive own
	drive=$(fabric_drive "${name}1")
	own=$(dm_node "gated-${name}1")
	lab_penstock "$name-explain" 3 explain "$drive" host --require direct --json
	lab_said "$name-explain" "nvme $name" not-on-allow-list "$why"
	lab_penstock "$name-direct" 3 cp "$drive" "$LAB_SCRATCH/copy" --require direct --json
	lab_said "$name-direct" "$why"
	lab_true "$name-direct: leaves no file" test ! -e "$LAB_SCRATCH/copy"

	mounted "$name"
	lab_penstock "$name-write" 0 cp "$src" "$dir/copy" --durable --json
	lab_drop_caches
	lab_penstock "$name-read" 0 cp "$dir/copy" "$LAB_SCRATCH/copy" --json
	lab_true "$name-read: the copy is right" cmp "$src" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	lab_penstock "$name-bench" 0 bench "$dir/copy" host --runtime 1 --cold --json
	umount "$dir"
	# What the target's own drive holds, not what the connection remembers.
	blockdev --flushbufs "$own"
	mount -o ro "$own" "$dir"
	lab_true "$name: the target's drive has the bytes" cmp "$src" "$dir/copy"
	umount "$dir"
	lab_penstock "$name-check" 4 check "$drive" --quick --json
	lab_said "$name-check" "$why"
}

# Peer-to-peer DMA ends at the wire: tried, refused by the kernel, and the bytes come
# another way.
peer() { # NAME
	mounted "$1"
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

# The sectors that have gone over a disk.
sectors() { awk '{ print $3 + $7 }' "/sys/block/$(basename "$1")/stat"; }
more_than() { (($(sectors "$1") > $2)); }

# A step in the background of which only the first half can move: the target's gate is
# shut, so that it cannot be over before what happens next.
begin() { # SERIAL NAME CODE ARGS...: returns once 4 MiB of it have moved
	local drive name=$2 before
	drive=$(lab_drive "$1")
	gate_shut "$1"
	before=$(sectors "$drive")
	lab_penstock "${@:2}" >"$LAB_SCRATCH/step" &
	step=$!
	lab_until more_than "$drive" $((before + 4 * mib / 512)) ||
		lab_bad "$name: 4 MiB never moved"
}

end() { # SERIAL: the gate is opened, and the step says how it ended
	gate_open "$1"
	wait $step || true
	cat "$LAB_SCRATCH/step"
	grep -q ^ok "$LAB_SCRATCH/step" || lab_failed=$((lab_failed + 1))
}

has_big() { # SERIAL: on the target's drive
	blockdev --flushbufs "$(dm_node "gated-$1")"
	cmp -n $((32 * mib)) "$big" "$(dm_node "gated-$1")"
}

# Reads and writes over a link that is gone for as long as the kernel takes to see it.
cut_and_back() { # NAME LINK
	local name=$1 link=$2 serial=${1}1 drive
	drive=$(fabric_drive "$serial")
	begin "$serial" "$name-cut-write" 0 cp "$big" "$drive" --durable --json
	link_down "$link"
	lab_true "$name-cut-write: the connection is lost" lab_until not_live "$serial"
	lab_true "$name-cut-write: the copy waits for it" kill -0 $step
	link_up "$link"
	end "$serial"
	lab_true "$name-cut-write: the connection is back" \
		lab_until is_state live "$serial"
	lab_true "$name-cut-write: the target's drive has the bytes" has_big "$serial"
	lab_drop_caches

	dm create "$name" --table "0 $((32 * mib / 512)) linear $drive 0"
	begin "$serial" "$name-cut-read" 0 cp "$(dm_node "$name")" "$LAB_SCRATCH/copy" --json
	link_down "$link"
	lab_true "$name-cut-read: the connection is lost" lab_until not_live "$serial"
	link_up "$link"
	end "$serial"
	lab_true "$name-cut-read: the copy is right" cmp "$big" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	dm remove "$name"
}

# Two paths to one drive, of which one is lost in mid-transfer.
path_of_two() {
	local drive
	drive=$(fabric_drive pair1)
	lab_penstock pair-explain 0 explain "$drive" host --json
	lab_said pair-explain "nvme multipath" "c$(fabric_controllers pair1 10.77.0.1 |
		tr -dc 0-9)n1" "c$(fabric_controllers pair1 10.77.1.1 | tr -dc 0-9)n1"
	lab_penstock pair-check 4 check "$drive" --quick --json
	begin pair1 pair-write 0 cp "$big" "$drive" --durable --json
	link_down 0
	lab_true "pair-write: a path is lost" lab_until not_live pair1 10.77.0.1
	end pair1
	lab_true "pair-write: the other is what carried it on" \
		lab_until is_state live pair1 10.77.1.1
	lab_true "pair-write: and the lost one is still lost" not_live pair1 10.77.0.1
	lab_true "pair-write: the target's drive has the bytes" has_big pair1
	lab_penstock pair-check-lost 4 check "$drive" --quick --json
	link_up 0
	lab_true "pair-write: the lost path comes back" \
		lab_until is_state live pair1 10.77.0.1
}

# The link does not come back: the kernel gives up, and so does the copy.
cut_for_good() {
	echo old >"$LAB_SCRATCH/copy"
	echo 3 >"/sys/class/nvme/$(fabric_controllers tcp1)/ctrl_loss_tmo"
	begin tcp1 lost-read 1 cp "$(fabric_drive tcp1)" "$LAB_SCRATCH/copy" --json
	link_down 0
	lab_true "lost-read: the kernel gives the drive up" lab_until is_state gone tcp1
	end tcp1
	lab_said lost-read io-error
	lab_true "lost-read: the old file is still there" grep -qx old "$LAB_SCRATCH/copy"
	link_up 0
}

via=peermem:$(lab_bdf cmb1)
mkdir -p "$dir"
fabrics_start
head -c $((8 * mib + 777)) /dev/urandom >"$src"
head -c $((32 * mib)) /dev/urandom >"$big"
again=(--keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=600)
target tcp1
connect tcp1 tcp 0 "${again[@]}"
target rdma1
connect rdma1 rdma 2 "${again[@]}"
target loop1
connect loop1 loop -
if [[ $form != rest ]]; then
	transport tcp "the CPU copies every byte out of socket buffers"
	transport rdma "an RDMA device of this machine is software"
	transport loop "the target is this kernel itself"
	cut_and_back tcp 0
fi
if [[ $form != short ]]; then
	peer tcp
	peer rdma
	peer loop
	cut_and_back rdma 2
	target pair1
	connect pair1 tcp 0 "${again[@]}"
	connect pair1 tcp 1 "${again[@]}"
	path_of_two
	cut_for_good
fi
((lab_failed == 0)) || exit 1
