# SPDX-License-Identifier: Apache-2.0
# Machine fabrics: the drives tcp1, rdma1, loop1 and pair1 for NVMe-over-fabrics targets
# in the guest, and cmb1, a drive with memory for peer-to-peer DMA.
# shellcheck shell=bash disable=SC2034,SC2054 # lab/run reads these variables.
machine_about="drives for NVMe-over-fabrics targets, and one with a memory buffer"
drive tcp1 11 pcie.0 128M
drive rdma1 12 pcie.0 128M
drive loop1 13 pcie.0 128M
drive pair1 14 pcie.0 128M
drive cmb1 15 pcie.0 64M cmb_size_mb=64
