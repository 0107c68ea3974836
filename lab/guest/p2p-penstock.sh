# SPDX-License-Identifier: Apache-2.0
# The penstock command's part of p2p.sh, sourced by it: copies through the memory
# buffer with the direct class required, as phases of the trace, and copies by less
# direct paths as controls. Reports go to $LAB_OUT/NAME.json for the host to judge.
# It must never judge a report here: the guest is what is being tested.
# shellcheck shell=bash disable=SC2154 # sourced

via=peermem:$(lab_bdf cmb1)
odd=$((size + 777))

# Both ends in one phase: reads of the source and writes of the copy.
copies() { # NAME SOURCE OPTIONS...
	local name=$1 from=$2
	shift 2
	lab_drop_caches
	# The copy is made by the phase, so its place is asked for after it.
	lab_phase "$name" "read:$dir/$from,write:$dir/$name" lab_penstock "$name" 0 \
		cp "$dir/$from" "$dir/$name" --via "$via" --json "$@" || true
	lab_drop_caches
	if cmp -s "$dir/$from" "$dir/$name"; then
		lab_ok "$name: the copy is right"
	else
		lab_bad "$name: the copy differs"
	fi
}

# What check says, by everything; then as a user who may neither read the bridges nor
# have the memory.
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

for path in staged bounce; do
	lab_drop_caches
	lab_phase "penstock-control-$path" "read:$dir/src" \
		lab_penstock "penstock-control-$path" 0 bench "$dir/src" "$via" \
		--rw read --path "$path" --runtime 1 --json || true
done
