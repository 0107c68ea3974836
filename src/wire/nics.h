/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses among several network cards of a client. A transport listens at each of the client's
 * addresses, and a window gets the card that is nearest to its memory. A card without a link, or
 * whose transfer has failed in the last 10 s, comes last. If transfers of all cards have failed,
 * the card whose failure is the oldest comes first. client.c calls these functions.
 */
#ifndef PST_WIRE_NICS_H
#define PST_WIRE_NICS_H

#include "wire/transport.h"

/* Stores in `order` the indexes of the client's listeners in the order in which the window tries
 * them. If the window does not get its nearest card, stores the reason in grant->why. Returns the
 * number of indexes. */
unsigned pst_wire_nic_order(struct pst_wire_grant *grant,
			    unsigned char order[PST_WIRE_LISTENERS_MAX]);
/* Stores in grant->why that a card could not register the window's memory. */
void pst_wire_nic_failed_bind(struct pst_wire_grant *grant, const struct pst_err *err);
/* Returns the number of network cards on which the window's transport listens for servers. */
unsigned pst_wire_nic_count(const struct pst_wire_grant *grant);
/* If the server has not moved the bytes, makes the next windows prefer other cards than this
 * window's, and adds that to the verdict's text. */
void pst_wire_nic_judge(struct pst_wire_grant *grant, struct penstock_object_verdict *verdict);

#endif
