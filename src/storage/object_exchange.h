/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of protocol hipobj-rc-v2 for a window, memory that the server reads or writes by
 * RDMA. The requests PREPARE and READY replace the GET or PUT. The response to a PREPARE connects
 * the window to the server. The READY starts the transfer, and its response replaces that of the
 * GET or PUT. If no READY can follow a PREPARE, a CANCEL is sent. object_window.c calls these
 * functions, and object_request.c calls them through a table of functions.
 */
#ifndef PST_STORAGE_OBJECT_EXCHANGE_H
#define PST_STORAGE_OBJECT_EXCHANGE_H

#include "penstock_object.h"
#include "storage/object_request.h"

struct pst_wire_grant;

struct pst_object_steps {
	struct pst_object_exchange exchange; /* must be the first member */
	struct pst_wire_grant *inner;
	char *target;  /* value of the header x-amz-rdma-target */
	bool prepared; /* whether the headers of a PREPARE could be written */
	/* the reason why no READY is sent; its member `next` is DONE if one is sent */
	struct penstock_object_verdict verdict;
};

/* Makes the call send the requests of the protocol instead of its own GET or PUT. */
void pst_object_steps_open(struct pst_object_steps *steps, struct pst_wire_grant *inner,
			   struct pst_object_call *call);
/* Frees the memory of *steps. The caller has released the window before. */
void pst_object_steps_close(struct pst_object_steps *steps);
/* Stores the RDMA headers of a response in `out`. Returns their number, at most
 * PST_OBJECT_RDMA_HEADERS. */
#define PST_OBJECT_RDMA_HEADERS 10
unsigned pst_object_rdma_headers(const struct pst_http_head *head,
				 struct penstock_object_header *out);

#endif
