# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# steps.sh: functions for the scripts that measure on a machine with a GPU. They write a log, run
# steps with a time limit, and print the facts of the machine. bench/gpu.sh, bench/ckpt/gpu.sh,
# bench/deepspeed/gpu.sh, bench/weights/gpu.sh, bench/weights/gpus.sh and bench/shim/run source this
# file, with these variables set:
#
#   log         log file, which is emptied at the start
#   budget      seconds for all steps
#   shown       if not empty, the output of steps also goes to standard output
#   BENCH_ONLY  steps to run, such as "warm cold" (all)
# shellcheck disable=SC2154 # log and budget
set -uo pipefail
started=$SECONDS
: >"$log"
say() { echo "$((SECONDS - started)) s: $*" | tee -a "$log"; }

wanted() { # wanted NAME...: succeeds if BENCH_ONLY is empty or has one of the names
	local name
	[ -n "${BENCH_ONLY:-}" ] || return 0
	for name in "$@"; do
		[[ " $BENCH_ONLY " != *" $name "* ]] || return 0
	done
	return 1
}

# step NAME SECONDS COMMAND...: runs the command. Its time limit is SECONDS, or the remaining
# budget if that is shorter. If the command fails, the log reports it. BENCH_ONLY selects steps
# by the first word of NAME.
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

machine() { # machine DIR COMMIT: prints the facts; COMMIT is a file with the commit's name
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
