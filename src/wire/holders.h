/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that may access a buffer until their processes end: see holders.c. */
#ifndef PST_WIRE_HOLDERS_H
#define PST_WIRE_HOLDERS_H

#include "wire/transport.h"

/* Records that a server may access the buffer's memory until its process ends. Takes ownership of
 * the pidfd, which is -1 if the process cannot be watched. The caller holds the client's lock. */
void pst_wire_holders_add(struct pst_wire_buffer *buffer, int pidfd);
/* Returns true if servers were recorded for the buffer, and all their processes have ended. Does
 * not wait. */
bool pst_wire_holders_gone(const struct pst_wire_buffer *buffer);
/* Waits until the processes of all recorded servers have ended, and removes them. If they do not
 * end within fence_ms milliseconds, marks the buffer as stuck. A window of the buffer must be open.
 * The caller holds the client's lock, which the function releases while it waits. */
int pst_wire_holders_wait(struct pst_wire_buffer *buffer, struct pst_err *err);
/* Closes all pidfds. */
void pst_wire_holders_close(struct pst_wire_buffer *buffer);

#endif
