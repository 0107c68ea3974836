/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine "uring" in a build without liburing. Its function open() always fails and names the
 * reason. The library's thread then opens the next engine of its list.
 */
#include "io/uring.h"

static int no_uring_open(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err)
{
	(void)out;
	(void)depth;
	(void)wake_fd;
	return pst_fail(err, PENSTOCK_WHY_NOT_BUILT,
			"this build has no liburing, which engine uring needs");
}

const struct pst_engine_ops pst_engine_uring = {
	.name = "uring",
	.open = no_uring_open,
};
