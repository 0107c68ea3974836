/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that may access a buffer until their processes end: see holders.c. */
#ifndef PST_WIRE_HOLDERS_H
#define PST_WIRE_HOLDERS_H

#include "wire/transport.h"

/* Notes that a server may access the buffer's memory until its process ends, with the client's
 * lock. Takes over the pidfd, which is -1 if the process cannot be watched. */
void pst_wire_holders_add(struct pst_wire_buffer *buffer, int pidfd);
/* Returns whether there are holders, and all their processes have ended. Does not wait. */
bool pst_wire_holders_gone(const struct pst_wire_buffer *buffer);
/* Waits until the processes of all holders have ended, and forgets them. If they do not end in
 * time, marks the buffer as stuck. A window of the buffer must be open. Called with the client's
 * lock, which is released meanwhile. */
int pst_wire_holders_wait(struct pst_wire_buffer *buffer, struct pst_err *err);
/* Closes all pidfds. */
void pst_wire_holders_close(struct pst_wire_buffer *buffer);

#endif
