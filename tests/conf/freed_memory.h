/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overwrites freed heap memory, so that a read after free finds garbage. The tests in tests/conf
 * that close devices or queues include this file.
 */
#ifndef FREED_MEMORY_H
#define FREED_MEMORY_H

#include <stdlib.h>
#include <string.h>

/* Allocates blocks of `size` bytes, fills them with garbage and frees them. The allocator probably
 * takes the blocks from memory that was just freed. */
static inline void freed_memory_overwrite(size_t size)
{
	void *volatile blocks[8];

	for (unsigned i = 0; i < 8; i++) {
		blocks[i] = malloc(size);
		memset(blocks[i], 0x5a, size);
	}
	for (unsigned i = 0; i < 8; i++)
		free(blocks[i]);
}

#endif
