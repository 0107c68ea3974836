/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the ring buffer between a client and the upstream, see stream.h. */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Number of bytes of the ring that must be free, or filled, before a suspended connection is
 * resumed. With a smaller number, the connection's thread would be woken for each piece. */
#define STEP (GW_STREAM_RING / 4)

struct gw_stream *gw_stream_open(uint64_t want, void (*freed)(void *owner), void *owner)
{
	struct gw_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ring = malloc(GW_STREAM_RING);
	if (!s->ring) {
		free(s);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	s->holders = 1;
	s->want = want;
	s->fd = -1;
	s->freed = freed;
	s->owner = owner;
	return s;
}

struct gw_stream *gw_stream_hold(struct gw_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->holders++;
	pthread_mutex_unlock(&s->lock);
	return s;
}

void gw_stream_discard(struct gw_stream *s)
{
	if (!s)
		return;
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->lock);
	free(s->headers.at);
	free(s->ring);
	free(s);
}

void gw_stream_release(struct gw_stream *s)
{
	void (*freed)(void *owner);
	void *owner;
	bool last;

	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	last = --s->holders == 0;
	pthread_mutex_unlock(&s->lock);
	if (!last)
		return;
	freed = s->freed;
	owner = s->owner;
	/* Before the memory is freed, freed() lets the owner take the stream off its list. So no
	 * other thread can find the stream. */
	freed(owner);
	gw_stream_discard(s);
}

/* ---- the connection; all functions run on its thread ---- */

/* Suspends the connection. The caller holds the lock, so that the exchange cannot resume the
 * connection before it is suspended. */
static void park(struct gw_stream *s)
{
	s->parked = true;
	s->suspend(s->connection);
}

static void unpark(struct gw_stream *s)
{
	if (s->parked)
		s->resume(s->connection);
	s->parked = false;
}

void gw_stream_attach(struct gw_stream *s, void *connection, void (*suspend)(void *),
		      void (*resume)(void *))
{
	pthread_mutex_lock(&s->lock);
	s->connection = connection;
	s->suspend = suspend;
	s->resume = resume;
	pthread_mutex_unlock(&s->lock);
}

/* The caller holds the lock. */
static size_t room_of(const struct gw_stream *s)
{
	return s->discards || s->cancelled ? SIZE_MAX : GW_STREAM_RING - s->len;
}

size_t gw_stream_room_now(struct gw_stream *s)
{
	size_t room;

	pthread_mutex_lock(&s->lock);
	room = room_of(s);
	pthread_mutex_unlock(&s->lock);
	return room;
}

size_t gw_stream_room(struct gw_stream *s)
{
	size_t room;

	pthread_mutex_lock(&s->lock);
	room = room_of(s);
	if (!room)
		park(s);
	pthread_mutex_unlock(&s->lock);
	return room;
}

void gw_stream_put(struct gw_stream *s, const char *bytes, size_t len)
{
	pthread_mutex_lock(&s->lock);
	if (!s->discards && !s->cancelled && len <= GW_STREAM_RING - s->len) {
		size_t to = (s->at + s->len) % GW_STREAM_RING;
		size_t first = len < GW_STREAM_RING - to ? len : GW_STREAM_RING - to;

		memcpy(s->ring + to, bytes, first);
		memcpy(s->ring, bytes + first, len - first);
		s->len += len;
		pthread_cond_signal(&s->wake);
	}
	pthread_mutex_unlock(&s->lock);
}

void gw_stream_check(struct gw_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->checked = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

bool gw_stream_discards(struct gw_stream *s)
{
	bool discards;

	pthread_mutex_lock(&s->lock);
	discards = s->discards;
	pthread_mutex_unlock(&s->lock);
	return discards;
}

bool gw_stream_replied(struct gw_stream *s)
{
	bool replied;

	pthread_mutex_lock(&s->lock);
	replied = s->replied;
	if (!replied)
		park(s);
	pthread_mutex_unlock(&s->lock);
	return replied;
}

ssize_t gw_stream_take(struct gw_stream *s, char *bytes, size_t len)
{
	ssize_t ret;

	pthread_mutex_lock(&s->lock);
	if (s->len) {
		size_t run = GW_STREAM_RING - s->at;

		run = run < s->len ? run : s->len;
		len = len < run ? len : run;
		memcpy(bytes, s->ring + s->at, len);
		s->at = (s->at + len) % GW_STREAM_RING;
		s->len -= len;
		if (GW_STREAM_RING - s->len >= STEP)
			pthread_cond_signal(&s->wake);
		ret = (ssize_t)len;
	} else if (s->end == GW_STREAM_MORE) {
		park(s);
		ret = 0;
	} else {
		ret = s->end == GW_STREAM_COMPLETE ? -ENODATA : -EPIPE;
	}
	pthread_mutex_unlock(&s->lock);
	return ret;
}

void gw_stream_cancel(struct gw_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->cancelled = true;
	if (s->fd >= 0)
		shutdown(s->fd, SHUT_RDWR);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

/* ---- the exchange ---- */

bool gw_stream_socket(struct gw_stream *s, int fd)
{
	bool cancelled;

	pthread_mutex_lock(&s->lock);
	s->fd = fd;
	cancelled = s->cancelled;
	pthread_mutex_unlock(&s->lock);
	return !cancelled;
}

ssize_t gw_stream_next(struct gw_stream *s, const char **bytes)
{
	ssize_t ret;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		uint64_t left = s->want - s->taken, most = s->checked || !left ? left : left - 1;
		size_t run = GW_STREAM_RING - s->at;

		run = run < s->len ? run : s->len;
		ret = (ssize_t)(run < most ? run : most);
		if (s->cancelled)
			ret = -ECANCELED;
		if (ret || (!left && s->checked))
			break;
		pthread_cond_wait(&s->wake, &s->lock);
	}
	*bytes = s->ring + s->at;
	pthread_mutex_unlock(&s->lock);
	return ret;
}

void gw_stream_sent(struct gw_stream *s, size_t len)
{
	pthread_mutex_lock(&s->lock);
	s->at = (s->at + len) % GW_STREAM_RING;
	s->len -= len;
	s->taken += len;
	if (GW_STREAM_RING - s->len >= STEP)
		unpark(s);
	pthread_mutex_unlock(&s->lock);
}

static void turn(struct gw_stream *s)
{
	if (!s->discards)
		s->at = s->len = 0;
	s->discards = true;
}

void gw_stream_turn(struct gw_stream *s)
{
	pthread_mutex_lock(&s->lock);
	turn(s);
	pthread_mutex_unlock(&s->lock);
}

void gw_stream_reply(struct gw_stream *s, enum gw_stream_failure failure)
{
	pthread_mutex_lock(&s->lock);
	turn(s);
	s->replied = true;
	s->failure = failure;
	if (failure)
		s->end = GW_STREAM_BROKEN;
	unpark(s);
	pthread_mutex_unlock(&s->lock);
}

ssize_t gw_stream_space(struct gw_stream *s, char **bytes)
{
	size_t to, run;
	ssize_t ret;

	pthread_mutex_lock(&s->lock);
	while (s->len == GW_STREAM_RING && !s->cancelled)
		pthread_cond_wait(&s->wake, &s->lock);
	to = (s->at + s->len) % GW_STREAM_RING;
	run = GW_STREAM_RING - to;
	if (run > GW_STREAM_RING - s->len)
		run = GW_STREAM_RING - s->len;
	*bytes = s->ring + to;
	ret = s->cancelled ? -ECANCELED : (ssize_t)run;
	pthread_mutex_unlock(&s->lock);
	return ret;
}

void gw_stream_filled(struct gw_stream *s, size_t len)
{
	pthread_mutex_lock(&s->lock);
	s->len += len;
	if (s->replied)
		unpark(s);
	pthread_mutex_unlock(&s->lock);
}

void gw_stream_finish(struct gw_stream *s, enum gw_stream_end end)
{
	pthread_mutex_lock(&s->lock);
	s->end = end;
	if (s->replied)
		unpark(s);
	pthread_mutex_unlock(&s->lock);
}
