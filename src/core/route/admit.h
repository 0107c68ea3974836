/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: turns a caller's request into one that lanes can carry out. */
#ifndef PST_CORE_ADMIT_H
#define PST_CORE_ADMIT_H

#include "core/request/request.h"

/* Fills `req` from the caller's request. -errno: lanes cannot carry it out; see err. */
int pst_req_admit(struct pst_request *req, const struct penstock_req *given, unsigned segs_max,
		  unsigned spans_max, struct pst_err *err);
/* Makes the request's spans and checks that paths of its class can carry them. Called again when
 * the request's late values are known. */
int pst_admit_spans(struct pst_request *req, unsigned spans_max, struct pst_err *err);
/* Copies the caller's segment `i` to `out`. 1: it named no device, and its buffer's device was
 * found instead. */
int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err);

#endif
