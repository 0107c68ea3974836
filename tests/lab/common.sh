# SPDX-License-Identifier: Apache-2.0
# Functions that the lab's suites share: they build lab/p2pdma-probe.c, boot guests, and turn the
# guests' output into TAP. tests/lab/* source this file on the host. If a guest fails to boot, the
# suite must never pass.
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
	echo "--rig: run only the steps of the bare probe, without the penstock command" >&2
	exit 2
}

# Builds the program lab/p2pdma-probe.c, and sets the variable `penstock` to the path of the
# command, or to 'none' with --rig.
suite_start() { # [--rig]
	case ${1:-} in
	--rig) penstock=none ;;
	'') penstock=$PWD/${PENSTOCK_BUILD:-build}/cli/penstock
		[[ ${PENSTOCK_BUILD:-} != /* ]] || penstock=$PENSTOCK_BUILD/cli/penstock
		[[ -x $penstock ]] || penstock=${penstock%/cli/penstock}/penstock
		[[ -x $penstock ]] || bad "found no command $penstock to test" ;;
	*) usage_rig ;;
	esac
	probe=$tmp/p2pdma-probe
	"${CC:-cc}" -O2 -Wall -o "$probe" lab/p2pdma-probe.c
}

good() { tap+=("ok - $*"); }
bad() { tap+=("not ok - $*"); }

check() { # NAME COMMAND...: adds a case that passes if the command succeeds
	local name=$1
	shift
	if "$@"; then good "$name"; else bad "$name"; fi
}

check_code() { # NAME CODE COMMAND...: adds a case that passes if the exit code is CODE
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

note() { # Reads text from standard input; suite_end prints it before the cases.
	local line
	while read -r line; do
		notes+=("# $line")
	done
}

# Handles exit code 77 of lab/run, which means that this machine cannot run the lab. If no test
# case has run yet, the whole suite exits as skipped. Otherwise only this case counts as
# skipped, and the function returns false.
skip_without_lab() { # CODE STANDARD-ERROR [NAME]
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

# Boots a guest and prints each of its lines that begin with 'ok' or 'FAIL' as a test case.
# Returns false if the boot was skipped.
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
	# The guest's output alone does not show whether its script ran to the end or the guest
	# died before.
	check "$name: the guest's script ended by itself, exit $code" \
		test "$code" -le 1
	[[ $code == 0 || $(printf '%s\n' "${tap[@]}") == *'not ok'* ]] ||
		bad "$name: exit $code without a failed step"
}

suite_end() { # Prints the notes and all cases as TAP and exits.
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
