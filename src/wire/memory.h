/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates and frees the memory of a buffer. See memory.c. */
#ifndef PST_WIRE_MEMORY_H
#define PST_WIRE_MEMORY_H

#include "wire/transport.h"

/* Allocates b->len bytes on the host or on b->dev, in a form that other processes can map or
 * import. */
int pst_wire_memory_alloc(struct pst_wire_buffer *b, struct pst_err *err);
/* Frees a buffer, and its memory if the client has allocated it and no server may access it. */
void pst_wire_memory_free(struct pst_wire_buffer *b);

#endif
