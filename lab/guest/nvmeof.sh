#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: NVMe over fabrics with kernel targets, over tcp, rdma (Soft-RoCE)
# and loop. What explain, cp and bench say of each; the bytes, read back from the
# target's own drive; a link that is cut in mid-transfer and comes back, one that
# does not, and a path of two that is lost. Started by tests/lab/nvmeof through
# lab/run on machine fabrics; arguments: 'short' or 'all', the penstock command.
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

# A drive over one transport, whose sentence says why no path to it is direct.
transport() { # NAME WHY
	local name=$1 why=$2 drive
	drive=$(fabric_drive "${name}1")
	lab_penstock "$name-explain" 3 explain "$drive" host --require direct --json
	lab_said "$name-explain" "nvme $name" not-on-allow-list "$why"
	lab_penstock "$name-direct" 3 cp "$drive" "$LAB_SCRATCH/copy" --require direct --json
	lab_said "$name-direct" "$why"
	lab_true "$name-direct: leaves no file" test ! -e "$LAB_SCRATCH/copy"

	mkfs.ext4 -q -F -m 0 -J size=4 -E nodiscard "$drive"
	mount "$drive" "$dir"
	lab_penstock "$name-write" 0 cp "$src" "$dir/copy" --durable --json
	lab_drop_caches
	lab_penstock "$name-read" 0 cp "$dir/copy" "$LAB_SCRATCH/copy" --json
	lab_true "$name-read: the copy is right" cmp "$src" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	lab_penstock "$name-bench" 0 bench "$dir/copy" host --runtime 1 --cold --json
	peer "$name"
	umount "$dir"
	# What the target's own drive holds, not what the connection remembers.
	blockdev --flushbufs "$(lab_drive "${name}1")"
	mount -o ro "$(lab_drive "${name}1")" "$dir"
	lab_true "$name: the target's drive has the bytes" cmp "$src" "$dir/copy"
	umount "$dir"
	lab_penstock "$name-check" 4 check "$drive" --json
	lab_said "$name-check" "1 session" "$why"
}

# Peer-to-peer DMA ends at the wire: tried, refused by the kernel, and the bytes come
# another way.
peer() { # NAME
	lab_penstock "$1-peer" 3 cp "$dir/copy" "$dir/peer" --via "$via" \
		--require direct --json
	lab_penstock "$1-peer-cp" 0 cp "$dir/copy" "$dir/peer" --via "$via" --json
	lab_said "$1-peer-cp" no-pcie-route
	lab_drop_caches
	lab_true "$1-peer-cp: the copy is right" cmp "$src" "$dir/peer"
}

# The sectors that have gone over a disk.
sectors() { awk '{ print $3 + $7 }' "/sys/block/$(basename "$1")/stat"; }
more_than() { (($(sectors "$1") > $2)); }

# A step in the background, and its lines when it has ended.
begin() { # NAME CODE DRIVE ARGS...: returns once 4 MiB of it have moved
	local name=$1 code=$2 drive=$3 before
	shift 3
	before=$(sectors "$drive")
	lab_penstock "$name" "$code" "$@" >"$LAB_SCRATCH/step" &
	step=$!
	lab_until more_than "$drive" $((before + 4 * mib / 512)) ||
		lab_bad "$name: 4 MiB never moved"
	kill -0 $step 2>/dev/null || lab_bad "$name: it was over before the cut"
}

end() {
	wait $step || true
	cat "$LAB_SCRATCH/step"
	grep -q ^ok "$LAB_SCRATCH/step" || lab_failed=$((lab_failed + 1))
}

# Reads and writes over a link that is gone for as long as the kernel takes to see it.
cut_and_back() { # NAME LINK
	local name=$1 link=$2 drive under
	drive=$(fabric_drive "${name}1")
	under=$(lab_drive "${name}1")
	begin "$name-cut-write" 0 "$under" cp "$big" "$drive" --durable --json
	link_down "$link"
	lab_true "$name-cut-write: the connection is lost" lab_until not_live "${name}1"
	lab_true "$name-cut-write: the copy waits for it" kill -0 $step
	link_up "$link"
	end
	lab_true "$name-cut-write: the connection is back" is_state live "${name}1"
	blockdev --flushbufs "$under"
	lab_true "$name-cut-write: the target's drive has the bytes" \
		cmp -n $((32 * mib)) "$big" "$under"
	lab_drop_caches

	dmsetup --noudevsync create "$name" --table "0 $((32 * mib / 512)) linear $drive 0"
	begin "$name-cut-read" 0 "$under" cp "/dev/dm-$(dmsetup info -c --noheadings \
		-o minor "$name")" "$LAB_SCRATCH/copy" --json
	link_down "$link"
	lab_true "$name-cut-read: the connection is lost" lab_until not_live "${name}1"
	link_up "$link"
	end
	lab_true "$name-cut-read: the copy is right" cmp "$big" "$LAB_SCRATCH/copy"
	rm "$LAB_SCRATCH/copy"
	dmsetup --noudevsync remove "$name"
}

# Two paths to one drive, of which one is lost in mid-transfer.
path_of_two() {
	local drive under
	drive=$(fabric_drive pair1)
	under=$(lab_drive pair1)
	lab_penstock pair-explain 0 explain "$drive" host --json
	lab_said pair-explain "nvme multipath" "c$(fabric_controllers pair1 10.77.0.1 |
		tr -dc 0-9)n1" "c$(fabric_controllers pair1 10.77.1.1 | tr -dc 0-9)n1"
	begin pair-write 0 "$under" cp "$big" "$drive" --durable --json
	link_down 0
	lab_true "pair-write: a path is lost" lab_until not_live pair1 10.77.0.1
	end
	lab_true "pair-write: the other is what carried it on" \
		is_state live pair1 10.77.1.1
	lab_true "pair-write: and the lost one is still lost" not_live pair1 10.77.0.1
	blockdev --flushbufs "$under"
	lab_true "pair-write: the target's drive has the bytes" \
		cmp -n $((32 * mib)) "$big" "$under"
	link_up 0
	lab_true "pair-write: the lost path comes back" \
		lab_until is_state live pair1 10.77.0.1
}

# The link does not come back: the kernel gives up, and so does the copy.
cut_for_good() {
	local drive
	drive=$(fabric_drive tcp1)
	echo old >"$LAB_SCRATCH/copy"
	echo 3 >"/sys/class/nvme/$(fabric_controllers tcp1)/ctrl_loss_tmo"
	begin lost-read 1 "$(lab_drive tcp1)" cp "$drive" "$LAB_SCRATCH/copy" --json
	link_down 0
	end
	lab_said lost-read io-error
	lab_true "lost-read: the old file is still there" grep -qx old "$LAB_SCRATCH/copy"
	link_up 0
}

via=peermem:$(lab_bdf cmb1)
mkdir -p "$dir"
fabrics_start
head -c $((8 * mib + 777)) /dev/urandom >"$src"
again=(--keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120)
if [[ $form == short ]]; then
	peer() { :; }
fi
target tcp1
connect tcp1 tcp 0 "${again[@]}"
target rdma1
connect rdma1 rdma 2 "${again[@]}"
target loop1
connect loop1 loop -
transport tcp "the CPU copies every byte out of socket buffers"
transport rdma "an RDMA device of this machine is software"
transport loop "the target is this kernel itself"

modprobe dm-mod
rm "$src"
head -c $((32 * mib)) /dev/urandom >"$big"
cut_and_back tcp 0
if [[ $form == all ]]; then
	cut_and_back rdma 2
	target pair1
	connect pair1 tcp 0 "${again[@]}"
	connect pair1 tcp 1 "${again[@]}"
	path_of_two
	cut_for_good
fi
((lab_failed == 0)) || exit 1
