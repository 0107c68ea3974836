/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the library that runs out when a test says so: memory.c stands in
 * front of libc's allocators and mmap (--wrap, see meson.build) for what is linked
 * into the program, not for libraries it loads. Counts what is not given back.
 */
#ifndef PENSTOCK_FAULT_MEMORY_H
#define PENSTOCK_FAULT_MEMORY_H

#include <stddef.h>

/* The n-th allocation from here fails, 0: none. */
void memory_arm(unsigned nth);
/* Allocations since it was armed. */
unsigned memory_seen(void);
/* Lets everything through again; allocations seen, and whether one failed. */
unsigned memory_disarm(unsigned *hits);
/* What failed: "calloc", with how many bytes. */
const char *memory_what(size_t *len);
/* Not given back: blocks, and bytes of mappings. */
long memory_blocks(void);
long memory_mapped(void);

#endif
