# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# steps.sh: what the scripts share that measure on a machine with a GPU (gpu.sh here, in
# weights and in shim): a log, steps that end in time whatever they do, and what the
# machine is. Sourced, with these set:
#
#   log       a file, which is begun anew     budget  seconds for all steps
#   shown     if not empty, what steps print goes to standard output, too
#   BENCH_ONLY  steps to run, such as "warm cold" (all)
# shellcheck disable=SC2154 # log and budget
set -uo pipefail
started=$SECONDS
: >"$log"
say() { echo "$((SECONDS - started)) s: $*" | tee -a "$log"; }

wanted() { # wanted NAME...: BENCH_ONLY has one of them, or wants all
	local name
	[ -n "${BENCH_ONLY:-}" ] || return 0
	for name in "$@"; do
		[[ " $BENCH_ONLY " != *" $name "* ]] || return 0
	done
	return 1
}

# step NAME SECONDS COMMAND...: within its limit and the budget; a failure is told. NAME's
# first word is what BENCH_ONLY names.
step() {
	local name=$1 limit=$2 left=$((budget - (SECONDS - started))) rc begun=$SECONDS
	shift 2
	wanted "${name%% *}" || return 0
	if [ "$left" -lt 5 ]; then
		say "$name: skipped, no time left"
		return 1
	fi
	[ "$left" -gt "$limit" ] || limit=$left
	echo "==== $name: $*" >>"$log"
	if [ -n "${shown:-}" ]; then
		timeout -k 5 "$limit" "$@" 2>&1 | tee -a "$log"
		rc=${PIPESTATUS[0]}
	else
		timeout -k 5 "$limit" "$@" >>"$log" 2>&1
		rc=$?
	fi
	if [ "$rc" -eq 0 ]; then
		say "$name: $((SECONDS - begun)) s"
	else
		say "$name: FAILED with $rc after $((SECONDS - begun)) s: $(
			grep -av 'NOTICE\|^ *$' "$log" | tail -1 | cut -c1-200)"
	fi
	return "$rc"
}

machine() { # machine DIR COMMIT: facts, a line each; COMMIT is a file that names it
	local gpu
	gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
		head -1)
	echo "date: $(date -u +%Y-%m-%d)"
	gpu=${gpu:-none, none}
	echo "gpu: ${gpu%%,*}"
	echo "driver: ${gpu##*, }"
	echo "cpu: $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
	echo "kernel: $(uname -r)"
	echo "system: $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)"
	echo "drive: $(df --output=source,fstype "$1" | tail -1 | tr -s ' ')"
	echo "commit: $(cat "$2" 2>/dev/null || git describe --always --dirty)"
}
