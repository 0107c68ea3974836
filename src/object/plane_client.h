/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's code for a client that uses a plane: memory that it shares with the plane, windows
 * that the plane opens, and requests that the plane sends. Called by client.c.
 */
#ifndef PST_OBJECT_PLANE_CLIENT_H
#define PST_OBJECT_PLANE_CLIENT_H

#include <stdatomic.h>

#include "object/plane_link.h"

/* A buffer in memory that is shared with the plane. */
struct pst_plane_buffer {
	struct pst_plane_link *link;
	struct pst_shared shared;
	size_t len; /* length that the caller requested */
	uint64_t id;
	_Atomic unsigned windows;
	/* true if a server may still access this memory of a GPU; the memory is then never freed */
	_Atomic bool stuck;
	/* true if pages of the buffer were replaced, so that the plane has others */
	_Atomic bool cut;
};

/* A window that the plane has opened. */
struct pst_plane_grant {
	struct pst_plane_buffer *buffer;
	uint64_t id, off, len;
	char transport[16];
	int encrypted, on_host;
};

int pst_plane_buffer_open(struct pst_plane_link *link, struct penstock_device *dev, size_t len,
			  struct pst_plane_buffer **out, struct pst_err *err);
int pst_plane_buffer_close(struct pst_plane_buffer *buffer, struct pst_err *err);
/* Frees a buffer without an answer of the plane, whose connection has ended. Waits until `until_ns`
 * for the plane's release of memory of a GPU. */
void pst_plane_buffer_free(struct pst_plane_buffer *buffer, uint64_t until_ns);
int pst_plane_window_open(struct pst_plane_buffer *buffer, enum penstock_op op, uint64_t off,
			  uint64_t len, struct pst_plane_grant **out, struct pst_err *err);
/* Asks the plane to start a request. `end` and its owner are those of pst_plane_fly. */
int pst_plane_start(const struct pst_plane_grant *grant,
		    const struct penstock_object_request *request, struct pst_end *end,
		    struct pst_err *err);
/* Closes a window. This also works if the plane is gone. */
int pst_plane_release(struct pst_plane_grant *grant, struct pst_err *err);
int pst_plane_client_info(struct pst_plane_link *link, struct penstock_object_client_info *out,
			  struct pst_err *err);

#endif
