# SPDX-License-Identifier: Apache-2.0
# machine switch: drive data1 and drive cmb1, which has 64 MiB of controller
# memory, behind one PCIe switch: peer-to-peer DMA passes. Beside them drive far1
# on a root port of its own, from which it does not.
# shellcheck shell=bash disable=SC2034,SC2054 # read by lab/run
machine_about="two drives behind a PCIe switch, one with a memory buffer; one apart"
drive_behind_switch
drive far1 13 rp9
qemu_args+=(-device pcie-root-port,id=rp9,chassis=9,slot=9,bus=pcie.0)
