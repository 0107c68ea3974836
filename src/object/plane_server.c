/* SPDX-License-Identifier: Apache-2.0 */
/* Implements plane_server.h. */
#include "object/plane_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/token.h"

int pst_plane_resolve(struct pst_plane_link *link, const char *token, size_t len,
		      const struct penstock_object_peer *peer, struct pst_plane_remote **out,
		      struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_RESOLVE};
	struct pst_plane_resolve *r = &m.resolve;
	struct pst_plane_remote *remote;
	int ret;

	if (len >= sizeof(r->token))
		return pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED,
				      "the token of %zu characters is malformed", len);
	if (peer->address && strlen(peer->address) >= sizeof(r->address))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "the peer's address is too long");
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a remote window");
	r->token_len = (uint32_t)len;
	memcpy(r->token, token, len);
	r->has_address = peer->address != NULL;
	snprintf(r->address, sizeof(r->address), "%s", peer->address ? peer->address : "");
	r->has_user = peer->has_user != 0;
	r->user = peer->user;
	ret = pst_plane_ask(link, &m, NULL, 0, err);
	if (ret) {
		free(remote);
		return ret;
	}
	remote->link = link;
	remote->id = m.answer.id;
	remote->len = m.answer.len;
	remote->encrypted = m.answer.encrypted != 0;
	remote->on_host = m.answer.on_host != 0;
	snprintf(remote->transport, sizeof(remote->transport), "%s", m.answer.transport);
	*out = remote;
	return 0;
}

void pst_plane_forget(struct pst_plane_remote *remote)
{
	struct pst_plane_message answer;

	/* Ignores an error, which means that the plane process has ended. Then the remote window no
	 * longer exists. */
	(void)pst_plane_ask_id(remote->link, PST_PLANE_FORGET, remote->id, &answer,
			       &(struct pst_err){0});
	free(remote);
}

/* Describes a range of memory in a MOVE message: stores the number that the plane gave to the
 * allocation, and the range's offset in the allocation. */
static int seg_put(struct pst_plane_seg *out, const struct penstock_object_seg *seg,
		   const struct pst_plane_memory_of *m, struct pst_err *err)
{
	for (; m; m = m->next) {
		uint64_t off = (uint64_t)((unsigned char *)seg->ptr - m->shared.ptr);

		if ((unsigned char *)seg->ptr < m->shared.ptr || off > m->shared.len ||
		    seg->len > m->shared.len - off)
			continue;
		out->memory = m->id;
		out->off = off;
		return 0;
	}
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"a plane can move memory of penstock_object_server_alloc only");
}

int pst_plane_move_fill(struct pst_plane_message *out, enum penstock_op op, uint64_t off,
			const struct penstock_object_seg *segs, unsigned seg_count,
			const struct pst_plane_memory_of *memories, struct pst_err *err)
{
	unsigned fd_count = 0;
	int ret = 0;

	if (seg_count > PENSTOCK_OBJECT_SEGS_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u segments; the maximum is %u", seg_count,
				      PENSTOCK_OBJECT_SEGS_MAX);
	*out = (struct pst_plane_message){.kind = PST_PLANE_MOVE};
	out->move.off = off;
	out->move.op = op;
	out->move.seg_count = seg_count;
	for (unsigned i = 0; i < seg_count && !ret; i++) {
		struct pst_plane_seg *seg = &out->move.segs[i];

		seg->len = segs[i].len;
		if (segs[i].has_fd) {
			seg->is_file = 1;
			seg->off = segs[i].fd_off;
			seg->slot = fd_count++;
		} else {
			ret = seg_put(seg, &segs[i], memories, err);
		}
	}
	return ret;
}

int pst_plane_move(const struct pst_plane_remote *remote, struct pst_plane_message *message,
		   const struct penstock_object_seg *segs, unsigned seg_count, struct pst_end *end,
		   struct pst_err *err)
{
	int fds[PST_PLANE_SLOTS];
	unsigned fd_count = 0;

	for (unsigned i = 0; i < seg_count; i++)
		if (segs[i].has_fd)
			fds[fd_count++] = segs[i].fd;
	message->move.remote = remote->id;
	message->move.user = end->move.user;
	return pst_plane_fly(remote->link, message, fds, fd_count, end, err);
}

/* Returns the library's constant for the name of a transport, or NULL. A pointer in a message of
 * the plane is not valid in this process. */
static const char *transport_name(const char *name)
{
	for (unsigned i = 0; i < PST_TOKEN_KINDS; i++)
		if (!strcmp(pst_token_name((enum pst_token_kind)i), name))
			return pst_token_name((enum pst_token_kind)i);
	return NULL;
}

int pst_plane_server_info(struct pst_plane_link *link, struct penstock_object_server_info *out,
			  struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_INFO};
	int ret = pst_plane_ask(link, &m, NULL, 0, err);

	if (!ret && m.kind != PST_PLANE_COUNTS)
		ret = pst_fail(err, PENSTOCK_WHY_MALFORMED, "the plane sent another answer");
	if (ret)
		return ret;
	*out = m.counts.server;
	for (unsigned i = 0; i < PENSTOCK_OBJECT_TRANSPORTS_MAX; i++)
		out->traffic[i].transport = transport_name(m.counts.transports[i]);
	return 0;
}
