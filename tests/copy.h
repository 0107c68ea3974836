/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for tests that compare device memory: copies between devices. If a copy fails, the
 * test case fails.
 */
#ifndef PENSTOCK_TEST_COPY_H
#define PENSTOCK_TEST_COPY_H

#include "test.h"

#include "penstock.h"

static inline void test_copy(struct penstock_device *to, void *dst, struct penstock_device *from,
			     const void *src, size_t len)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = to,
					  .dst = dst,
					  .src_dev = from,
					  .src = src,
					  .row_len = len};

	if (len && penstock_copy(&args, 1))
		fail_msg("copy: %s", penstock_errmsg());
}

#endif
