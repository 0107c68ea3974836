/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to the upstream and its reply, on a thread that may block: connects, sends the head
 * and the body out of a stream, and puts the reply into the stream. A window of the client's memory
 * (rdma.h) can stand for one of the bodies; the memory of the stream is then the staging.
 * Connections stay open between requests. Called by upstream.c. Every wait has a limit, and a
 * cancelled stream ends it.
 */
#ifndef GW_EXCHANGE_H
#define GW_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "io/http_endpoint.h"
#include "metrics.h"
#include "stream.h"

#define GW_LINKS_IDLE_MAX 64

struct gw_link;

/* The connections with the upstream. */
struct gw_links {
	struct pst_http_endpoint *endpoint;
	unsigned timeout_ms; /* time without a byte after which the upstream counts as lost */
	struct gw_metrics *metrics;
	pthread_mutex_t lock; /* protects the idle connections */
	struct gw_link *idle[GW_LINKS_IDLE_MAX];
	unsigned idle_count;
};

struct gw_links *gw_links_open(struct pst_http_endpoint *endpoint, unsigned timeout_s,
			       struct gw_metrics *metrics);
/* Closes the idle connections. No exchange is in progress. NULL is allowed. */
void gw_links_close(struct gw_links *links);

/* A window of the client's memory, which stands for a body. The exchange calls its functions on its
 * own thread, before it publishes the reply; they may block. */
struct gw_window {
	bool reads; /* the window has the request's body; otherwise it gets the reply's body */
	uint64_t length;
	/* Moves bytes between the window and memory. Returns their number or a negative errno. */
	int64_t (*move)(void *owner, uint64_t at, char *bytes, size_t len);
	/* Called after the last byte of the request's body has moved, and before it leaves.
	 * Returns whether the body is right. */
	bool (*check)(void *owner);
	void *owner;
	/* Set by the exchange. */
	bool complete;	/* the whole body of the reply is in the window */
	uint64_t moved; /* its length */
	int error;	/* negative errno of the move that failed, or 0 */
};

/* A request to the upstream. */
struct gw_exchange_request {
	const char *head; /* with the empty line */
	size_t head_len;
	bool no_body;		  /* the reply has no body, as after HEAD */
	struct gw_window *window; /* NULL: both bodies are in the stream */
};

/* Runs an exchange to its end. */
void gw_exchange(struct gw_links *links, struct gw_stream *stream,
		 const struct gw_exchange_request *request);

#endif
