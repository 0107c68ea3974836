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
	const char *root;	   /* folder with the objects; or */
	const char *upstream;	   /* URL of the server that has them */
	const char *listen, *keys; /* required */
	const char *metrics;	   /* ADDRESS:PORT of the metrics; NULL for none */
	const char *region;	   /* NULL accepts any */
	const char *domain;	   /* NULL: path-style only */
	const char *cert, *key;	   /* files in PEM form; NULL without TLS */
	const char *access_log;	   /* file; "-" is standard output; NULL for none */
	const char *rdma;	   /* transports of RDMA; "none"; NULL: all */
	const char *device;	   /* GPU through which windows of GPUs are accessed; NULL: none */
	bool no_md5;
	unsigned threads, connections_max, connections_per_address_max;
	unsigned timeout_s, rate_min, drain_s;
	uint64_t body_max;
	uint64_t buffer_memory; /* of all requests to the upstream together */
	/* Called when the gateway accepts connections, with its port. */
	void (*ready)(unsigned port, unsigned metrics_port);
	/* Called with messages to the operator. */
	void (*notice)(const char *text);
};

/* Runs until a signal ends it. Returns 0, or a negative errno with a text in `why`. */
int gw_serve(const struct gw_options *options, char *why, size_t why_len);

#endif
