# SPDX-License-Identifier: Apache-2.0
# Functions that create NVMe-over-fabrics targets in this guest, and connect to them from the
# same guest. The transports are tcp and rdma (Soft-RoCE), over dummy links that can be taken
# down, and loop. lab/guest/nvmeof.sh sources this file. Every wait must have a time limit,
# because the tests cut links.
# shellcheck shell=bash disable=SC2154 # The script that sources it sets the variables.

nvmet=/sys/kernel/config/nvmet
nvmet_ports=0

fabrics_start() { # Loads the modules and creates the links.
	modprobe -a nvmet nvmet-tcp nvmet-rdma nvme-loop nvme-tcp nvme-rdma rdma_rxe \
		ext4 dummy dm-mod
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	# Creates three links, so that a test can cut one of them and keep the others.
	local i
	for i in 0 1 2; do
		ip link add "link$i" type dummy
		ip addr add "10.77.$i.1/24" dev "link$i"
		ip link set "link$i" up
	done
	rdma link add rxe2 type rxe netdev link2
}

# Cuts link NUMBER. Linux delivers packets to a machine's own addresses even if their link is
# down. So this function also removes the address.
link_down() { # NUMBER
	ip addr flush dev "link$1"
	ip link set "link$1" down
}
link_up() { # NUMBER
	ip link set "link$1" up
	ip addr add "10.77.$1.1/24" dev "link$1"
}

# A target exports its drive through a device-mapper device that can hold back I/O. In this
# file, such a device is called a gate. After gate_shut, all I/O beyond the first 16 MiB waits
# until gate_open. A test shuts the gate so that a transfer cannot complete before the test has
# cut a link.
gate_sector=$((16 * 2048))
gated_drive() { # SERIAL: creates the device gated-SERIAL
	local drive rest
	drive=$(lab_drive "$1")
	rest=$(($(blockdev --getsz "$drive") - gate_sector))
	dm create "gate-$1" --table "0 $rest linear $drive $gate_sector"
	dm create "gated-$1" <<-END
		0 $gate_sector linear $drive 0
		$gate_sector $rest linear $(dm_node "gate-$1") 0
	END
}
gate_shut() { dm suspend --nolockfs --noflush "gate-$1"; } # SERIAL
gate_open() { dm resume "gate-$1"; } # SERIAL

# Creates an NVMe subsystem (a target that other machines can connect to) with one namespace. The
# subsystem's name is the serial number of its drive.
target_create() { # SERIAL
	local s=$nvmet/subsystems/$1
	gated_drive "$1"
	mkdir "$s" "$s/namespaces/1"
	echo 1 >"$s/attr_allow_any_host"
	echo -n "$(dm_node "gated-$1")" >"$s/namespaces/1/device_path"
	echo 1 >"$s/namespaces/1/enable"
}

# Exports a subsystem over one transport (tcp, rdma or loop), and connects to it from this guest.
# OPTIONS are options of nvme-cli.
target_connect() { # SUBSYSTEM TRANSPORT LINK [OPTIONS...]
	local sub=$1 transport=$2 link=$3 port
	local -a where=()
	shift 3
	nvmet_ports=$((nvmet_ports + 1))
	port=$nvmet/ports/$nvmet_ports
	mkdir "$port"
	echo "$transport" >"$port/addr_trtype"
	if [[ $transport != loop ]]; then
		echo ipv4 >"$port/addr_adrfam"
		echo "10.77.$link.1" >"$port/addr_traddr"
		echo $((4420 + nvmet_ports)) >"$port/addr_trsvcid"
		where=(-a "10.77.$link.1" -s $((4420 + nvmet_ports)))
	fi
	ln -s "$nvmet/subsystems/$sub" "$port/subsystems/$sub"
	nvme connect -t "$transport" "${where[@]}" -n "$sub" -i 1 "$@"
	lab_until fabric_exists "$sub" || lab_bad "$sub: no drive appears over $transport"
}

fabric_exists() { [[ -b $(fabric_drive "$1") ]]; } # SUBSYSTEM

# Prints the block device that a connection to the subsystem has created, such as /dev/nvme4n1.
fabric_drive() { # SUBSYSTEM
	local c
	for c in $(fabric_controllers "$1"); do
		for n in /sys/class/nvme-subsystem/*/"$c"; do
			[[ -e $n ]] || continue
			basename "$(dirname "$n")" | sed 's,nvme-subsys\(.*\),/dev/nvme\1n1,'
			return
		done
	done
}

# Prints the controllers of the connections to a subsystem, one per line, such as nvme4.
fabric_controllers() { # SUBSYSTEM [TRANSPORT-ADDRESS]
	local f
	for f in /sys/class/nvme/nvme*/subsysnqn; do
		grep -qsx "$1" "$f" || continue
		f=${f%/subsysnqn}
		[[ ! ${2:-} ]] || grep -qs "traddr=$2," "$f/address" || continue
		basename "$f"
	done
}

# Prints the kernel's state of a connection, such as live or connecting, or 'gone'.
fabric_state() { # SUBSYSTEM [TRANSPORT-ADDRESS]
	local c
	c=$(fabric_controllers "$@" | head -n 1)
	cat "/sys/class/nvme/${c:-none}/state" 2>/dev/null || echo gone
}
is_state() { [[ $(fabric_state "${@:2}") == "$1" ]]; } # STATE SUBSYSTEM [ADDRESS]
not_live() { [[ $(fabric_state "$@") != live ]]; } # SUBSYSTEM [ADDRESS]
