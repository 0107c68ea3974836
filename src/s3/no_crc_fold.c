/* SPDX-License-Identifier: Apache-2.0 */
/* Implements crc_fold.h for CPUs on which the library has no instruction for carry-less
 * multiplication. */
#include "s3/crc_fold.h"

static bool cpu_has(void)
{
	return false;
}

const struct pst_crc_fold pst_crc_fold = {
	.has = cpu_has,
};
