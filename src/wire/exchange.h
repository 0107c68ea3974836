/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for the transport hipobj-rc-v2. It has no GET or PUT with a token. Instead the client
 * sends the requests PREPARE, READY and CANCEL, which are called an exchange. src/object and
 * storage/object_exchange.c call the functions.
 */
#ifndef PST_WIRE_EXCHANGE_H
#define PST_WIRE_EXCHANGE_H

#include "wire/transport.h"

/* Returns whether the window's transport needs an exchange (penstock_object_exchange) instead of a
 * GET or PUT with a token. */
bool pst_wire_window_exchanges(const struct pst_wire_grant *grant);
/* Returns whether a release must end the registration of the window's memory with a network card,
 * which takes time. */
bool pst_wire_window_is_bound(const struct pst_wire_grant *grant);
/* Writes the headers for a request of an exchange to `headers`, which has room for
 * PENSTOCK_OBJECT_EXCHANGE_MAX, and the request's path to *path. Returns the number of headers. */
int pst_wire_compose(struct pst_wire_grant *grant, const struct pst_wire_step *step,
		     const char **path, struct penstock_object_header *headers,
		     struct pst_err *err);
/* Processes the response to a PREPARE. If the response opens a session, connects the window to the
 * server. */
int pst_wire_paired(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict, struct pst_err *err);

#endif
