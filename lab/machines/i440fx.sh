# SPDX-License-Identifier: Apache-2.0
# machine i440fx: both drives on the one conventional PCI bus, no bridge of their
# own above them, a host bridge that the kernel does not list as able to route.
# shellcheck shell=bash disable=SC2034 # read by lab/run
machine_about="both drives on a conventional PCI bus, no common bridge"
qemu_machine=pc
drive data1 11 pci.0
drive cmb1 12 pci.0 64M cmb_size_mb=64
