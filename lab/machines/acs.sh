# SPDX-License-Identifier: Apache-2.0
# Machine acs: all drives are functions of one slot below one root port with Access
# Control Services. While ACS is off, peer-to-peer DMA succeeds. With request or completion
# redirect set (setpci -s PORT ECAP_ACS+6.w=c) the kernel must refuse it. The machine has no
# switch, because QEMU's switch ports have no ACS.
# shellcheck shell=bash disable=SC2034,SC2054 # lab/run reads these variables.
machine_about="three drives below one root port with ACS"
qemu_args+=(-device pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0)
drive data1 11 rp0,addr=0.0,multifunction=on
drive data2 14 rp0,addr=0.2
drive cmb1 12 rp0,addr=0.1 64M cmb_size_mb=64
