# SPDX-License-Identifier: Apache-2.0
# The part of p2p.sh that tests the penstock command; p2p.sh sources it. It copies files through
# the device memory with class `direct` required. As a control, it also copies over less direct
# paths. Each copy is a phase: marks before and after it show in QEMU's trace where it begins and
# ends. The reports go to $LAB_OUT/NAME.json. Only the host checks the reports, because a fault of
# the guest could also affect a check that runs in the guest.
# shellcheck shell=bash disable=SC2154 # p2p.sh sets the variables.

via=peermem:$(lab_bdf cmb1)
odd=$((size + 777))

# Copies a file as one phase (the part of QEMU's trace between two marks), which contains the reads
# of the source and the writes of the copy.
copies() { # NAME SOURCE OPTIONS...
	local name=$1 from=$2
	shift 2
	lab_drop_caches
	# lab_phase looks up the sectors of the files only after the command, because the copy
	# does not exist earlier.
	lab_phase "$name" "read:$dir/$from,write:$dir/$name" lab_penstock "$name" 0 \
		cp "$dir/$from" "$dir/$name" --via "$via" --json "$@" || true
	lab_drop_caches
	if cmp -s "$dir/$from" "$dir/$name"; then
		lab_ok "$name: the copy is right"
	else
		lab_bad "$name: the copy differs"
	fi
}

# Runs `penstock check` as root. Then runs it as a user that may not read the bridges' config
# space and may not map the device memory.
lab_penstock check 0 check "$dir/src" --device "$via" --quick --json --expect direct
chmod 755 "$LAB_SCRATCH" "$dir"
code=0
setpriv --reuid 65534 --regid 65534 --clear-groups "$penstock" check "$dir/src" \
	--device "$via" --quick --json >"$LAB_OUT/check-user.json" || code=$?
lab_true "check-user: exit $code" test $code = 1

head -c $odd /dev/urandom >"$dir/odd"
lab_penstock explain-read 0 explain "$dir/src" "$via" --json
copies penstock-uring src --require direct
copies penstock-odd odd --require direct
sysctl -qw kernel.io_uring_disabled=2
copies penstock-threads src --require direct
sysctl -qw kernel.io_uring_disabled=0
lab_penstock penstock-verify 0 cp "$dir/odd" "$dir/verified" --via "$via" \
	--require direct --verify --json

# Writes and reads a part of a checkpoint. In this file, short heads and payloads alternate: the
# heads are in host memory, the payloads in device memory.
payload=$(dirname "$penstock")/tests/ckpt-payload
for way in write read; do
	lab_drop_caches
	penstock=$payload lab_phase "penstock-part-$way" "$way:$dir/part" \
		lab_penstock "penstock-part-$way" 0 "$way" "$via" "$dir/part" || true
done

for path in staged bounce; do
	lab_drop_caches
	lab_phase "penstock-control-$path" "read:$dir/src" \
		lab_penstock "penstock-control-$path" 0 bench "$dir/src" "$via" \
		--rw read --path "$path" --runtime 1 --json || true
done
