/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers, and where an address lies. Registering pins nothing here: it
 * is what saves a question to the driver at each transfer. Transfers look up
 * without a lock: the list is sorted and guarded by a counter that is odd while
 * somebody changes it; lists that grew too small are kept, each half the next.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "stats.h"

#define KNOWN_FLAGS (CUF_RDMA_REGISTER | CUF_RDMA_RELAXED_ORDERING)
#define ROOM_FIRST 64u

/* Atomic one by one; what belongs together is told by the counter. */
struct range {
	_Atomic uintptr_t start, end;
	_Atomic uintptr_t reach; /* the furthest end of this and all before it */
	_Atomic(struct penstock_device *) dev;
	_Atomic int ordinal;
};
struct list {
	unsigned room;
	_Atomic unsigned count;
	struct list *smaller; /* may still be read by who came before it was replaced */
	struct range at[];
};

static _Atomic(struct list *) ranges;
static _Atomic unsigned changes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change; a leaf */

#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define PUT(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* ---- looking up ---- */

/* The first range that begins behind addr. */
static unsigned behind(const struct list *l, unsigned count, uintptr_t addr)
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

/* A range that holds addr, or -1; ranges may overlap. */
static int holder(const struct list *l, unsigned count, uintptr_t addr)
{
	for (unsigned i = behind(l, count, addr); i-- > 0 && GET(l->at[i].reach) > addr;)
		if (GET(l->at[i].end) > addr)
			return (int)i;
	return -1;
}

enum { UNKNOWN = -1 }; /* lies in no registration */

/* 0 and the device if [addr, addr + len) is registered together with base. */
static int look(uintptr_t base, uintptr_t addr, size_t len, struct penstock_device **dev)
{
	const struct list *l = atomic_load_explicit(&ranges, memory_order_acquire);
	unsigned count = l ? GET(l->count) : 0;
	uintptr_t end = addr + len;
	int i;

	if (!count || count > l->room)
		return UNKNOWN;
	i = holder(l, count, base);
	if (i < 0)
		return UNKNOWN;
	*dev = GET(l->at[i].dev);
	if (addr < GET(l->at[i].start) || addr > GET(l->at[i].end))
		return CUF_INVALID_MAPPING_RANGE;
	/* A range may go on in the next, if the two meet. */
	while (GET(l->at[i].end) < end) {
		uintptr_t reached = GET(l->at[i].end);
		int next = holder(l, count, reached);

		if (next < 0 || GET(l->at[next].end) <= reached || GET(l->at[next].dev) != *dev)
			return CUF_INVALID_MAPPING_RANGE;
		i = next;
	}
	return 0;
}

static size_t look_behind(uintptr_t base)
{
	const struct list *l = atomic_load_explicit(&ranges, memory_order_acquire);
	unsigned count = l ? GET(l->count) : 0;
	uintptr_t end;
	int i = count && count <= l->room ? holder(l, count, base) : -1, next;

	if (i < 0)
		return 0;
	end = GET(l->at[i].end);
	while ((next = holder(l, count, end)) >= 0 && GET(l->at[next].end) > end &&
	       GET(l->at[next].dev) == GET(l->at[i].dev))
		end = GET(l->at[next].end);
	return end - base;
}

/* Around a look at the list: whether it has to be looked at again, as it changed meanwhile. */
static unsigned look_begin(void)
{
	unsigned before;

	while ((before = atomic_load_explicit(&changes, memory_order_acquire)) & 1)
		sched_yield(); /* a few stores by somebody else */
	return before;
}

static bool look_again(unsigned before)
{
	atomic_thread_fence(memory_order_acquire);
	return GET(changes) != before;
}

size_t shim_registered(const void *base)
{
	unsigned before;
	size_t len;

	do {
		before = look_begin();
		len = look_behind((uintptr_t)base);
	} while (look_again(before));
	return len;
}

static int look_up(uintptr_t base, uintptr_t addr, size_t len, struct penstock_device **dev)
{
	unsigned before;
	int code;

	do {
		before = look_begin();
		code = look(base, addr, len, dev);
	} while (look_again(before));
	return code;
}

/* Of what no registration tells; *ordinal is -1 for host memory. */
static int ask_driver(uintptr_t base, uintptr_t addr, size_t len, struct penstock_device **dev,
		      int *ordinal)
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
	code = look_up(base, addr, len, dev);
	if (code == UNKNOWN)
		code = ask_driver(base, addr, len, dev, &ordinal);
	if (!code)
		*out = (void *)addr;
	return code;
}

/* ---- changing; under lock ---- */

static void begin_change(void)
{
	atomic_fetch_add_explicit(&changes, 1, memory_order_acq_rel);
	atomic_thread_fence(memory_order_release);
}

static void end_change(void)
{
	atomic_fetch_add_explicit(&changes, 1, memory_order_release);
}

static void copy(struct range *to, const struct range *from)
{
	PUT(to->start, GET(from->start));
	PUT(to->end, GET(from->end));
	PUT(to->dev, GET(from->dev));
	PUT(to->ordinal, GET(from->ordinal));
}

static void set_reach(struct list *l, unsigned from)
{
	uintptr_t reach = from ? GET(l->at[from - 1].reach) : 0;

	for (unsigned i = from; i < GET(l->count); i++) {
		uintptr_t end = GET(l->at[i].end);

		reach = end > reach ? end : reach;
		PUT(l->at[i].reach, reach);
	}
}

/* A list with room for one more. */
static struct list *with_room(void)
{
	struct list *l = atomic_load(&ranges), *more;
	unsigned room = l ? l->room * 2 : ROOM_FIRST;

	if (l && GET(l->count) < l->room)
		return l;
	more = calloc(1, sizeof(*more) + room * sizeof(more->at[0]));
	if (!more)
		return NULL;
	more->room = room;
	more->smaller = l;
	for (unsigned i = 0; l && i < GET(l->count); i++)
		copy(&more->at[i], &l->at[i]);
	PUT(more->count, l ? GET(l->count) : 0);
	set_reach(more, 0);
	atomic_store_explicit(&ranges, more, memory_order_release);
	return more;
}

static int insert(uintptr_t start, size_t len, struct penstock_device *dev, int ordinal)
{
	struct list *l;
	unsigned i, count;

	l = with_room();
	if (!l)
		return CUF_NOMEM_ERROR;
	count = GET(l->count);
	i = behind(l, count, start);
	if (i && GET(l->at[i - 1].start) == start)
		return CUF_MEMORY_ALREADY_REGISTERED;
	begin_change();
	for (unsigned k = count; k > i; k--)
		copy(&l->at[k], &l->at[k - 1]);
	PUT(l->at[i].start, start);
	PUT(l->at[i].end, start + len);
	PUT(l->at[i].dev, dev);
	PUT(l->at[i].ordinal, ordinal);
	PUT(l->count, count + 1);
	set_reach(l, i);
	end_change();
	return 0;
}

static int remove_at(uintptr_t start, int *ordinal, size_t *len)
{
	struct list *l = atomic_load(&ranges);
	unsigned count = l ? GET(l->count) : 0, i = l ? behind(l, count, start) : 0;

	if (!i || GET(l->at[i - 1].start) != start)
		return CUF_MEMORY_NOT_REGISTERED;
	i--;
	*ordinal = GET(l->at[i].ordinal);
	*len = GET(l->at[i].end) - start;
	begin_change();
	for (unsigned k = i; k + 1 < count; k++)
		copy(&l->at[k], &l->at[k + 1]);
	PUT(l->count, count - 1);
	set_reach(l, i);
	end_change();
	return 0;
}

/* ---- the calls ---- */

/* Unless the driver was closed, or even opened again, since it was asked. */
static int keep(uintptr_t start, size_t len, struct penstock_device *dev, int ordinal)
{
	int code = CUF_DRIVER_CLOSING;

	pthread_mutex_lock(&lock);
	if (dev == atomic_load(ordinal < 0 ? &shim.host : &shim.gpus[ordinal]))
		code = insert(start, len, dev, ordinal);
	pthread_mutex_unlock(&lock);
	return code;
}

static int register_buffer(const void *base, size_t len, int flags, int *ordinal)
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
			code = ask_driver(start, start, len, &dev, ordinal);
		if (!code)
			code = keep(start, len, dev, *ordinal);
	} while (code == CUF_DRIVER_CLOSING); /* and is opened anew by the next turn */
	return code;
}

struct cuf_error cuFileBufRegister(const void *base, size_t len, int flags)
{
	int ordinal = -1, code = register_buffer(base, len, flags, &ordinal);

	shim_count(SHIM_BUF_REGISTER, !code);
	shim_count_map(ordinal, !code, len);
	return shim_err(code);
}

struct cuf_error cuFileBufDeregister(const void *base)
{
	int ordinal = -1, code;
	size_t len = 0;

	if (!base)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	code = remove_at((uintptr_t)base, &ordinal, &len);
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
	begin_change();
	if (l)
		PUT(l->count, 0);
	end_change();
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
