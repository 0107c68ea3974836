/* SPDX-License-Identifier: Apache-2.0 */
/* Makes requests for tests. Must not submit any. */
#ifndef PENSTOCK_TEST_REQUEST_H
#define PENSTOCK_TEST_REQUEST_H

#include "penstock.h"

/* Returns a request for `count` segments of one storage. All other members have their defaults. */
static inline struct penstock_req test_request(struct penstock_storage *st,
					       const struct penstock_seg *segs, unsigned count,
					       enum penstock_op op)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = segs;
	req.seg_count = count;
	req.op = op;
	return req;
}

#endif
