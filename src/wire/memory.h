/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a buffer that the client allocates: see memory.c. */
#ifndef PST_WIRE_MEMORY_H
#define PST_WIRE_MEMORY_H

#include "wire/transport.h"

/* Allocates b->len bytes, which other processes can access, on the host or on b->dev. */
int pst_wire_memory_alloc(struct pst_wire_buffer *b, struct pst_err *err);
/* Frees a buffer, and its memory if the client has allocated it and no server may access it. */
void pst_wire_memory_free(struct pst_wire_buffer *b);

#endif
