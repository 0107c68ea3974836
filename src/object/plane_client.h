/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code of a client that uses a plane. A plane is a process that opens windows and sends HTTP
 * requests for its clients. The client shares memory with the plane. client.c calls these
 * functions.
 */
#ifndef PST_OBJECT_PLANE_CLIENT_H
#define PST_OBJECT_PLANE_CLIENT_H

#include <stdatomic.h>

#include "object/plane_link.h"

/* A client's buffer in memory that the client shares with the plane, a separate process. */
struct pst_plane_buffer {
	struct pst_plane_link *link;
	struct pst_shared shared;
	size_t len; /* length that the caller requested */
	uint64_t id;
	_Atomic unsigned windows;
	/* true if a server may still access this buffer, which is memory of a GPU; it is then never
	 * freed */
	_Atomic bool stuck;
	/* true if this process replaced pages of the buffer, so that the plane maps other pages */
	_Atomic bool cut;
};

/* A window that the plane has opened for this client. */
struct pst_plane_grant {
	struct pst_plane_buffer *buffer;
	uint64_t id, off, len;
	char transport[16];
	int encrypted, on_host;
};

int pst_plane_buffer_open(struct pst_plane_link *link, struct penstock_device *dev, size_t len,
			  struct pst_plane_buffer **out, struct pst_err *err);
int pst_plane_buffer_close(struct pst_plane_buffer *buffer, struct pst_err *err);
/* Frees a buffer after the connection to the plane has ended. If the buffer is memory of a GPU,
 * waits until `until_ns` for the plane to release it. */
void pst_plane_buffer_free(struct pst_plane_buffer *buffer, uint64_t until_ns);
int pst_plane_window_open(struct pst_plane_buffer *buffer, enum penstock_op op, uint64_t off,
			  uint64_t len, struct pst_plane_grant **out, struct pst_err *err);
/* Sends the plane START, which starts an HTTP request with the window. When the request completes,
 * the link passes `end` to the application, as pst_plane_fly says. */
int pst_plane_start(const struct pst_plane_grant *grant,
		    const struct penstock_object_request *request, struct pst_end *end,
		    struct pst_err *err);
/* Closes a window, even if the plane process has ended. */
int pst_plane_release(struct pst_plane_grant *grant, struct pst_err *err);
int pst_plane_client_info(struct pst_plane_link *link, struct penstock_object_client_info *out,
			  struct pst_err *err);

#endif
