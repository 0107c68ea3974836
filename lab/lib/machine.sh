# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# What a file of lab/machines/ may call, and how it is turned into QEMU's command
# line. Sourced by lab/run.
# It must never place a drive's image outside the run's own scratch directory.

# Filled by the machine file.
qemu_machine=q35
qemu_args=()
qemu_drives=()		# after qemu_args: their bus must exist
append=
drive_serials=

# The namespace's number tells the drives apart in QEMU's trace, which does not
# name the controller. BUS may carry ',addr=...'. In IMAGE-OPTIONS, QEMU's -drive
# without if= and id=, IMAGE stands for the image's name.
drive() { # SERIAL NSID BUS [SIZE [CONTROLLER-OPTIONS [IMAGE-OPTIONS]]]
	local image=$lab_run_dir/disks/$1.img
	local options=${6:-file=IMAGE,format=raw,discard=unmap}
	mkdir -p "$lab_run_dir/disks"
	truncate -s "${4:-512M}" "$image"
	qemu_drives+=(-drive "if=none,id=drive-$1,${options/IMAGE/"$image"}"
		-device "nvme,id=ctl-$1,serial=$1,bus=$3${5:+,$5}"
		-device "nvme-ns,bus=ctl-$1,drive=drive-$1,nsid=$2")
	drive_serials+="${drive_serials:+ }$1"
}

drive_behind_switch() {
	# shellcheck disable=SC2054 # commas are QEMU's
	qemu_args+=(-device pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0
		-device x3130-upstream,id=up0,bus=rp0
		-device xio3130-downstream,id=dn0,bus=up0,chassis=2,slot=2
		-device xio3130-downstream,id=dn1,bus=up0,chassis=3,slot=3)
	drive data1 11 dn0
	drive cmb1 12 dn1 64M cmb_size_mb=64
}

machine_load() { # DIR NAME
	[[ $2 =~ ^[a-z0-9-]+$ && -e $1/$2.sh ]] || {
		lab_say "no machine '$2'; there are:"
		machine_list "$1" >&2
		exit 2
	}
	# shellcheck source=/dev/null
	source "$1/$2.sh"
}

machine_list() { # DIR
	local f
	for f in "$1"/*.sh; do
		printf '  %-14s%s\n' "$(basename "$f" .sh)" \
			"$(sed -n 's/^machine_about="\(.*\)"$/\1/p' "$f")"
	done
}
