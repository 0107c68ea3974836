#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""synth.py NAME|all FOLDER: imitates machines that are not available. Writes the files that
each machine would have in /sys and /proc to FOLDER/NAME. Also writes a README there, which
says that the machine is synthesised. The tests call this script and read the files as they
would on a real machine. The files imitate the output of real kernels; a capture of a real
machine is the better test. The script must never write outside of FOLDER."""

import os
import struct
import sys

GT = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


class Tree:
    """The files and links of one machine. write() writes them to a folder."""

    def __init__(self, about):
        self.files, self.links, self.folders = {}, {}, []
        self.mounts, self.block_count = [], 0
        self.text("README", "Synthesised by tests/replay/synth.py, not a "
                            f"real machine: {about}.\n")
        self.text("proc/filesystems", "nodev\tsysfs\n\text4\n\txfs\n")
        self.text("proc/version", "Linux version 6.8.0-60-generic\n")
        self.text("proc/cmdline", "ro quiet\n")
        self.limits("unlimited", seccomp=0)
        self.values("sys/fs/cgroup/self", **{"memory.max": "max", "cpu.max":
                                             "max 100000"})

    def text(self, path, text):
        self.files[path] = text.encode() if isinstance(text, str) else text

    def values(self, folder, **values):
        for name, value in values.items():
            self.text(f"{folder}/{name}", f"{value}\n")

    def limits(self, memlock, seccomp, caps="1ffffffffff"):
        """Sets the limits of the process that seems to have captured the machine: locked
        memory, seccomp, capabilities."""
        self.text("proc/self/limits", "Limit                     Soft Limit     "
                  "      Hard Limit           Units\nMax locked memory         "
                  f"{memlock:<20} {memlock:<20} bytes\n")
        self.text("proc/self/status", f"CapEff:\t{caps}\nSeccomp:\t{seccomp}\n")
        self.text("proc/self/cgroup", "0::/self\n")

    def link(self, path, to):
        self.links[path] = os.path.relpath(to, os.path.dirname(path))

    # --- processors and memory

    def nodes(self, cpulists, memory_gib, distances):
        everything = ",".join(cpulists)
        self.values("sys/devices/system/cpu", online=everything,
                    possible=everything)
        for n, cpulist in enumerate(cpulists):
            here = f"sys/devices/system/node/node{n}"
            kib = memory_gib << 20
            self.values(here, cpulist=cpulist, distance=distances[n])
            self.text(f"{here}/meminfo", f"Node {n} MemTotal:       {kib} kB\n"
                      f"Node {n} MemFree:        {kib // 2} kB\n")
        self.values("sys/devices/system/node",
                    online=f"0-{len(cpulists) - 1}" if len(cpulists) > 1 else 0)
        kib = memory_gib * len(cpulists) << 20
        self.text("proc/meminfo", f"MemTotal:       {kib} kB\n")

    def kernel(self, *config, cpu="GenuineIntel", family=6):
        """Sets the kernel's configuration and the CPU. The kernel permits peer-to-peer traffic
        only on some CPUs."""
        self.text("captured/kernel-config", "".join(
            f"CONFIG_{name}\n" for name in config))
        self.text("proc/cpuinfo", f"vendor_id\t: {cpu}\ncpu family\t: {family}\n")

    def nvidia(self, version, module="Open Kernel Module", also=()):
        """Sets the version of NVIDIA's driver and the loaded modules, as /proc shows them."""
        self.text("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX "
                  f"{module} for x86_64  {version}  Release Build\n")
        self.text("proc/modules", "".join(
            f"{name} 1 0 - Live 0x0\n" for name in
            ("nvme", "nvme_core", "nvidia", "nvidia_uvm", *also)))

    # --- PCI

    def pci(self, path, bdf, class_, vendor, device, numa=-1, cpus="0", gen=4,
            width=16, now=None, driver=None, bar_gib=0, group=None,
            group_type="DMA-FQ", config=None):
        """Adds a PCI function below `path`. Returns the path of that function."""
        here = f"{path}/{bdf}"
        self.values(here, vendor=f"0x{vendor:04x}", device=f"0x{device:04x}",
                    numa_node=numa, local_cpulist=cpus, dma_mask_bits=64,
                    max_link_speed=GT[gen], max_link_width=width,
                    current_link_speed=GT[now or gen], current_link_width=width)
        self.text(f"{here}/class", f"0x{class_:06x}\n")
        bars = "0x0 0x0 0x0\n" * 6
        if bar_gib:
            start = 0x100000000000 + (int(bdf[-7:-5], 16) << 38)
            bars = ("0xb0000000 0xb0ffffff 0x40200\n"
                    f"0x{start:x} 0x{start + (bar_gib << 30) - 1:x} 0x14220c\n"
                    + "0x0 0x0 0x0\n" * 4)
        self.text(f"{here}/resource", bars)
        if config is not None:
            self.text(f"{here}/config", config)
        if driver:
            self.link(f"{here}/driver", f"sys/bus/pci/drivers/{driver}")
        if group is not None:
            self.link(f"{here}/iommu_group", f"sys/kernel/iommu_groups/{group}")
            self.values(f"sys/kernel/iommu_groups/{group}", type=group_type)
        self.link(f"sys/bus/pci/devices/{bdf}", here)
        return here

    def bridge(self, path, bdf, kind, acs=0, whole=True, **more):
        """Adds a PCI bridge of the kind "root", "up" or "down" (a root port, or an upstream
        or downstream port of a switch). If `acs` is None, the bridge has no ACS
        capability."""
        return self.pci(path, bdf, 0x060400, 0x1000, 0xc010, driver="pcieport",
                        config=bridge_config(kind, acs, whole), **more)

    def gpu(self, path, bdf, model="NVIDIA H100 80GB HBM3", **more):
        here = self.pci(path, bdf, 0x030200, 0x10de, 0x2330, driver="nvidia",
                        gen=5, bar_gib=128, **more)
        self.text(f"proc/driver/nvidia/gpus/{bdf}/information",
                  f"Model: \t\t {model}\nBus Type: \t PCIe\n")
        return here

    def nic(self, path, bdf, name, rate="400 Gb/sec (4X NDR)", layer="InfiniBand",
            **more):
        here = self.pci(path, bdf, 0x020700, 0x15b3, 0x1021, driver="mlx5_core",
                        gen=5, **more)
        self.infiniband(here, name, rate, layer, "MT4129")
        if layer == "Ethernet":
            self.roce(here, name, mtu=9000, pauses=5)
        return here

    def roce(self, path, name, mtu, lost=0, pauses=0):
        """Adds the network interface of a NIC, with its addresses and counters."""
        net, port = "eth" + name[-1], f"{path}/infiniband/{name}/ports/1"
        self.values(f"{path}/net/{net}", mtu=mtu, operstate="up", type=1)
        self.link(f"sys/class/net/{net}", f"{path}/net/{net}")
        self.link(f"{path}/net/{net}/device", path)
        for n, kind in enumerate(("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
            self.text(f"{port}/gid_attrs/types/{n}", kind + "\n")
            self.text(f"{port}/gid_attrs/ndevs/{n}", net + "\n")
        self.values(f"{port}/hw_counters", out_of_sequence=lost, packet_seq_err=0,
                    local_ack_timeout_err=0, np_cnp_sent=12, rp_cnp_handled=7,
                    np_ecn_marked_roce_packets=12)
        self.text(f"captured/ethtool/{net}", f"rx_prio3_pause: {pauses}\n"
                  f"rx_prio3_discards: 0\ntx_prio3_pause: {2 * pauses}\n")

    def infiniband(self, path, name, rate, layer, model):
        here = f"{path}/infiniband/{name}"
        self.values(here, hca_type=model, node_desc="scrubbed")
        self.values(f"{here}/ports/1", state="4: ACTIVE", rate=rate,
                    link_layer=layer)
        self.link(f"sys/class/infiniband/{name}", here)
        return here

    # --- block devices

    def block(self, path, name, dma_alignment=3, logical=512, rotational=0,
              hidden=False, queue=True):
        """Adds a disk with the folder `path`/`name`. Returns that folder."""
        here = f"{path}/{name}"
        self.block_count += 1
        self.values(here, size=2000409264, ro=0, removable=0, hidden=int(hidden))
        if queue:
            self.values(f"{here}/queue", logical_block_size=logical,
                        dma_alignment=dma_alignment, rotational=rotational)
        if not hidden:
            dev = f"259:{self.block_count}"
            self.values(here, dev=dev)
            self.link(f"sys/dev/block/{dev}", here)
        self.link(f"sys/class/block/{name}", here)
        if queue:
            self.link(f"sys/block/{name}", here)
        self.folders.append(f"{here}/slaves")
        return here

    def dev(self, name):
        path = os.path.normpath(f"sys/class/block/{self.links[f'sys/class/block/{name}']}")
        return self.files[f"{path}/dev"].decode().strip()

    def partition(self, disk, name):
        here = self.block(disk, name, queue=False)
        self.values(here, partition=1)
        return here

    def nvme(self, path, bdf, number, model="SAMSUNG MZQL23T8HCLS-00A07",
             multipath=False, **more):
        """Adds an NVMe drive with one namespace. Returns the folder of the namespace."""
        here = self.pci(path, bdf, 0x010802, 0x144d, 0xa80a, driver="nvme",
                        width=4, **more)
        controller = f"{here}/nvme/nvme{number}"
        self.controller(controller, number, "pcie", model)
        if not multipath:
            return self.block(controller, f"nvme{number}n1")
        self.block(controller, f"nvme{number}c{number}n1", hidden=True)
        return self.nvme_head(number, [number])

    def controller(self, path, number, transport, model):
        self.values(path, transport=transport, model=model, state="live",
                    numa_node=-1)
        self.link(f"sys/class/nvme/nvme{number}", path)

    def nvme_head(self, subsystem, controllers):
        """Adds the multipath namespace of an NVMe subsystem that has several controllers."""
        here = f"sys/devices/virtual/nvme-subsystem/nvme-subsys{subsystem}"
        self.values(here, iopolicy="numa")
        self.link(f"sys/class/nvme-subsystem/nvme-subsys{subsystem}", here)
        for number in controllers:
            self.link(f"{here}/nvme{number}",
                      "sys/" + os.path.normpath("class/nvme/" + self.links[
                          f"sys/class/nvme/nvme{number}"]))
        head = self.block(here, f"nvme{subsystem}n1")
        self.link(f"{head}/device", here)
        return head

    def nvme_fabric(self, subsystem, controllers, transport):
        for number in controllers:
            path = f"sys/devices/virtual/nvme-fabrics/ctl/nvme{number}"
            self.controller(path, number, transport, "Linux")
            self.values(path, queue_count=17, sqsize=127)
            self.block(path, f"nvme{subsystem}c{number}n1", hidden=True)
        return self.nvme_head(subsystem, controllers)

    def virtio(self, path, bdf, number, name):
        here = self.pci(path, bdf, 0x018000, 0x1af4, 0x1042, driver="virtio-pci")
        return self.block(f"{here}/virtio{number}/block", name,
                          dma_alignment=511, rotational=1)

    def sata(self, path, number, name):
        device = (f"{path}/ata{number}/host{number}/target{number}:0:0/"
                  f"{number}:0:0:0")
        self.values(device, model="INTEL SSDSC2KB48", vendor="ATA")
        self.values(f"{path}/ata{number}/host{number}/scsi_host/host{number}",
                    proc_name="ahci")
        self.link(f"sys/class/scsi_host/host{number}",
                  f"{path}/ata{number}/host{number}/scsi_host/host{number}")
        here = self.block(f"{device}/block", name, dma_alignment=511)
        self.link(f"{here}/device", device)
        return here

    def stacked(self, name, slaves):
        here = self.block("sys/devices/virtual/block", name)
        for slave in slaves:
            path = os.path.normpath("sys/class/block/" +
                                    self.links[f"sys/class/block/{slave}"])
            self.link(f"{here}/slaves/{slave}", path)
        return here

    def md(self, name, level, slaves, chunk=524288):
        here = self.stacked(name, slaves)
        self.values(f"{here}/md", level=level, chunk_size=chunk,
                    raid_disks=len(slaves), array_state="clean")

    def dm(self, number, uuid, slaves, table=None):
        here = self.stacked(f"dm-{number}", slaves)
        self.values(f"{here}/dm", name="scrubbed", uuid=uuid)
        if table:
            self.text(f"captured/dm-table/dm-{number}", table + "\n")

    # --- mounts

    def mount(self, point, kind, source, options, dev=None):
        """Adds a mount. `dev` is the name of the block device that is mounted; None if
        there is none."""
        number = len(self.mounts) + 22
        dev = self.dev(dev) if dev else f"0:{number}"
        self.mounts.append(f"{number} 1 {dev} / {point} rw,relatime shared:"
                           f"{number} - {kind} {source} {options}\n")

    def write(self, folder):
        self.text("proc/self/mountinfo", "".join(self.mounts))
        for path in self.folders:
            os.makedirs(os.path.join(folder, path), exist_ok=True)
        for path, data in self.files.items():
            whole = os.path.join(folder, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "wb") as f:
                f.write(data)
        for path, target in self.links.items():
            whole = os.path.join(folder, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            # A real capture also contains the folders that links point to, so write() creates them.
            there = os.path.normpath(os.path.join(os.path.dirname(whole), target))
            if not os.path.lexists(there):
                os.makedirs(there)
            os.symlink(target, whole)


def bridge_config(kind, acs, whole):
    """Returns a PCI config space with a PCI Express capability and, unless `acs` is None, an
    ACS capability. If `whole` is false, returns only the 64 bytes that an ordinary user may
    read."""
    data = bytearray(4096 if whole else 64)
    struct.pack_into("<HH", data, 0, 0x1000, 0xc010)
    struct.pack_into("<H", data, 6, 0x10)
    data[0x0e] = 1
    data[0x34] = 0x40
    if whole:
        port = {"root": 4, "up": 5, "down": 6}[kind]
        struct.pack_into("<BBH", data, 0x40, 0x10, 0, 2 | port << 4)
        # The list of capabilities starts with error reporting, so the tested code must search the
        # list for ACS.
        following = 0x148 if acs is not None else 0
        struct.pack_into("<I", data, 0x100, 1 | 2 << 16 | following << 20)
        if acs is not None:
            struct.pack_into("<IHH", data, 0x148, 13 | 1 << 16, 0x5f, acs)
    return bytes(data)


def switch(tree, host, bus, ports, **more):
    """Adds a root port on bus `bus` of a host bridge, and a PCI switch below that port. Returns
    the paths of the switch's downstream ports. The buses below these ports are bus + 3 and
    following."""
    acs = more.pop("acs", 0)
    root = tree.bridge(f"sys/devices/{host}", f"0000:{bus:02x}:01.0", "root",
                       acs=acs, **more)
    up = tree.bridge(root, f"0000:{bus + 1:02x}:00.0", "up", acs=None, **more)
    return [tree.bridge(up, f"0000:{bus + 2:02x}:{n:02x}.0", "down", acs=acs,
                        **more) for n in range(ports)]


def dgx():
    tree = Tree("two sockets, four switches; each has two GPUs, two NICs and, "
                "behind a second switch, two drives")
    cpus = ["0-55,112-167", "56-111,168-223"]
    tree.nodes(cpus, 1024, ["10 21", "21 10"])
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    tree.nvidia("580.95.05", also=("nvidia_fs", "nvidia_peermem"))
    tree.text("proc/driver/nvidia-fs/version", "version: 2.26\n")
    for s in range(4):
        bus, near = 0x10 + s * 0x30, {"numa": s // 2, "cpus": cpus[s // 2]}
        ports = switch(tree, f"pci0000:{bus:02x}", bus, 5, **near)
        for n in range(2):
            at = bus + 3 + n
            tree.gpu(ports[n], f"0000:{at:02x}:00.0", **near)
            tree.nic(ports[2 + n], f"0000:{at + 2:02x}:00.0",
                     f"mlx5_{s * 2 + n}", **near)
        below = tree.bridge(ports[4], f"0000:{bus + 7:02x}:00.0", "up", acs=None,
                            **near)
        for n in range(2):
            port = tree.bridge(below, f"0000:{bus + 8:02x}:{n:02x}.0", "down",
                               **near)
            tree.nvme(port, f"0000:{bus + 9 + n:02x}:00.0", s * 2 + n,
                      multipath=True, **near)
    near = {"numa": 0, "cpus": cpus[0]}
    root = tree.bridge("sys/devices/pci0000:10", "0000:10:02.0", "root", **near)
    boot = tree.nvme(root, "0000:0f:00.0", 8, now=3, **near)
    tree.partition(boot, "nvme8n1p2")
    tree.md("md1", "raid0", [f"nvme{n}n1" for n in range(8)])
    tree.mount("/", "ext4", "/dev/nvme8n1p2", "rw,errors=remount-ro,data=ordered",
               "nvme8n1p2")
    tree.mount("/raid", "xfs", "/dev/md1", "rw,attr2,inode64,noquota", "md1")
    tree.mount("/dev/shm", "tmpfs", "tmpfs", "rw,size=1056964608k")
    return tree


def cloud_vm():
    tree = Tree("a guest with a virtio disk, and eight GPUs and a drive passed "
                "through, each below its own root port; captured by an ordinary user")
    tree.nodes(["0-47"], 384, ["10"])
    tree.text("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\n")
    tree.nvidia("535.129.03", "Kernel Module")
    root = "sys/devices/pci0000:00"
    disk = tree.virtio(root, "0000:00:02.0", 1, "vda")
    tree.partition(disk, "vda1")
    for n in range(9):
        port = tree.bridge(root, f"0000:00:1{n}.0", "root", whole=False)
        if n < 8:
            tree.gpu(port, f"0000:{n + 1:02x}:00.0", cpus="0-47")
        else:
            tree.nvme(port, f"0000:{n + 1:02x}:00.0", 0, cpus="0-47")
    # Like real kernels, lists the default mount options only in /proc/fs/ext4.
    tree.mount("/", "ext4", "/dev/vda1", "rw,discard", "vda1")
    tree.text("proc/fs/ext4/vda1/options", "rw\ndelalloc\ndata=ordered\n")
    tree.mount("/local", "ext4", "/dev/nvme0n1", "rw,data=writeback", "nvme0n1")
    tree.mount("/share", "virtiofs", "share", "rw")
    tree.mount("/nfs", "nfs4", "server:/export",
               "rw,vers=4.2,proto=tcp,addr=scrubbed")
    tree.mount("/nfsr", "nfs", "server:/export",
               "rw,vers=3,proto=rdma,addr=scrubbed")
    return tree


def amd():
    tree = Tree("two AMD sockets, accelerators of AMD, a server's VGA, LVM and "
                "dm-crypt; IOMMU in passthrough")
    cpus = ["0-63,128-191", "64-127,192-255"]
    tree.nodes(cpus, 768, ["10 32", "32 10"])
    tree.text("proc/cmdline", "ro amd_iommu=on iommu=pt\n")
    tree.kernel("PCI_P2PDMA=y", cpu="AuthenticAMD", family=25)
    for n in range(4):
        bus, near = 0x20 + n * 0x20, {"numa": n // 2, "cpus": cpus[n // 2]}
        group = {"group": n * 3, "group_type": "identity"}
        root = tree.bridge(f"sys/devices/pci0000:{bus:02x}",
                           f"0000:{bus:02x}:01.1", "root", **near)
        gpu = tree.pci(root, f"0000:{bus + 1:02x}:00.0", 0x120000, 0x1002, 0x74a1,
                       driver="amdgpu", gen=5, bar_gib=256, **near, **group)
        tree.values(gpu, product_name="AMD Instinct MI300X")
        group["group"] += 1
        root = tree.bridge(f"sys/devices/pci0000:{bus:02x}",
                           f"0000:{bus:02x}:01.2", "root", **near)
        tree.nvme(root, f"0000:{bus + 2:02x}:00.0", n, **near, **group)
    tree.pci("sys/devices/pci0000:20", "0000:20:07.0", 0x030000, 0x1a03, 0x2000,
             numa=0, cpus=cpus[0], driver="ast")
    sata = tree.pci("sys/devices/pci0000:20", "0000:20:08.0", 0x010601, 0x1022,
                    0x7901, numa=0, cpus=cpus[0], driver="ahci")
    tree.partition(tree.sata(sata, 1, "sda"), "sda2")
    tree.dm(0, "LVM-scrubbed", ["nvme0n1"])
    tree.dm(1, "LVM-scrubbed", ["nvme1n1", "nvme2n1"],
            "0 100 striped 2 128\n100 100 linear")
    tree.dm(2, "CRYPT-LUKS2-scrubbed", ["nvme3n1"], "0 100 crypt")
    tree.mount("/", "ext4", "/dev/sda2", "rw,data=ordered", "sda2")
    tree.mount("/lv", "xfs", "/dev/mapper/p1", "rw,inode64", "dm-0")
    tree.mount("/striped", "xfs", "/dev/mapper/p2", "rw,inode64", "dm-1")
    tree.mount("/home", "ext4", "/dev/mapper/p3", "rw,data=ordered", "dm-2")
    return tree


def acs():
    tree = Tree("a switch with a GPU and a drive whose ports redirect by ACS")
    tree.nodes(["0-31"], 256, ["10"])
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    tree.nvidia("580.95.05")
    near = {"numa": 0, "cpus": "0-31"}
    ports = switch(tree, "pci0000:10", 0x10, 2, acs=0x1d, group=1,
                   group_type="identity", **near)
    tree.gpu(ports[0], "0000:13:00.0", group=2, group_type="identity", **near)
    tree.nvme(ports[1], "0000:14:00.0", 0, group=3, group_type="identity", **near)
    tree.mount("/", "ext4", "/dev/nvme0n1", "rw,data=ordered", "nvme0n1")
    return tree


def user():
    tree = Tree("the switch of acs and a device-mapper device, captured by an ordinary "
                "user")
    tree.nodes(["0-31"], 256, ["10"])
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    tree.nvidia("580.95.05")
    tree.limits("8388608", seccomp=0, caps="0")
    ports = switch(tree, "pci0000:10", 0x10, 2, acs=0x1d, whole=False)
    tree.gpu(ports[0], "0000:13:00.0")
    tree.nvme(ports[1], "0000:14:00.0", 0)
    tree.dm(0, "", ["nvme0n1"])
    tree.mount("/", "ext4", "/dev/nvme0n1", "rw,data=ordered", "nvme0n1")
    tree.mount("/dm", "ext4", "/dev/mapper/p1", "rw,data=ordered", "dm-0")
    return tree


def iommu():
    tree = Tree("a switch with a GPU and a drive behind a translating IOMMU")
    tree.nodes(["0-31"], 256, ["10"])
    tree.text("proc/cmdline", "ro intel_iommu=on\n")
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    tree.nvidia("580.95.05")
    near = {"numa": 0, "cpus": "0-31"}
    ports = switch(tree, "pci0000:10", 0x10, 2, group=1, **near)
    tree.gpu(ports[0], "0000:13:00.0", group=1, **near)
    tree.nvme(ports[1], "0000:14:00.0", 0, group=1, **near)
    tree.mount("/", "ext4", "/dev/nvme0n1", "rw,data=ordered", "nvme0n1")
    return tree


def container():
    tree = Tree("a container on a GPU host: overlay as root, a volume mounted in, "
                "a low limit of locked memory")
    tree.nodes(["0-15"], 128, ["10"])
    root = tree.bridge("sys/devices/pci0000:00", "0000:00:01.0", "root",
                       whole=False)
    tree.gpu(root, "0000:01:00.0", cpus="0-15")
    root = tree.bridge("sys/devices/pci0000:00", "0000:00:02.0", "root",
                       whole=False)
    tree.partition(tree.nvme(root, "0000:02:00.0", 0, cpus="0-15"), "nvme0n1p1")
    tree.mount("/", "overlay", "overlay", "rw,lowerdir=/var/lib/docker/p1,upperdir="
               "/var/lib/docker/p2/diff,workdir=/var/lib/docker/p2/work")
    tree.mount("/data", "ext4", "/dev/nvme0n1p1", "rw,data=ordered", "nvme0n1p1")
    tree.mount("/dev/shm", "tmpfs", "shm", "rw,size=65536k")
    tree.limits("65536", seccomp=2, caps="a80425fb")
    tree.values("sys/fs/cgroup/self", **{"memory.max": 17179869184,
                                         "cpu.max": "400000 100000"})
    return tree


def ready():
    tree = Tree("two GPUs that publish their memory, each with a drive and a NIC below "
                "one switch: every gate is open")
    tree.nodes(["0-63"], 512, ["10"])
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    tree.nvidia("580.95.05")
    near = {"numa": 0, "cpus": "0-63"}
    for n in range(2):
        bus = 0x10 + n * 0x20
        ports = switch(tree, f"pci0000:{bus:02x}", bus, 3, **near)
        gpu = tree.gpu(ports[0], f"0000:{bus + 3:02x}:00.0", **near)
        tree.values(f"{gpu}/p2pmem", size=80 << 30, available=80 << 30, published=0)
        tree.nvme(ports[1], f"0000:{bus + 4:02x}:00.0", n, **near)
        tree.nic(ports[2], f"0000:{bus + 5:02x}:00.0", f"mlx5_{n}", **near)
    tree.mount("/", "xfs", "/dev/nvme0n1", "rw,inode64", "nvme0n1")
    tree.mount("/data", "ext4", "/dev/nvme1n1", "rw,data=ordered", "nvme1n1")
    return tree


def parallel():
    tree = Tree("a client of parallel and network file systems, with two NICs")
    tree.nodes(["0-31"], 256, ["10"])
    tree.kernel("PCI_P2PDMA=y", "DMA_SHARED_BUFFER=y")
    for n in range(2):
        root = tree.bridge("sys/devices/pci0000:10", f"0000:10:0{n + 1}.0", "root")
        tree.nic(root, f"0000:{0x11 + n:02x}:00.0", f"mlx5_{n}")
    for kind, source, options in (
            ("lustre", "10@o2ib:/lustre", "rw,flock,lazystatfs"),
            ("wekafs", "backend/default", "rw,writecache,inode_bits=auto"),
            ("gpfs", "gpfs0", "rw,relatime"),
            ("beegfs", "beegfs_nodev", "rw,relatime,cfgFile=scrubbed"),
            ("nfs4", "server:/p1", "rw,vers=4.2,proto=rdma,port=20049"),
            ("ceph", "source", "rw,acl"), ("fuse.s3fs", "s3fs", "rw"),
            ("zfs", "tank/p1", "rw,xattr"), ("btrfs", "/dev/sda", "rw,ssd")):
        tree.mount("/" + kind.replace("fuse.", ""), kind, source, options)
    return tree


def nvmeof():
    tree = Tree("drives over fabrics: one by RDMA on two paths, one by TCP, one "
                "with a path of each")
    tree.nodes(["0-31", "32-63"], 256, ["10 20", "20 10"])
    for n in range(2):
        root = tree.bridge(f"sys/devices/pci0000:{0x10 + n * 0x40:02x}",
                           f"0000:{0x10 + n * 0x40:02x}:01.0", "root", numa=n)
        tree.nic(root, f"0000:{0x11 + n * 0x40:02x}:00.0", f"mlx5_{n}",
                 "200 Gb/sec (4X HDR)", "Ethernet", numa=n)
    tree.nvme_fabric(0, [0, 1], "rdma")
    tree.nvme_fabric(1, [2], "tcp")
    tree.nvme_fabric(2, [3], "rdma")
    path = "sys/devices/virtual/nvme-fabrics/ctl/nvme4"
    tree.controller(path, 4, "tcp", "Linux")
    tree.block(path, "nvme2c4n1", hidden=True)
    tree.link("sys/devices/virtual/nvme-subsystem/nvme-subsys2/nvme4", path)
    tree.mount("/rdma", "xfs", "/dev/nvme0n1", "rw,inode64", "nvme0n1")
    tree.mount("/tcp", "xfs", "/dev/nvme1n1", "rw,inode64", "nvme1n1")
    tree.mount("/both", "xfs", "/dev/nvme2n1", "rw,inode64", "nvme2n1")
    return tree


def nvmeof_soft():
    tree = nvmeof()
    tree.text("README", "Synthesised by tests/replay/synth.py, not a real machine: "
                        "nvmeof with Soft-RoCE beside the NICs.\n")
    here = tree.infiniband("sys/devices/virtual", "rxe0", "2.5 Gb/sec (1X SDR)",
                           "Ethernet", "")
    tree.values(here, parent="eth0", node_desc="rxe")
    return tree


def nvmeof_cut():
    tree = nvmeof()
    tree.text("README", "Synthesised by tests/replay/synth.py, not a real machine: nvmeof "
                        "with a path lost, and NICs that lose packets.\n")
    tree.values("sys/devices/virtual/nvme-fabrics/ctl/nvme1", state="connecting")
    tree.values("sys/devices/virtual/nvme-fabrics/ctl/nvme2", state="resetting")
    near = "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0"
    tree.roce(near, "mlx5_0", mtu=1500, lost=4711)
    here = f"{near}/infiniband/mlx5_0/ports/1"
    for n in range(4):
        tree.text(f"{here}/gid_attrs/types/{n}", "IB/RoCE v1\n")
    tree.values("sys/devices/pci0000:50/0000:50:01.0/0000:51:00.0/infiniband/mlx5_1/"
                "ports/1", state="1: DOWN")
    return tree


def md():
    tree = Tree("arrays of md: raid0 over four drives, raid5, and raid1 over "
                "partitions of SATA disks")
    tree.nodes(["0-23"], 128, ["10"])
    root = "sys/devices/pci0000:00"
    for n in range(7):
        port = tree.bridge(root, f"0000:00:1{n}.0", "root")
        tree.nvme(port, f"0000:{n + 1:02x}:00.0", n, numa=0, cpus="0-23")
    sata = tree.pci(root, "0000:00:1f.2", 0x010601, 0x8086, 0xa182, numa=0,
                    driver="ahci")
    for n, name in ((1, "sda"), (2, "sdb")):
        tree.partition(tree.sata(sata, n, name), f"{name}1")
    tree.md("md0", "raid0", [f"nvme{n}n1" for n in range(4)], 65536)
    tree.md("md5", "raid5", [f"nvme{n}n1" for n in range(4, 7)])
    tree.md("md127", "raid1", ["sda1", "sdb1"])
    tree.partition("sys/devices/virtual/block/md127", "md127p1")
    tree.mount("/", "ext4", "/dev/md127p1", "rw,data=ordered", "md127p1")
    tree.mount("/fast", "ext4", "/dev/md0", "rw,stripe=512,data=ordered", "md0")
    tree.mount("/safe", "xfs", "/dev/md5", "rw,inode64", "md5")
    tree.mount("/journal", "ext4", "/dev/md0", "rw,data=journal", "md0")
    tree.partition("sys/devices/virtual/block/md0", "md0p1")
    tree.mount("/hidden", "ext4", "/dev/md0p1", "rw", "md0p1")
    tree.text("proc/fs/ext4/md0p1/options", "rw\ndata=journal\n")
    return tree


MACHINES = {"dgx": dgx, "cloud-vm": cloud_vm, "amd": amd, "acs": acs,
            "user": user, "iommu": iommu, "container": container, "ready": ready,
            "parallel": parallel, "nvmeof": nvmeof,
            "nvmeof-soft": nvmeof_soft, "nvmeof-cut": nvmeof_cut, "md": md}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in [*MACHINES, "all"]:
        sys.exit(f"usage: synth.py {'|'.join(MACHINES)}|all FOLDER")
    for name in MACHINES if sys.argv[1] == "all" else [sys.argv[1]]:
        MACHINES[name]().write(os.path.join(sys.argv[2], name))


if __name__ == "__main__":
    main()
