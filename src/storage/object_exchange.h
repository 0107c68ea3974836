/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of protocol hipobj-rc-v2 for a window. The response to a PREPARE connects the window
 * to the server. The response to the READY takes the place of the response to the GET or PUT. If no
 * READY can follow a PREPARE, a CANCEL is sent. Called by object_window.c, and by object_request.c
 * through a table of functions.
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
	bool prepared; /* whether a PREPARE could be composed */
	/* The reason why no READY is sent; `next` is DONE if one is sent. */
	struct penstock_object_verdict verdict;
};

/* Makes the call use the requests of an exchange. */
void pst_object_steps_open(struct pst_object_steps *steps, struct pst_wire_grant *inner,
			   struct pst_object_call *call);
/* Frees the memory of the steps. The caller has released the window. */
void pst_object_steps_close(struct pst_object_steps *steps);
/* Stores the headers of a response that are about RDMA in a list. Returns their number, at most
 * PST_OBJECT_RDMA_HEADERS. */
#define PST_OBJECT_RDMA_HEADERS 10
unsigned pst_object_rdma_headers(const struct pst_http_head *head,
				 struct penstock_object_header *out);

#endif
