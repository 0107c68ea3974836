/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code of a server that uses a plane. A plane is a process that moves bytes for its servers.
 * The server shares memory with the plane, and the plane parses the tokens of clients. server.c
 * calls these functions.
 */
#ifndef PST_OBJECT_PLANE_SERVER_H
#define PST_OBJECT_PLANE_SERVER_H

#include "object/plane_link.h"

struct pst_plane_remote {
	struct pst_plane_link *link;
	uint64_t id, len;
	char transport[16];
	int encrypted, on_host;
};

/* Memory that the application has allocated for moves, which are transfers between this memory and
 * clients' windows. */
struct pst_plane_memory_of {
	struct pst_plane_memory_of *next;
	struct pst_shared shared;
	uint64_t id; /* the plane's number for the memory; 0 without a plane */
};

int pst_plane_resolve(struct pst_plane_link *link, const char *token, size_t len,
		      const struct penstock_object_peer *peer, struct pst_plane_remote **out,
		      struct pst_err *err);
void pst_plane_forget(struct pst_plane_remote *remote);
/* Stores in *out a description of a move and its bytes. Each segment must be in `memories`, or be a
 * range of a file. Does not wait. */
int pst_plane_move_fill(struct pst_plane_message *out, enum penstock_op op, uint64_t off,
			const struct penstock_object_seg *segs, unsigned seg_count,
			const struct pst_plane_memory_of *memories, struct pst_err *err);
/* Asks the plane to start the move that pst_plane_move_fill has described with these segments. */
int pst_plane_move(const struct pst_plane_remote *remote, struct pst_plane_message *message,
		   const struct penstock_object_seg *segs, unsigned seg_count, struct pst_end *end,
		   struct pst_err *err);
int pst_plane_server_info(struct pst_plane_link *link, struct penstock_object_server_info *out,
			  struct pst_err *err);

#endif
