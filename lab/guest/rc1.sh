#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests transport rc1 over Soft-RoCE. Without an argument, runs the cases of tests/object/matrix
# for rc1: the client is in the guest's own network namespace, and the servers are in another one.
# With the argument serve, moves objects between boto3 and `penstock serve`.
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

export PENSTOCK_RC1_ADDRESS=10.78.0.1
if [[ ${1-} == serve ]]; then
	suite=(tests/s3/gateway rdma.py through_a_card)
else
	export PENSTOCK_RC1_NETNS=right
	suite=(tests/object/matrix rc1)
fi
timeout $lab_patience "${suite[@]}" >"$LAB_OUT/suite" || true
cat "$LAB_OUT/suite"
cases=0
while read -r line; do
	case $line in
	'ok '*) lab_ok "${line#ok * - }" ;;
	'not ok '*) lab_bad "${line#not ok * - }" ;;
	*) continue ;;
	esac
	cases=$((cases + 1))
done <"$LAB_OUT/suite"
lab_true "the plan $(head -n 1 "$LAB_OUT/suite") has all $cases cases" \
	test "$(head -n 1 "$LAB_OUT/suite")" = "1..$cases"
((lab_failed == 0)) || exit 1
