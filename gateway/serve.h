/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a gateway: starts it, reloads keys and certificates on SIGHUP, and drains it on SIGTERM or
 * SIGINT. Called by the command `penstock serve`.
 */
#ifndef GW_SERVE_H
#define GW_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_options {
	const char *root; /* folder with the objects; NULL if `upstream` is set */
	/* URL of the server that has the objects; NULL if `root` is set */
	const char *upstream;
	/* address and port to listen on; file of access keys; both required */
	const char *listen, *keys;
	const char *metrics; /* ADDRESS:PORT of the metrics; NULL for none */
	const char *region;  /* region that signatures must name; NULL accepts any */
	/* suffix of hosts that name a bucket (BUCKET.domain); NULL if only the path names it */
	const char *domain;
	const char *cert, *key; /* files in PEM form; NULL without TLS */
	const char *access_log; /* file; "-" is standard output; NULL for none */
	/* transports of RDMA, separated by commas; "none"; NULL for all */
	const char *rdma;
	const char *rdma_networks; /* see struct gw_rdma_options */
	/* GPU through which the windows in memory of GPUs are accessed; NULL for none */
	const char *device;
	bool no_md5;
	unsigned threads, connections_max, connections_per_address_max;
	unsigned timeout_s, rate_min, drain_s;
	uint64_t body_max;
	/* maximum memory in bytes for the ring buffers of all requests to the upstream together */
	uint64_t buffer_memory;
	/* Called when the gateway accepts connections, with the port for S3 and the port of the
	 * metrics (0 without metrics). */
	void (*ready)(unsigned port, unsigned metrics_port);
	/* Called with messages to the operator. */
	void (*notice)(const char *text);
};

/* Runs the gateway until a signal ends it. Returns 0; on an error, returns a negative errno and
 * writes a message to `why`. */
int gw_serve(const struct gw_options *options, char *why, size_t why_len);

#endif
