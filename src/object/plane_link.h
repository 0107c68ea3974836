/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of a tenant (a process that uses a plane) to the plane. The tenant sends questions
 * and waits for the answers. A thread of the link receives the completions of the operations in
 * flight. If the plane ends or does not answer, all questions fail and all operations complete with
 * -ECONNRESET. Called by plane_client.c and plane_server.c.
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
	/* time in ms after which a plane that does not answer counts as ended; 0: 30,000 */
	unsigned timeout_ms;
	struct pst_ends *ends;
	/* The link's thread calls this function with the owner of an operation when the operation
	 * has completed. Only afterwards can the application take the completion from `ends`. */
	void (*idle)(void *owner);
};

int pst_plane_link_open(const struct pst_plane_link_opts *opts, struct pst_plane_link **out,
			struct pst_err *err);
/* Ends the connection, and frees the link. Operations in flight complete with -ECONNRESET. */
void pst_plane_link_close(struct pst_plane_link *link);
/* Returns whether the connection to the plane has ended. */
bool pst_plane_link_is_dead(struct pst_plane_link *link);
/* Called after the connection has ended. Returns the time (pst_now_ns) until which the caller waits
 * for the plane to release memory. It is the current time if the connection ended because the plane
 * did not answer. */
uint64_t pst_plane_link_until(struct pst_plane_link *link);

/* Sends a question with its descriptors, and waits for the answer, which overwrites *message.
 * Returns the result in the answer, or -errno. Any thread may call it. */
int pst_plane_ask(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_err *err);
/* Sends START or MOVE like pst_plane_ask, and fills the member `user` of the message. After
 * success, the link calls idle(end->owner) and adds `end` to opts.ends exactly once. */
int pst_plane_fly(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_end *end, struct pst_err *err);
/* Shares memory with the plane. Stores the plane's number for the memory in *id. If it is memory of
 * a GPU, makes a lease of it (see shared.h). */
int pst_plane_pass(struct pst_plane_link *link, struct pst_shared *shared, uint64_t *id,
		   struct pst_err *err);
/* Sends MEMORY_CLOSE, RELEASE or FORGET, whose only member is a number, and waits for the
 * answer. */
int pst_plane_ask_id(struct pst_plane_link *link, enum pst_plane_kind kind, uint64_t id,
		     struct pst_plane_message *answer, struct pst_err *err);

#endif
