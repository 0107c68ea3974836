/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant's connection to a plane: questions with answers, and the operations in flight, whose
 * completions a thread of the link receives. If the plane dies or does not answer, every question
 * fails and every operation completes with -ECONNRESET. Called by plane_client.c and
 * plane_server.c.
 */
#ifndef PST_OBJECT_PLANE_LINK_H
#define PST_OBJECT_PLANE_LINK_H

#include "object/ends.h"
#include "object/plane_message.h"
#include "object/shared.h"

struct pst_plane_link;

struct pst_plane_link_opts {
	const char *path;
	enum pst_plane_role role;
	bool require_encryption;
	unsigned timeout_ms; /* 0: 30000 */
	struct pst_ends *ends;
	/* Called when an operation has completed, before its completion can be taken. */
	void (*idle)(void *owner);
};

int pst_plane_link_open(const struct pst_plane_link_opts *opts, struct pst_plane_link **out,
			struct pst_err *err);
/* Ends the connection. Operations in flight complete with -ECONNRESET. */
void pst_plane_link_close(struct pst_plane_link *link);
/* Returns whether the plane is gone. */
bool pst_plane_link_is_dead(struct pst_plane_link *link);

/* Sends a question with descriptors, and waits for the answer, which replaces *message. Returns its
 * result. Any thread. */
int pst_plane_ask(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_err *err);
/* Does the same for START and MOVE, and sets the message's `user`. If it succeeds, the link
 * completes `end` once, and calls idle(end->owner). */
int pst_plane_fly(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_end *end, struct pst_err *err);
/* Passes memory to the plane. *id receives the plane's number of it. */
int pst_plane_pass(struct pst_plane_link *link, const struct pst_shared *shared, uint64_t *id,
		   struct pst_err *err);
/* Asks a question about a number: MEMORY_CLOSE, RELEASE or FORGET. */
int pst_plane_ask_id(struct pst_plane_link *link, enum pst_plane_kind kind, uint64_t id,
		     struct pst_plane_message *answer, struct pst_err *err);

#endif
