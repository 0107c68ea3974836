/* SPDX-License-Identifier: Apache-2.0 */
/* Implements crc_fold.h for CPUs without an instruction that the library uses. */
#include "s3/crc_fold.h"

static bool cpu_has(void)
{
	return false;
}

const struct pst_crc_fold pst_crc_fold = {
	.has = cpu_has,
};
