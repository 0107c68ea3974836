/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffers of an upload, each for one part. If the server takes tokens, buffers are windows, so
 * that it can fetch the parts itself. Called by object_upload.c, under the upload's lock.
 *
 * The buffers together have at most BUFFERS_BYTES. There are two exceptions:
 * - BUFFERS_MIN buffers are always allowed, even if they are longer than BUFFERS_BYTES together.
 * - If no part is being sent, because no buffer is full, SCATTERED_BYTES more are allowed.
 */
#include "storage/object_buffer.h"

#include <stdlib.h>
#include <string.h>

#define BUFFERS_BYTES (128ull << 20)
#define BUFFERS_MIN 4
#define SCATTERED_BYTES (1ull << 30)

bool pst_object_buffers_move(const struct pst_object_upload *up)
{
	return (up->sending || up->ready_count || up->summing) && !up->err.code;
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

/* Allocates a window as a buffer. Returns NULL if there is none; the part then goes by HTTP. */
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

static char *buffer_alloc(struct pst_object_upload *up, uint64_t len)
{
	char *mem = window_alloc(up, len);

	return mem ? mem : malloc(len < sizeof(mem) ? sizeof(mem) : (size_t)len);
}

void pst_object_buffer_free(struct pst_object_upload *up, char *mem)
{
	struct upload_window **at = &up->window_list;

	while (*at && (*at)->window->mem != mem)
		at = &(*at)->next;
	if (*at) {
		struct upload_window *own = *at;

		*at = own->next;
		own->window->close(own->window);
		free(own);
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
	/* If the length is unknown, later parts are longer and cannot use the free buffers. */
	while (up->spare) {
		pst_object_buffer_free(up, spare_take(up));
		up->buffer_bytes -= up->part_bytes;
	}
	if (most < BUFFERS_MIN * longest)
		most = BUFFERS_MIN * longest;
	if (up->buffer_bytes + len > most &&
	    (pst_object_buffers_move(up) || up->buffer_bytes + len > most + SCATTERED_BYTES))
		return NULL;
	len = pst_object_buffer_len(up, len);
	mem = buffer_alloc(up, len);
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
	pst_object_buffer_free(up, mem);
}

void pst_object_buffers_close(struct pst_object_upload *up)
{
	while (up->spare)
		pst_object_buffer_free(up, spare_take(up));
}
