# SPDX-License-Identifier: Apache-2.0
# Targets of NVMe over fabrics in this very guest, and connections to them: tcp and
# rdma (Soft-RoCE) over dummy links that can be taken down, and loop. Sourced by
# lab/guest/nvmeof.sh.
# It must never wait without a limit: a cut link is the point of it.
# shellcheck shell=bash disable=SC2154 # sourced

nvmet=/sys/kernel/config/nvmet
nvmet_ports=0

fabrics_start() {
	modprobe -a nvmet nvmet-tcp nvmet-rdma nvme-loop nvme-tcp nvme-rdma rdma_rxe \
		ext4 dummy dm-mod
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	# A link each, so that one can be cut and the others stay.
	local i
	for i in 0 1 2; do
		ip link add "link$i" type dummy
		ip addr add "10.77.$i.1/24" dev "link$i"
		ip link set "link$i" up
	done
	rdma link add rxe2 type rxe netdev link2
}

# A guest reaches its own addresses over links that are down too, so the address goes.
link_down() {
	ip addr flush dev "link$1"
	ip link set "link$1" down
}
link_up() {
	ip link set "link$1" up
	ip addr add "10.77.$1.1/24" dev "link$1"
}

# What a target hands out is its drive with a gate in it: what lies beyond the first 16
# MiB can be held back, so that a transfer is in its middle for as long as that takes.
gate_sector=$((16 * 2048))
gated_drive() { # SERIAL
	local drive rest
	drive=$(lab_drive "$1")
	rest=$(($(blockdev --getsz "$drive") - gate_sector))
	dm create "gate-$1" --table "0 $rest linear $drive $gate_sector"
	dm create "gated-$1" <<-END
		0 $gate_sector linear $drive 0
		$gate_sector $rest linear $(dm_node "gate-$1") 0
	END
}
gate_shut() { dm suspend --nolockfs --noflush "gate-$1"; }
gate_open() { dm resume "gate-$1"; }

# A subsystem named as its drive's serial.
target() { # SERIAL
	local s=$nvmet/subsystems/$1
	gated_drive "$1"
	mkdir "$s" "$s/namespaces/1"
	echo 1 >"$s/attr_allow_any_host"
	echo -n "$(dm_node "gated-$1")" >"$s/namespaces/1/device_path"
	echo 1 >"$s/namespaces/1/enable"
}

# Opens the subsystem to one transport and connects to it; says the controller.
connect() { # SUBSYSTEM TRANSPORT LINK [OPTIONS...]
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
	lab_until fabric_there "$sub" || lab_bad "$sub: no drive over $transport"
}

fabric_there() { [[ -b $(fabric_drive "$1") ]]; }

# The drive of a subsystem as its connections show it (not the target's own).
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

fabric_controllers() { # SUBSYSTEM [TRANSPORT-ADDRESS]: nvme4 nvme5
	local f
	for f in /sys/class/nvme/nvme*/subsysnqn; do
		grep -qsx "$1" "$f" || continue
		f=${f%/subsysnqn}
		[[ ! ${2:-} ]] || grep -qs "traddr=$2," "$f/address" || continue
		basename "$f"
	done
}

fabric_state() { # SUBSYSTEM [TRANSPORT-ADDRESS]: live, connecting ... or gone
	local c
	c=$(fabric_controllers "$@" | head -n 1)
	cat "/sys/class/nvme/${c:-none}/state" 2>/dev/null || echo gone
}
is_state() { [[ $(fabric_state "${@:2}") == "$1" ]]; }
not_live() { [[ $(fabric_state "$@") != live ]]; }
