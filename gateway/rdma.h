/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests with the header x-amz-rdma-token: moves the object's bytes between its file and the
 * client's window, by the server half of penstock_object.h. Called by front.c and the operations. A
 * request whose token cannot be served is declined: the bytes then go by HTTP. A PUT is answered
 * with success only if all bytes have been read from the window and stored.
 */
#ifndef GW_RDMA_H
#define GW_RDMA_H

#include "request.h"

struct gw_rdma;

struct gw_rdma_options {
	const char *transports; /* NULL: all */
	const char *device;	/* GPU through which windows of GPUs are accessed; NULL: none */
	unsigned threads;	/* number of workers, half of which may wait for RDMA at a time */
	unsigned rate_min;	/* lowest rate of a move in bytes a second; 0: any */
	bool encrypt;		/* whether bytes must not leave the host unencrypted */
	struct gw_metrics *metrics; /* receives the names of the transports */
};

/* Starts the server half. Returns NULL with a text in `why`. */
struct gw_rdma *gw_rdma_open(const struct gw_rdma_options *o, char *why, size_t why_len);
/* Ends all moves at once. Requests whose moves it ends fail, and later tokens are declined. The
 * workers, which wait for moves, can then be stopped. NULL is allowed. */
void gw_rdma_cancel(struct gw_rdma *rdma);
/* Frees the server half. No other thread uses it. NULL is allowed. */
void gw_rdma_close(struct gw_rdma *rdma);

/* Checks the token of a request that stores an object, before its body. Returns false after it has
 * filled the reply. If there is a token and it returns true, gw_rdma_receive reads the window. */
bool gw_rdma_check(struct gw_request *req);
/* Reads the window of a request that stores an object, as its body. Returns false after it has
 * filled the reply. Does nothing for a request without a token. */
bool gw_rdma_receive(struct gw_request *req);
/* Adds the headers of RDMA to the reply to a request that has stored an object. */
void gw_rdma_stored(struct gw_request *req);

/* Results of gw_rdma_send. */
enum gw_rdma_sent {
	GW_RDMA_BODY,	/* nothing has moved: the reply needs a body */
	GW_RDMA_MOVED,	/* all bytes are in the window: the reply has no body */
	GW_RDMA_FAILED, /* the reply is filled with an error */
};

/* Writes a range of an object's file into the window of a GET. Adds the headers of RDMA. */
enum gw_rdma_sent gw_rdma_send(struct gw_request *req, int fd, uint64_t at, uint64_t len,
			       bool ranged);
/* Adds the headers to the reply by which a token is declined. */
void gw_rdma_decline(struct gw_request *req);

#endif
