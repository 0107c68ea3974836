# SPDX-License-Identifier: Apache-2.0
# Machine plain: no drives, for tests that need only a kernel.
# shellcheck shell=bash disable=SC2034 # lab/run reads these variables.
machine_about="q35 without drives"
