#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests transport rc1 over Soft-RoCE. Without an argument, runs the cases of tests/object/matrix
# for rc1: the client is in the guest's own network namespace, and the servers are in another one.
# With the argument serve, boto3 and `penstock cp` move objects to `penstock serve` and back.
#
# rc1.sh [serve]. tests/lab/rc1 runs this script by lab/run.
# shellcheck disable=SC2154 # lib.sh and this script share variables.
set -euo pipefail
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

modprobe -a veth rdma_rxe rdma_ucm
ip link set lo up
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
lab_until test -c /dev/infiniband/rdma_cm || lab_bad "the guest has no /dev/infiniband/rdma_cm"

# Runs a suite that prints TAP, and makes each case a step.
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
}

export PENSTOCK_RC1_ADDRESS=10.78.0.1
if [[ ${1-} == serve ]]; then
	tap boto3 tests/s3/gateway rdma.py through_a_card
	tap cp tests/s3/gateway client_rdma.py through_a_card
else
	export PENSTOCK_RC1_NETNS=right
	tap matrix tests/object/matrix rc1
fi
((lab_failed == 0)) || exit 1
