# SPDX-License-Identifier: Apache-2.0
# Machine switch: the drives data1 and cmb1 behind one PCIe switch. cmb1 has 64 MiB of
# controller memory, and peer-to-peer DMA between the two drives succeeds. The drive far1 is on
# a root port of its own, from which the kernel refuses peer-to-peer DMA.
# shellcheck shell=bash disable=SC2034,SC2054 # lab/run reads these variables.
machine_about="two drives behind a PCIe switch, one with a memory buffer; a third apart"
drive_behind_switch
drive far1 13 rp9
qemu_args+=(-device pcie-root-port,id=rp9,chassis=9,slot=9,bus=pcie.0)
