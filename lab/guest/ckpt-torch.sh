#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Saves and loads a checkpoint of torch.distributed.checkpoint, whose tensors are in the memory of
# another drive. The script only records phases, which are commands with a mark in QEMU's trace
# before and after them. The host finds out from the trace where the bytes went. As a control, the
# script also saves over path bounce (copies by the CPU), for which the host's check must fail.
#
# ckpt-torch.sh PROBE PYTHON. tests/lab/ckpt-torch runs this script by lab/run.
# shellcheck disable=SC2034,SC2154 # lib.sh and this script share variables.
set -euo pipefail
lab_probe=$1
python=$2
# shellcheck source=lab/guest/lib.sh
source "$LAB_DIR/guest/lib.sh"

dir=$LAB_SCRATCH/data
lab_mount data1 "$dir"
lab_mark_drive=$(lab_drive data1)
lab_facts data1 cmb1 >"$LAB_OUT/facts"
penstock=$python
lab_patience=600

for name in save load control; do
	lab_drop_caches
	way=write
	[[ $name != load ]] || way=read
	folder=$dir/step
	[[ $name != control ]] || folder=$dir/control
	lab_phase "torch-$name" "$way:$folder/__0_0.distcp" lab_penstock "torch-$name" 0 \
		"$LAB_DIR/guest/ckpt_torch.py" "$name" "$folder" "peermem:$(lab_bdf cmb1)" || true
done
umount "$dir"
((lab_failed == 0)) || exit 1
