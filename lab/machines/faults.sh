# SPDX-License-Identifier: Apache-2.0
# Machine faults: like machine switch, with two more drives. Drive bad1, also behind the
# switch, reports a read error for the 4096 bytes at 24 MiB + 64 KiB. Drive slow1, on a root
# port of its own, moves only 8 MiB per second, so that a test can remove it in the middle of a
# transfer.
# shellcheck shell=bash disable=SC2034,SC2054 # lab/run reads these variables.
machine_about="a drive with a bad sector behind the switch, a slow drive on its own root port"
drive_behind_switch
qemu_args+=(-device xio3130-downstream,id=dn2,bus=up0,chassis=4,slot=4
	-device pcie-root-port,id=rp9,chassis=9,slot=9,bus=pcie.0)
bad=driver=raw,file.driver=blkdebug
bad+=,file.image.driver=file,file.image.filename=IMAGE
bad+=,file.inject-error.0.event=none,file.inject-error.0.iotype=read
bad+=,file.inject-error.0.errno=5,file.inject-error.0.sector=$(((24 << 11) + 128))
drive bad1 14 dn2 48M "" "$bad"
drive slow1 15 rp9 128M "" file=IMAGE,format=raw,throttling.bps-total=8388608
