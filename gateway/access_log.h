/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The access log: a JSON object for each request, on a line of its own. Called by serve.c and
 * front.c. It must never contain a secret, a signature or a session token. So a line has no header
 * except User-Agent, and only those parameters of the query that access_log.c lists.
 */
#ifndef GW_ACCESS_LOG_H
#define GW_ACCESS_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "request.h"

struct gw_access_log;

/* Opens a log; "-" is standard output. On an error, returns NULL and writes a message to `why`. */
struct gw_access_log *gw_access_log_open(const char *path, char *why, size_t why_len);
/* Opens the log file again by its name, after another program such as logrotate has renamed it.
 * Returns 0, or -errno if the file cannot be opened; the log then stays in the old file. */
int gw_access_log_reopen(struct gw_access_log *log);
/* Writes the line of one request. http->user is its struct gw_request, or NULL if the server itself
 * has refused it. `op` is the name of its operation, and `bytes_out` the number of bytes of the
 * reply's body that were sent by HTTP. If `log` is NULL, does nothing. */
void gw_access_log_put(struct gw_access_log *log, const struct gw_http_request *http,
		       const char *op, uint64_t bytes_out, uint64_t duration_ns, bool complete);
void gw_access_log_close(struct gw_access_log *log);

#endif
