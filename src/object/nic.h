/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of this host's network cards, for the table of memory.h. Called by memory.c. */
#ifndef PST_OBJECT_NIC_H
#define PST_OBJECT_NIC_H

#include "wire/wire.h"

/* Finds the card that has an address. Its name stays "" if there is none. */
void pst_nic_find(const char *address, struct pst_wire_nic *out);
/* Returns how far memory is from a card; 0 is the nearest. */
unsigned pst_nic_distance(const struct pst_wire_nic *nic, struct penstock_device *dev,
			  const void *ptr);
/* Returns false if the kernel has reported within the last second that the card has no link. Any
 * thread. */
bool pst_nic_is_up(struct pst_wire_nic *nic);

#endif
