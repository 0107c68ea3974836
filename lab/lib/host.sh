# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# What the lab needs of the host: messages, exit codes, packages, the cache directory.
# Sourced by lab/run.
# It must never change the host beyond what tools/bootstrap installs for the group lab.

lab_exit_skip=77	# QEMU or a kernel cannot be had here; the reason was said
lab_exit_limit=124	# the script was still running at --limit
lab_exit_lab=125	# the guest did not come up, or ended without a result

lab_say() { printf 'lab: %s\n' "$*" >&2; }

lab_die() { # CODE TEXT
	local code=$1
	shift
	lab_say "$*"
	exit "$code"
}

lab_cache_dir() {
	local dir=${PENSTOCK_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/penstock-lab}
	mkdir -p "$dir" || lab_die "$lab_exit_skip" "no cache directory: cannot make $dir"
	(cd "$dir" && pwd -P)
}

# Two labs may start at once: the lock makes the second wait for the first's apt.
lab_packages_install() { # CACHE
	local log=$1/packages.log bootstrap=$lab_dir/../tools/bootstrap missing why
	[[ $("$bootstrap" --missing lab) ]] || return 0
	(
		flock 9
		timeout --foreground 900 "$bootstrap" lab
	) 9>"$1/packages.lock" >"$log" 2>&1 || true
	missing=$("$bootstrap" --missing lab)
	[[ $missing ]] || return 0
	why=$(sed -n 's/.*were not installed: //p' "$log")
	lab_die "$lab_exit_skip" "no lab without ${missing//$'\n'/ }:" \
		"${why:-they were tried before}"
}

# A command that needs the network, with pauses in which a mirror may come back.
lab_patiently() { # COMMAND...
	local pause
	for pause in 5 15; do
		"$@" && return
		sleep "$pause"
	done
	"$@"
}
