/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces request.c in builds without libssl. Each request fails with a message that this build
 * cannot send requests. */
#include "object/request.h"

int pst_object_requests_open(struct pst_object_requests *requests, struct pst_ends *ends,
			     const struct pst_wire_devices *devices)
{
	requests->ends = ends;
	requests->devices = devices;
	return 0;
}

void pst_object_requests_cancel(struct pst_object_requests *requests)
{
	(void)requests;
}

void pst_object_requests_close(struct pst_object_requests *requests)
{
	(void)requests;
}

int pst_object_request_start(struct pst_object_requests *requests, struct pst_object_target *target,
			     const struct penstock_object_request *request, struct pst_err *err)
{
	(void)requests;
	(void)target;
	(void)request;
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NOT_BUILT,
			      "this build cannot sign requests: build it with libssl");
}
