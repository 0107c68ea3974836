/* SPDX-License-Identifier: Apache-2.0 */
/* The list of transports of S3 over RDMA. client.c and server.c use it. */
#ifndef PST_WIRE_TRANSPORTS_H
#define PST_WIRE_TRANSPORTS_H

#include "wire/transport.h"

/* The two function tables of a transport. The array has the preferred transport first. */
struct pst_wire_transport {
	const struct pst_wire_client_ops *client;
	const struct pst_wire_server_ops *server;
};
extern const struct pst_wire_transport pst_wire_transports[];
extern const unsigned pst_wire_transport_count;

/* Calls use(user, i) for the index i of each transport that `list` names. If `list` is NULL, for
 * all transports except those that are used only by name. Returns 0, the first result of use() that
 * is not 0, or -EINVAL for an unknown name. */
int pst_wire_each(const char *list, int (*use)(void *user, unsigned index), void *user,
		  struct pst_err *err);

#endif
