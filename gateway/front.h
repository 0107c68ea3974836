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

/* The owner of both HTTP servers. */
struct gw_front {
	struct gw_server server;
	struct gw_http *_Atomic http; /* the server of S3, for the metrics */
	atomic_bool draining;
};

extern const struct gw_http_calls gw_front_calls, gw_metrics_calls;

#endif
