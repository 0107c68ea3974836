/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the memory allocations of this program. It replaces malloc and the other allocation
 * functions of the C library. An allocation counts as the program's own if its caller is in the
 * program, which contains a static copy of Penstock. Other allocations come from other
 * libraries, such as the driver. Sections `null` and `rand` compare the counts before and after
 * a run. This file must never allocate.
 */
#include <errno.h>
#include <stdatomic.h>

#include "bench.h"

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *old, size_t len);
void *__libc_memalign(size_t align, size_t len);

void *malloc(size_t len);
void *calloc(size_t count, size_t len);
void *realloc(void *old, size_t len);
void *memalign(size_t align, size_t len);
void *aligned_alloc(size_t align, size_t len);
int posix_memalign(void **out, size_t align, size_t len);

/* Start and end of this program's code, as the linker defines them. */
extern char __executable_start, etext;

static _Atomic uint64_t ours, others;

static void count(const void *caller)
{
	const char *at = caller;

	atomic_fetch_add_explicit(at >= &__executable_start && at < &etext ? &ours : &others, 1,
				  memory_order_relaxed);
}

struct allocations allocations(void)
{
	return (struct allocations){atomic_load(&ours), atomic_load(&others)};
}

void *malloc(size_t len)
{
	count(__builtin_return_address(0));
	return __libc_malloc(len);
}

void *calloc(size_t n, size_t len)
{
	count(__builtin_return_address(0));
	return __libc_calloc(n, len);
}

void *realloc(void *old, size_t len)
{
	count(__builtin_return_address(0));
	return __libc_realloc(old, len);
}

void *memalign(size_t align, size_t len)
{
	count(__builtin_return_address(0));
	return __libc_memalign(align, len);
}

void *aligned_alloc(size_t align, size_t len)
{
	count(__builtin_return_address(0));
	return __libc_memalign(align, len);
}

int posix_memalign(void **out, size_t align, size_t len)
{
	void *mem = __libc_memalign(align, len);

	count(__builtin_return_address(0));
	if (!mem)
		return ENOMEM;
	*out = mem;
	return 0;
}
