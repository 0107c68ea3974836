# SPDX-License-Identifier: Apache-2.0
# Machine i440fx: both drives are on one conventional PCI bus without a bridge above it. The
# kernel has a list of host bridges that can route peer-to-peer DMA, and this machine's host
# bridge is not on it.
# shellcheck shell=bash disable=SC2034 # lab/run reads these variables.
machine_about="both drives on a conventional PCI bus, no common bridge"
qemu_machine=pc
drive data1 11 pci.0
drive cmb1 12 pci.0 64M cmb_size_mb=64
