/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapts the number of requests in flight: see http_limit.h. The functions neither wait nor
 * allocate, and read no clock.
 */
#include "io/http_limit.h"

/* Length of a window, in which the speed is measured. Shorter windows measure noise: a request of 4
 * MiB takes 40 ms at 100 MB/s. If the server is fast, a window ends sooner: when the number of
 * ended requests is WINDOW_ROUNDS times the limit of requests in flight. */
#define WINDOW_NS 200000000u
#define WINDOW_MIN_NS 20000000u
#define WINDOW_ROUNDS 8u
/* For this time after the answer "slow down", the limit does not rise, as AWS recommends for S3's
 * answer 503. */
#define CALM_NS 2000000000u
/* Minimum difference between the speeds of two windows, in percent, that counts as better or
 * worse. */
#define BETTER 3

void pst_http_limit_init(struct pst_http_limit *limit)
{
	*limit = (struct pst_http_limit){.now = PST_HTTP_INFLIGHT_FIRST};
}

void pst_http_limit_wait(struct pst_http_limit *limit)
{
	limit->waited = true;
}

static void window_begin(struct pst_http_limit *limit, uint64_t now_ns)
{
	limit->since_ns = now_ns;
	limit->bytes = 0;
	limit->ended = 0;
	limit->waited = false;
}

static void limit_step(struct pst_http_limit *limit)
{
	unsigned step = limit->now / 4 ? limit->now / 4 : 1;

	/* At the lowest and at the highest limit, only one direction is possible. */
	if (limit->now == PST_HTTP_INFLIGHT_MIN)
		limit->down = false;
	else if (limit->now == PST_HTTP_INFLIGHT_MAX)
		limit->down = true;
	if (!limit->down)
		limit->now = limit->now + step < PST_HTTP_INFLIGHT_MAX ? limit->now + step
								       : PST_HTTP_INFLIGHT_MAX;
	else
		limit->now = limit->now > PST_HTTP_INFLIGHT_MIN + step ? limit->now - step
								       : PST_HTTP_INFLIGHT_MIN;
}

void pst_http_limit_end(struct pst_http_limit *limit, uint64_t bytes, uint64_t now_ns)
{
	uint64_t ns = now_ns - limit->since_ns, rate;

	if (!limit->since_ns) {
		window_begin(limit, now_ns);
		return;
	}
	limit->bytes += bytes;
	limit->ended++;
	/* A window must be long enough for all requests that were in flight at its start to end. */
	if (limit->ended < limit->now || ns < WINDOW_MIN_NS)
		return;
	if (ns < WINDOW_NS && limit->ended < WINDOW_ROUNDS * limit->now)
		return;
	rate = (uint64_t)((double)limit->bytes * 1e9 / (double)ns);
	if (limit->waited && now_ns >= limit->calm_ns) {
		/* A step up must raise the speed, otherwise the direction changes. A step down need
		 * not raise it, but must not lower it: if fewer requests in flight give the same
		 * speed, fewer are better. */
		bool better = rate > limit->rate + limit->rate / 100 * BETTER;
		bool worse = rate + rate / 100 * BETTER < limit->rate;

		if (limit->rate && (limit->down ? worse : !better))
			limit->down = !limit->down;
		limit_step(limit);
	}
	limit->rate = rate;
	window_begin(limit, now_ns);
}

void pst_http_limit_slow_down(struct pst_http_limit *limit, uint64_t now_ns)
{
	/* Many requests may get the answer "slow down" at the same moment; together they halve the
	 * limit only once. */
	if (now_ns < limit->calm_ns && limit->calm_ns - now_ns > CALM_NS / 2)
		return;
	limit->now =
		limit->now / 2 > PST_HTTP_INFLIGHT_MIN ? limit->now / 2 : PST_HTTP_INFLIGHT_MIN;
	limit->calm_ns = now_ns + CALM_NS;
	limit->down = false;
	limit->rate = 0;
	window_begin(limit, now_ns);
}
