#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: what Penstock makes of this kernel. Which of cachestat(2), user-
# space P2PDMA and the sysctl that forbids io_uring there are is found out without it;
# then the reasons must be the right ones, and the bytes right by each engine, cached
# or not. Started by tests/lab/kernels through lab/run on machine switch; argument:
# the penstock command.
# shellcheck disable=SC2034,SC2154 # shared with lib.sh
set -euo pipefail
penstock=$1
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

kernel=$(uname -r)
kernel=${kernel%%-*}
dir=$LAB_SCRATCH/data
via=peermem:$(lab_bdf cmb1)

has_cachestat() { # 451; a bad descriptor is another error than a missing call
	python3 - <<-'END'
		import ctypes, sys
		libc = ctypes.CDLL(None, use_errno=True)
		libc.syscall(451, -1, None, None, 0)
		sys.exit(ctypes.get_errno() == 38)
	END
}
has() { "$@" 2>/dev/null && echo yes || echo no; }
cachestat=$(has has_cachestat)
p2pdma=$(has test -e "$(lab_p2pmem cmb1)/allocate")
may_forbid=$(has test -e /proc/sys/kernel/io_uring_disabled)
echo "facts $cachestat $p2pdma $may_forbid"

copies() { # NAME OPTIONS...: cold, then warm
	local name=$1
	shift
	lab_drop_caches
	lab_penstock "$name" 0 cp "$dir/src" "$dir/copy" --json "$@"
	lab_drop_caches
	lab_true "$name: the copy is right" cmp "$dir/src" "$dir/copy"
	# The comparison has read the source into the page cache.
	lab_penstock "$name-warm" 0 cp "$dir/src" "$dir/copy" --json "$@"
	lab_drop_caches
	lab_true "$name-warm: the copy is right" cmp "$dir/src" "$dir/copy"
}

lab_mount data1 "$dir"
head -c $(((6 << 20) + 777)) /dev/urandom >"$dir/src"
lab_drop_caches
lab_penstock explain 0 explain "$dir/src" host --json
copies auto
copies threads --engine threads
copies uring --engine uring
# Without cachestat nobody knows that it is cold, and then there is no figure.
if [[ $cachestat == yes ]]; then
	lab_penstock cold 0 bench "$dir/src" host --cold --runtime 1 --json
else
	lab_penstock cold 1 bench "$dir/src" host --cold --runtime 1 --json
	lab_true "cold: prints nothing" test ! -s "$LAB_OUT/cold.json"
fi

if [[ $p2pdma == yes ]]; then
	lab_penstock peer 0 explain "$dir/src" "$via" --json
	copies peer-cp --via "$via" --require direct
else
	lab_penstock peer 3 cp "$dir/src" "$dir/none" --via "$via" --require direct --json
	lab_said peer no-p2pdma
	lab_true "peer: leaves no file" test ! -e "$dir/none"
fi

if [[ $may_forbid == yes ]]; then
	sysctl -qw kernel.io_uring_disabled=2
	lab_penstock forbidden 0 explain "$dir/src" host --json
	copies forbidden-cp
	lab_penstock forbidden-check 0 check "$dir/src" --json
	lab_penstock forbidden-uring 1 cp "$dir/src" "$dir/none" --engine uring --json
	lab_said forbidden-uring io_uring
	sysctl -qw kernel.io_uring_disabled=0
fi
umount "$dir"
((lab_failed == 0)) || exit 1
