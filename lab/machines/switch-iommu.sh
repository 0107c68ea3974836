# SPDX-License-Identifier: Apache-2.0
# Machine switch-iommu: the switch machine with a translating Intel IOMMU. The kernel permits
# peer-to-peer reads and the drive reports success, but no byte arrives in the device memory.
# shellcheck shell=bash disable=SC2034 # lab/run reads these variables.
machine_about="the switch machine with a translating IOMMU"
qemu_args+=(-device intel-iommu)
append+=" intel_iommu=on iommu.passthrough=0"
drive_behind_switch
