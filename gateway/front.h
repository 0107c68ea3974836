/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that handle the requests of both HTTP servers: one server for S3, and one for
 * metrics and health on a second port. serve.c passes these functions to the servers when it starts
 * them.
 */
#ifndef GW_FRONT_H
#define GW_FRONT_H

#include <stdatomic.h>

#include "http.h"
#include "server.h"

/* State that the S3 server and the server for metrics and health share. */
struct gw_front {
	struct gw_server server;
	/* the S3 servers, whose connections and requests the metrics report */
	struct gw_http_shared http;
	atomic_bool draining;
};

extern const struct gw_http_calls gw_front_calls, gw_metrics_calls;

#endif
