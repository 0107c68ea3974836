/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the listeners of a client, at which servers connect. client.c calls these
 * functions. */
#ifndef PST_WIRE_LISTENERS_H
#define PST_WIRE_LISTENERS_H

#include "wire/transport.h"

/* Opens the listeners that the client's options ask for, one for each transport and address. Adds
 * the listeners' descriptors to client->epoll. */
int pst_wire_listeners_open(struct pst_wire_client *client, struct pst_err *err);
void pst_wire_listener_close(struct pst_wire_client *client, struct pst_wire_listener *listener);

#endif
