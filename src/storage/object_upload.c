/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_upload.h: the upload of one object in parts.
 *
 * pst_object_upload_write, on the worker threads, copies the bytes of writes into the buffers of
 * parts. When a part's buffer is full, a reactor (a thread of io/http.h) sends the part. Then its
 * buffer is used again. A write for which object_buffer.c has no buffer waits until the server has
 * received a part. So a program that writes an object roughly in order needs little memory. With
 * another order, the memory depends on how many parts are incomplete at a time.
 *
 * The multipart upload begins with the first part that is sent. An object of one part is sent by
 * the commit (object_commit.c) in a single PUT.
 *
 * If the server accepts tokens, it fetches a part through the part's window, memory that it may
 * read. If it does not fetch the part, the part is sent in an HTTP body, and counted in parts_near.
 */
#include "storage/object_upload_state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/end.h"
#include "core/base/log.h"
#include "core/lane/inbox.h"
#include "storage/object_buffer.h"
#include "storage/object_part.h"
#include "storage/object_part_window.h"
#include "storage/object_send.h"
#include "storage/object_sum.h"

#define PART_UNIT (1ull << 20)

/* ---- parts ---- */

/* Adds a part that has neither a buffer nor a window yet. Returns NULL if an allocation fails. */
static struct part *part_add(struct pst_object_upload *up, unsigned index, struct pst_err *err)
{
	struct part *part = calloc(1, sizeof(*part));

	if (part)
		part->spans = calloc(SPANS_MAX + 1, sizeof(*part->spans));
	if (!part || !part->spans) {
		free(part);
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a part");
		return NULL;
	}
	part->upload = up;
	part->number = index + 1;
	part->state = PART_FILLING;
	part->off = pst_object_part_range(up, index, &part->len);
	up->parts[index] = part;
	return part;
}

/* Returns the part with this index, ready for writes, with memory. Returns NULL if there is no
 * buffer; the error is -EAGAIN if a buffer may become free. */
static struct part *part_open(struct pst_object_upload *up, unsigned index, struct pst_err *err)
{
	struct part *part = up->parts[index];
	uint64_t len;
	char *mem;

	if (part)
		return part;
	pst_object_part_range(up, index, &len);
	mem = pst_object_buffer_get(up, len);
	if (!mem) {
		err->code = -EAGAIN;
		if (!pst_object_buffers_move(up))
			pst_fail_errno(err, ENOBUFS, PENSTOCK_WHY_NO_MEMORY,
				       "%s: the written ranges are too scattered: write the "
				       "object in order",
				       up->place->url.name);
		return NULL;
	}
	part = part_add(up, index, err);
	if (!part) {
		pst_object_buffer_put(up, mem, pst_object_buffer_len(up, len));
		return NULL;
	}
	part->mem = mem;
	part->mem_len = pst_object_buffer_len(up, len);
	return part;
}

/* If all bytes of a part have been written, prepares it for sending. If the part is the whole
 * object, the commit sends it instead. */
static void part_check(struct pst_object_upload *up, struct part *part)
{
	if (part->state == PART_FILLING && !part->writers && pst_object_part_is_full(part) &&
	    (!up->length || up->length > up->part_bytes))
		pst_object_send_part(up, part);
}

/* ---- writes ---- */

/* Copies the bytes between `first` and `end` of a write into the part. The caller does not hold
 * up->lock, except for a part in the memory of a device. */
static int part_copy(struct part *part, struct pst_io *io, uint64_t first, uint64_t end)
{
	uint64_t at = io->off;
	int ret = 0;

	for (unsigned i = 0; i < io->iov_count && at < end && !ret; i++) {
		uint64_t len = io->iov[i].iov_len, from = at > first ? at : first;
		uint64_t to = at + len < end ? at + len : end;
		const char *mem = (char *)io->iov[i].iov_base + (from - at);

		if (from < to && part->window)
			ret = pst_part_window_patch(part, from - part->off, mem, to - from,
						     &io->err);
		else if (from < to)
			memcpy(part->mem + (from - part->off), mem, (size_t)(to - from));
		at += len;
	}
	return ret;
}

/* Returns 0 if bytes can be written to part `index`. */
static int part_may_fill(const struct pst_object_upload *up, unsigned index, struct pst_io *io)
{
	if (index >= PARTS_MAX)
		return pst_fail_errno(&io->err, EFBIG, PENSTOCK_WHY_NO_SPACE,
				      "%s: an object has at most %u parts", up->place->url.name,
				      PARTS_MAX);
	if (up->sent[index].etag || (up->parts[index] && up->parts[index]->state != PART_FILLING))
		return pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "%s: byte %llu was written before and its part is sent: "
				      "write each byte once",
				      up->place->url.name, (unsigned long long)io->off);
	return 0;
}

/* Allocates all parts that a write touches. Returns 0, -EAGAIN if the write must wait for a buffer,
 * or -errno with the error in io->err. */
static int write_prepare(struct pst_object_upload *up, struct pst_io *io)
{
	unsigned first = pst_object_part_at(up, io->off),
		 last = pst_object_part_at(up, io->off + io->len - 1);
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	for (unsigned i = first; i <= last; i++) {
		int ret = part_may_fill(up, i, io);

		if (ret)
			return ret;
		if (part_open(up, i, &err))
			continue;
		if (err.code != -EAGAIN)
			io->err = err;
		return err.code;
	}
	return 0;
}

static int spans_fail(const struct pst_object_upload *up, struct pst_err *err)
{
	return pst_fail_errno(err, ENOBUFS, PENSTOCK_WHY_NO_MEMORY,
			      "%s: a part has more than %u separate ranges: write longer pieces",
			      up->place->url.name, SPANS_MAX);
}

/* Copies a write into its parts, which write_prepare has opened. Releases the lock meanwhile. */
static int write_copy(struct pst_object_upload *up, struct pst_io *io)
{
	unsigned first = pst_object_part_at(up, io->off),
		 last = pst_object_part_at(up, io->off + io->len - 1);
	uint64_t end = io->off + io->len;
	bool noted = true;
	int ret = 0;

	for (unsigned i = first; i <= last; i++)
		up->parts[i]->writers++;
	up->end = end > up->end ? end : up->end;
	pthread_mutex_unlock(&up->lock);
	for (unsigned i = first; i <= last; i++) {
		struct part *part = up->parts[i];

		if (part->mem)
			part_copy(part, io, part->off, part->off + part->len);
	}
	pthread_mutex_lock(&up->lock);
	for (unsigned i = first; i <= last; i++) {
		struct part *part = up->parts[i];
		uint64_t from = io->off > part->off ? io->off - part->off : 0;
		uint64_t to = end - part->off < part->len ? end - part->off : part->len;

		if (part->window && !ret)
			ret = part_copy(part, io, part->off, part->off + part->len);
		/* After an error, the bytes count as missing, even in parts that have them. */
		noted = noted && (ret || pst_object_part_note(part, from, to));
		part->writers--;
		part_check(up, part);
	}
	return noted || ret ? ret : spans_fail(up, &io->err);
}

/* ---- bytes in the memory of devices ---- */

/* Finds a window for part `index`, and adds the part with this window. Returns like
 * pst_part_window_get. */
static int place_open(struct pst_object_upload *up, unsigned index, struct pst_io *io,
		      bool may_open)
{
	struct pst_window *window;
	struct part *part;
	uint64_t len;
	int ret;

	pst_object_part_range(up, index, &len);
	ret = pst_part_window_get(up, io->dev, pst_object_buffer_len(up, len), may_open, &window,
				   &io->err);
	if (ret)
		return ret;
	part = part_add(up, index, &io->err);
	if (part)
		part->window = window;
	else
		pst_part_window_put(up, window);
	return part ? 0 : io->err.code;
}

/* Finds memory for the bytes of a drain in the window of their part. Returns 0, -EAGAIN if the
 * drain must wait, or -errno with the error in io->err. If `may_open` is true, may release the
 * lock. */
static int place_find(struct pst_object_upload *up, struct pst_io *io, bool may_open)
{
	unsigned index = pst_object_part_at(up, io->off);
	uint64_t first, end;
	struct part *part;
	int ret;

	do
		ret = part_may_fill(up, index, io);
	while (!ret && !up->parts[index] && (ret = place_open(up, index, io, may_open)) == 1);
	if (ret)
		return ret;
	part = up->parts[index];
	first = io->off - part->off;
	end = first + io->len < part->len ? first + io->len : part->len;
	/* A commit shortens the last part to its written bytes. If the commit was stopped, the part
	 * may thus end before the bytes of this drain. */
	if (!part->window || part->window->dev != io->dev || end <= first ||
	    pst_part_window_is_patched(part, first, end))
		return pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
				      "other bytes of the part are not in the memory of %s",
				      io->dev->name);
	part->writers++;
	up->end = part->off + end > up->end ? part->off + end : up->end;
	io->window = part->window;
	io->one.iov_base = part->window->mem + first;
	io->result = (int64_t)(end - first);
	return 0;
}

/* Continues the writes that wait for buffers. */
static void writes_pump(struct pst_object_upload *up)
{
	while (up->waiting) {
		struct pst_io *io = up->waiting;
		int ret = up->err.code ? up->err.code : write_prepare(up, io);

		if (ret == -EAGAIN)
			return;
		up->waiting = io->next;
		if (!up->waiting)
			up->waiting_end = &up->waiting;
		if (up->err.code)
			io->err = up->err;
		else if (!ret)
			ret = write_copy(up, io);
		pst_io_done(io, ret ? ret : (int64_t)io->len);
		pst_object_send_parts(up);
	}
}

/* Continues the drains that wait for windows in the memory of devices. */
static void placing_pump(struct pst_object_upload *up)
{
	while (up->placing) {
		struct pst_io *io = up->placing;
		int ret = up->err.code ? up->err.code : place_find(up, io, false);

		if (ret == -EAGAIN)
			return;
		up->placing = io->next;
		if (!up->placing)
			up->placing_end = &up->placing;
		if (up->err.code)
			io->err = up->err;
		pst_io_done(io, ret ? ret : io->result);
	}
}

/* Sends the parts that are ready, and continues the drains that wait for their memory. */
static void upload_pump(struct pst_object_upload *up)
{
	if (up->stopping)
		return;
	pst_object_send_parts(up);
	writes_pump(up);
	placing_pump(up);
}

/* Returns 0 if windows may be used for this upload. For an object of one part, a server that
 * ignores tokens would store an empty object for a moment. So such an object needs a server that
 * has moved a PUT through a window before, unless the caller allows only windows. */
static int one_part_check(const struct pst_object_upload *up,
			  const struct pst_object_windows *windows, struct pst_err *err)
{
	if (up->windows_only || up->length > up->part_bytes || pst_object_windows_answered(windows))
		return 0;
	return pst_fail(err, PENSTOCK_WHY_NO_WINDOW,
			"an object of one part goes by HTTP until the server has moved bytes "
			"through a window");
}

/* Returns 0 if the bytes of a write may be reported as moving through windows. If they are, the
 * commit sends an object of one part through a window, too. */
static int far_check(const struct pst_object_upload *up, struct pst_err *err)
{
	if (!up->windows)
		return pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the upload has no windows");
	if (pst_object_windows_check(up->windows, err))
		return err->code;
	/* The bytes move only after the write has completed, so it is unknown whether they will
	 * move through a window. The check uses the server's reply to its last token. */
	if (!up->windows_only && pst_object_windows_decline(up->windows))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED,
				      "the server has declined the last token");
	return 0;
}

/* Checks a drain before it begins. */
static int drain_check(const struct pst_object_upload *up, struct pst_io *io)
{
	int ret = io->flags & PST_IO_FAR ? far_check(up, &io->err) : 0;
	uint64_t end;

	if (ret)
		return ret;
	if (__builtin_add_overflow(io->off, io->len, &end) || (up->length && end > up->length))
		return pst_fail(&io->err, PENSTOCK_WHY_NO_SPACE,
				"%s: the object was opened with %llu bytes", up->place->url.name,
				(unsigned long long)up->length);
	return 0;
}

int pst_object_upload_write(struct pst_object_upload *up, struct pst_io *io)
{
	bool far = io->flags & PST_IO_FAR;
	int ret = drain_check(up, io);

	if (ret)
		return ret;
	if (!io->len) {
		io->result = 0;
		io->done(io);
		return 0;
	}
	io->engine = far ? "rdma" : "http";
	pthread_mutex_lock(&up->lock);
	up->far |= far;
	if (up->err.code) {
		io->err = up->err;
		ret = up->err.code;
	} else {
		ret = write_prepare(up, io);
	}
	if (ret == -EAGAIN) {
		io->next = NULL;
		*up->waiting_end = io;
		up->waiting_end = &io->next;
		pthread_mutex_unlock(&up->lock);
		return 0;
	}
	if (!ret)
		ret = write_copy(up, io);
	upload_pump(up);
	pthread_mutex_unlock(&up->lock);
	if (ret)
		return ret;
	io->result = (int64_t)io->len;
	io->done(io);
	return 0;
}

int pst_object_upload_reach(struct pst_object_upload *up, struct penstock_device *dev,
			    struct pst_err *err)
{
	return pst_part_window_reach(up, dev, err);
}

int pst_object_upload_place(struct pst_object_upload *up, struct pst_io *io)
{
	int ret = drain_check(up, io);

	if (ret)
		return ret;
	io->engine = "rdma";
	pthread_mutex_lock(&up->lock);
	up->far = true;
	if (up->err.code) {
		io->err = up->err;
		ret = up->err.code;
	} else {
		ret = place_find(up, io, true);
	}
	if (ret == -EAGAIN) {
		io->next = NULL;
		*up->placing_end = io;
		up->placing_end = &io->next;
	}
	pthread_mutex_unlock(&up->lock);
	if (!ret)
		io->done(io);
	return ret == -EAGAIN ? 0 : ret;
}

int pst_object_upload_placed(struct pst_object_upload *up, uint64_t off, uint64_t len, bool copied,
			     struct pst_err *err)
{
	struct part *part;
	int ret = 0;

	pthread_mutex_lock(&up->lock);
	part = up->parts[pst_object_part_at(up, off)];
	off -= part->off;
	if (copied && !pst_object_part_note(part, off, off + len))
		ret = spans_fail(up, err);
	part->writers--;
	part_check(up, part);
	upload_pump(up);
	pthread_mutex_unlock(&up->lock);
	return ret;
}

/* Takes a drain out of a list. Returns whether it was there. */
static bool waiting_remove(struct pst_io **list, struct pst_io ***list_end, const struct pst_io *io)
{
	struct pst_io **at = list;

	while (*at && *at != io)
		at = &(*at)->next;
	if (!*at)
		return false;
	*at = io->next;
	if (!io->next)
		*list_end = at;
	return true;
}

bool pst_object_upload_cancel(struct pst_object_upload *up, const struct pst_io *io)
{
	bool found;

	pthread_mutex_lock(&up->lock);
	found = waiting_remove(&up->waiting, &up->waiting_end, io) ||
		waiting_remove(&up->placing, &up->placing_end, io);
	pthread_mutex_unlock(&up->lock);
	return found;
}

uint64_t pst_object_upload_length(struct pst_object_upload *up)
{
	uint64_t end;

	pthread_mutex_lock(&up->lock);
	end = up->end;
	pthread_mutex_unlock(&up->lock);
	return end;
}

/* Waits until the state of the upload changes, or until it is time to check the caller's limits. */
static void upload_wait(struct pst_object_upload *up, const struct penstock_end_opts *limits)
{
	uint64_t next_ns = pst_now_ns() + PST_END_CHECK_NS;
	struct timespec until = {(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)};

	if (limits)
		pthread_cond_timedwait(&up->changed, &up->lock, &until);
	else
		pthread_cond_wait(&up->changed, &up->lock);
}

int pst_object_upload_finish(struct pst_object_upload *up, unsigned count,
			     const struct penstock_end_opts *limits, struct pst_err *err)
{
	struct part *last;
	int ret = 0;

	pthread_mutex_lock(&up->lock);
	last = up->parts[count - 1];
	if (last && last->state == PART_FILLING) {
		last->len = (up->length ? up->length : up->end) - last->off;
		pst_object_send_part(up, last);
	}
	upload_pump(up);
	while ((up->sending || up->ready_count || up->summing || up->working ||
		up->id_state == ID_ASKED) &&
	       !up->err.code && !(ret = pst_end_check(limits, err)))
		upload_wait(up, limits);
	if (up->err.code) {
		ret = up->err.code;
		*err = up->err;
	}
	pthread_mutex_unlock(&up->lock);
	return ret;
}

/* ---- stop, open and free ---- */

int pst_object_upload_open(const struct pst_object_place *place, uint64_t length, bool must_be_new,
			   struct pst_object_upload **out, struct pst_err *err)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	uint64_t least = length / PARTS_MAX + 1;

	if (!up)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an upload");
	up->place = place;
	up->pump = upload_pump;
	up->length = length;
	up->must_be_new = must_be_new;
	up->part_bytes = PST_OBJECT_PART_BYTES;
	if (up->part_bytes < least)
		up->part_bytes = (least + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
	up->waiting_end = &up->waiting;
	up->placing_end = &up->placing;
	pthread_mutex_init(&up->lock, NULL);
	pst_cond_init(&up->changed);
	*out = up;
	return 0;
}

struct pst_object_windows *pst_object_upload_windows(struct pst_object_upload *up,
						     struct pst_object_windows *windows,
						     struct pst_err *why)
{
	up->windows_only = up->place->url.rdma == PST_OBJECT_RDMA_REQUIRE;
	if (windows && up->length && one_part_check(up, windows, why))
		windows = NULL;
	up->windows = windows;
	if (!windows && up->windows_only)
		up->err = *why;
	return windows;
}

void pst_object_upload_facts(const struct pst_object_upload *up, struct pst_storage_facts *facts)
{
	facts->parts_far = up->parts_far;
	facts->parts_near = up->parts_near;
	facts->parts_device = up->parts_device;
	facts->why_near = up->why_near;
}

void pst_object_upload_free(struct pst_object_upload *up)
{
	for (unsigned i = 0; i < PARTS_MAX; i++) {
		pst_object_send_free(up->parts[i]);
		free(up->sent[i].etag);
	}
	pst_object_buffers_close(up);
	pst_part_windows_close(up);
	pthread_cond_destroy(&up->changed);
	pthread_mutex_destroy(&up->lock);
	free(up);
}
