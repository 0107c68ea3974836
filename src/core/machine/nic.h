/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of this host's network cards: name, distance from memory, and link state. The function
 * tables in object/memory.c and storage/object_device.c contain these functions. */
#ifndef PST_CORE_NIC_H
#define PST_CORE_NIC_H

#include "wire/wire.h"

/* Finds the network card that has the IP address `address`. If there is none, out->name stays
 * "". */
void pst_nic_find(const char *address, struct pst_wire_nic *out);
/* Returns the distance between the memory at `ptr` and a network card. 0 is the nearest. */
unsigned pst_nic_distance(const struct pst_wire_nic *nic, struct penstock_device *dev,
			  const void *ptr);
/* Returns false if the kernel has reported within the last second that the card has no link. Any
 * thread. */
bool pst_nic_is_up(struct pst_wire_nic *nic);

#endif
