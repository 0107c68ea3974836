/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper for tests of the canary, the test transfer that must succeed before the library uses a
 * direct path. It calls penstock_explain about one path. If the call fails or its answer lacks the
 * path, the test case fails.
 */
#ifndef PENSTOCK_TEST_EXPLAIN_H
#define PENSTOCK_TEST_EXPLAIN_H

#include "test.h"

#include "penstock.h"

/* Returns the entry of path `name` for a read of `len` bytes from `st` to `dev`. */
static inline struct penstock_explain_path test_explain_path(struct penstock_storage *st,
							     struct penstock_device *dev,
							     uint64_t len, const char *name)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = dev, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned i = 0;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	assert_int_equal(penstock_explain(&req, &e), 0);
	while (strcmp(e.paths[i].name, name))
		assert_true(++i < e.path_count);
	return e.paths[i];
}

#endif
