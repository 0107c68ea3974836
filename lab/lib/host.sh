# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# Functions for the host: messages, exit codes, packages and the cache directory. lab/run
# sources this file. Only `tools/bootstrap lab` may change the host, by installing packages.

lab_exit_skip=77	# QEMU or the kernel is not available; a message says why
lab_exit_limit=124	# the script reached its time limit
lab_exit_lab=125	# the guest failed to boot, or ended without a result

lab_say() { printf 'lab: %s\n' "$*" >&2; }

lab_die() { # CODE TEXT: prints the text and exits
	local code=$1
	shift
	lab_say "$*"
	exit "$code"
}

lab_cache_dir() { # Creates the cache directory and prints its path.
	local dir=${PENSTOCK_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/penstock-lab}
	mkdir -p "$dir" || lab_die "$lab_exit_skip" "cannot create the cache directory $dir"
	(cd "$dir" && pwd -P)
}

# Installs the lab's packages if some are missing. Exits with 77 if that fails. If two labs
# start at the same time, a lock makes the second wait until the apt of the first has finished.
lab_packages_install() { # CACHE
	local log=$1/packages.log bootstrap=$lab_dir/../tools/bootstrap missing why
	[[ $("$bootstrap" --missing lab) ]] || return 0
	(
		flock 9
		timeout --foreground 900 "$bootstrap" lab
	) 9>"$1/packages.lock" >"$log" 2>&1 || true
	missing=$("$bootstrap" --missing lab)
	[[ $missing ]] || return 0
	why=$(sed -n 's/.*could not be installed: //p' "$log")
	lab_die "$lab_exit_skip" "no lab without ${missing//$'\n'/ }:" \
		"${why:-an earlier attempt to install them failed}"
}

# Runs a command that needs the network, up to three times, because a mirror that does not
# answer may answer after a pause.
lab_retry() { # COMMAND...
	local pause
	for pause in 5 15; do
		"$@" && return
		sleep "$pause"
	done
	"$@"
}
