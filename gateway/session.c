/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the table of sessions, see session.h. */
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/digits.h"
#include "core/base/clock.h"

/* The memory of the sessions of one access key. */
struct gw_share {
	struct gw_share *next;
	char *owner;
	uint64_t bytes;
	uint64_t wants_ms; /* time until which the access key counts as wanting memory */
};

struct gw_sessions {
	int timer;
	pthread_mutex_t lock; /* protects the members below */
	struct gw_share *shares;
	uint64_t bytes;			  /* of all shares */
	struct gw_session *first, **last; /* the oldest first */
	bool stopped;
};

static uint64_t now_ms(void)
{
	return pst_now_ns() / 1000000;
}

struct gw_sessions *gw_sessions_open(void)
{
	struct gw_sessions *sessions = calloc(1, sizeof(*sessions));

	if (!sessions)
		return NULL;
	sessions->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (sessions->timer < 0) {
		free(sessions);
		return NULL;
	}
	pthread_mutex_init(&sessions->lock, NULL);
	sessions->last = &sessions->first;
	return sessions;
}

int gw_sessions_fd(const struct gw_sessions *sessions)
{
	return sessions->timer;
}

struct gw_session *gw_session_make(const char *owner, const char *target)
{
	struct gw_session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->owner = strdup(owner);
	session->target = strdup(target);
	if (session->owner && session->target)
		return session;
	gw_session_free(session);
	return NULL;
}

void gw_session_free(struct gw_session *session)
{
	if (!session)
		return;
	penstock_object_forget(session->remote);
	if (session->table) {
		pthread_mutex_lock(&session->table->lock);
		session->share->bytes -= session->len;
		session->table->bytes -= session->len;
		pthread_mutex_unlock(&session->table->lock);
	}
	free(session->owner);
	free(session->target);
	free(session);
}

/* ---- memory ---- */

/* Finds or makes the share of an access key, and frees unused shares of others. Stores in *others
 * how many other access keys want memory. The caller holds the lock. */
static struct gw_share *share_find(struct gw_sessions *sessions, const char *owner, uint64_t now,
				   unsigned *others)
{
	struct gw_share **at = &sessions->shares, *own = NULL;

	*others = 0;
	while (*at) {
		struct gw_share *share = *at;

		if (!strcmp(share->owner, owner)) {
			own = share;
		} else if (share->wants_ms > now) {
			++*others;
		} else if (!share->bytes) {
			*at = share->next;
			free(share->owner);
			free(share);
			continue;
		}
		at = &share->next;
	}
	if (own)
		return own;
	own = calloc(1, sizeof(*own));
	if (own)
		own->owner = strdup(owner);
	if (!own || !own->owner) {
		free(own);
		return NULL;
	}
	own->next = sessions->shares;
	sessions->shares = own;
	return own;
}

int gw_sessions_reserve(struct gw_sessions *sessions, struct gw_session *session)
{
	const uint64_t now = now_ms(), len = session->len;
	struct gw_share *own;
	unsigned others;
	bool fair;
	int ret = 0;

	if (len > GW_SESSIONS_BYTES)
		return -EFBIG;
	pthread_mutex_lock(&sessions->lock);
	own = share_find(sessions, session->owner, now, &others);
	if (!own) {
		pthread_mutex_unlock(&sessions->lock);
		return -ENOMEM;
	}
	/* A transfer cannot be divided. So an access key without other sessions may have one
	 * transfer of up to half of the memory, even if its equal share is smaller. */
	fair = own->bytes ? own->bytes + len <= GW_SESSIONS_BYTES / (others + 1)
			  : len <= GW_SESSIONS_BYTES / 2;
	if ((others && !fair) || len > GW_SESSIONS_BYTES - sessions->bytes) {
		/* An access key that asks for more than its share does not limit the others. */
		if (fair)
			own->wants_ms = now + GW_SESSION_WANT_MS;
		ret = -EAGAIN;
	} else {
		own->wants_ms = 0;
		own->bytes += len;
		sessions->bytes += len;
		session->table = sessions;
		session->share = own;
	}
	pthread_mutex_unlock(&sessions->lock);
	return ret;
}

/* ---- the table ---- */

/* Sets the timer to the time at which the oldest session ends. The caller holds the lock. */
static void timer_set(struct gw_sessions *sessions)
{
	struct itimerspec when = {.it_value = {0, 0}};

	if (sessions->first) {
		when.it_value.tv_sec = (time_t)(sessions->first->due_ms / 1000);
		when.it_value.tv_nsec = (long)(sessions->first->due_ms % 1000) * 1000000;
	}
	timerfd_settime(sessions->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Takes a session off the list. The caller holds the lock. */
static struct gw_session *unlink_at(struct gw_sessions *sessions, struct gw_session **at)
{
	struct gw_session *session = *at;

	*at = session->next;
	if (!*at)
		sessions->last = at;
	session->next = NULL;
	return session;
}

int gw_sessions_add(struct gw_sessions *sessions, struct gw_session *session,
		    char id[GW_SESSION_ID])
{
	unsigned char random[GW_SESSION_ID / 2];
	unsigned all = 0, own = 0;
	int ret = 0;

	while (getrandom(random, sizeof(random), 0) != sizeof(random))
		;
	pst_hex(random, sizeof(random), session->id);
	memcpy(id, session->id, GW_SESSION_ID);
	pthread_mutex_lock(&sessions->lock);
	for (const struct gw_session *other = sessions->first; other; other = other->next) {
		all++;
		own += !strcmp(other->owner, session->owner);
	}
	if (sessions->stopped || all >= GW_SESSIONS_MAX || own >= GW_SESSIONS_OWNER) {
		ret = -EAGAIN;
	} else {
		session->due_ms = now_ms() + GW_SESSION_MS;
		*sessions->last = session;
		sessions->last = &session->next;
		if (!all)
			timer_set(sessions);
	}
	pthread_mutex_unlock(&sessions->lock);
	return ret;
}

struct gw_session *gw_sessions_take(struct gw_sessions *sessions, const char *id, const char *owner)
{
	struct gw_session *found = NULL;

	pthread_mutex_lock(&sessions->lock);
	for (struct gw_session **at = &sessions->first; *at; at = &(*at)->next)
		if (!strcmp((*at)->id, id) && !strcmp((*at)->owner, owner)) {
			found = unlink_at(sessions, at);
			break;
		}
	timer_set(sessions);
	pthread_mutex_unlock(&sessions->lock);
	return found;
}

/* Takes the oldest session off the list if its time is over, or in any case if `any` is true.
 * Returns NULL if there is none. */
static struct gw_session *oldest_take(struct gw_sessions *sessions, bool any)
{
	struct gw_session *session = NULL;

	pthread_mutex_lock(&sessions->lock);
	if (sessions->first && (any || sessions->first->due_ms <= now_ms()))
		session = unlink_at(sessions, &sessions->first);
	timer_set(sessions);
	pthread_mutex_unlock(&sessions->lock);
	return session;
}

static void oldest_end(struct gw_sessions *sessions, bool any)
{
	struct gw_session *session;

	while ((session = oldest_take(sessions, any)))
		gw_session_free(session);
}

void gw_sessions_expire(struct gw_sessions *sessions)
{
	uint64_t times;

	/* This read resets the descriptor. If the timer has been set again meanwhile, the read
	 * fails with EAGAIN, which is no error. */
	if (read(sessions->timer, &times, sizeof(times)) < 0)
		times = 0;
	oldest_end(sessions, false);
}

void gw_sessions_stop(struct gw_sessions *sessions)
{
	pthread_mutex_lock(&sessions->lock);
	sessions->stopped = true;
	pthread_mutex_unlock(&sessions->lock);
	oldest_end(sessions, true);
}

void gw_sessions_close(struct gw_sessions *sessions)
{
	if (!sessions)
		return;
	gw_sessions_stop(sessions);
	while (sessions->shares) {
		struct gw_share *next = sessions->shares->next;

		free(sessions->shares->owner);
		free(sessions->shares);
		sessions->shares = next;
	}
	close(sessions->timer);
	pthread_mutex_destroy(&sessions->lock);
	free(sessions);
}
