# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # shared with lab/run
# Functions for the files in lab/machines/. Each of those files describes a machine as
# arguments for QEMU. lab/run sources this file. The image files of the drives must be inside
# the scratch directory of the run.

# The files in lab/machines/ may change these variables.
qemu_machine=q35
qemu_args=()
qemu_drives=()		# follow qemu_args, which define the drives' buses
append=
drive_serials=

# Adds an NVMe drive. The namespace number NSID must be unique in the machine, because QEMU's
# trace shows only this number and not the controller. BUS may end with ',addr=...'.
# IMAGE-OPTIONS are options of QEMU's -drive without if= and id=. In them, the word IMAGE is
# replaced by the path of the image file.
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

# Adds a PCIe switch with two drives behind it, data1 and cmb1.
drive_behind_switch() {
	# shellcheck disable=SC2054 # The commas are part of QEMU's arguments.
	qemu_args+=(-device pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0
		-device x3130-upstream,id=up0,bus=rp0
		-device xio3130-downstream,id=dn0,bus=up0,chassis=2,slot=2
		-device xio3130-downstream,id=dn1,bus=up0,chassis=3,slot=3)
	drive data1 11 dn0
	drive cmb1 12 dn1 64M cmb_size_mb=64
}

machine_load() { # DIR NAME: sources a machine's file
	[[ $2 =~ ^[a-z0-9-]+$ && -e $1/$2.sh ]] || {
		lab_say "unknown machine '$2'; the machines are:"
		machine_list "$1" >&2
		exit 2
	}
	# shellcheck source=/dev/null
	source "$1/$2.sh"
}

machine_list() { # DIR: prints each machine with its description
	local f
	for f in "$1"/*.sh; do
		printf '  %-14s%s\n' "$(basename "$f" .sh)" \
			"$(sed -n 's/^machine_about="\(.*\)"$/\1/p' "$f")"
	done
}
