/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the watch over slow connections, see watch.h. */
#include "watch.h"

#include <netinet/in.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/thread.h"

#define PHASES 4
/* State of a connection whose client has closed its half: TCP_CLOSE_WAIT in netinet/tcp.h. That
 * header cannot be included, because its struct tcp_info is shorter than the one in linux/tcp.h. */
#define STATE_CLOSE_WAIT 8

struct gw_watched {
	struct gw_watched *next, **prev;
	int fd;
	/* Time in seconds at which the connection's phase (watch.h) began, times PHASES, plus the
	 * phase. One atomic member has both, so that the threads of the HTTP server need no
	 * lock. */
	_Atomic uint64_t state;
	/* Only the watching thread uses the members that follow. */
	uint64_t seen; /* value of `state` when the current measuring period began */
	time_t since;  /* start of the current measuring period */
	/* number of bytes that the connection had moved when this period began */
	uint64_t moved;
	bool ended;
};

struct gw_watch {
	pthread_t thread;
	pthread_mutex_t lock; /* protects all that follows */
	pthread_cond_t wake;
	bool stop;
	unsigned head_s, window_s, rate_min;
	struct gw_watched *first;
};

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec;
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

/* Returns whether a connection is too slow. If it is not, and its measuring period of `window_s`
 * seconds is over, begins the next period. */
static bool is_slow(const struct gw_watch *watch, struct gw_watched *w, time_t now)
{
	uint64_t state = atomic_load(&w->state), bytes;
	enum gw_phase phase = (enum gw_phase)(state % PHASES);

	if (w->ended || phase == GW_PHASE_WORK)
		return false;
	if (phase == GW_PHASE_HEAD)
		return now - (time_t)(state / PHASES) >= (time_t)watch->head_s;
	if (state == w->seen && now - w->since < (time_t)watch->window_s)
		return false;
	bytes = moved(w->fd);
	if (state == w->seen && bytes - w->moved < (uint64_t)watch->rate_min * watch->window_s)
		return true;
	w->seen = state;
	w->moved = bytes;
	w->since = now;
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
static void connection_check(const struct gw_watch *watch, struct gw_watched *w, time_t now)
{
	if (is_slow(watch, w, now)) {
		w->ended = true;
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
		time_t now = now_s();

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
	watch->head_s = head_s;
	watch->window_s = window_s;
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
		atomic_store(&watched->state, (uint64_t)now_s() * PHASES + phase);
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
