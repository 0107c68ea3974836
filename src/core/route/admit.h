/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: from what a caller submits to a request that lanes can carry out. */
#ifndef PST_CORE_ADMIT_H
#define PST_CORE_ADMIT_H

#include "core/request/request.h"

/* Fills `req` from what the caller submitted, or returns why it cannot be met. */
int pst_req_admit(struct pst_request *req, const struct penstock_req *given, unsigned segs_max,
		  unsigned spans_max, struct pst_err *err);
/* Makes the request's spans, again if values were bound late, and refuses what its class
 * forbids. */
int pst_req_make_spans(struct pst_request *req, unsigned spans_max, struct pst_err *err);
/* Copies the caller's segment `i`. 1: it named no device, and its buffer's device was found. */
int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err);

#endif
