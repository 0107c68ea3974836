# SPDX-License-Identifier: Apache-2.0
# machine switch-iommu: the switch machine with an Intel IOMMU that translates.
# The kernel permits peer-to-peer reads, they report success, and nothing arrives.
# shellcheck shell=bash disable=SC2034 # read by lab/run
machine_about="switch, with an IOMMU in between that translates"
qemu_args+=(-device intel-iommu)
append+=" intel_iommu=on iommu.passthrough=0"
drive_behind_switch
