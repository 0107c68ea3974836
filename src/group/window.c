/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the windows through which ranks pass each other the bytes that they have read. The
 * windows are exported device memory if every rank can import the windows of all others; otherwise
 * they are host memory, shared by passing descriptors. Called by load.c on every rank. A window is
 * freed only when no rank copies from it any more.
 */
#include "group/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group/orphan.h"
#include "weights/err.h"

struct window_offer {
	uint32_t able, spare;
	uint64_t len;
	struct penstock_export memory;
};

/* ---- device memory ---- */

/* Allocates this rank's window, a buffer that other ranks copy from, in device memory. Tries to
 * export it. A failed export is no error, because the ranks then use host memory. */
static int own_alloc(struct pst_windows *ws, const struct penstock_group *g, struct pst_load *load,
		     struct window_offer *offer)
{
	struct pst_window *own = &ws->list[ws->rank];
	int ret = penstock_alloc(ws->dev, ws->len, &own->ptr);

	memset(offer, 0, sizeof(*offer));
	if (ret)
		return pst_weights_fail(ret, penstock_errwhy(), NULL, NULL, PST_NO_OFF,
					"a group's window on %s: %s", penstock_device_name(ws->dev),
					penstock_errmsg());
	offer->len = ws->len;
	offer->memory = (struct penstock_export)PENSTOCK_EXPORT_INIT;
	offer->able = pst_group_size(g) == 1 ||
		      !penstock_export_memory(ws->dev, own->ptr, ws->len, &offer->memory);
	load->held += ws->len;
	if (load->held > load->sum.report.device_bytes)
		load->sum.report.device_bytes = load->held;
	return 0;
}

/* Imports the windows of all other ranks. Returns false as soon as one import fails. */
static bool others_import(struct pst_windows *ws, const struct pst_message *messages)
{
	for (unsigned i = 0; i < ws->count; i++) {
		struct window_offer offer;

		if (i == ws->rank)
			continue;
		if (messages[i].len != sizeof(offer))
			return false;
		memcpy(&offer, messages[i].bytes, sizeof(offer));
		offer.memory.fd = messages[i].fd < 0 ? -1 : messages[i].fd;
		if (!offer.able || offer.len != ws->len ||
		    penstock_import_memory(ws->dev, &offer.memory, &ws->list[i].ptr))
			return false;
		ws->list[i].imported = true;
	}
	return true;
}

static void others_unmap(struct pst_windows *ws)
{
	for (unsigned i = 0; i < ws->count; i++) {
		struct pst_window *win = &ws->list[i];

		if (i == ws->rank || !win->ptr)
			continue;
		if (win->imported)
			/* Ignores a failure: the memory is then released when the device is
			 * closed. */
			penstock_free(ws->dev, win->ptr);
		else
			munmap(win->ptr, ws->len);
		*win = (struct pst_window){NULL, false};
	}
}

/* Tries to share device memory as windows. Returns 1 if every rank can reach all windows, 0 if some
 * rank cannot, or a negative error. */
static int share_device(struct pst_windows *ws, struct penstock_group *g, struct pst_load *load,
			struct pst_message *messages)
{
	struct window_offer offer;
	unsigned char all = 0;
	int ret = own_alloc(ws, g, load, &offer);

	ret = pst_group_exchange(g, ret, &offer, sizeof(offer), offer.memory.fd, messages);
	if (!ret)
		all = others_import(ws, messages) && offer.able;
	pst_messages_free(g, messages);
	if (!ret) {
		ret = pst_group_exchange(g, 0, &all, 1, -1, messages);
		for (unsigned i = 0; i < ws->count && !ret; i++)
			all = all && messages[i].len == 1 && messages[i].bytes[0];
		pst_messages_free(g, messages);
	}
	return ret ? ret : all;
}

/* ---- host memory ---- */

static int group_window_map(struct pst_windows *ws, unsigned i, int fd)
{
	void *ptr;

	if (fd == PST_FD_LOST)
		return pst_weights_fail(EMFILE, PENSTOCK_WHY_NO_FILES, NULL, NULL, PST_NO_OFF,
					"no descriptor for the window of rank %u: %s", i,
					strerror(EMFILE));
	ptr = mmap(NULL, ws->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ptr == MAP_FAILED)
		return pst_weights_fail(errno, PENSTOCK_WHY_NO_MEMORY, NULL, NULL, PST_NO_OFF,
					"the window of rank %u: %s", i, strerror(errno));
	ws->list[i].ptr = ptr;
	return 0;
}

static int share_host(struct pst_windows *ws, struct penstock_group *g,
		      struct pst_message *messages)
{
	int fd = -1, ret = 0, code = penstock_device_open("host", NULL, &ws->host);

	if (code < 0)
		ret = code;
	if (!ret) {
		fd = memfd_create("penstock-window", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, (off_t)ws->len))
			ret = pst_weights_fail_errno(errno, NULL, NULL, PST_NO_OFF,
						     "a group's window: %s", strerror(errno));
	}
	if (!ret)
		ret = group_window_map(ws, ws->rank, fd);
	ret = pst_group_exchange(g, ret, "w", 1, fd, messages);
	if (!ret) {
		for (unsigned i = 0; i < ws->count && !ret; i++)
			if (i != ws->rank)
				ret = group_window_map(ws, i, messages[i].fd);
		ret = pst_group_barrier(g, ret);
	}
	pst_messages_free(g, messages);
	if (fd >= 0)
		close(fd);
	ws->dev = ws->host;
	return ret;
}

/* ---- both kinds ---- */

static void own_free(struct pst_windows *ws, struct pst_load *load)
{
	struct pst_window *own = &ws->list[ws->rank];

	if (own->ptr && ws->host) {
		munmap(own->ptr, ws->len);
	} else if (own->ptr) {
		penstock_free(ws->dev, own->ptr);
		load->held -= ws->len;
	}
	own->ptr = NULL;
}

int pst_windows_open(struct pst_windows *ws, struct penstock_group *g, struct pst_load *load,
		     struct penstock_device *dev, size_t len)
{
	struct pst_message *messages = calloc(pst_group_size(g), sizeof(*messages));
	int ret;

	memset(ws, 0, sizeof(*ws));
	ws->rank = pst_group_rank(g);
	ws->len = len;
	ws->dev = dev;
	ws->list = calloc(pst_group_size(g), sizeof(*ws->list));
	if (ws->list)
		ws->count = pst_group_size(g);
	ret = messages && ws->list ? 0 : pst_weights_no_memory("a group's windows");
	ret = pst_group_barrier(g, ret);
	if (!ret)
		ret = share_device(ws, g, load, messages);
	if (!ret) {
		others_unmap(ws);
		ret = pst_group_barrier(g, 0);
		own_free(ws, load);
		if (!ret)
			ret = share_host(ws, g, messages);
	}
	free(messages);
	return ret < 0 ? ret : 0;
}

/* Passes this rank's window and the queue `busy` to pst_orphan_adopt, which frees them later. */
static void own_orphan(struct pst_windows *ws, struct pst_load *load, struct penstock_queue *busy)
{
	struct pst_window *own = &ws->list[ws->rank];

	if (!ws->host)
		load->held -= ws->len;
	pst_orphan_adopt(busy, load->w, ws->dev, own->ptr, ws->len, ws->host);
	own->ptr = NULL;
}

void pst_windows_unmap(struct pst_windows *ws, struct penstock_group *g, bool done)
{
	others_unmap(ws);
	pst_group_last_barrier(g, done);
}

void pst_windows_close(struct pst_windows *ws, struct pst_load *load, struct penstock_queue *busy)
{
	if (busy)
		own_orphan(ws, load, busy);
	if (ws->count)
		own_free(ws, load);
	penstock_device_close(ws->host);
	free(ws->list);
	ws->list = NULL;
	ws->count = 0;
}
