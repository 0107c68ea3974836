/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of hipobj-rc-v2 for a window: PREPARE, whose response connects the window to the
 * server, then READY, whose response stands for that of the GET or PUT. A CANCEL follows a PREPARE
 * if no READY can. Called by object_window.c, and by object_request.c through a table.
 */
#ifndef PST_STORAGE_OBJECT_EXCHANGE_H
#define PST_STORAGE_OBJECT_EXCHANGE_H

#include "penstock_object.h"
#include "storage/object_request.h"

struct pst_wire_grant;

struct pst_object_steps {
	struct pst_object_exchange exchange; /* the first member */
	struct pst_wire_grant *inner;
	char *target;  /* header x-amz-rdma-target */
	bool prepared; /* whether a PREPARE could be composed */
	/* Why there is no READY; `next` is DONE if there is one. */
	struct penstock_object_verdict verdict;
};

/* Lets the call be carried out by the requests of an exchange. */
void pst_object_steps_open(struct pst_object_steps *steps, struct pst_wire_grant *inner,
			   struct pst_object_call *call);
/* Frees what the steps have allocated. The window has been released. */
void pst_object_steps_close(struct pst_object_steps *steps);
/* Fills a list with the headers of a response that are about RDMA; returns their number, at most
 * PST_OBJECT_RDMA_HEADERS. */
#define PST_OBJECT_RDMA_HEADERS 10
unsigned pst_object_rdma_headers(const struct pst_http_head *head,
				 struct penstock_object_header *out);

#endif
