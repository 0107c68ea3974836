/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upload of one object: see object_upload.h.
 *
 * Lanes call pst_object_upload_write, which copies the bytes into the buffers of parts. A part
 * whose buffer is full is sent by the reactors; when it has arrived, its buffer is used again. A
 * write that finds no buffer (object_buffer.c) waits until a part has arrived. So a program that
 * writes an object roughly in order needs little memory, and one that writes it in another order
 * needs no more than it must.
 *
 * The multipart upload begins with the first part that is sent. An object of one part is sent by
 * the commit (object_commit.c) in a single PUT.
 *
 * If the server takes tokens, it fetches a part through the part's window. If it does not do so,
 * the part is sent in a body, and counted.
 */
#include "storage/object_upload_state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/end.h"
#include "core/base/log.h"
#include "core/lane/inbox.h"
#include "storage/object_buffer.h"
#include "storage/object_part.h"
#include "storage/object_sum.h"

#define PART_UNIT (1ull << 20)

/* ---- parts ---- */

static void part_free(struct part *part)
{
	if (!part)
		return;
	pst_object_call_clear(&part->call);
	free(part->spans);
	if (part->mem)
		pst_object_buffer_free(part->upload, part->mem, part->mem_len);
	free(part);
}

/* Closes the window of a part whose request will not be sent. */
static void part_close_window(struct part *part)
{
	if (part->call.token)
		pst_object_grant_wait(&part->grant);
	part->call.token = NULL;
}

/* Returns the part with this index, ready for writes, with a buffer. Returns NULL if there is no
 * buffer; the error is -EAGAIN if a buffer may become free. */
static struct part *part_open(struct pst_object_upload *up, unsigned index, struct pst_err *err)
{
	struct part *part = up->parts[index];
	uint64_t len, off = pst_object_part_range(up, index, &len);
	char *mem;

	if (part)
		return part;
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
	part = calloc(1, sizeof(*part));
	if (part)
		part->spans = calloc(SPANS_MAX + 1, sizeof(*part->spans));
	if (!part || !part->spans) {
		pst_object_buffer_put(up, mem, pst_object_buffer_len(up, len));
		free(part);
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a part");
		return NULL;
	}
	part->upload = up;
	part->number = index + 1;
	part->state = PART_FILLING;
	part->off = off;
	part->len = len;
	part->mem = mem;
	part->mem_len = pst_object_buffer_len(up, len);
	up->parts[index] = part;
	return part;
}

/* ---- sending, under the lock ---- */

static void upload_fail(struct pst_object_upload *up, const struct pst_err *err)
{
	if (!up->err.code)
		up->err = *err;
}

/* Repeats a call whose error may pass. Returns true if the call has been started again. If it could
 * not be started, stores the error in *ret and *err. */
static bool call_starts_again(const struct pst_object_upload *up, struct pst_object_call *call,
			      int *ret, struct pst_err *err)
{
	if (up->stopping || !pst_object_call_may_pass(call))
		return false;
	*ret = pst_object_call_repeat(call, err);
	return !*ret;
}

static void upload_pump(struct pst_object_upload *up);

/* Completes a part whose request has ended. Called without the lock. */
static void part_finish(struct part *part)
{
	struct pst_object_call *call = &part->call;
	struct pst_object_upload *up = part->upload;
	struct sent *sent = &up->sent[part->number - 1];
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	int ret = pst_object_call_result(call, "upload a part", &err);

	if (!ret && !call->http.head.etag[0])
		ret = pst_fail_errno(&err, EIO, PENSTOCK_WHY_MALFORMED,
				     "%s: the server sent no ETag of a part", up->place->url.name);
	pthread_mutex_lock(&up->lock);
	if (call_starts_again(up, call, &ret, &err)) {
		pthread_mutex_unlock(&up->lock);
		return;
	}
	if (!ret)
		sent->etag = strdup(call->http.head.etag);
	if (!ret && !sent->etag)
		ret = pst_fail(&err, PENSTOCK_WHY_NO_MEMORY, "no memory for an ETag");
	if (ret)
		upload_fail(up, &err);
	sent->len = part->len;
	sent->crc = part->crc;
	up->parts[part->number - 1] = NULL;
	pst_object_buffer_put(up, part->mem, part->mem_len);
	part->mem = NULL;
	part_free(part);
	up->sending--;
	upload_pump(up);
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

static int part_start(struct part *part, struct pst_err *err);

/* Sends a part in the body of a request, because the server has not fetched it through the window.
 * If the caller allows only windows, offers the window again after an error that may pass. */
static void part_resend(struct part *part)
{
	struct pst_object_upload *up = part->upload;
	bool passing = part->grant.verdict.next != PENSTOCK_OBJECT_RESEND;
	bool again = up->windows_only && passing;
	unsigned repeats = part->call.repeats + 1;
	struct pst_err why, err;
	int ret;

	if (passing)
		pst_fail(&why, PENSTOCK_WHY_NO_WINDOW, "an error that may pass");
	else
		pst_object_grant_why(&part->grant, &why);
	/* Under the lock, because upload_stop may cancel the call. */
	pthread_mutex_lock(&up->lock);
	pst_object_call_clear(&part->call);
	memset(&part->call, 0, sizeof(part->call));
	part->call.repeats = again ? repeats : 0;
	part->offered = !again;
	ret = up->stopping ? pst_fail(&err, PENSTOCK_WHY_CANCELLED, "the upload was aborted")
	      : again	   ? 0
			   : pst_object_part_near(up, &why, &err);
	if (!ret)
		ret = part_start(part, &err);
	pthread_mutex_unlock(&up->lock);
	if (!ret)
		return;
	part_close_window(part);
	part->call.place = up->place;
	part->call.method = "PUT";
	part->call.http.result = ret;
	part->call.http.err = err;
	part_finish(part);
}

/* Called when the server has lost its access to a part's window: completes the part, or sends it
 * again. */
static void part_released(struct pst_object_grant *grant)
{
	struct part *part = (struct part *)((char *)grant - offsetof(struct part, grant));
	struct pst_object_upload *up = part->upload;
	enum penstock_object_next next = grant->verdict.next;

	part->call.token = NULL;
	/* An error may also follow the status 200, although the bytes have moved. The request
	 * cannot be repeated without a token, because it has no body. */
	if (next == PENSTOCK_OBJECT_RESEND || pst_object_call_may_pass(&part->call)) {
		part_resend(part);
		return;
	}
	if (next == PENSTOCK_OBJECT_DONE) {
		pthread_mutex_lock(&up->lock);
		up->parts_far++;
		pthread_mutex_unlock(&up->lock);
	}
	part_finish(part);
}

static void part_ended(struct pst_object_call *call)
{
	struct part *part = (struct part *)call;
	char code[64];

	if (!call->token) {
		part_finish(part);
		return;
	}
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	if (!call->http.result)
		pst_object_grant_judge(&part->grant, call, code);
	pst_object_grant_release(&part->grant, part_released);
}

/* Offers the part's window to the server, if the part has one. Returns 0 also if it cannot be
 * offered; the part is then sent in a body. */
static int part_offer(struct part *part, struct pst_err *err)
{
	struct pst_object_upload *up = part->upload;
	struct pst_window *window = pst_object_buffer_window(up, part->mem);
	struct pst_err why;

	if (!up->windows)
		return 0;
	if (!window)
		pst_fail(&why, PENSTOCK_WHY_NO_MEMORY, "no window could be allocated");
	else if (!pst_object_grant_open(&part->grant, up->windows, window, PENSTOCK_WRITE,
					part->len, &why)) {
		pst_object_grant_offer(&part->grant, &part->call);
		return 0;
	}
	return pst_object_part_near(up, &why, err);
}

/* Starts the request that sends a part in its body. */
static int part_start(struct part *part, struct pst_err *err)
{
	struct pst_object_upload *up = part->upload;

	pst_object_call_init(&part->call, up->place, "PUT", part->query);
	part->call.ended = part_ended;
	part->call.sends = true;
	part->call.http.out = part->mem;
	part->call.http.out_len = part->len;
	if (!up->no_sums) {
		pst_object_sum_text(PST_HASH_CRC64NVME, part->crc, part->sum);
		pst_object_call_header(&part->call, "x-amz-checksum-crc64nvme", part->sum);
	}
	if (!part->offered) {
		int ret = part_offer(part, err);

		part->offered = true;
		if (ret)
			return ret;
	}
	return pst_http_start(&part->call.http, err);
}

static void part_send(struct part *part)
{
	struct pst_object_upload *up = part->upload;
	struct pst_err err;

	part->state = PART_SENDING;
	up->ready_count--;
	up->sending++;
	pst_object_part_query(up, part->number, part->query);
	if (!part_start(part, &err))
		return;
	part_close_window(part);
	upload_fail(up, &err);
	up->sending--;
	part->state = PART_FILLING;
}

static void parts_send(struct pst_object_upload *up)
{
	for (unsigned i = 0; i < PARTS_MAX && up->ready_count; i++)
		if (up->parts[i] && up->parts[i]->state == PART_READY)
			part_send(up->parts[i]);
}

static void id_ask(struct pst_object_upload *up);

static void id_ended(struct pst_object_call *call)
{
	struct pst_object_upload *up = call->user;
	bool lacks_sums = pst_object_call_lacks_sums(call);
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	int ret = pst_object_call_result(call, "begin an upload", &err);

	pthread_mutex_lock(&up->lock);
	if (call_starts_again(up, call, &ret, &err)) {
		pthread_mutex_unlock(&up->lock);
		return;
	}
	up->id_state = ID_NONE;
	if (!ret)
		pst_object_xml_text(&call->http.text, "UploadId", up->id, sizeof(up->id));
	if (!ret && !up->id[0])
		ret = pst_fail_errno(&err, EIO, PENSTOCK_WHY_MALFORMED,
				     "%s: the server sent no upload ID", up->place->url.name);
	pst_object_call_clear(call);
	if (!ret) {
		up->id_state = ID_KNOWN;
	} else if (!up->no_sums && lacks_sums && !up->stopping) {
		/* sends no checksums from now on, because the server does not know this kind */
		up->no_sums = true;
		id_ask(up);
	} else {
		upload_fail(up, &err);
	}
	upload_pump(up);
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

/* Starts the request that begins the multipart upload and asks for its ID. */
static void id_ask(struct pst_object_upload *up)
{
	struct pst_err err;

	memset(&up->create, 0, sizeof(up->create));
	pst_object_call_init(&up->create, up->place, "POST", "uploads=");
	up->create.ended = id_ended;
	up->create.user = up;
	up->create.sends = true;
	if (!up->no_sums) {
		pst_object_call_header(&up->create, "x-amz-checksum-algorithm", "CRC64NVME");
		pst_object_call_header(&up->create, "x-amz-checksum-type", "FULL_OBJECT");
	}
	up->id_state = ID_ASKED;
	if (!pst_http_start(&up->create.http, &err))
		return;
	up->id_state = ID_NONE;
	upload_fail(up, &err);
}

/* Computes the checksum of a part, and then marks the part as ready to be sent. Releases the lock
 * meanwhile. */
static void part_sum(struct pst_object_upload *up, struct part *part)
{
	struct iovec iov = {part->mem, (size_t)part->len};

	part->state = PART_SUMMING;
	if (!up->no_sums) {
		up->summing++;
		pthread_mutex_unlock(&up->lock);
		part->crc = pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, 0, part->len);
		pthread_mutex_lock(&up->lock);
		up->summing--;
	}
	part->state = PART_READY;
	up->ready_count++;
}

/* Prepares a full part for sending. If the part is the whole object, the commit sends it
 * instead. */
static void part_check(struct pst_object_upload *up, struct part *part)
{
	if (part->state == PART_FILLING && !part->writers && pst_object_part_is_full(part) &&
	    (!up->length || up->length > up->part_bytes))
		part_sum(up, part);
}

/* ---- writes ---- */

/* Copies the bytes of a write that lie in the part. Called without the lock. */
static void part_copy(struct part *part, const struct pst_io *io, uint64_t first, uint64_t end)
{
	uint64_t at = io->off;

	for (unsigned i = 0; i < io->iov_count && at < end; i++) {
		uint64_t len = io->iov[i].iov_len, from = at > first ? at : first;
		uint64_t to = at + len < end ? at + len : end;

		if (from < to)
			memcpy(part->mem + (from - part->off),
			       (char *)io->iov[i].iov_base + (from - at), (size_t)(to - from));
		at += len;
	}
}

/* Opens all parts that a write touches. Returns 0, -EAGAIN if the write must wait, or -errno with
 * the error in io->err. */
static int write_prepare(struct pst_object_upload *up, struct pst_io *io)
{
	unsigned first = pst_object_part_at(up, io->off),
		 last = pst_object_part_at(up, io->off + io->len - 1);
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	for (unsigned i = first; i <= last; i++) {
		if (i < PARTS_MAX && !up->sent[i].etag &&
		    (!up->parts[i] || up->parts[i]->state == PART_FILLING)) {
			if (part_open(up, i, &err))
				continue;
			if (err.code != -EAGAIN)
				io->err = err;
			return err.code;
		}
		return i >= PARTS_MAX
			       ? pst_fail_errno(&io->err, EFBIG, PENSTOCK_WHY_NO_SPACE,
						"%s: an object has at most %u parts",
						up->place->url.name, PARTS_MAX)
			       : pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
						"%s: byte %llu was written before and its part is "
						"sent: write each byte once",
						up->place->url.name, (unsigned long long)io->off);
	}
	return 0;
}

/* Copies a write into its parts, which write_prepare has opened. Releases the lock meanwhile. */
static int write_copy(struct pst_object_upload *up, struct pst_io *io)
{
	unsigned first = pst_object_part_at(up, io->off),
		 last = pst_object_part_at(up, io->off + io->len - 1);
	uint64_t end = io->off + io->len;
	bool noted = true;

	for (unsigned i = first; i <= last; i++)
		up->parts[i]->writers++;
	up->end = end > up->end ? end : up->end;
	pthread_mutex_unlock(&up->lock);
	for (unsigned i = first; i <= last; i++) {
		struct part *part = up->parts[i];

		part_copy(part, io, part->off, part->off + part->len);
	}
	pthread_mutex_lock(&up->lock);
	for (unsigned i = first; i <= last; i++) {
		struct part *part = up->parts[i];
		uint64_t from = io->off > part->off ? io->off - part->off : 0;
		uint64_t to = end - part->off < part->len ? end - part->off : part->len;

		noted &= pst_object_part_note(part, from, to);
		part->writers--;
		part_check(up, part);
	}
	return noted ? 0
		     : pst_fail_errno(&io->err, ENOBUFS, PENSTOCK_WHY_NO_MEMORY,
				      "%s: a part has more than %u separate ranges: write longer "
				      "pieces",
				      up->place->url.name, SPANS_MAX);
}

/* Sends the parts that are ready. Before the first part, begins the upload and waits for its ID. */
static void parts_start(struct pst_object_upload *up)
{
	if (up->ready_count && !up->err.code && up->id_state == ID_NONE)
		id_ask(up);
	if (up->id_state == ID_KNOWN && !up->err.code)
		parts_send(up);
}

/* Sends the parts that are ready, and continues the writes that waited for buffers. */
static void upload_pump(struct pst_object_upload *up)
{
	if (up->stopping)
		return;
	parts_start(up);
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
		parts_start(up);
	}
}

/* Returns 0 if an object of one part may use a window. A server that does not know tokens would
 * store an empty object for a moment. */
static int one_part_check(const struct pst_object_upload *up,
			  const struct pst_object_windows *windows, struct pst_err *err)
{
	if (up->windows_only || up->length > up->part_bytes || pst_object_windows_answered(windows))
		return 0;
	return pst_fail(err, PENSTOCK_WHY_NO_WINDOW,
			"an object of one part goes by HTTP until the server has moved bytes "
			"through a window");
}

/* Returns 0 if a path may report that the bytes of a write move through windows. An object of one
 * part then uses a window, too. */
static int far_check(const struct pst_object_upload *up, struct pst_err *err)
{
	if (!up->windows)
		return pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the upload has no windows");
	if (pst_object_windows_check(up->windows, err))
		return err->code;
	/* The bytes move only after the write has completed. So this function can only use the
	 * server's last responses. */
	if (!up->windows_only && pst_object_windows_decline(up->windows))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED,
				      "the server has declined the last token");
	return 0;
}

int pst_object_upload_write(struct pst_object_upload *up, struct pst_io *io)
{
	bool far = io->flags & PST_IO_FAR;
	uint64_t end;
	int ret = far ? far_check(up, &io->err) : 0;

	if (ret)
		return ret;

	if (__builtin_add_overflow(io->off, io->len, &end) || (up->length && end > up->length))
		return pst_fail(&io->err, PENSTOCK_WHY_NO_SPACE,
				"%s: the object was opened with %llu bytes", up->place->url.name,
				(unsigned long long)up->length);
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

bool pst_object_upload_cancel(struct pst_object_upload *up, const struct pst_io *io)
{
	struct pst_io **at;
	bool found;

	pthread_mutex_lock(&up->lock);
	for (at = &up->waiting; *at && *at != io;)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*at = io->next;
		if (!io->next)
			up->waiting_end = at;
	}
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
		part_sum(up, last);
	}
	upload_pump(up);
	while ((up->sending || up->ready_count || up->id_state == ID_ASKED) && !up->err.code &&
	       !(ret = pst_end_check(limits, err)))
		upload_wait(up, limits);
	if (up->err.code) {
		ret = up->err.code;
		*err = up->err;
	}
	pthread_mutex_unlock(&up->lock);
	return ret;
}

/* ---- stop, open and free ---- */

void pst_object_upload_stop(struct pst_object_upload *up)
{
	pthread_mutex_lock(&up->lock);
	up->stopping = true;
	if (!up->err.code)
		pst_fail(&up->err, PENSTOCK_WHY_CANCELLED, "the upload was aborted");
	for (unsigned i = 0; i < PARTS_MAX && up->sending; i++) {
		struct part *part = up->parts[i];

		if (!part || part->state != PART_SENDING || !pst_http_cancel(&part->call.http))
			continue;
		part_close_window(part);
		part->state = PART_FILLING;
		up->sending--;
	}
	if (up->id_state == ID_ASKED && pst_http_cancel(&up->create.http))
		up->id_state = ID_NONE;
	while (up->sending || up->id_state == ID_ASKED)
		pthread_cond_wait(&up->changed, &up->lock);
	pthread_mutex_unlock(&up->lock);
}

int pst_object_upload_open(const struct pst_object_place *place, uint64_t length, bool must_be_new,
			   struct pst_object_upload **out, struct pst_err *err)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	uint64_t least = length / PARTS_MAX + 1;
	pthread_condattr_t attr;

	if (!up)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an upload");
	up->place = place;
	up->length = length;
	up->must_be_new = must_be_new;
	up->part_bytes = PST_OBJECT_PART_BYTES;
	if (up->part_bytes < least)
		up->part_bytes = (least + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
	up->waiting_end = &up->waiting;
	pthread_mutex_init(&up->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&up->changed, &attr);
	pthread_condattr_destroy(&attr);
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
	facts->why_near = up->why_near;
}

void pst_object_upload_free(struct pst_object_upload *up)
{
	for (unsigned i = 0; i < PARTS_MAX; i++) {
		part_free(up->parts[i]);
		free(up->sent[i].etag);
	}
	pst_object_buffers_close(up);
	pthread_cond_destroy(&up->changed);
	pthread_mutex_destroy(&up->lock);
	free(up);
}
