#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the transport rc1 of S3 over RDMA. Soft-RoCE (RDMA by the kernel) takes the place of RDMA
# network cards. Without an argument, runs the cases of tests/object/matrix for rc1: the client is
# in the guest's own network namespace, and the servers are in another one. With the argument
# serve, boto3 and `penstock cp` move objects to `penstock serve` and back. With the argument
# hipobj, `penstock cp` moves objects by transport hipobj-rc-v2. With the argument ofi, `penstock
# cp` does so by ofi1 with the provider verbs;ofi_rxm of libfabric, and the cases of
# tests/object/matrix for this provider run.
#
# rc1.sh [serve|hipobj|ofi]. tests/lab/rc1 runs this script by lab/run.
# shellcheck disable=SC2154 # lib.sh and this script share variables.
set -euo pipefail
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

modprobe -a veth rdma_rxe rdma_ucm
ip link set lo up
lab_rdma_links
lab_until test -c /dev/infiniband/rdma_cm || lab_bad "the guest has no /dev/infiniband/rdma_cm"

# Runs a test suite that prints TAP, and reports each of its cases as a step of this script.
tap() { # NAME COMMAND...
	local out=$LAB_OUT/$1 cases=0 line plan
	shift
	timeout $lab_patience "$@" >"$out" || true
	cat "$out"
	while read -r line; do
		case $line in
		'ok '*) lab_ok "${line#ok * - }" ;;
		'not ok '*) lab_bad "${line#not ok * - }" ;;
		*) continue ;;
		esac
		cases=$((cases + 1))
	done <"$out"
	plan=$(grep -m 1 '^1\.\.' "$out" || true)
	lab_true "the plan $plan has all $cases cases" test "$plan" = "1..$cases"
	lab_true "there is a case" test "$cases" -gt 0
}

export PENSTOCK_RC1_ADDRESS=10.78.0.1
if [[ ${1-} == serve ]]; then
	tap boto3 tests/s3/gateway rdma.py through_a_card
	tap cp tests/s3/gateway client_rdma.py through_a_card
elif [[ ${1-} == ofi ]]; then
	# libfabric computes the length of a completion queue from FI_UNIVERSE_SIZE, the expected
	# number of other processes (default 256). Soft-RoCE cannot make the queue for 256.
	export FI_UNIVERSE_SIZE=32
	# Without this variable, the client refuses the provider.
	export FI_MR_CACHE_MAX_COUNT=0
	tap cp tests/s3/gateway client_rdma.py verbs
	export PENSTOCK_RC1_NETNS=right
	tap matrix tests/object/matrix verbs
elif [[ ${1-} == hipobj ]]; then
	# The cases run in several commands, because each command has the time limit lab_patience.
	tap moves tests/s3/gateway hipobj.py objects ranges
	tap kills tests/s3/gateway hipobj.py killed
	tap refusals tests/s3/gateway hipobj.py sessions queue_pair
else
	export PENSTOCK_RC1_NETNS=right
	tap matrix tests/object/matrix rc1
fi
((lab_failed == 0)) || exit 1
