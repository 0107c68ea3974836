/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: checks a caller's request at submit, and turns it into one that lanes (worker threads)
 * can carry out. */
#ifndef PST_CORE_ADMIT_H
#define PST_CORE_ADMIT_H

#include "core/request/request.h"

/* Fills `req` from the caller's request `given`. Returns -errno, with the reason in `err`, if the
 * request is invalid or cannot be carried out. */
int pst_req_admit(struct pst_request *req, const struct penstock_req *given, unsigned segs_max,
		  unsigned spans_max, struct pst_err *err);
/* Makes the request's spans (contiguous storage ranges), and checks that paths of the request's
 * class can carry them. stream_poll.c calls it again when the stream has supplied the request's
 * late values (struct penstock_late). */
int pst_admit_spans(struct pst_request *req, unsigned spans_max, struct pst_err *err);
/* Copies segment `i` of the caller's request to `out`. Returns 1 if the segment names no device;
 * `out` then names the device that owns the buffer. */
int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err);

#endif
