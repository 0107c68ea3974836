/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits the number of requests in flight to an endpoint, and adapts the limit to the measured
 * speed. The functions are pure: http.c passes the time, under its lock.
 *
 * The limit changes in steps, up or down. All steps go in one direction until the bytes per second
 * show that this direction is wrong. An answer "slow down" halves the limit at once.
 */
#ifndef PST_IO_HTTP_LIMIT_H
#define PST_IO_HTTP_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define PST_HTTP_INFLIGHT_MIN 2
#define PST_HTTP_INFLIGHT_FIRST 16
/* highest limit for one endpoint, and limit for all endpoints together */
#define PST_HTTP_INFLIGHT_MAX 256

struct pst_http_limit {
	unsigned now;	   /* number of requests that may be in flight */
	bool down;	   /* whether the next step lowers the limit */
	bool waited;	   /* a request waited for the limit in this measuring window */
	unsigned ended;	   /* requests that ended in this measuring window */
	uint64_t bytes;	   /* bytes of the requests that ended in this window */
	uint64_t since_ns; /* start of the window */
	uint64_t rate;	   /* bytes per second of the last window; 0 if unknown */
	uint64_t calm_ns;  /* time before which the limit must not rise */
};

void pst_http_limit_init(struct pst_http_limit *limit);
/* Records that a request waits because the limit is reached. Only then can a higher limit help. */
void pst_http_limit_wait(struct pst_http_limit *limit);
/* Records that a request has ended, and has moved `bytes` bytes. May change the limit. */
void pst_http_limit_end(struct pst_http_limit *limit, uint64_t bytes, uint64_t now_ns);
/* Records that the server asked for fewer requests, and halves the limit. */
void pst_http_limit_slow_down(struct pst_http_limit *limit, uint64_t now_ns);

#endif
