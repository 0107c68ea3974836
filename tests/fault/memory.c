/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocators that memory.h wraps. The library calls them. The counters are atomic, because
 * lanes (threads of the library) allocate memory when they open. The wrappers themselves must never
 * allocate memory.
 */
#include "memory.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic unsigned fail_nth, allocations, hit;
static _Atomic long blocks, mapped;
static const char *failed_name = "nothing";
static size_t failed_len;

void memory_arm(unsigned nth)
{
	atomic_store(&allocations, 0);
	atomic_store(&hit, 0);
	atomic_store(&fail_nth, nth);
}

unsigned memory_allocations(void)
{
	return atomic_load(&allocations);
}

unsigned memory_disarm(unsigned *hits)
{
	atomic_store(&fail_nth, 0);
	*hits = atomic_load(&hit);
	return atomic_load(&allocations);
}

const char *memory_failed_name(size_t *len)
{
	*len = failed_len;
	return failed_name;
}

long memory_blocks(void)
{
	return atomic_load(&blocks);
}

long memory_mapped(void)
{
	return atomic_load(&mapped);
}

static bool take_failure(const char *name, size_t len)
{
	if (atomic_fetch_add(&allocations, 1) + 1 != atomic_load(&fail_nth))
		return false;
	failed_name = name;
	failed_len = len;
	atomic_fetch_add(&hit, 1);
	errno = ENOMEM;
	return true;
}

static void *count_block(void *mem)
{
	if (mem)
		atomic_fetch_add(&blocks, 1);
	return mem;
}

void *__real_malloc(size_t len);
void *__wrap_malloc(size_t len);
void *__wrap_malloc(size_t len)
{
	return take_failure("malloc", len) ? NULL : count_block(__real_malloc(len));
}

void *__real_calloc(size_t count, size_t len);
void *__wrap_calloc(size_t count, size_t len);
void *__wrap_calloc(size_t count, size_t len)
{
	return take_failure("calloc", count * len) ? NULL : count_block(__real_calloc(count, len));
}

void *__real_realloc(void *old, size_t len);
void *__wrap_realloc(void *old, size_t len);
void *__wrap_realloc(void *old, size_t len)
{
	void *mem;

	if (take_failure("realloc", len))
		return NULL;
	mem = __real_realloc(old, len);
	return old ? mem : count_block(mem);
}

void *__real_reallocarray(void *old, size_t count, size_t len);
void *__wrap_reallocarray(void *old, size_t count, size_t len);
void *__wrap_reallocarray(void *old, size_t count, size_t len)
{
	void *mem;

	if (take_failure("reallocarray", count * len))
		return NULL;
	mem = __real_reallocarray(old, count, len);
	return old ? mem : count_block(mem);
}

void *__real_aligned_alloc(size_t align, size_t len);
void *__wrap_aligned_alloc(size_t align, size_t len);
void *__wrap_aligned_alloc(size_t align, size_t len)
{
	return take_failure("aligned_alloc", len) ? NULL
						  : count_block(__real_aligned_alloc(align, len));
}

int __real_posix_memalign(void **out, size_t align, size_t len);
int __wrap_posix_memalign(void **out, size_t align, size_t len);
int __wrap_posix_memalign(void **out, size_t align, size_t len)
{
	int ret = take_failure("posix_memalign", len) ? ENOMEM
						      : __real_posix_memalign(out, align, len);

	if (!ret)
		count_block(*out);
	return ret;
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
	return take_failure("strdup", strlen(text) + 1) ? NULL : count_block(__real_strdup(text));
}

char *__real_strndup(const char *text, size_t len);
char *__wrap_strndup(const char *text, size_t len);
char *__wrap_strndup(const char *text, size_t len)
{
	return take_failure("strndup", len + 1) ? NULL : count_block(__real_strndup(text, len));
}

int __wrap_asprintf(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **out, const char *fmt, ...)
{
	va_list args;
	int ret;

	if (take_failure("asprintf", 0))
		return -1;
	va_start(args, fmt);
	ret = vasprintf(out, fmt, args);
	va_end(args);
	if (ret >= 0)
		count_block(*out);
	return ret;
}

void __real_free(void *mem);
void __wrap_free(void *mem);
void __wrap_free(void *mem)
{
	if (mem)
		atomic_fetch_sub(&blocks, 1);
	__real_free(mem);
}

static long round_to_pages(size_t len)
{
	return (long)((len + 4095) / 4096 * 4096);
}

void *__real_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	void *mem = take_failure("mmap", len) ? MAP_FAILED
					      : __real_mmap64(at, len, prot, flags, fd, off);

	if (mem != MAP_FAILED && !(flags & MAP_FIXED))
		atomic_fetch_add(&mapped, round_to_pages(len));
	return mem;
}

int __real_munmap(void *mem, size_t len);
int __wrap_munmap(void *mem, size_t len);
int __wrap_munmap(void *mem, size_t len)
{
	int ret = __real_munmap(mem, len);

	if (!ret)
		atomic_fetch_sub(&mapped, round_to_pages(len));
	return ret;
}

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode)
{
	return take_failure("fdopen", 0) ? NULL : __real_fdopen(fd, mode);
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
	return take_failure("memfd_create", 0) ? -1 : __real_memfd_create(name, flags);
}
