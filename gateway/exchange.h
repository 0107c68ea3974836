/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to the upstream and its reply, on a thread that may block: connects, sends the head
 * and the body out of a stream, and puts the reply into the stream. Connections stay open between
 * requests. Called by upstream.c. Every wait has a limit, and a cancelled stream ends it.
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

/* Runs an exchange to its end. `head` is the request's head with the empty line. `no_body` says
 * that the reply has no body, as after HEAD. */
void gw_exchange(struct gw_links *links, struct gw_stream *stream, const char *head,
		 size_t head_len, bool no_body);

#endif
