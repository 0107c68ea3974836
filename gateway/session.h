/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of hipobj-rc-v2: what a client has prepared (PREPARE) and not yet begun (READY). Each
 * belongs to the access key that has opened it, and ends after GW_SESSION_MS. They are bounded in
 * number, in total and for each access key. Called by rdma.c.
 */
#ifndef GW_SESSION_H
#define GW_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "penstock_object.h"

#define GW_SESSION_ID 33     /* length of an ID with its NUL */
#define GW_SESSION_MS 10000  /* longest time between PREPARE and READY */
#define GW_SESSIONS_MAX 256  /* most sessions */
#define GW_SESSIONS_OWNER 64 /* most sessions of an access key */

struct gw_sessions;

/* A session. The strings belong to it. */
struct gw_session {
	struct gw_session *next;
	char id[GW_SESSION_ID];
	char *owner;  /* access key */
	char *target; /* path and query of the object, as on the wire */
	enum penstock_op op;
	uint64_t offset, len;
	uint32_t cookie;
	struct penstock_object_remote *remote; /* NULL if somebody else has it */
	uint64_t due_ms;
};

struct gw_sessions *gw_sessions_open(void);
/* Ends all sessions. NULL is allowed. */
void gw_sessions_close(struct gw_sessions *sessions);
/* Ends all sessions, and refuses further ones. */
void gw_sessions_stop(struct gw_sessions *sessions);
/* Returns a descriptor that is readable when the time of a session is over. gw_sessions_expire then
 * ends it. */
int gw_sessions_fd(const struct gw_sessions *sessions);
void gw_sessions_expire(struct gw_sessions *sessions);

/* Makes a session without an ID. Returns NULL if there is no memory. */
struct gw_session *gw_session_make(const char *owner, const char *target);
void gw_session_free(struct gw_session *session);
/* Gives a session an ID and keeps it. Returns 0, or -EAGAIN if there are too many; the caller then
 * frees it. The session may be gone when the function returns, but `id` has its ID. */
int gw_sessions_add(struct gw_sessions *sessions, struct gw_session *session,
		    char id[GW_SESSION_ID]);
/* Takes the session of an owner away. The caller frees it. Returns NULL if this owner has no such
 * session. */
struct gw_session *gw_sessions_take(struct gw_sessions *sessions, const char *id,
				    const char *owner);

#endif
