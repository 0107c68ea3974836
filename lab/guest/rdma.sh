#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests RDMA verbs over Soft-RoCE between two network namespaces of the guest. rdmaping writes
# and reads the memory of the other namespace's process, and compares the bytes. If the test
# corrupts one word, rdmaping must report the difference.
#
# rdma.sh RDMAPING PENSTOCK. tests/lab/rdma runs this script by lab/run.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
rdmaping=$1
penstock=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

modprobe -a veth rdma_rxe ib_uverbs
lab_rdma_links
rdma link

# Runs the program rdmaping twice: one process listens in a network namespace of its own, and
# the other connects to it. The connecting process must exit with CODE.
pair() { # NAME CODE OPTIONS-OF-LISTEN...
	local name=$1 want=$2 code=0
	shift 2
	ip netns exec right timeout $lab_patience "$rdmaping" listen 10.78.0.2 7471 rxeright "$@" \
		>"$LAB_SCRATCH/listen" 2>&1 &
	timeout $lab_patience "$rdmaping" connect 10.78.0.2 7471 rxeleft >"$LAB_OUT/$name.json" \
		2>"$LAB_OUT/$name.err" || code=$?
	wait $! || true
	cat "$LAB_OUT/$name.json" "$LAB_OUT/$name.err" "$LAB_SCRATCH/listen"
	lab_true "$name: exit $code, wanted $want" test $code = "$want"
}

pair ping 0
lab_true "ping: the write delivers no wrong word" grep -q '"op":"write".*"wrong":0,' \
	"$LAB_OUT/ping.json"
lab_true "ping: the read delivers no wrong word" grep -q '"op":"read".*"wrong":0,' \
	"$LAB_OUT/ping.json"
lab_true "ping: an access with a wrong key is refused" \
	grep -q '"wrong key","status":"remote access error"' "$LAB_OUT/ping.json"
pair changed 1 corrupt
lab_true "changed: rdmaping reports one wrong word" grep -q '"op":"write".*"wrong":1,' \
	"$LAB_OUT/changed.json"
"$penstock" topo >"$LAB_OUT/topo" 2>&1 || true
lab_true "topo: lists both devices as software" test \
	"$(grep -c '^  rxe\(left\|right\) .*software' "$LAB_OUT/topo")" = 2
((lab_failed == 0)) || exit 1
