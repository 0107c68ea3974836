/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of protocol hipobj-rc-v2. A client's message PREPARE opens a session. The client's
 * message READY takes the session off the table, and the transfer begins. Each session belongs to
 * the access key that has opened it, and ends after GW_SESSION_MS. The number of sessions is
 * limited, in total and for each access key. So is their memory: while other access keys want
 * memory that they did not get, an access key gets no more than an equal share. Called by rdma.c.
 */
#ifndef GW_SESSION_H
#define GW_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "penstock_object.h"

#define GW_SESSION_ID 33			/* length of an ID with its NUL */
#define GW_SESSION_MS 10000			/* maximum time in ms between PREPARE and READY */
#define GW_SESSIONS_MAX 256			/* maximum number of sessions */
#define GW_SESSIONS_OWNER 64			/* maximum number of sessions of one access key */
#define GW_SESSIONS_BYTES (UINT64_C(256) << 20) /* memory of all sessions */
/* time in ms for which an access key counts as wanting memory after it did not get any */
#define GW_SESSION_WANT_MS 30000

struct gw_sessions;
struct gw_share;

/* A session. gw_session_free frees its strings, too. */
struct gw_session {
	struct gw_session *next;
	char id[GW_SESSION_ID];
	char *owner;  /* name of the access key */
	char *target; /* path and query of the object as they were sent */
	enum penstock_op op;
	uint64_t offset, len;
	uint32_t cookie;
	/* the client's window; NULL if the request of the READY has taken it over */
	struct penstock_object_remote *remote;
	uint64_t due_ms;
	struct gw_sessions *table; /* NULL until memory has been reserved */
	struct gw_share *share;	   /* the owner's share, in which `len` bytes are reserved */
};

struct gw_sessions *gw_sessions_open(void);
/* Ends all sessions and frees the table. NULL is allowed. */
void gw_sessions_close(struct gw_sessions *sessions);
/* Ends all sessions. After this call no session can be added. */
void gw_sessions_stop(struct gw_sessions *sessions);
/* Returns a descriptor that is readable when the time of a session is over. The caller then calls
 * gw_sessions_expire, which ends the session. */
int gw_sessions_fd(const struct gw_sessions *sessions);
void gw_sessions_expire(struct gw_sessions *sessions);

/* Allocates a session without an ID. Returns NULL if there is no memory. */
struct gw_session *gw_session_make(const char *owner, const char *target);
void gw_session_free(struct gw_session *session);
/* Reserves session->len bytes of memory until the session is freed. Returns -EAGAIN if other
 * sessions must end first, -EFBIG if all memory is not enough, or -ENOMEM. */
int gw_sessions_reserve(struct gw_sessions *sessions, struct gw_session *session);
/* Gives a session an ID and adds it to the table. Returns -EAGAIN if there are too many sessions;
 * the caller then frees the session. Otherwise returns 0. Another thread may already have ended the
 * session at that time, so the caller must not use it; `id` contains its ID. */
int gw_sessions_add(struct gw_sessions *sessions, struct gw_session *session,
		    char id[GW_SESSION_ID]);
/* Takes a session of an access key off the table. The caller frees it. Returns NULL if this access
 * key has no such session. */
struct gw_session *gw_sessions_take(struct gw_sessions *sessions, const char *id,
				    const char *owner);

#endif
