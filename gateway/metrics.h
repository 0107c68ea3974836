/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a gateway in the text format of Prometheus. Called by front.c for each request. No
 * label may contain what a client has sent.
 */
#ifndef GW_METRICS_H
#define GW_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

#define GW_OPS_MAX 80 /* maximum number of operations */
#define GW_LATENCY_BUCKETS 12
#define GW_TRANSPORTS_MAX 8 /* maximum number of transports of RDMA */

/* Why a request with an RDMA token was answered by HTTP. */
enum gw_decline {
	GW_DECLINE_TRANSPORT,	 /* the gateway does not serve the token's transport */
	GW_DECLINE_ENCRYPTION,	 /* the transport does not encrypt, but HTTP does */
	GW_DECLINE_ADDRESS,	 /* the token names a host from which the request did not come */
	GW_DECLINE_NO_GPU,	 /* the window is in GPU memory that the gateway cannot access */
	GW_DECLINE_SHORT_WINDOW, /* the window is shorter than the object */
	GW_DECLINE_BUSY,	 /* as many windows as permitted are in use */
	GW_DECLINE_UNREACHABLE,	 /* there is no connection to the client */
	GW_DECLINE_FILE,	 /* the window takes a file that the client may not get */
	GW_DECLINE_MESSAGE,	 /* a message of hipobj-rc-v2 is malformed */
	GW_DECLINE_TOO_LONG,	 /* the transfer is longer than a session permits */
	GW_DECLINE_OTHER,	 /* for example a HEAD, or a reply without a length */
	GW_DECLINE_COUNT
};

/* The files that a gateway reads or opens again on SIGHUP. */
enum gw_reload { GW_RELOAD_KEYS, GW_RELOAD_CERTIFICATE, GW_RELOAD_LOG, GW_RELOAD_COUNT };

/* The counters of one gateway. The owner sets all members to 0 at the start. */
struct gw_metrics {
	/* number of requests by operation and by the first digit of the HTTP status */
	atomic_ullong requests[GW_OPS_MAX][6];
	atomic_ullong bytes_in, bytes_out; /* bodies of requests and of replies */
	atomic_ullong aborted;		   /* requests whose reply was not sent to its end */
	/* requests whose head broke a limit, was malformed or was incomplete */
	atomic_ullong refused_head;
	atomic_ullong slow; /* connections that were ended because the client was too slow */
	atomic_ullong refused_auth;	   /* requests with a wrong or missing signature */
	/* requests with an RDMA token that the gateway could not serve, so that the bytes go by
	 * HTTP, by reason */
	atomic_ullong rdma_declined[GW_DECLINE_COUNT];
	/* sessions of hipobj-rc-v2 that were refused because other sessions have reserved the
	 * memory */
	atomic_ullong session_refused;
	/* requests with an RDMA token whose transfer failed */
	atomic_ullong rdma_failed;
	/* names of the transports of RDMA, set before requests are served, and bytes by transport
	 * and direction (in, out) */
	const char *rdma_names[GW_TRANSPORTS_MAX];
	atomic_ullong rdma_bytes[GW_TRANSPORTS_MAX][2];
	/* the upstream: bytes by direction (out, in), replies by the first digit of the status,
	 * failures by reason (refused, timeout, lost) */
	atomic_ullong upstream_bytes[2], upstream_replies[6], upstream_failed[3];
	/* bytes of memory in use at this time for bodies on their way to or from the upstream */
	atomic_ullong buffer_bytes;
	/* requests that were refused because `buffer_bytes` had reached its limit */
	atomic_ullong buffer_refused;
	atomic_ullong latency[GW_LATENCY_BUCKETS + 1], latency_us;
	/* number of failed reloads, and Unix time in seconds of the last successful one or of the
	 * start; the time is 0 if the gateway has no such file */
	atomic_ullong reload_failed[GW_RELOAD_COUNT], reload_s[GW_RELOAD_COUNT];
	/* Unix time in seconds at which the certificate in use expires; 0 without one */
	atomic_ullong certificate_expires_s;
};

/* Counts a reload, or the first successful reading at the start. */
void gw_metrics_reload(struct gw_metrics *metrics, enum gw_reload what, bool ok);

/* Counts a request. `op` is the operation's number. */
void gw_metrics_count(struct gw_metrics *metrics, unsigned op, unsigned status, uint64_t in,
		      uint64_t out, uint64_t duration_ns);
/* Writes all counters except those that gw_metrics_write_upstream writes. `op_name` returns the
 * name of an operation. */
void gw_metrics_write(const struct gw_metrics *metrics, unsigned op_count,
		      const char *(*op_name)(unsigned op), struct pst_text *out);
/* Appends the metrics of connections and of requests in flight, which cover all HTTP servers of the
 * gateway. */
void gw_metrics_write_connections(unsigned connections, unsigned long long refused,
				  unsigned requests, struct pst_text *out);
/* Writes the counters that only a gateway with an upstream needs. */
void gw_metrics_write_upstream(const struct gw_metrics *metrics, struct pst_text *out);

#endif
