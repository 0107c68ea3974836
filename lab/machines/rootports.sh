# SPDX-License-Identifier: Apache-2.0
# Machine rootports: each drive on a root port of its own. The CPU model decides whether the
# kernel permits peer-to-peer DMA between the drives. The kernel permits it with --cpu EPYC, but
# not with the default CPU model.
# shellcheck shell=bash disable=SC2034,SC2054 # lab/run reads these variables.
machine_about="each drive on its own root port"
qemu_args+=(-device pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0
	-device pcie-root-port,id=rp1,chassis=2,slot=2,bus=pcie.0)
drive data1 11 rp0
drive cmb1 12 rp1 64M cmb_size_mb=64
