/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plane needs of a client beside the public API: windows in memory that a tenant shares with
 * it, and the end of a tenant's requests. Called by plane/. The clients have no plane themselves.
 */
#ifndef PST_OBJECT_CLIENT_H
#define PST_OBJECT_CLIENT_H

#include <stdbool.h>

#include "object/shared.h"
#include "penstock_object.h"

/* Makes a buffer of memory of another process. After success, the buffer owns *shared. */
int pst_object_buffer_adopt(struct penstock_object_client *client, const struct pst_shared *shared,
			    struct penstock_object_buffer **out, struct pst_err *err);
/* Returns whether a release has cut off a server from the buffer, or could not: the memory's owner
 * must replace the pages. */
bool pst_object_buffer_is_cut(const struct penstock_object_buffer *buffer);

/* Cancels all requests, and waits until they have completed. None can be started after it. */
void pst_object_client_cancel(struct penstock_object_client *client);

#endif
