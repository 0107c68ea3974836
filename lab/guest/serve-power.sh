#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The guest's part of tests/lab/serve-power.
#
# serve-power.sh write PENSTOCK PYTHON SEED ROUNDS PRELOAD starts three gateways in turn, and stores
# objects in them. Their roots are folders of one drive: `files`, `folders` and `root`.
# The library PRELOAD makes the gateway of `files` sync no files, and that of `folders` sync no
# folders. The gateway of `root` runs without it. lab/guest/objects.py describes the output.
#
# serve-power.sh verify PENSTOCK PYTHON SEED SERIAL... repairs the root of each drive and checks its
# objects. $LAB_OUT/SERIAL has the lines that were printed before the cut. If SERIAL begins with
# `busy`, requests were in flight. This script only prints the results. The host decides which drive
# must have kept its objects.
set -euo pipefail
mode=$1
penstock=$2
python=$3
seed=$4
shift 4
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"
export PYTHONDONTWRITEBYTECODE=1

keys=$LAB_SCRATCH/keys
(umask 077; printf '%s\n' '[AKLAB]' 'secret = secret+of/the+lab' 'buckets = *' 'access = rw' \
	>"$keys")

# Starts a gateway whose root is in `dir`. Sets `url` and `gateway`.
gateway_start() { # NAME [VARIABLE=VALUE...]
	local root=$dir/$1 ready=$dir.ready
	shift
	rm -f "$ready"
	env "$@" "$penstock" serve --root "$root" --listen 127.0.0.1:0 --keys "$keys" --json \
		>"$ready" &
	gateway=$!
	lab_until grep -q '"port"' "$ready"
	url=http://127.0.0.1:$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$ready")
}

gateway_stop() {
	kill -KILL "$gateway"
	wait "$gateway" 2>/dev/null || true
}

# Runs the writers on a root until the host has copied the drive ROUNDS times, and then until the
# gateway ends.
write() { # NAME ROUNDS [VARIABLE=VALUE...]
	local name=$1 rounds=$2 writers
	shift 2
	mkdir "$dir/$name"
	sync -f "$dir"
	gateway_start "$name" "$@"
	"$python" "$LAB_DIR/guest/objects.py" write "$url" "$name" "$seed" "$rounds" &
	writers=$!
	if [[ $name != root ]]; then
		lab_until test -e "$LAB_OUT/go-$name-$rounds"
		gateway_stop
	fi
	wait "$writers"
}

# Prints the drafts (incomplete files) and the files of uploads that `penstock serve --repair` has
# not removed.
leftovers() { # ROOT
	find "$1/.penstock/tmp" "$1/.penstock/multipart" -type f -o -path '*/tmp/*'
}

verify() { # SERIAL
	local serial=$1 name=root how=exact text dir=$LAB_SCRATCH/$1
	mkdir "$dir"
	[[ $serial != folders && $serial != files ]] || name=$serial
	[[ $serial != busy* ]] || how=any
	mount "$(lab_disk "$serial")" "$dir" || {
		echo "$serial: lost everything, it cannot be mounted"
		return
	}
	lab_until leases_run_out "$dir/$name"
	text=$("$penstock" serve --repair --root "$dir/$name" --lease 1 --upload-lease 1 2>&1) ||
		echo "$serial: lost the repair"
	echo "$serial: repair: ${text//$'\n'/; }"
	leftovers "$dir/$name" | sed "s|^$dir|$serial: left |"
	gateway_start "$name"
	"$python" "$LAB_DIR/guest/objects.py" verify "$url" "$name" "$seed" "$LAB_OUT/$serial" \
		"$serial" "$how" || echo "$serial: lost: the check failed"
	gateway_stop
	umount "$dir"
}

# Returns whether no file below .penstock has changed in the last 2 s. After this time, `penstock
# serve --repair --lease 1` regards each draft (incomplete file) as abandoned.
leases_run_out() { # ROOT
	[[ ! $(find "$1/.penstock" -newerct "@$((EPOCHSECONDS - 2))" -print -quit) ]]
}

modprobe -a virtio_blk ext4
if [[ $mode == write ]]; then
	rounds=$1
	preload=$2
	lab_until lab_disk_exists power1
	dir=$LAB_SCRATCH/data
	mkdir "$dir"
	# With commit=300, ext4 commits its journal during the test only if a program requests a
	# commit. So the power cut loses files that no program has synced.
	mount -o commit=300 "$(lab_disk power1)" "$dir"
	write files 1 "LD_PRELOAD=$preload" STUB_SYNC=files
	write folders 1 "LD_PRELOAD=$preload" STUB_SYNC=folders
	write root "$rounds"
	echo "the power was not cut"
else
	# Checks two drives at a time. This saves time, because each check spends most of its time
	# on starting programs.
	for serial; do
		lab_until lab_disk_exists "$serial"
		verify "$serial" &
		[[ ! ${before:-} ]] || wait "$before"
		before=$!
	done
	wait
fi
