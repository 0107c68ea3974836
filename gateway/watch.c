/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the watch over slow connections, see watch.h. */
#include "watch.h"

#include <netinet/in.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/thread.h"

#define PHASES 4
/* State of a connection whose client has closed its half: TCP_CLOSE_WAIT in netinet/tcp.h. That
 * header cannot be included, because its struct tcp_info is shorter than the one in linux/tcp.h. */
#define STATE_CLOSE_WAIT 8
#define SETTLED_LAST UINT64_MAX
/* Maximum number of ms by which CLOCK_MONOTONIC_COARSE lags behind the clock with which
 * libmicrohttpd measures the same time limit: a tick of the kernel. */
#define CLOCK_LAG_MS 10

struct gw_watched {
	struct gw_watched *next, **prev;
	int fd;
	/* Time in ms at which the connection's phase (watch.h) began, times PHASES, plus the phase.
	 * One atomic member has both, so that the threads of the HTTP server need no lock. */
	_Atomic uint64_t state;
	atomic_bool ended;
	/* number of bytes received that belong to requests that have ended, or SETTLED_LAST; used
	 * by the connection's thread only */
	uint64_t settled;
	/* Only the watching thread uses the members that follow. */
	uint64_t seen; /* value of `state` when the current measuring period began */
	uint64_t since_ms; /* start of the current measuring period */
	/* number of bytes that the connection had moved when this period began */
	uint64_t moved;
};

struct gw_watch {
	pthread_t thread;
	pthread_mutex_t lock; /* protects all that follows */
	pthread_cond_t wake;
	bool stop;
	unsigned head_ms, window_ms, rate_min;
	struct gw_watched *first;
};

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Returns the kernel's counters of a connection. On an error, all of them are 0. */
static struct tcp_info counters_of(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		memset(&info, 0, sizeof(info));
	return info;
}

/* Returns how many bytes the connection has moved: those that the client has acknowledged, and
 * those that were received from the client. */
static uint64_t moved(int fd)
{
	const struct tcp_info info = counters_of(fd);

	return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

/* Returns the time of the connection's phase HEAD in ms, or 0 in another phase. */
static uint64_t head_time_ms(const struct gw_watched *w, uint64_t now)
{
	uint64_t state = atomic_load(&w->state), start = state / PHASES;

	return state % PHASES == GW_PHASE_HEAD && now > start ? now - start : 0;
}

/* Returns whether a connection is too slow. If it is not, and its measuring period of `window_ms`
 * is over, begins the next period. */
static bool is_slow(const struct gw_watch *watch, struct gw_watched *w, uint64_t now)
{
	uint64_t state = atomic_load(&w->state), bytes;
	enum gw_phase phase = (enum gw_phase)(state % PHASES);

	if (atomic_load(&w->ended) || phase == GW_PHASE_WORK)
		return false;
	if (phase == GW_PHASE_HEAD)
		return head_time_ms(w, now) >= watch->head_ms;
	if (state == w->seen && now - w->since_ms < watch->window_ms)
		return false;
	bytes = moved(w->fd);
	if (state == w->seen &&
	    bytes - w->moved < (uint64_t)watch->rate_min * (watch->window_ms / 1000))
		return true;
	w->seen = state;
	w->moved = bytes;
	w->since_ms = now;
	return false;
}

/* Returns whether the client has closed its half of the connection in the middle of a request. */
static bool is_cut(const struct gw_watched *w)
{
	enum gw_phase phase = (enum gw_phase)(atomic_load(&w->state) % PHASES);

	return (phase == GW_PHASE_HEAD || phase == GW_PHASE_BODY) &&
	       counters_of(w->fd).tcpi_state == STATE_CLOSE_WAIT;
}

/* Ends a connection if it is too slow. libmicrohttpd (0.9.75 to 1.0.1) does not notice the end of a
 * stream that arrives together with the bytes before it, because it takes a short read for the last
 * one. It would keep the connection for the time of a slow one. So if the client has closed its
 * half, lets epoll report the connection again. */
static void connection_check(const struct gw_watch *watch, struct gw_watched *w, uint64_t now)
{
	if (is_slow(watch, w, now)) {
		/* This must happen before the connection's thread can notice the end. */
		atomic_store(&w->ended, true);
		shutdown(w->fd, SHUT_RDWR);
	} else if (is_cut(w)) {
		shutdown(w->fd, SHUT_RD);
	}
}

static void *watch_run(void *arg)
{
	struct gw_watch *watch = arg;

	pthread_mutex_lock(&watch->lock);
	while (!watch->stop) {
		struct timespec until;
		uint64_t now = now_ms();

		for (struct gw_watched *w = watch->first; w; w = w->next)
			connection_check(watch, w, now);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
	}
	pthread_mutex_unlock(&watch->lock);
	return NULL;
}

struct gw_watch *gw_watch_start(unsigned head_s, unsigned window_s, unsigned rate_min)
{
	struct gw_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return NULL;
	watch->head_ms = head_s * 1000;
	watch->window_ms = window_s * 1000;
	watch->rate_min = rate_min;
	pthread_mutex_init(&watch->lock, NULL);
	pst_cond_init(&watch->wake);
	if (pst_thread_start(&watch->thread, watch_run, watch)) {
		free(watch);
		return NULL;
	}
	return watch;
}

void gw_watch_stop(struct gw_watch *watch)
{
	if (!watch)
		return;
	pthread_mutex_lock(&watch->lock);
	watch->stop = true;
	pthread_cond_signal(&watch->wake);
	pthread_mutex_unlock(&watch->lock);
	pthread_join(watch->thread, NULL);
	pthread_cond_destroy(&watch->wake);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

struct gw_watched *gw_watch_add(struct gw_watch *watch, int fd)
{
	struct gw_watched *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->fd = fd;
	gw_watch_phase(w, GW_PHASE_HEAD);
	pthread_mutex_lock(&watch->lock);
	w->next = watch->first;
	w->prev = &watch->first;
	if (w->next)
		w->next->prev = &w->next;
	watch->first = w;
	pthread_mutex_unlock(&watch->lock);
	return w;
}

void gw_watch_phase(struct gw_watched *watched, enum gw_phase phase)
{
	if (watched)
		atomic_store(&watched->state, now_ms() * PHASES + phase);
}

bool gw_watch_is_over(const struct gw_watch *watch, const struct gw_watched *watched)
{
	return watched && (atomic_load(&watched->ended) ||
			   head_time_ms(watched, now_ms()) + CLOCK_LAG_MS >= watch->head_ms);
}

void gw_watch_settle(struct gw_watched *watched, bool last)
{
	if (watched && watched->settled != SETTLED_LAST)
		watched->settled =
			last ? SETTLED_LAST : counters_of(watched->fd).tcpi_bytes_received;
}

uint64_t gw_watch_received(const struct gw_watched *watched)
{
	uint64_t received;

	if (!watched || watched->settled == SETTLED_LAST)
		return 0;
	received = counters_of(watched->fd).tcpi_bytes_received;
	return received > watched->settled ? received - watched->settled : 0;
}

void gw_watch_remove(struct gw_watch *watch, struct gw_watched *watched)
{
	if (!watched)
		return;
	pthread_mutex_lock(&watch->lock);
	*watched->prev = watched->next;
	if (watched->next)
		watched->next->prev = watched->prev;
	pthread_mutex_unlock(&watch->lock);
	free(watched);
}
