/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injects allocation failures into the library. memory.c wraps libc's allocators and mmap
 * (--wrap, see meson.build) for code that is linked into the program. It does not wrap them for
 * libraries that the program loads. It also counts memory that was not freed.
 */
#ifndef PENSTOCK_FAULT_MEMORY_H
#define PENSTOCK_FAULT_MEMORY_H

#include <stddef.h>

/* Makes the n-th allocation after this call fail. If `nth` is 0, no allocation fails. */
void memory_arm(unsigned nth);
/* Returns the number of allocations since memory_arm. */
unsigned memory_allocations(void);
/* Ends the injection. Returns the number of allocations since memory_arm, and sets *hits to the
 * number that failed. */
unsigned memory_disarm(unsigned *hits);
/* Returns the name of the allocator that failed, such as "calloc", and sets *len to the number
 * of bytes that were requested. */
const char *memory_failed_name(size_t *len);
/* Return the memory that was not freed: the number of blocks, and the bytes of mappings. */
long memory_blocks(void);
long memory_mapped(void);

#endif
