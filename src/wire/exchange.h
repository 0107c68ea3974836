/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of transports that have their own, instead of GET and PUT with a token. Called by
 * src/object, and by the storage of objects.
 */
#ifndef PST_WIRE_EXCHANGE_H
#define PST_WIRE_EXCHANGE_H

#include "wire/transport.h"

/* Returns whether the window's requests are those of an exchange (penstock_object_exchange). */
bool pst_wire_window_exchanges(const struct pst_wire_grant *grant);
/* Returns whether a release takes memory away from a network card, which takes time. */
bool pst_wire_window_is_bound(const struct pst_wire_grant *grant);
/* Composes a request of an exchange. `headers` has PENSTOCK_OBJECT_EXCHANGE_MAX places. Returns the
 * number of headers. */
int pst_wire_compose(struct pst_wire_grant *grant, const struct pst_wire_step *step,
		     const char **path, struct penstock_object_header *headers,
		     struct pst_err *err);
/* Takes the response to a PREPARE. */
int pst_wire_paired(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict, struct pst_err *err);

#endif
