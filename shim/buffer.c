/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the list of registered buffers, and finds the device that an address belongs to. Every
 * transfer calls this file. A registration does not pin the buffer; it saves a query to the CUDA
 * driver at each transfer, and prepares the GPU. The list is sorted. Lookups take no lock. The
 * counter `changes` is odd while a thread changes the list. A lookup is repeated if it found the
 * counter odd or if the counter has changed meanwhile. A list that is full is replaced by a list of
 * twice its size. The old list must never be freed, because a lookup may still read it.
 */
#include "buffer.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "open.h"
#include "prepare.h"
#include "state.h"
#include "stats.h"

#define KNOWN_FLAGS (CUF_RDMA_REGISTER | CUF_RDMA_RELAXED_ORDERING)
#define CAPACITY_FIRST 64u

/* A registered range. A lookup takes no lock, so it may read one member from before a change and
 * another from after it. The counter `changes` then differs, and the lookup is repeated. */
struct range {
	_Atomic uintptr_t start, end;
	/* Largest end address of this range and of all ranges before it in the list. */
	_Atomic uintptr_t reach;
	_Atomic(struct penstock_device *) dev;
	_Atomic int ordinal;
};
struct list {
	unsigned capacity;
	_Atomic unsigned count;
	/* The smaller list that this list replaced. It is not freed, because a lookup may still
	 * read it. */
	struct list *smaller;
	struct range at[];
};

static _Atomic(struct list *) ranges;
static _Atomic unsigned changes;
/* A thread that changes the list holds this lock, and takes no other lock meanwhile. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define PUT(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* ---- lookup ---- */

/* Returns the index of the first range that starts after addr. */
static unsigned range_after(const struct list *l, unsigned count, uintptr_t addr)
{
	unsigned low = 0, high = count;

	while (low < high) {
		unsigned mid = low + (high - low) / 2;

		if (GET(l->at[mid].start) <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Returns the index of a range that contains addr, or -1 if none does. Ranges may overlap. */
static int range_with(const struct list *l, unsigned count, uintptr_t addr)
{
	for (unsigned i = range_after(l, count, addr); i-- > 0 && GET(l->at[i].reach) > addr;)
		if (GET(l->at[i].end) > addr)
			return (int)i;
	return -1;
}

enum { UNKNOWN = -1 }; /* result of a lookup: the address is in no registered buffer */

/* Returns 0 and the device if registered ranges cover all bytes from `base` to addr + len.
 * Returns UNKNOWN if no registered range contains `base`, and a cuFile code in all other cases. */
static int device_in_list(uintptr_t base, uintptr_t addr, size_t len, struct penstock_device **dev)
{
	const struct list *l = atomic_load_explicit(&ranges, memory_order_acquire);
	unsigned count = l ? GET(l->count) : 0;
	uintptr_t end = addr + len;
	int i;

	if (!count || count > l->capacity)
		return UNKNOWN;
	i = range_with(l, count, base);
	if (i < 0)
		return UNKNOWN;
	*dev = GET(l->at[i].dev);
	if (addr < GET(l->at[i].start) || addr > GET(l->at[i].end))
		return CUF_INVALID_MAPPING_RANGE;
	/* Adjacent ranges of the same device count as one range, so the loop continues in the next
	 * range. */
	while (GET(l->at[i].end) < end) {
		uintptr_t reached = GET(l->at[i].end);
		int next = range_with(l, count, reached);

		if (next < 0 || GET(l->at[next].end) <= reached || GET(l->at[next].dev) != *dev)
			return CUF_INVALID_MAPPING_RANGE;
		i = next;
	}
	return 0;
}

/* Returns the number of consecutive bytes from `base` on that registered ranges cover. */
static size_t length_in_list(uintptr_t base)
{
	const struct list *l = atomic_load_explicit(&ranges, memory_order_acquire);
	unsigned count = l ? GET(l->count) : 0;
	uintptr_t end;
	int i = count && count <= l->capacity ? range_with(l, count, base) : -1, next;

	if (i < 0)
		return 0;
	end = GET(l->at[i].end);
	while ((next = range_with(l, count, end)) >= 0 && GET(l->at[next].end) > end &&
	       GET(l->at[next].dev) == GET(l->at[i].dev))
		end = GET(l->at[next].end);
	return end - base;
}

/* Starts a lookup. The caller repeats the lookup as long as read_again returns true. */
static unsigned read_begin(void)
{
	unsigned before;

	while ((before = atomic_load_explicit(&changes, memory_order_acquire)) & 1)
		/* Waits for the thread that is changing the list, which makes only a few stores. */
		sched_yield();
	return before;
}

/* Returns whether the list has changed since read_begin returned `before`. */
static bool read_again(unsigned before)
{
	atomic_thread_fence(memory_order_acquire);
	return GET(changes) != before;
}

size_t shim_registered(const void *base)
{
	unsigned before;
	size_t len;

	do {
		before = read_begin();
		len = length_in_list((uintptr_t)base);
	} while (read_again(before));
	return len;
}

static int device_registered(uintptr_t base, uintptr_t addr, size_t len,
			     struct penstock_device **dev)
{
	unsigned before;
	int code;

	do {
		before = read_begin();
		code = device_in_list(base, addr, len, dev);
	} while (read_again(before));
	return code;
}

/* Queries the CUDA driver for the device of memory that is not registered. Sets *ordinal to the
 * index of the GPU, or to -1 if the address is host memory. */
static int device_by_driver(uintptr_t base, uintptr_t addr, size_t len,
			    struct penstock_device **dev, int *ordinal)
{
	struct shim_memory mem;
	int code = shim_cuda_memory((void *)base, &mem);

	*ordinal = mem.ordinal;
	if (code)
		return code;
	if (mem.ordinal < 0) {
		*dev = atomic_load_explicit(&shim.host, memory_order_acquire);
		return *dev ? 0 : CUF_DRIVER_CLOSING;
	}
	if (mem.len &&
	    (addr < mem.start || addr - mem.start > mem.len || len > mem.len - (addr - mem.start)))
		return CUF_CUDA_POINTER_RANGE_ERROR;
	return shim_gpu(mem.ordinal, dev);
}

int shim_resolve(const void *ptr, off_t off, size_t len, void **out, struct penstock_device **dev)
{
	uintptr_t base = (uintptr_t)ptr, addr, end;
	int code, ordinal;

	if (!ptr || off < 0 || len > SSIZE_MAX ||
	    __builtin_add_overflow(base, (uintptr_t)off, &addr) ||
	    __builtin_add_overflow(addr, len, &end))
		return CUF_INVALID_VALUE;
	code = device_registered(base, addr, len, dev);
	if (code == UNKNOWN)
		code = device_by_driver(base, addr, len, dev, &ordinal);
	if (!code)
		*out = (void *)addr;
	return code;
}

/* ---- changes; under lock ---- */

static void change_begin(void)
{
	atomic_fetch_add_explicit(&changes, 1, memory_order_acq_rel);
	atomic_thread_fence(memory_order_release);
}

static void change_end(void)
{
	atomic_fetch_add_explicit(&changes, 1, memory_order_release);
}

static void range_copy(struct range *to, const struct range *from)
{
	PUT(to->start, GET(from->start));
	PUT(to->end, GET(from->end));
	PUT(to->dev, GET(from->dev));
	PUT(to->ordinal, GET(from->ordinal));
}

/* Computes the member `reach` of the range at index `from` and of all ranges after it. */
static void reach_update(struct list *l, unsigned from)
{
	uintptr_t reach = from ? GET(l->at[from - 1].reach) : 0;

	for (unsigned i = from; i < GET(l->count); i++) {
		uintptr_t end = GET(l->at[i].end);

		reach = end > reach ? end : reach;
		PUT(l->at[i].reach, reach);
	}
}

/* Returns the list, or a larger copy that replaces it if the list is full. Returns NULL if there
 * is not enough memory. */
static struct list *list_grow(void)
{
	struct list *l = atomic_load(&ranges), *more;
	unsigned capacity = l ? l->capacity * 2 : CAPACITY_FIRST;

	if (l && GET(l->count) < l->capacity)
		return l;
	more = calloc(1, sizeof(*more) + capacity * sizeof(more->at[0]));
	if (!more)
		return NULL;
	more->capacity = capacity;
	more->smaller = l;
	for (unsigned i = 0; l && i < GET(l->count); i++)
		range_copy(&more->at[i], &l->at[i]);
	PUT(more->count, l ? GET(l->count) : 0);
	reach_update(more, 0);
	atomic_store_explicit(&ranges, more, memory_order_release);
	return more;
}

static int range_insert(uintptr_t start, size_t len, struct penstock_device *dev, int ordinal)
{
	struct list *l;
	unsigned i, count;

	l = list_grow();
	if (!l)
		return CUF_NOMEM_ERROR;
	count = GET(l->count);
	i = range_after(l, count, start);
	if (i && GET(l->at[i - 1].start) == start)
		return CUF_MEMORY_ALREADY_REGISTERED;
	change_begin();
	for (unsigned k = count; k > i; k--)
		range_copy(&l->at[k], &l->at[k - 1]);
	PUT(l->at[i].start, start);
	PUT(l->at[i].end, start + len);
	PUT(l->at[i].dev, dev);
	PUT(l->at[i].ordinal, ordinal);
	PUT(l->count, count + 1);
	reach_update(l, i);
	change_end();
	return 0;
}

static int range_remove(uintptr_t start, int *ordinal, size_t *len)
{
	struct list *l = atomic_load(&ranges);
	unsigned count = l ? GET(l->count) : 0, i = l ? range_after(l, count, start) : 0;

	if (!i || GET(l->at[i - 1].start) != start)
		return CUF_MEMORY_NOT_REGISTERED;
	i--;
	*ordinal = GET(l->at[i].ordinal);
	*len = GET(l->at[i].end) - start;
	change_begin();
	for (unsigned k = i; k + 1 < count; k++)
		range_copy(&l->at[k], &l->at[k + 1]);
	PUT(l->count, count - 1);
	reach_update(l, i);
	change_end();
	return 0;
}

/* ---- the calls ---- */

/* Adds a range. Returns CUF_DRIVER_CLOSING if the driver was closed after the caller found
 * `dev`, even if the driver was opened again. */
static int range_add(uintptr_t start, size_t len, struct penstock_device *dev, int ordinal)
{
	int code = CUF_DRIVER_CLOSING;

	pthread_mutex_lock(&lock);
	if (dev == atomic_load(ordinal < 0 ? &shim.host : &shim.gpus[ordinal]))
		code = range_insert(start, len, dev, ordinal);
	pthread_mutex_unlock(&lock);
	return code;
}

static int buffer_register(const void *base, size_t len, int flags, int *ordinal)
{
	struct penstock_device *dev;
	uintptr_t start = (uintptr_t)base, end;
	int code;

	if (!base || !len || len > SSIZE_MAX || flags & ~KNOWN_FLAGS ||
	    __builtin_add_overflow(start, len, &end))
		return CUF_INVALID_VALUE;
	do {
		code = shim_need();
		if (!code)
			code = device_by_driver(start, start, len, &dev, ordinal);
		if (!code)
			code = range_add(start, len, dev, *ordinal);
		/* If the driver was closed meanwhile, the next iteration opens it again. */
	} while (code == CUF_DRIVER_CLOSING);
	return code;
}

struct cuf_error cuFileBufRegister(const void *base, size_t len, int flags)
{
	int ordinal = -1, code = buffer_register(base, len, flags, &ordinal);

	shim_count(SHIM_BUF_REGISTER, !code);
	shim_count_map(ordinal, !code, len);
	if (!code)
		shim_prepare(ordinal, NULL);
	return shim_err(code);
}

struct cuf_error cuFileBufDeregister(const void *base)
{
	int ordinal = -1, code;
	size_t len = 0;

	if (!base)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	code = range_remove((uintptr_t)base, &ordinal, &len);
	pthread_mutex_unlock(&lock);
	shim_count(SHIM_BUF_DEREGISTER, !code);
	if (!code)
		shim_count_unmap(ordinal, len);
	return shim_err(code);
}

void shim_buffers_drop(void)
{
	struct list *l;

	pthread_mutex_lock(&lock);
	l = atomic_load(&ranges);
	change_begin();
	if (l)
		PUT(l->count, 0);
	change_end();
	pthread_mutex_unlock(&lock);
}

void shim_buffers_forked(void)
{
	struct list *l = atomic_load(&ranges);

	pthread_mutex_init(&lock, NULL);
	if (l)
		PUT(l->count, 0);
	atomic_store(&changes, 0);
}
