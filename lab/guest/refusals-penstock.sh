# SPDX-License-Identifier: Apache-2.0
# The penstock command's part of refusals.sh, sourced by it. With the direct class
# required: exit 3, the reason, and no destination. Without: the bytes are right,
# and the report says why they did not go direct. Reports go to $LAB_OUT.
# shellcheck shell=bash disable=SC2154 # sourced

required() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	lab_penstock "$what-$1" 3 cp "$dir/$2" "$dir/copy" --via "$via" \
		--require direct --json
	lab_said "$what-$1" "$3"
	lab_true "$what-$1: leaves no file" test ! -e "$dir/copy"
}

fallback() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	lab_penstock "$what-$1" 0 cp "$dir/$2" "$dir/copy" --via "$via" --json
	lab_drop_caches
	lab_true "$what-$1: the copy is right" cmp "$dir/$2" "$dir/copy"
	lab_said "$what-$1" "$3"
}

# What check says: the gate that is shut, what to do about it, and whether bytes arrive
# at all (exit 4, not direct) or none can (exit 1, not even the memory can be had).
checked() { # CODE GATE VERDICT
	lab_penstock "$what-check" "$1" check "$dir/src" --device "$via" --quick --json
	lab_true "$what-check: names $2" "$LAB_DIR/check-report" "$LAB_OUT/$what-check.json" \
		"exit=$1" "gates.$2.state=no" "gates.$2.todo~=." "verdict~=$3"
}

penstock_refused() { # REASON GATE
	via=peermem:$(lab_bdf cmb1)
	case $1 in
	no-p2pdma | no-memory)
		# There is no device memory at all, so nothing to fall back in either.
		required required src "$1"
		checked 1 "$2" "does not work: p2pmem"
		return ;;
	esac
	lab_penstock "$what-explain" 0 explain "$dir/src" "$via" --json
	lab_said "$what-explain" "$1"
	required required src "$1"
	# It leaves the right bytes in the buffer: a canary that does not lay down
	# others first is fooled by them afterwards.
	fallback fallback src "$1"
	required required-again src "$1"
	fallback zeros zeros "$1"
	required required-zeros zeros "$1"
	checked 4 "$2" "shut by .*$2"
}

# What --fix-script prints, run here, opens the gate.
penstock_fixes() { # GATE
	lab_penstock "$what-script" 4 check --device "$via" --fix-script
	lab_true "$what-script: runs" bash "$LAB_OUT/$what-script.json"
	lab_penstock "$what-fixed" 0 check --device "$via" --json
	lab_true "$what-fixed: $1 is open" "$LAB_DIR/check-report" \
		"$LAB_OUT/$what-fixed.json" "gates.$1.state=ok"
}
