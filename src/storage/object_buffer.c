/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates the buffers of an upload, each for one part of the object. If the server accepts
 * tokens, buffers are windows, memory from which the server can fetch the parts itself.
 * object_upload.c calls these functions while it holds the upload's lock.
 *
 * The buffers together have at most BUFFERS_BYTES. There are two exceptions:
 * - The first BUFFERS_MIN buffers are always allowed, even if they have more than BUFFERS_BYTES
 *   together.
 * - If no part is being sent, because no buffer is full, SCATTERED_BYTES more bytes are allowed.
 *
 * The process keeps buffers of closed uploads and uses them again, because the kernel clears new
 * memory. With objects of 512 MiB over loopback, the client needs 0.30 CPU seconds for 10^9 bytes,
 * and 0.38 without kept buffers. The kernel may reclaim the kept memory at any time.
 *
 * The copy into the buffers takes 0.09 of the 0.30 seconds. It could be avoided if parts were sent
 * from the slots, the staging buffers of a lane (worker thread). There are two reasons against
 * that. A slot is shorter than the shortest part, so slots would have to wait until their part is
 * complete, and could block the lane. And the writing program would wait until the server has the
 * part, with one part in flight at a time.
 */
#include "storage/object_buffer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/fork.h"

#define BUFFERS_BYTES (128ull << 20)
#define BUFFERS_MIN 4
#define SCATTERED_BYTES (1ull << 30)
/* Length and maximum number of the buffers that the process keeps after an upload. */
#define KEPT_BYTES PST_OBJECT_PART_BYTES
#define KEPT_MAX (BUFFERS_BYTES / KEPT_BYTES)
#define KEPT_ALIGN 4096u

/* protects `kept`; taken after an upload's lock */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static char *kept[KEPT_MAX];
static unsigned kept_count;

/* Runs in a forked child, which has its own copies of the kept buffers. Another thread may have
 * held the lock at the fork, so the lock is set up again. */
static void kept_in_child(void)
{
	pthread_mutex_init(&kept_lock, NULL);
}

__attribute__((constructor)) static void kept_watch_fork(void)
{
	pst_fork_hook(kept_in_child);
}

/* Returns a kept buffer of an earlier upload, or a new one. */
static char *kept_take(void)
{
	char *mem = NULL;

	pthread_mutex_lock(&kept_lock);
	if (kept_count)
		mem = kept[--kept_count];
	pthread_mutex_unlock(&kept_lock);
	return mem ? mem : aligned_alloc(KEPT_ALIGN, KEPT_BYTES);
}

/* Keeps a buffer for a later upload. Frees it if KEPT_MAX buffers are kept already. */
static void kept_give(char *mem)
{
	bool full;

	/* Permits the kernel to reclaim the pages. An error is ignored: the process then keeps the
	 * memory. */
	madvise(mem, KEPT_BYTES, MADV_FREE);
	pthread_mutex_lock(&kept_lock);
	full = kept_count == KEPT_MAX;
	if (!full)
		kept[kept_count++] = mem;
	pthread_mutex_unlock(&kept_lock);
	if (full)
		free(mem);
}

bool pst_object_buffers_move(const struct pst_object_upload *up)
{
	/* Of these parts, device_moving are in the memory of devices, and have no buffers. */
	return up->sending + up->ready_count + up->summing > up->device_moving && !up->err.code;
}

static char *spare_take(struct pst_object_upload *up)
{
	char *mem = up->spare;

	memcpy(&up->spare, mem, sizeof(up->spare));
	return mem;
}

uint64_t pst_object_buffer_len(const struct pst_object_upload *up, uint64_t len)
{
	return len < up->part_bytes && up->length > up->part_bytes ? up->part_bytes : len;
}

struct pst_window *pst_object_buffer_window(const struct pst_object_upload *up, const char *mem)
{
	const struct upload_window *at = up->window_list;

	while (at && at->window->mem != mem)
		at = at->next;
	return at ? at->window : NULL;
}

/* Allocates a buffer that is a window, which the server can read. Returns NULL if that fails; the
 * part is then sent in an HTTP body. */
static char *window_alloc(struct pst_object_upload *up, uint64_t len)
{
	struct upload_window *own;
	struct pst_err err;

	if (!up->windows || pst_object_windows_check(up->windows, &err))
		return NULL;
	own = calloc(1, sizeof(*own));
	if (!own || pst_object_window_open(up->windows, NULL, (size_t)len, &own->window, &err)) {
		free(own);
		return NULL;
	}
	own->next = up->window_list;
	up->window_list = own;
	return own->window->mem;
}

char *pst_object_buffer_alloc(struct pst_object_upload *up, uint64_t len)
{
	char *mem = window_alloc(up, len);

	if (mem)
		return mem;
	return len == KEPT_BYTES ? kept_take()
				 : malloc(len < sizeof(mem) ? sizeof(mem) : (size_t)len);
}

void pst_object_buffer_free(struct pst_object_upload *up, char *mem, uint64_t len)
{
	struct upload_window **at = &up->window_list;

	while (*at && (*at)->window->mem != mem)
		at = &(*at)->next;
	if (*at) {
		struct upload_window *own = *at;

		*at = own->next;
		own->window->close(own->window);
		free(own);
	} else if (len == KEPT_BYTES) {
		kept_give(mem);
	} else {
		free(mem);
	}
}

char *pst_object_buffer_get(struct pst_object_upload *up, uint64_t len)
{
	uint64_t longest = len > up->part_bytes ? len : up->part_bytes;
	uint64_t most = BUFFERS_BYTES;
	char *mem;

	if (up->spare && len <= up->part_bytes)
		return spare_take(up);
	/* If the length of the object is unknown, later parts are longer, and cannot use the free
	 * buffers of shorter parts. So the free buffers are released. */
	while (up->spare) {
		pst_object_buffer_free(up, spare_take(up), up->part_bytes);
		up->buffer_bytes -= up->part_bytes;
	}
	if (most < BUFFERS_MIN * longest)
		most = BUFFERS_MIN * longest;
	if (up->buffer_bytes + len > most &&
	    (pst_object_buffers_move(up) || up->buffer_bytes + len > most + SCATTERED_BYTES))
		return NULL;
	len = pst_object_buffer_len(up, len);
	mem = pst_object_buffer_alloc(up, len);
	if (mem)
		up->buffer_bytes += len;
	return mem;
}

void pst_object_buffer_put(struct pst_object_upload *up, char *mem, uint64_t len)
{
	const struct pst_window *window = pst_object_buffer_window(up, mem);

	if (len == up->part_bytes && up->buffer_bytes <= BUFFERS_BYTES &&
	    !(window && atomic_load(&window->spoiled))) {
		memcpy(mem, &up->spare, sizeof(up->spare));
		up->spare = mem;
		return;
	}
	up->buffer_bytes -= len;
	pst_object_buffer_free(up, mem, len);
}

void pst_object_buffers_close(struct pst_object_upload *up)
{
	while (up->spare)
		pst_object_buffer_free(up, spare_take(up), up->part_bytes);
}
