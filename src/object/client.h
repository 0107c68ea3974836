/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of a client that a plane uses in addition to the public API: windows in memory that a
 * tenant (another process) shares with the plane, and the cancellation of a tenant's requests. The
 * code in plane/ calls them. A client that a plane opens for a tenant does not use a plane.
 */
#ifndef PST_OBJECT_CLIENT_H
#define PST_OBJECT_CLIENT_H

#include <stdbool.h>

#include "object/shared.h"
#include "penstock_object.h"

/* Makes a buffer from memory of another process. After success, the buffer owns *shared. */
int pst_object_buffer_adopt(struct penstock_object_client *client, const struct pst_shared *shared,
			    struct penstock_object_buffer **out, struct pst_err *err);
/* Returns true if a server may still access old pages of the buffer after the release of one of its
 * windows. The owner of the memory must then replace these pages. */
bool pst_object_buffer_is_cut(const struct penstock_object_buffer *buffer);
/* Returns whether the memory of the buffer, all of whose windows are released, stays in use after
 * penstock_object_unregister, because a server may still access it. */
bool pst_object_buffer_is_held(const struct penstock_object_buffer *buffer);

/* Cancels all requests of the client, and waits until they have completed. After this call no
 * request can be started. */
void pst_object_client_cancel(struct penstock_object_client *client);

#endif
