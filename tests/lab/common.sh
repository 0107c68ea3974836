# SPDX-License-Identifier: Apache-2.0
# What the suites of the lab share: the probe's build, the boots, and TAP lines
# from what the guest said. Sourced by tests/lab/*, which run on the host.
# It must never turn a guest that did not come up into a pass.
# shellcheck shell=bash

lab=lab/run
tmp=$(mktemp -d "${TMPDIR:-/tmp}/penstock-lab-suite.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
tap=()
notes=()

usage_rig() {
	echo "usage: $0 [--rig]" >&2
	echo "--rig: only what the bare probe shows, without the penstock command" >&2
	exit 2
}

# Sets penstock to the command, or to 'none' with --rig.
suite_start() { # [--rig]
	case ${1:-} in
	--rig) penstock=none ;;
	'') penstock=$PWD/${PENSTOCK_BUILD:-build}/cli/penstock
		[[ ${PENSTOCK_BUILD:-} != /* ]] || penstock=$PENSTOCK_BUILD/cli/penstock
		[[ -x $penstock ]] || penstock=${penstock%/cli/penstock}/penstock
		[[ -x $penstock ]] || bad "there is no $penstock to test" ;;
	*) usage_rig ;;
	esac
	probe=$tmp/p2pdma-probe
	"${CC:-cc}" -O2 -Wall -o "$probe" lab/p2pdma-probe.c
}

good() { tap+=("ok - $*"); }
bad() { tap+=("not ok - $*"); }

check() { # NAME COMMAND...: its exit code decides
	local name=$1
	shift
	if "$@"; then good "$name"; else bad "$name"; fi
}

check_code() { # NAME CODE COMMAND...
	local name=$1 want=$2 code=0
	shift 2
	"$@" >"$tmp/said" 2>&1 || code=$?
	if ((code == want)); then
		good "$name"
	else
		bad "$name: exit $code, wanted $want"
		note <"$tmp/said"
	fi
}

note() { # text on standard input, shown before the cases
	local line
	while read -r line; do
		notes+=("# $line")
	done
}

# Where lab/run said that there is no lab on this machine, ends the suite as skipped;
# once there was a boot, only the case is.
skip_without_lab() { # CODE STANDARD-ERROR [NAME]: false if the case is skipped
	local why
	(($1 == 77)) || return 0
	why=$(sed -n '$s/^lab: //p' "$2")
	if ((${#tap[@]} == 0)); then
		echo "$why"
		exit 77
	fi
	tap+=("# skip: $why" "ok - $3 # skip")
	return 1
}

# Boots and turns the guest's 'ok' and 'FAIL' lines into cases. False if this was
# skipped.
boot() { # NAME OUT LAB-RUN-ARGS...
	local name=$1 out=$2 code=0 line
	shift 2
	"$lab" --out "$out" "$@" >"$tmp/stdout" 2>"$tmp/stderr" || code=$?
	note <"$tmp/stderr"
	skip_without_lab $code "$tmp/stderr" "$name" || return 1
	while read -r line; do
		case $line in
		'ok   '*) good "${line#ok   }" ;;
		'FAIL '*) bad "${line#FAIL }" ;;
		*) notes+=("# $line") ;;
		esac
	done <"$out/output.log"
	# A guest that dies after its last good line must not look like one that ended.
	check "$name: the guest's script ended by itself, exit $code" \
		test "$code" -le 1
	[[ $code == 0 || $(printf '%s\n' "${tap[@]}") == *'not ok'* ]] ||
		bad "$name: exit $code without a failed step"
}

suite_end() {
	local failed=0 count=0 t
	for t in "${tap[@]}"; do
		[[ $t == '#'* ]] || count=$((count + 1))
		[[ $t != 'not ok'* ]] || failed=1
	done
	echo "1..$count"
	((${#notes[@]} == 0)) || printf '%s\n' "${notes[@]}"
	printf '%s\n' "${tap[@]}"
	exit $failed
}
