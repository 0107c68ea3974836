/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to the upstream (the S3 server behind this gateway) and its reply, on a thread that
 * may block. An exchange connects, sends the head and the body from a gw_stream, and puts the reply
 * into the same gw_stream. In place of one of the two bodies, it can read or write a window of the
 * client's memory (rdma.h) through the memory of the stream. Connections stay open between
 * requests. Called by upstream.c. Every wait has a time limit, and ends when the stream is
 * cancelled.
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
/* Closes the idle connections. Must not be called during an exchange. NULL is allowed. */
void gw_links_close(struct gw_links *links);

/* A window is memory of the client that the gateway reads or writes by RDMA, in place of the HTTP
 * body of the request or of the reply. The exchange calls `move` and `check` on its own thread,
 * before it publishes the reply; they may block. */
struct gw_window {
	/* true: the window has the request's body; false: it receives the reply's body */
	bool reads;
	uint64_t length;
	/* Copies `len` bytes between the window's offset `at` and `bytes`. Returns their number or
	 * a negative errno. */
	int64_t (*move)(void *owner, uint64_t at, char *bytes, size_t len);
	/* Called when the last bytes of the request's body have been read from the window, and
	 * before they are sent. Returns whether the body's length and digests are right. */
	bool (*check)(void *owner);
	void *owner;
	/* The exchange sets the members that follow. */
	bool complete;	/* the whole body of the reply is in the window */
	uint64_t moved; /* number of bytes of the reply in the window */
	int error;	/* negative errno of the move that failed, or 0 */
};

/* A request to the upstream. */
struct gw_exchange_request {
	const char *head; /* request line and headers, with the empty line at their end */
	size_t head_len;
	bool no_body;		  /* the reply has no body, as after HEAD */
	struct gw_window *window; /* NULL: both bodies are in the stream */
};

/* Sends the request to the upstream and puts the reply into the stream. Returns when the exchange
 * has ended. */
void gw_exchange(struct gw_links *links, struct gw_stream *stream,
		 const struct gw_exchange_request *request);

#endif
