# SPDX-License-Identifier: Apache-2.0
# The penstock command's part of refusals.sh, sourced by it. With the direct class
# required: exit 3, the reason, and no destination. Without: the bytes are right,
# and the report says why they did not go direct. Reports go to $LAB_OUT.
# shellcheck shell=bash disable=SC2154 # sourced

# Runs the command; sets code and keeps what it said under a name of its own.
penstock_run() { # NAME ARGS...
	local name=$1
	shift
	code=0
	"$penstock" "$@" >"$LAB_OUT/$name.json" 2>"$LAB_OUT/$name.err" || code=$?
	said=$(cat "$LAB_OUT/$name.json" "$LAB_OUT/$name.err")
}

step() { # NAME TEST-COMMAND...
	local name=$1
	shift
	if "$@"; then
		lab_ok "$what, $name"
	else
		lab_bad "$what, $name: exit $code, it said: ${said//$'\n'/ }"
	fi
}

required() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	penstock_run "$1" cp "$dir/$2" "$dir/copy" --via "$via" --require direct --json
	step "$1: direct required is refused, $3" eval '((code == 3)) && [[ $said == *'"$3"'* ]]'
	step "$1: and leaves no file" test ! -e "$dir/copy"
}

fallback() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	penstock_run "$1" cp "$dir/$2" "$dir/copy" --via "$via" --json
	lab_drop_caches
	step "$1: not required, the copy is right" \
		eval '((code == 0)) && cmp -s "$dir/'"$2"'" "$dir/copy"'
	step "$1: and the report says $3" eval '[[ $said == *'"$3"'* ]]'
}

# What check says: the gate that is shut, what to do about it, and whether bytes arrive
# at all (exit 4, not direct) or none can (exit 1, not even the memory can be had).
checked() { # CODE GATE
	penstock_run check check "$dir/src" --device "$via" --quick --json
	step "check ends with $1" test $code = "$1"
	step "check names $2" "$LAB_DIR/check-report" "$LAB_OUT/check.json" \
		"exit=$1" "gates.$2.state=no" "gates.$2.todo~=." "verdict~=."
}

penstock_refused() { # REASON GATE
	local code=0 said='' via
	via=peermem:$(lab_bdf cmb1)
	case $1 in
	no-p2pdma | no-memory)
		# There is no device memory at all, so nothing to fall back in either.
		required required src "$1"
		checked 1 "$2"
		return ;;
	esac
	penstock_run explain explain "$dir/src" "$via" --json
	step "explain names $1" eval '[[ $said == *'"$1"'* ]]'
	required required src "$1"
	# It leaves the right bytes in the buffer: a canary that does not lay down
	# others first is fooled by them afterwards.
	fallback fallback src "$1"
	required required-again src "$1"
	fallback zeros zeros "$1"
	required required-zeros zeros "$1"
	checked 4 "$2"
}
