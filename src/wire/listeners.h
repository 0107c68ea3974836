/* SPDX-License-Identifier: Apache-2.0 */
/* Where a client listens for servers. Called by client.c. */
#ifndef PST_WIRE_LISTENERS_H
#define PST_WIRE_LISTENERS_H

#include "wire/transport.h"

/* Lets the transports of the options listen at the addresses of the options, and adds the
 * descriptors to client->epoll. */
int pst_wire_listeners_open(struct pst_wire_client *client, struct pst_err *err);
void pst_wire_listener_close(struct pst_wire_client *client, struct pst_wire_listener *listener);

#endif
