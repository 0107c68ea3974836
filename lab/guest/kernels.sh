#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests Penstock on the guest's kernel. Without Penstock, the script finds out whether the
# kernel has cachestat(2), user-space P2PDMA, and the sysctl that forbids io_uring. Penstock
# must report the reasons that match these features. It must copy the right bytes with each
# engine, both from the drive and from the page cache.
#
# kernels.sh PENSTOCK. tests/lab/kernels runs this script by lab/run on machine switch.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
penstock=$1
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

kernel=$(uname -r)
kernel=${kernel%%-*}
dir=$LAB_SCRATCH/data
via=peermem:$(lab_bdf cmb1)

# Calls cachestat(2) (number 451) with an invalid descriptor. Kernels that do not have this
# system call return ENOSYS (38).
has_cachestat() {
	python3 - <<-'END'
		import ctypes, sys
		libc = ctypes.CDLL(None, use_errno=True)
		libc.syscall(451, -1, None, None, 0)
		sys.exit(ctypes.get_errno() == 38)
	END
}
has() { "$@" 2>/dev/null && echo yes || echo no; } # COMMAND...
cachestat=$(has has_cachestat)
p2pdma=$(has test -e "$(lab_p2pmem cmb1)/allocate")
may_forbid=$(has test -e /proc/sys/kernel/io_uring_disabled)
echo "facts $cachestat $p2pdma $may_forbid"

# Copies the file from the drive (cold), then again from the page cache (warm).
copies() { # NAME OPTIONS...
	local name=$1
	shift
	lab_drop_caches
	lab_penstock "$name" 0 cp "$dir/src" "$dir/copy" --json "$@"
	lab_drop_caches
	lab_true "$name: the copy is right" cmp "$dir/src" "$dir/copy"
	# cmp has read the source, so this copy reads it from the page cache.
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
# Without cachestat(2), `penstock bench --cold` cannot check that the file is not cached, and
# must print no result.
if [[ $cachestat == yes ]]; then
	lab_penstock cold 0 bench "$dir/src" host --cold --runtime 1 --json
else
	lab_penstock cold 1 bench "$dir/src" host --cold --runtime 1 --json
	lab_true "cold: prints no result" test ! -s "$LAB_OUT/cold.json"
fi

if [[ $p2pdma == yes ]]; then
	lab_penstock peer 0 explain "$dir/src" "$via" --json
	copies peer-cp --via "$via" --require direct
else
	lab_penstock peer 3 cp "$dir/src" "$dir/none" --via "$via" --require direct --json
	lab_said peer no-p2pdma
	lab_true "peer: no file is left" test ! -e "$dir/none"
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
