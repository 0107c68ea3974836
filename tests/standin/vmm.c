/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's cuMemCreate and related calls. A program allocates memory and reserves
 * addresses separately, and then maps the memory to the addresses. CUDA frameworks use such memory;
 * one address range may consist of several mappings. Tests use such memory to check how the library
 * classifies and copies such ranges.
 */
#include "standin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle {
	struct handle *next;
	unsigned long long name;
	struct block *block;
	/* Number of calls that created, imported or retained the handle, minus number of
	 * releases. */
	unsigned int refs;
};

/* standin.lock guards the variables below. */
static struct handle *handles;
static unsigned long long names = 0x1000;

static struct handle *handle_find(unsigned long long name)
{
	for (struct handle *h = handles; h; h = h->next)
		if (h->name == name)
			return h;
	return NULL;
}

static struct handle *handle_add(struct block *b)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h)
		abort();
	h->name = ++names;
	h->block = b;
	h->refs = 1;
	h->next = handles;
	handles = h;
	standin.live.vmm_handles++;
	return h;
}

static bool prop_fits(const struct pst_cu_alloc_prop *prop)
{
	return prop && prop->type == PST_CU_ALLOC_PINNED &&
	       prop->location.type == PST_CU_LOCATION_DEVICE && prop->location.id >= 0 &&
	       prop->location.id < standin.device_count &&
	       !(prop->handle_types & ~(unsigned int)PST_CU_HANDLE_FD);
}

EXPORT enum pst_cu_result cuMemGetAllocationGranularity(size_t *granularity,
							const struct pst_cu_alloc_prop *prop,
							enum pst_cu_granularity option)
{
	ENTER(cuMemGetAllocationGranularity, NEED_INIT);
	(void)option;
	if (!granularity || !prop_fits(prop))
		return PST_CU_INVALID_VALUE;
	*granularity = BLOCK_SIZE;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuMemCreate(unsigned long long *handle, size_t len,
				      const struct pst_cu_alloc_prop *prop,
				      unsigned long long flags)
{
	struct block *b;

	ENTER(cuMemCreate, NEED_INIT);
	if (!handle || !len || len % BLOCK_SIZE || flags || !prop_fits(prop))
		return standin_refuse(PST_CU_INVALID_VALUE, "cuMemCreate of %zu bytes", len);
	lock();
	b = block_make(prop->location.id, len);
	if (b)
		*handle = handle_add(b)->name;
	unlock();
	return b ? PST_CU_OK : standin_refuse(PST_CU_OUT_OF_MEMORY, "%zu bytes", len);
}

EXPORT enum pst_cu_result cuMemRelease(unsigned long long name)
{
	struct handle *h, **at = &handles;

	ENTER(cuMemRelease, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	h = handle_find(name);
	if (h) {
		standin.live.vmm_handles--;
		if (!--h->refs) {
			while (*at != h)
				at = &(*at)->next;
			*at = h->next;
			block_put(h->block);
			free(h);
		}
	}
	unlock();
	return h ? PST_CU_OK : standin_refuse(PST_CU_INVALID_VALUE, "no such handle");
}

EXPORT enum pst_cu_result cuMemAddressReserve(pst_cu_ptr *dev, size_t len, size_t align,
					      pst_cu_ptr hint, unsigned long long flags)
{
	struct span *span;

	ENTER(cuMemAddressReserve, NEED_INIT);
	(void)hint;
	if (!dev || !len || len % BLOCK_SIZE || (align & (align - 1)) || flags)
		return standin_refuse(PST_CU_INVALID_VALUE, "reservation of %zu bytes", len);
	lock();
	/* A reservation belongs to no device, so all reservations use the first device's arena. */
	span = span_alloc(0, len, align);
	if (span) {
		span->reserved = true;
		*dev = span->start;
		standin.live.vmm_ranges++;
	}
	unlock();
	return span ? PST_CU_OK : standin_refuse(PST_CU_OUT_OF_MEMORY, "no free addresses");
}

static const struct span *reservation_find(pst_cu_ptr dev, size_t len)
{
	const struct span *span = span_find(0, dev);

	if (!span || !span->reserved || len > span->start + span->len - dev)
		return NULL;
	return span;
}

EXPORT enum pst_cu_result cuMemAddressFree(pst_cu_ptr dev, size_t len)
{
	const struct span *span;

	ENTER(cuMemAddressFree, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	span = reservation_find(dev, len);
	if (span && (span->start != dev || span->len != len || range_overlap(dev, len)))
		span = NULL;
	if (span) {
		span_free(0, dev);
		standin.live.vmm_ranges--;
	}
	unlock();
	return span ? PST_CU_OK
		    : standin_refuse(PST_CU_INVALID_VALUE, "not one complete, empty "
							   "reservation");
}

EXPORT enum pst_cu_result cuMemMap(pst_cu_ptr dev, size_t len, size_t offset,
				   unsigned long long name, unsigned long long flags)
{
	struct handle *h;
	struct range *r = NULL;

	ENTER(cuMemMap, NEED_INIT);
	lock();
	h = handle_find(name);
	if (h && len && !flags && !offset && len == h->block->len && dev % BLOCK_SIZE == 0 &&
	    reservation_find(dev, len) && !range_overlap(dev, len))
		r = range_add(RANGE_VMM, dev, len);
	if (r) {
		r->dev = h->block->dev;
		r->block = h->block;
		r->block_id = h->block->id;
		r->alias = h->block->alias;
		r->access = 0;
		h->block->refs++;
	}
	unlock();
	return r ? PST_CU_OK : standin_refuse(PST_CU_INVALID_VALUE, "cuMemMap of %zu bytes", len);
}

/* Returns whether [dev, dev + len) consists of whole mappings, or contains no mapping. */
static bool mappings_complete(pst_cu_ptr dev, size_t len)
{
	pst_cu_ptr end = dev + len;

	while (dev < end) {
		const struct range *r = range_overlap(dev, (size_t)(end - dev));

		if (!r)
			return true;
		if (r->kind != RANGE_VMM || r->start < dev || r->start + r->len > end)
			return false;
		dev = r->start + r->len;
	}
	return true;
}

EXPORT enum pst_cu_result cuMemUnmap(pst_cu_ptr dev, size_t len)
{
	bool fits;
	struct range *r;

	ENTER(cuMemUnmap, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	fits = len && reservation_find(dev, len) && mappings_complete(dev, len);
	while (fits && (r = range_overlap(dev, len))) {
		block_put(r->block);
		range_drop(r);
	}
	unlock();
	return fits ? PST_CU_OK : standin_refuse(PST_CU_INVALID_VALUE, "not complete mappings");
}

EXPORT enum pst_cu_result cuMemSetAccess(pst_cu_ptr dev, size_t len,
					 const struct pst_cu_access_desc *descs, size_t count)
{
	pst_cu_ptr end = dev + len;
	bool fits;

	ENTER(cuMemSetAccess, NEED_INIT);
	if (!descs || !count || !len)
		return PST_CU_INVALID_VALUE;
	lock();
	fits = reservation_find(dev, len) && mappings_complete(dev, len);
	for (pst_cu_ptr at = dev; fits && at < end;) {
		struct range *r = range_find(at);

		if (!r) {
			fits = false;
			break;
		}
		for (size_t i = 0; i < count; i++)
			if (descs[i].location.id == r->dev)
				r->access = (int)descs[i].flags;
		at = r->start + r->len;
	}
	unlock();
	return fits ? PST_CU_OK : standin_refuse(PST_CU_INVALID_VALUE, "access to unmapped memory");
}

EXPORT enum pst_cu_result cuMemRetainAllocationHandle(unsigned long long *name, void *addr)
{
	const struct range *r;
	struct handle *h = NULL;

	ENTER(cuMemRetainAllocationHandle, NEED_INIT);
	lock();
	r = range_find((uintptr_t)addr);
	for (h = handles; h && (!r || h->block != r->block); h = h->next)
		;
	if (h && name) {
		h->refs++;
		standin.live.vmm_handles++;
		*name = h->name;
	}
	unlock();
	return h && name ? PST_CU_OK
			 : standin_refuse(PST_CU_INVALID_VALUE, "not memory of cuMemCreate");
}

EXPORT enum pst_cu_result cuMemExportToShareableHandle(void *shareable, unsigned long long name,
						       enum pst_cu_handle_type type,
						       unsigned long long flags)
{
	struct handle *h;
	int fd = -1;

	ENTER(cuMemExportToShareableHandle, NEED_INIT);
	lock();
	h = handle_find(name);
	if (h && shareable && type == PST_CU_HANDLE_FD && !flags)
		fd = fcntl(h->block->fd, F_DUPFD_CLOEXEC, 3);
	unlock();
	if (fd < 0)
		return standin_refuse(PST_CU_INVALID_VALUE, "export of a handle");
	memcpy(shareable, &fd, sizeof(fd));
	return PST_CU_OK;
}

/* Imports memory. The descriptor does not say which device has the memory, so the memory counts as
 * memory of the first device. */
EXPORT enum pst_cu_result cuMemImportFromShareableHandle(unsigned long long *name, void *os_handle,
							 enum pst_cu_handle_type type)
{
	struct block *b = NULL;
	struct stat st;
	int fd;

	ENTER(cuMemImportFromShareableHandle, NEED_INIT);
	if (!name || type != PST_CU_HANDLE_FD || fstat((int)(intptr_t)os_handle, &st))
		return standin_refuse(PST_CU_INVALID_VALUE, "import of a handle");
	fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 3);
	lock();
	if (fd >= 0)
		b = block_adopt(0, fd, (size_t)st.st_size);
	if (b)
		*name = handle_add(b)->name;
	unlock();
	if (!b && fd >= 0)
		close(fd);
	return b ? PST_CU_OK : standin_refuse(PST_CU_OPERATING_SYSTEM, "import: %m");
}
