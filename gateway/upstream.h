/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes requests through to another S3 server, the upstream: signs them with the upstream's keys
 * and returns its replies. Only requests that auth.c has accepted may reach the upstream. A body
 * with the encoding aws-chunked is decoded before it is passed on. Called by front.c. No secret may
 * appear in a message.
 */
#ifndef GW_UPSTREAM_H
#define GW_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keys.h"
#include "metrics.h"
#include "request.h"

struct gw_upstream;

struct gw_upstream_options {
	const char *url; /* http://HOST[:PORT] or https://HOST[:PORT] */
	/* maximum memory in bytes for the ring buffers of all requests together */
	uint64_t buffer_memory;
	unsigned timeout_s; /* time without a byte after which the upstream counts as lost */
	unsigned requests_max;
	struct gw_metrics *metrics;
};

/* Opens an upstream. Reads the default keys from the environment. On an error, returns NULL and
 * writes a message to `why`. */
struct gw_upstream *gw_upstream_open(const struct gw_upstream_options *options, char *why,
				     size_t why_len);
/* Returns the maximum number of requests whose bytes move by RDMA at a time. */
unsigned gw_upstream_windows_max(const struct gw_upstream *upstream);
/* Checks that the requests of each client can be signed for the upstream: there are default keys,
 * or the client's section of the key file has upstream keys. Otherwise returns false and writes a
 * message to `why`. */
bool gw_upstream_check_keys(const struct gw_upstream *upstream, const struct gw_keys *keys,
			    char *why, size_t why_len);
/* Cancels all requests and ends the threads. NULL is allowed. */
void gw_upstream_stop(struct gw_upstream *upstream);
/* Frees an upstream that has stopped and has no more requests. NULL is allowed. */
void gw_upstream_close(struct gw_upstream *upstream);

/* Prepares to pass a request through, when its head has arrived. On an error, fills the reply and
 * returns false. */
bool gw_upstream_begin(struct gw_request *req);
/* Called when the whole body has arrived: checks it, and then lets its last bytes go to the
 * upstream. On an error, fills the reply and returns false. */
bool gw_upstream_end(struct gw_request *req);
/* Fills the reply to the client with the upstream's reply, or with an error if there is none. */
void gw_upstream_answer(struct gw_request *req);
/* Cancels the request's exchange with the upstream if it is not complete, and releases its
 * memory. */
void gw_upstream_done(struct gw_request *req);

#endif
