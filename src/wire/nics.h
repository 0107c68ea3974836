/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice among several network cards of a client: a transport listens at each of the client's
 * addresses, and a window gets the card that is nearest to its memory. A card without a link, and
 * one by which a transfer has failed in the last seconds, come last. Called by client.c.
 */
#ifndef PST_WIRE_NICS_H
#define PST_WIRE_NICS_H

#include "wire/transport.h"

/* Stores the numbers of the client's listeners in the order in which a window tries them, and why
 * the window does not get its nearest card in grant->why. Returns their number. */
unsigned pst_wire_nic_order(struct pst_wire_grant *grant,
			    unsigned char order[PST_WIRE_LISTENERS_MAX]);
/* Notes in grant->why that a card could not take the window. */
void pst_wire_nic_failed_bind(struct pst_wire_grant *grant, const struct pst_err *err);
/* Returns the number of cards by which the window's transport listens. */
unsigned pst_wire_nic_count(const struct pst_wire_grant *grant);
/* If the server has not moved the bytes, lets the next windows prefer another card, and says so in
 * the verdict. */
void pst_wire_nic_judge(struct pst_wire_grant *grant, struct penstock_object_verdict *verdict);

#endif
