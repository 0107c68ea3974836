/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the watch over slow connections, see watch.h. */
#include "watch.h"

#include <netinet/in.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "common/thread.h"

struct gw_watched {
	struct gw_watched *next, **prev;
	int fd;
	enum gw_phase phase;
	time_t since;	/* start of the phase or of its current window */
	uint64_t moved; /* bytes that the connection had moved then */
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

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Returns the number of bytes that the client has sent and acknowledged. */
static uint64_t moved(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

/* Returns whether a connection is too slow; begins its next window if it is not. */
static bool is_slow(const struct gw_watch *watch, struct gw_watched *w, time_t now)
{
	uint64_t bytes;

	if (w->ended || w->phase == GW_PHASE_WORK)
		return false;
	if (w->phase == GW_PHASE_HEAD)
		return now - w->since >= (time_t)watch->head_s;
	if (now - w->since < (time_t)watch->window_s)
		return false;
	bytes = moved(w->fd);
	if (bytes - w->moved < (uint64_t)watch->rate_min * watch->window_s)
		return true;
	w->moved = bytes;
	w->since = now;
	return false;
}

static void *watch_run(void *arg)
{
	struct gw_watch *watch = arg;

	pthread_mutex_lock(&watch->lock);
	while (!watch->stop) {
		struct timespec until;
		time_t now = now_s();

		for (struct gw_watched *w = watch->first; w; w = w->next)
			if (is_slow(watch, w, now)) {
				w->ended = true;
				shutdown(w->fd, SHUT_RDWR);
			}
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
	pthread_condattr_t attr;

	if (!watch)
		return NULL;
	watch->head_s = head_s;
	watch->window_s = window_s;
	watch->rate_min = rate_min;
	pthread_mutex_init(&watch->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&watch->wake, &attr);
	pthread_condattr_destroy(&attr);
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
	w->since = now_s();
	pthread_mutex_lock(&watch->lock);
	w->next = watch->first;
	w->prev = &watch->first;
	if (w->next)
		w->next->prev = &w->next;
	watch->first = w;
	pthread_mutex_unlock(&watch->lock);
	return w;
}

void gw_watch_phase(struct gw_watch *watch, struct gw_watched *watched, enum gw_phase phase)
{
	if (!watched)
		return;
	pthread_mutex_lock(&watch->lock);
	watched->phase = phase;
	watched->since = now_s();
	/* The first window counts from here, so what was moved before does not matter. */
	watched->moved = phase == GW_PHASE_BODY || phase == GW_PHASE_REPLY ? moved(watched->fd) : 0;
	pthread_mutex_unlock(&watch->lock);
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
