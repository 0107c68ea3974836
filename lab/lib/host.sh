# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# What the lab needs of the host: messages, the list of packages, the cache
# directory. Sourced by lab/run, lab/shell and tests/lab/*.
# It must never change the host beyond installing packages that are named here,
# and that only as root and unless PENSTOCK_LAB_APT=no.

lab_exit_skip=77	# QEMU or a kernel cannot be had here; the reason was said
lab_exit_limit=124	# the script was still running at --limit
lab_exit_lab=125	# the guest did not come up, or ended without a result

lab_packages=(qemu-system-x86 seabios ipxe-qemu busybox-static cpio kmod
	xz-utils e2fsprogs pciutils dmsetup nvme-cli iproute2
	rdma-core ibverbs-providers libibverbs-dev)

lab_say() { printf 'lab: %s\n' "$*" >&2; }

lab_die() { # CODE TEXT
	local code=$1
	shift
	lab_say "$*"
	exit "$code"
}

lab_cache_dir() {
	local dir=${PENSTOCK_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/penstock-lab}
	mkdir -p "$dir" || lab_die "$lab_exit_skip" "cannot make the cache directory $dir"
	(cd "$dir" && pwd -P)
}

lab_packages_missing() {
	local p
	for p in "${lab_packages[@]}"; do
		[[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null) == ii* ]] ||
			echo "$p"
	done
}

# Two labs may start at once: the lock makes the second wait for the first's apt.
lab_packages_install() { # CACHE
	local -a missing
	local dir=$1
	mapfile -t missing < <(lab_packages_missing)
	((${#missing[@]})) || return 0
	if ((EUID != 0)) || [[ ${PENSTOCK_LAB_APT:-yes} == no ]] ||
			! command -v apt-get >/dev/null; then
		lab_die "$lab_exit_skip" "missing packages, install them first: ${missing[*]}"
	fi
	(
		flock 9
		mapfile -t missing < <(lab_packages_missing)
		((${#missing[@]})) || exit 0
		lab_say "installing ${missing[*]}"
		export DEBIAN_FRONTEND=noninteractive
		timeout --foreground 120 apt-get -qq update &&
		timeout --foreground 420 apt-get -qq -y -o DPkg::Lock::Timeout=120 install \
			--no-install-recommends "${missing[@]}"
	) 9>"$dir/packages.lock" >"$dir/packages.log" 2>&1 && return 0
	tail -n 5 "$dir/packages.log" >&2
	lab_die "$lab_exit_skip" "cannot install ${missing[*]}, see $dir/packages.log"
}
