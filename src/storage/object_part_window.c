/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_part_window.h. A lane copies bytes of the device's memory into the window of
 * their part. Bytes in host memory that belong into the same part are kept as patches, which are
 * copied into the window when the part is full. So no write waits for a call of the driver.
 *
 * The windows together have at most PLACE_BYTES. A window that no part uses may be closed to make
 * room for another one. The devices stay open until the upload is closed.
 */
#include "storage/object_part_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/device_sync.h"
#include "core/base/devices.h"
#include "storage/object_buffer.h"
#include "storage/object_part.h"

#define PLACE_BYTES (128ull << 20)
/* Longer parts are in host memory: parts of objects above 335 GB or, if the object's length is
 * unknown, parts after the first 58.7 GB. */
#define LEN_MAX (PLACE_BYTES / 4)

static struct upload_device *device_find(struct pst_object_upload *up,
					 const struct penstock_device *dev)
{
	for (unsigned i = 0; i < up->device_count; i++)
		if (up->devices[i].dev == dev)
			return &up->devices[i];
	return NULL;
}

/* Reserves a device's copier for the calling thread. If the device has no thread (object_worker.c),
 * several threads may prepare parts at the same time. */
static struct pst_copier *copier_get(struct pst_object_upload *up,
				     const struct penstock_device *dev)
{
	struct upload_device *own;

	pthread_mutex_lock(&up->lock);
	own = device_find(up, dev);
	while (own->copies)
		pthread_cond_wait(&up->changed, &up->lock);
	own->copies = true;
	pthread_mutex_unlock(&up->lock);
	return own->copier;
}

static void copier_put(struct pst_object_upload *up, const struct penstock_device *dev)
{
	pthread_mutex_lock(&up->lock);
	device_find(up, dev)->copies = false;
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

/* Adds a window, which no part uses yet, to the upload's list. */
static void window_add(struct pst_object_upload *up, struct upload_window *own)
{
	own->next = up->device_list;
	up->device_list = own;
}

/* Closes a window. Waits until no stream waits for a request. */
static void window_free(struct upload_window *own)
{
	struct penstock_device *dev = own->window->dev;

	pst_device_sync_await(dev);
	own->window->close(own->window);
	pst_device_sync_end(dev);
	free(own);
}

/* Opens the first window in the memory of a device, and finds out whether a transport can serve it.
 * The server is not asked: only the upload of a part shows whether the server can access the
 * memory. The caller has called pst_device_sync_begin. */
static int window_test(struct pst_object_upload *up, struct penstock_device *dev,
		       struct upload_window **out, struct pst_err *err)
{
	struct upload_window *own = calloc(1, sizeof(*own));
	struct pst_object_grant grant = {.inner = NULL};
	uint64_t len;
	int ret;

	if (!own)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	pst_object_part_range(up, 0, &len);
	len = pst_object_buffer_len(up, len);
	ret = len > LEN_MAX ? pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the parts are too long")
			    : pst_object_window_open(up->windows, dev, (size_t)len, &own->window,
						     err);
	if (ret) {
		free(own);
		return ret;
	}
	ret = pst_object_grant_open(&grant, up->windows, own->window, PENSTOCK_WRITE, len, err);
	if (!ret)
		pst_object_grant_close(&grant); /* no server has its token */
	if (!ret) {
		*out = own;
		return 0;
	}
	own->window->close(own->window);
	free(own);
	return ret;
}

/* Opens what the upload needs of a device. The calls of its driver may wait until all streams are
 * idle. So it fails if a stream waits for a request: this stream may wait for the calling thread,
 * which submits a request. */
static int device_open(struct pst_object_upload *up, struct penstock_device *dev,
		       struct upload_window **first, struct pst_copier **copier,
		       struct pst_err *err)
{
	int ret = pst_object_device_sums(dev, PST_HASH_CRC64NVME, err);

	if (ret)
		return ret;
	if (!pst_device_sync_begin(dev))
		return pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_STREAM_ORDER,
				      "a stream waits for a request, so no window in %s can be "
				      "opened",
				      dev->name);
	ret = window_test(up, dev, first, err);
	if (!ret)
		ret = dev->ops->copier_open(dev, 1, copier, err);
	if (ret && *first) {
		(*first)->window->close((*first)->window);
		free(*first);
	}
	pst_device_sync_end(dev);
	return ret;
}

/* Adds a device to the upload. Called while a route is made, by one thread at a time. */
static int device_add(struct pst_object_upload *up, struct penstock_device *dev,
		      struct pst_err *err)
{
	struct upload_window *first = NULL;
	struct pst_copier *copier;
	int ret;

	if (up->device_count == UPLOAD_DEVICES_MAX)
		return pst_fail(err, PENSTOCK_WHY_FULL,
				"an upload has windows of at most %u devices", UPLOAD_DEVICES_MAX);
	ret = pst_device_ref(dev, err);
	if (ret)
		return ret;
	ret = device_open(up, dev, &first, &copier, err);
	if (ret) {
		pst_device_close(dev);
		return ret;
	}
	pthread_mutex_lock(&up->lock);
	up->devices[up->device_count++] = (struct upload_device){dev, copier, false};
	window_add(up, first);
	up->device_bytes += first->window->len;
	pthread_mutex_unlock(&up->lock);
	return 0;
}

int pst_part_window_reach(struct pst_object_upload *up, struct penstock_device *dev,
			   struct pst_err *err)
{
	bool known;

	if (pst_object_windows_reach(up->windows, dev, err) == 0)
		return err->code;
	pthread_mutex_lock(&up->lock);
	known = device_find(up, dev);
	pthread_mutex_unlock(&up->lock);
	return known ? 0 : device_add(up, dev, err);
}

/* ---- windows ---- */

/* Opens a window. Releases the lock meanwhile. */
static int window_open(struct pst_object_upload *up, struct penstock_device *dev, uint64_t len,
		       struct pst_err *err)
{
	struct upload_window *own = calloc(1, sizeof(*own));
	int ret;

	if (!own)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	up->device_bytes += len;
	pthread_mutex_unlock(&up->lock);
	ret = pst_object_window_open(up->windows, dev, (size_t)len, &own->window, err);
	pthread_mutex_lock(&up->lock);
	if (ret) {
		up->device_bytes -= len;
		free(own);
		return ret;
	}
	window_add(up, own);
	return 1;
}

/* Closes a window that no part uses: it is too short, or on another device. Releases the lock
 * meanwhile, and returns 1. Returns 0 if there is no such window, or if a stream waits for a
 * request: freeing memory would wait for this stream. */
static int window_close(struct pst_object_upload *up)
{
	struct upload_window **at = &up->device_list, *own;
	struct penstock_device *dev;

	while (*at && (*at)->busy)
		at = &(*at)->next;
	own = *at;
	if (!own || !pst_device_sync_begin(own->window->dev))
		return 0;
	dev = own->window->dev;
	*at = own->next;
	up->device_bytes -= own->window->len;
	pthread_mutex_unlock(&up->lock);
	own->window->close(own->window);
	pst_device_sync_end(dev);
	free(own);
	pthread_mutex_lock(&up->lock);
	return 1;
}

int pst_part_window_get(struct pst_object_upload *up, struct penstock_device *dev, uint64_t len,
			 bool may_open, struct pst_window **out, struct pst_err *err)
{
	struct upload_window *at = up->device_list;
	struct pst_err why;
	int ret = 0;

	if (!device_find(up, dev) || len > LEN_MAX)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
				      "the upload has no windows of %llu bytes in the memory of %s",
				      (unsigned long long)len, dev->name);
	if (!pst_object_windows_reach(up->windows, dev, &why))
		return pst_fail_errno(err, EOPNOTSUPP, why.why, "windows in host memory: %.150s",
				      why.text);
	while (at && (at->busy || at->window->dev != dev || at->window->len < len))
		at = at->next;
	if (at) {
		at->busy = true;
		*out = at->window;
		return 0;
	}
	if (may_open && !up->device_full)
		ret = up->device_bytes + len <= PLACE_BYTES ? window_open(up, dev, len, err)
							    : window_close(up);
	if (ret > 0)
		return ret;
	up->device_full |= ret < 0; /* for example, because the device's memory is used up */
	if (up->device_moving && !up->err.code)
		return -EAGAIN;
	return pst_fail_errno(err, EOPNOTSUPP,
			      ret ? err->why : PENSTOCK_WHY_NO_WINDOW,
			      "no window in the memory of %s is free", dev->name);
}

void pst_part_window_put(struct pst_object_upload *up, struct pst_window *window)
{
	struct upload_window *at = up->device_list;

	while (at->window != window)
		at = at->next;
	/* The server may still read a window that is spoiled, so no other part may use it. */
	at->busy = atomic_load(&window->spoiled);
}

/* ---- bytes in host memory ---- */

/* Returns the index of the first range that ends at `at` or behind it. */
static size_t range_at(const struct patches *patches, uint64_t at)
{
	size_t low = 0, high = patches->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (patches->ranges[middle].end < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Makes room for another range, and for the bytes of a part of `len` bytes. */
static int patches_grow(struct patches *patches, uint64_t len)
{
	const size_t room = patches->room ? 2 * patches->room : 16;
	struct span *ranges;

	if (!patches->bytes)
		patches->bytes = malloc((size_t)len);
	if (!patches->bytes)
		return -ENOMEM;
	if (patches->count < patches->room)
		return 0;
	ranges = realloc(patches->ranges, room * sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	patches->ranges = ranges;
	patches->room = room;
	return 0;
}

int pst_part_window_patch(struct part *part, uint64_t first, const void *mem, uint64_t len,
			   struct pst_err *err)
{
	struct patches *patches = &part->patches;
	uint64_t end = first + len;
	struct span *ranges;
	size_t from, to;

	if (patches_grow(patches, part->len))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a part");
	memcpy(patches->bytes + first, mem, (size_t)len);
	ranges = patches->ranges;
	from = range_at(patches, first);
	for (to = from; to < patches->count && ranges[to].first <= end; to++) {
		first = ranges[to].first < first ? ranges[to].first : first;
		end = ranges[to].end > end ? ranges[to].end : end;
	}
	memmove(&ranges[from + 1], &ranges[to], (patches->count - to) * sizeof(*ranges));
	patches->count = patches->count - (to - from) + 1;
	ranges[from] = (struct span){first, end};
	return 0;
}

bool pst_part_window_is_patched(const struct part *part, uint64_t first, uint64_t end)
{
	const size_t at = range_at(&part->patches, first + 1);

	return at < part->patches.count && part->patches.ranges[at].first < end;
}

/* ---- work that blocks ---- */

/* Copies between host memory and the window, and waits for the end. */
static int window_copy(const struct part *part, uint64_t first, char *mem, uint64_t len, bool in,
		       struct pst_err *err)
{
	struct penstock_device *dev = part->window->dev;
	struct pst_copier *copier;
	char *at = part->window->mem + first;
	/* `mem` is not in the ring of a lane, whose pieces have the numbers 0 and 1. */
	struct pst_rect rect = {.dst = in ? at : mem,
				.src = in ? mem : at,
				.dst_pitch = len,
				.src_pitch = len,
				.row_len = len,
				.rows = 1,
				.piece = 2};
	uint64_t ticket;
	int ret;

	copier = copier_get(part->upload, dev);
	ret = in ? dev->ops->copy_in(copier, &rect) : dev->ops->copy_out(copier, &rect);
	if (!ret)
		ret = dev->ops->record(copier, &ticket);
	if (!ret)
		ret = dev->ops->wait(copier, ticket);
	copier_put(part->upload, dev);
	return ret ? pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				    "%s: copying %llu bytes of a window: %m", dev->name,
				    (unsigned long long)len)
		   : 0;
}

int pst_part_window_prepare(struct part *part, struct pst_err *err)
{
	const struct patches *patches = &part->patches;
	int ret = 0;

	part->has_crc = false;
	for (size_t i = 0; i < patches->count && !ret; i++) {
		const struct span *at = &patches->ranges[i];

		ret = window_copy(part, at->first, patches->bytes + at->first, at->end - at->first,
				  true, err);
	}
	if (ret)
		return ret;
	ret = pst_object_device_sum(part->window->dev, PST_HASH_CRC64NVME, part->window->mem,
				    part->len, false, &part->crc, err);
	part->has_crc = !ret;
	return ret;
}

int pst_part_window_fetch(const struct part *part, char *mem, struct pst_err *err)
{
	const struct patches *patches = &part->patches;
	int ret = window_copy(part, 0, mem, part->len, false, err);

	for (size_t i = 0; i < patches->count && !ret; i++) {
		const struct span *at = &patches->ranges[i];

		memcpy(mem + at->first, patches->bytes + at->first,
		       (size_t)(at->end - at->first));
	}
	return ret;
}

void pst_part_windows_close(struct pst_object_upload *up)
{
	while (up->device_list) {
		struct upload_window *own = up->device_list;

		up->device_list = own->next;
		window_free(own);
	}
	while (up->device_count) {
		const struct upload_device *own = &up->devices[--up->device_count];

		pst_device_sync_await(own->dev);
		own->dev->ops->copier_close(own->copier);
		pst_device_sync_end(own->dev);
		pst_device_close(own->dev);
	}
}
