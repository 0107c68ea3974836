# SPDX-License-Identifier: Apache-2.0
# The part of refusals.sh that tests the penstock command; refusals.sh sources it. With class
# `direct` required, the command must exit with 3, print the reason, and leave no file. Without
# a required class, the copy must be right, and the report must have the reason why the copy
# was not direct. The reports go to $LAB_OUT.
# shellcheck shell=bash disable=SC2154 # refusals.sh sets the variables.

# Copies with class `direct` required, which must be refused.
required() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	lab_penstock "$what-$1" 3 cp "$dir/$2" "$dir/copy" --via "$via" \
		--require direct --json
	lab_said "$what-$1" "$3"
	lab_true "$what-$1: no file is left" test ! -e "$dir/copy"
}

# Copies without a required class, which must succeed by another path.
fallback() { # LABEL SOURCE REASON
	rm -f "$dir/copy"
	lab_penstock "$what-$1" 0 cp "$dir/$2" "$dir/copy" --via "$via" --json
	lab_drop_caches
	lab_true "$what-$1: the copy is right" cmp "$dir/$2" "$dir/copy"
	lab_said "$what-$1" "$3"
}

# Runs `penstock check`, which must name the gate (condition) that is not met, and say what to
# do. It must exit with 4 if bytes arrive on another path. It must exit with 1 if no bytes can
# arrive because no device memory can be allocated.
checked() { # CODE GATE VERDICT
	lab_penstock "$what-check" "$1" check "$dir/src" --device "$via" --quick --json
	lab_true "$what-check: names gate $2" "$LAB_DIR/check-report" \
		"$LAB_OUT/$what-check.json" \
		"exit=$1" "gates.$2.state=no" "gates.$2.todo~=." "verdict~=$3"
}

# Tests the penstock command on a machine that refuses peer-to-peer DMA. GATE is the gate (condition
# of the direct path) that `penstock check` must report as not met.
penstock_refused() { # REASON GATE
	via=peermem:$(lab_bdf cmb1)
	case $1 in
	no-p2pdma | no-memory)
		# In this case the guest has no free device memory, so no other path can work
		# either.
		required required src "$1"
		checked 1 "$2" "does not work: p2pmem"
		return ;;
	esac
	lab_penstock "$what-explain" 0 explain "$dir/src" "$via" --json
	lab_said "$what-explain" "$1"
	required required src "$1"
	# This copy leaves the right bytes in the device memory. The next step uses the canary,
	# a test read. The canary must overwrite these bytes before it reads. Otherwise it would
	# find right bytes although the read delivered none.
	fallback fallback src "$1"
	required required-again src "$1"
	fallback zeros zeros "$1"
	required required-zeros zeros "$1"
	checked 4 "$2" "shut by .*$2"
}

# Runs the script that `penstock check --fix-script` prints. Afterwards `penstock check` must report
# the gate (condition of the direct path) as met.
penstock_fixes() { # GATE
	lab_penstock "$what-script" 4 check --device "$via" --fix-script
	lab_true "$what-script: the script succeeds" bash "$LAB_OUT/$what-script.json"
	lab_penstock "$what-fixed" 0 check --device "$via" --json
	lab_true "$what-fixed: $1 is open" "$LAB_DIR/check-report" \
		"$LAB_OUT/$what-fixed.json" "gates.$1.state=ok"
}
