/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of uring.c where a build has no liburing: the engine that never opens,
 * so that the next one takes over with the reason.
 */
#include "io/engines.h"

static int no_open(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err)
{
	(void)out;
	(void)depth;
	(void)wake_fd;
	return pst_fail(err, PENSTOCK_WHY_NOT_BUILT,
			"this build was made without liburing, which io_uring takes");
}

const struct pst_engine_ops pst_engine_uring = {
	.name = "uring",
	.open = no_open,
};
