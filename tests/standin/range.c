/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manages the addresses of the stand-in. Each device has an arena, a range of addresses that the
 * CPU cannot access. Memory blocks contain the bytes of the addresses in use. A sorted table lists
 * all known ranges. Callers hold the lock. No function in this file may wait.
 */
#include "standin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Largest number of bytes of a new allocation that are filled with garbage. The garbage reveals
 * a caller that relies on zeros. Filling larger allocations completely would slow down the tests
 * of large files. */
#define RUBBISH_MAX ((size_t)16 << 20)

/* --- addresses --- */

int arena_start(int dev)
{
	struct device *d = &standin.devices[dev];
	size_t len = d->mem_total * 4;
	void *at;

	if (len < (size_t)8 << 30)
		len = (size_t)8 << 30;
	at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	d->arena = ((uintptr_t)at + BLOCK_SIZE - 1) & ~(BLOCK_SIZE - 1);
	d->arena_len = len - BLOCK_SIZE;
	return 0;
}

static int arena_of(pst_cu_ptr ptr)
{
	for (int i = 0; i < standin.device_count; i++)
		if (ptr - standin.devices[i].arena < standin.devices[i].arena_len)
			return i;
	return -1;
}

bool in_arena(pst_cu_ptr ptr)
{
	return arena_of(ptr) >= 0;
}

/* Reserves addresses in the first gap that is large enough. So addresses that were freed are
 * likely to be reused soon. */
struct span *span_alloc(int dev, size_t len, size_t align)
{
	struct device *d = &standin.devices[dev];
	pst_cu_ptr at = d->arena;
	struct span **next = &d->spans, *span;

	if (align < BLOCK_SIZE)
		align = BLOCK_SIZE;
	for (;; next = &(*next)->next) {
		at = (at + align - 1) & ~(pst_cu_ptr)(align - 1);
		if (at + len > d->arena + d->arena_len)
			return NULL;
		if (!*next || at + len <= (*next)->start)
			break;
		at = (*next)->start + (*next)->len;
	}
	span = calloc(1, sizeof(*span));
	if (!span)
		return NULL;
	span->start = at;
	span->len = len;
	span->next = *next;
	*next = span;
	return span;
}

struct span *span_find(int dev, pst_cu_ptr start)
{
	for (struct span *s = standin.devices[dev].spans; s; s = s->next)
		if (start - s->start < s->len)
			return s;
	return NULL;
}

void span_free(int dev, pst_cu_ptr start)
{
	for (struct span **s = &standin.devices[dev].spans; *s; s = &(*s)->next) {
		if ((*s)->start == start) {
			struct span *gone = *s;

			*s = gone->next;
			free(gone);
			return;
		}
	}
}

/* --- memory --- */

static struct block *block_map(int dev, int fd, size_t len)
{
	struct block *b = calloc(1, sizeof(*b));
	char *alias;

	if (!b)
		return NULL;
	alias = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (alias == MAP_FAILED) {
		free(b);
		return NULL;
	}
	*b = (struct block){.fd = fd, .dev = dev, .len = len, .alias = alias, .refs = 1};
	b->id = ++standin.block_id;
	return b;
}

/* Creates a block of `len` bytes, which must be a multiple of BLOCK_SIZE. Returns NULL if the
 * device has too little free memory. */
struct block *block_make(int dev, size_t len)
{
	struct device *d = &standin.devices[dev];
	struct block *b = NULL;
	int fd;

	if (len > d->mem_total - d->mem_used)
		return NULL;
	fd = memfd_create("penstock stand-in", MFD_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, (off_t)len))
		b = block_map(dev, fd, len);
	if (!b) {
		close(fd);
		return NULL;
	}
	d->mem_used += len;
	memset(b->alias, 0xa5, len < RUBBISH_MAX ? len : RUBBISH_MAX);
	return b;
}

/* Creates a block for memory of another process. `fd` is the memfd of this memory. Takes ownership
 * of `fd`. */
struct block *block_adopt(int dev, int fd, size_t len)
{
	struct block *b = block_map(dev, fd, len);

	if (b)
		b->foreign = true;
	return b;
}

void block_put(struct block *b)
{
	if (--b->refs)
		return;
	if (!b->foreign)
		standin.devices[b->dev].mem_used -= b->len;
	munmap(b->alias, b->len);
	close(b->fd);
	free(b);
}

/* --- the table of ranges --- */

/* Returns the number of ranges whose start is at or before `ptr`. */
static size_t range_upper_bound(pst_cu_ptr ptr)
{
	size_t low = 0, high = standin.range_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (standin.ranges[mid]->start <= ptr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct range *range_find(pst_cu_ptr ptr)
{
	size_t i = range_upper_bound(ptr);

	if (i && ptr - standin.ranges[i - 1]->start < standin.ranges[i - 1]->len)
		return standin.ranges[i - 1];
	return NULL;
}

/* Returns the first range that shares a byte with [start, start + len), or NULL. */
struct range *range_overlap(pst_cu_ptr start, size_t len)
{
	struct range *r = range_find(start);
	size_t i = range_upper_bound(start);

	if (r || i == standin.range_count)
		return r;
	return standin.ranges[i]->start - start < len ? standin.ranges[i] : NULL;
}

struct range *range_add(enum range_kind kind, pst_cu_ptr start, size_t len)
{
	size_t i = range_upper_bound(start);
	struct range *r = calloc(1, sizeof(*r));

	if (r && standin.range_count == standin.range_max) {
		size_t max = standin.range_max ? standin.range_max * 2 : 64;
		struct range **more = realloc(standin.ranges, max * sizeof(*more));

		if (!more) {
			free(r);
			return NULL;
		}
		standin.ranges = more;
		standin.range_max = max;
	}
	if (!r)
		return NULL;
	memmove(standin.ranges + i + 1, standin.ranges + i,
		(standin.range_count - i) * sizeof(*standin.ranges));
	standin.ranges[i] = r;
	standin.range_count++;
	r->kind = kind;
	r->start = r->map_start = start;
	r->len = r->map_len = len;
	r->access = 3;
	r->id = ++standin.id;
	return r;
}

void range_drop(struct range *r)
{
	size_t i = range_upper_bound(r->start) - 1;

	standin.range_count--;
	memmove(standin.ranges + i, standin.ranges + i + 1,
		(standin.range_count - i) * sizeof(*standin.ranges));
	if (r->snapshot)
		munmap(r->snapshot, r->map_len);
	free(r);
}

/* Finds the kind of memory at [ptr, ptr + len). All bytes must be in one range. Adjacent
 * mappings of memory from cuMemCreate count as one range. */
struct where resolve(pst_cu_ptr ptr, size_t len)
{
	struct range *first = range_find(ptr), *r = first;
	struct where bad = {PLACE_BAD, NULL, false};
	bool writable = true;

	if (!len)
		return (struct where){PLACE_EMPTY, first, true};
	if (ptr + len < ptr || ptr < PAGE)
		return bad;
	if (!r) {
		if (in_arena(ptr) || range_overlap(ptr, len))
			return bad;
		return (struct where){PLACE_PAGEABLE, NULL, true};
	}
	for (;;) {
		size_t here = (size_t)(r->start + r->len - ptr);

		if (!(r->access & 1))
			return bad;
		writable = writable && r->access == 3;
		if (here >= len)
			break;
		ptr += here;
		len -= here;
		r = r->kind == RANGE_VMM ? range_find(ptr) : NULL;
		if (!r || r->kind != RANGE_VMM)
			return bad;
	}
	return (struct where){first->kind & RANGE_ON_HOST ? PLACE_HOST : PLACE_DEVICE, first,
			      writable};
}

/* Returns the address at which the CPU can access the bytes at `ptr`. Stores the number of
 * contiguous bytes at that address in *avail. Returns NULL if `ptr` is in no known range, or if the
 * range does not allow the access. */
char *bytes_at(pst_cu_ptr ptr, bool write, size_t *avail)
{
	struct range *r = range_find(ptr);

	if (!r || (r->access & (write ? 2 : 1)) == 0)
		return NULL;
	*avail = (size_t)(r->start + r->len - ptr);
	return r->alias + (ptr - r->start);
}

EXPORT void *pst_standin_peek(pst_cu_ptr dev)
{
	size_t avail;
	void *bytes;

	lock();
	bytes = bytes_at(dev, false, &avail);
	unlock();
	return bytes;
}
