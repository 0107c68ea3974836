# SPDX-License-Identifier: Apache-2.0
# machine plain: no drives. For tests that need a kernel and nothing else.
# shellcheck shell=bash disable=SC2034 # read by lab/run
machine_about="q35 without drives"
