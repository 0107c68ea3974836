/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_send.h. A part is prepared, then ready, then sent. The lane that has written
 * the last bytes of a part in host memory prepares it: it computes the checksum. A part in the
 * memory of a device is prepared by the thread of this device (object_worker.c).
 *
 * If the server does not fetch a part out of the memory of a device, this thread moves the part to
 * host memory, and the part is sent again: through a window there, or in a body.
 */
#include "storage/object_send.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "storage/object_buffer.h"
#include "storage/object_part.h"
#include "storage/object_part_window.h"
#include "storage/object_sum.h"

void pst_object_send_free(struct part *part)
{
	if (!part)
		return;
	if (part->granted)
		pst_object_grant_wait(&part->grant);
	pst_object_call_clear(&part->call);
	free(part->spans);
	free(part->patches.bytes);
	free(part->patches.ranges);
	if (part->mem)
		pst_object_buffer_free(part->upload, part->mem, part->mem_len);
	if (part->window)
		pst_part_window_put(part->upload, part->window);
	free(part);
}

/* Closes the window of a part whose request will not be sent. */
static void part_close_window(struct part *part)
{
	if (part->call.token)
		pst_object_grant_wait(&part->grant);
	part->call.token = NULL;
}

static void upload_fail(struct pst_object_upload *up, const struct pst_err *err)
{
	if (!up->err.code)
		up->err = *err;
}

/* Repeats a call after an error that may be temporary. Returns true if the call has been started
 * again. If it could not be started, stores the error in *ret and *err. */
static bool call_starts_again(const struct pst_object_upload *up, struct pst_object_call *call,
			      int *ret, struct pst_err *err)
{
	if (up->stopping || !pst_object_call_may_pass(call))
		return false;
	*ret = pst_object_call_repeat(call, err);
	return !*ret;
}

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
	up->unanswered |= call->http.result < 0;
	sent->len = part->len;
	sent->crc = part->crc;
	up->parts[part->number - 1] = NULL;
	up->device_moving -= part->window != NULL;
	if (part->mem)
		pst_object_buffer_put(up, part->mem, part->mem_len);
	part->mem = NULL;
	pst_object_send_free(part);
	up->sending--;
	up->pump(up);
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

/* ---- parts in the memory of devices ---- */

int pst_object_send_fetch(struct part *part, const struct pst_err *why, struct pst_err *err)
{
	struct pst_object_upload *up = part->upload;
	struct pst_window *window = part->window;
	struct iovec iov = {NULL, (size_t)part->len};
	uint64_t len;
	int ret;

	/* The buffer is as long as for a full part, although the last part of an object may be
	 * shorter. */
	pst_object_part_range(up, part->number - 1, &len);
	len = pst_object_buffer_len(up, len);
	pthread_mutex_lock(&up->lock);
	iov.iov_base = pst_object_buffer_alloc(up, len);
	pthread_mutex_unlock(&up->lock);
	ret = iov.iov_base ? pst_part_window_fetch(part, iov.iov_base, err)
			   : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a part");
	if (!ret && !part->has_crc) {
		part->crc = pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, 0, part->len);
		part->has_crc = true;
	}
	if (!ret)
		pst_object_windows_tested(up->windows, window->dev, why);
	pthread_mutex_lock(&up->lock);
	if (!ret) {
		up->device_moving -= part->state != PART_FILLING;
		up->buffer_bytes += len;
		part->mem = iov.iov_base;
		part->mem_len = len;
		part->window = NULL;
		/* lets part_start offer the new memory, if it is a window */
		part->offered = false;
		pst_part_window_put(up, window);
	} else if (iov.iov_base) {
		pst_object_buffer_free(up, iov.iov_base, len);
	}
	pthread_mutex_unlock(&up->lock);
	return ret;
}

int pst_object_send_prepare(struct part *part, struct pst_err *err)
{
	struct iovec iov = {part->mem, (size_t)part->len};
	struct pst_err why;

	if (part->mem) {
		part->crc = pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, 0, part->len);
		part->has_crc = true;
		return 0;
	}
	if (!pst_part_window_prepare(part, &why))
		return 0;
	return pst_object_send_fetch(part, &why, err);
}

/* Prepares a part whose window is in the memory of a device, and permits the server to read the
 * window. If that fails, moves the part to host memory. */
static int part_prepare(struct part *part, struct pst_err *err)
{
	struct pst_object_upload *up = part->upload;
	int ret = pst_object_send_prepare(part, err);
	struct pst_err why;

	if (ret || !part->window)
		return ret;
	part->granted = !pst_object_grant_open(&part->grant, up->windows, part->window,
					       PENSTOCK_WRITE, part->len, &why);
	return part->granted ? 0 : pst_object_send_fetch(part, &why, err);
}

/* Prepares a part on the thread of its device, or moves it to host memory. Then it is ready. */
static void part_work_run(struct pst_object_job *job)
{
	struct part *part = (struct part *)((char *)job - offsetof(struct part, job));
	struct pst_object_upload *up = part->upload;
	struct pst_err err;
	int ret = part->fetches ? pst_object_send_fetch(part, &part->why_host, &err)
				: part_prepare(part, &err);

	pthread_mutex_lock(&up->lock);
	up->summing--;
	if (ret) {
		upload_fail(up, &err);
		up->device_moving--;
		part->state = PART_FILLING;
	} else {
		part->state = PART_READY;
		up->ready_count++;
	}
	up->pump(up);
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

/* Replaces a part's call by an empty call. Keeps the members that determine the delay of the next
 * request. */
static void part_renew_call(struct part *part, unsigned repeats)
{
	struct pst_object_call next = {.repeats = repeats,
				       .http.tries = part->call.http.tries,
				       .http.slowed = part->call.http.slowed};

	next.http.head.retry_after_s = part->call.http.head.retry_after_s;
	pst_object_call_clear(&part->call);
	part->call = next;
}

/* Lets the device's thread prepare a part in the memory of this device or, if `why` is not NULL,
 * move the part to host memory for this reason. */
static void part_work(struct part *part, const struct pst_err *why)
{
	struct pst_object_upload *up = part->upload;

	/* drops the headers of a request that could not be made */
	part_renew_call(part, why ? 0 : part->call.repeats);
	up->device_moving += part->state == PART_FILLING;
	part->state = PART_SUMMING;
	up->summing++;
	part->fetches = why;
	if (why)
		part->why_host = *why;
	part->job.run = part_work_run;
	if (pst_object_work(part->window->dev, &part->job))
		return;
	/* This count keeps the upload from being freed before the lock is taken again. */
	up->working++;
	pthread_mutex_unlock(&up->lock);
	part_work_run(&part->job);
	pthread_mutex_lock(&up->lock);
	up->working--;
	pthread_cond_broadcast(&up->changed);
}

/* ---- requests of parts ---- */

static int part_start(struct part *part, struct pst_err *err);

/* Sends a part again, because the server has not fetched it through the window. If the client has
 * another network card, offers the same window through it. After an error that may pass, offers the
 * same window again: once if it is in the memory of a device, or more often if it is in host memory
 * and the caller forbids HTTP bodies. Otherwise, a part in the memory of a device moves to host
 * memory, and its new window is offered. Any other part is sent in a body, which io/http.c repeats
 * for longer. */
static void part_resend(struct part *part)
{
	struct pst_object_upload *up = part->upload;
	bool passing = part->grant.verdict.next != PENSTOCK_OBJECT_RESEND;
	bool card = !passing && pst_object_grant_next(&part->grant);
	bool again = card || (passing && (part->window ? !part->call.repeats : up->windows_only));
	struct pst_err why, err;
	int ret;

	if (passing)
		pst_fail(&why, PENSTOCK_WHY_NO_WINDOW, "an error that may pass");
	else
		pst_object_grant_why(&part->grant, &why);
	/* The lock keeps pst_object_send_stop from cancelling the call while it changes. */
	pthread_mutex_lock(&up->lock);
	part->call.http.tries = passing ? part->call.http.tries + 1 : 0;
	part->call.http.slowed = pst_object_call_is_slowed(&part->call);
	part_renew_call(part, again ? part->call.repeats + !card : 0);
	part->offered = !again;
	if (up->stopping)
		ret = pst_fail(&err, PENSTOCK_WHY_CANCELLED, "the upload was aborted");
	else if (part->window)
		ret = -EXDEV;
	else
		ret = again ? 0 : pst_object_part_near(up, &why, &err);
	if (!ret)
		ret = part_start(part, &err);
	if (ret == -EXDEV) {
		up->sending--;
		part_work(part, again ? NULL : &why);
	}
	pthread_mutex_unlock(&up->lock);
	if (!ret || ret == -EXDEV)
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
	/* Even a response with status 200 may contain an error after the bytes have moved. The call
	 * itself cannot be repeated, because it has neither a token nor a body any more. */
	if (next == PENSTOCK_OBJECT_RESEND || pst_object_call_may_pass(&part->call)) {
		part_resend(part);
		return;
	}
	if (next == PENSTOCK_OBJECT_DONE) {
		if (part->window)
			pst_object_windows_tested(up->windows, part->window->dev, NULL);
		pthread_mutex_lock(&up->lock);
		up->parts_far++;
		up->parts_device += part->window != NULL;
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

/* Offers the window of a part in the memory of a device, for which part_prepare has opened a grant.
 * Returns 0, or -EXDEV with the reason if this is not possible. */
static int part_offer_device(struct part *part, struct pst_err *err)
{
	part->granted = false;
	if (!pst_object_windows_check(part->upload->windows, err)) {
		pst_object_grant_offer(&part->grant, &part->call);
		return 0;
	}
	pst_object_grant_wait(&part->grant); /* no server has its token */
	return -EXDEV;
}

/* Offers the part's window to the server. If this is not possible, returns -EXDEV for a part in the
 * memory of a device. A part in host memory is then sent in a body: returns 0, or -errno if the
 * caller forbids HTTP bodies. */
static int part_offer(struct part *part, struct pst_err *err)
{
	struct pst_object_upload *up = part->upload;
	struct pst_window *window;
	struct pst_err why;

	if (!up->windows)
		return 0;
	if (part->window)
		return part_offer_device(part, err);
	window = pst_object_buffer_window(up, part->mem);
	if (!window)
		pst_fail(&why, PENSTOCK_WHY_NO_MEMORY, "no window could be allocated");
	else if (!pst_object_grant_open(&part->grant, up->windows, window, PENSTOCK_WRITE,
					part->len, &why)) {
		pst_object_grant_offer(&part->grant, &part->call);
		return 0;
	}
	return pst_object_part_near(up, &why, err);
}

/* Starts the request that uploads a part. The first attempt offers the part's window to the server.
 * If that is not possible, and in later attempts, the part is the body of the request. After an
 * error that may pass, the request is delayed. */
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
	return part->call.http.tries ? pst_http_start_later(&part->call.http, err)
				     : pst_http_start(&part->call.http, err);
}

static void part_send(struct part *part)
{
	struct pst_object_upload *up = part->upload;
	struct pst_err err;
	int ret;

	part->state = PART_SENDING;
	up->ready_count--;
	up->sending++;
	pst_object_part_query(up, part->number, part->query);
	ret = part_start(part, &err);
	if (!ret)
		return;
	up->sending--;
	if (ret == -EXDEV) {
		part_work(part, &err);
		return;
	}
	part_close_window(part);
	upload_fail(up, &err);
	up->device_moving -= part->window != NULL;
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
	up->pump(up);
	pthread_cond_broadcast(&up->changed);
	pthread_mutex_unlock(&up->lock);
}

/* Starts the request that begins the multipart upload. Its response contains the upload's ID. */
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
void pst_object_send_part(struct pst_object_upload *up, struct part *part)
{
	struct pst_err err;

	if (part->window) {
		part_work(part, NULL);
		return;
	}
	part->state = PART_SUMMING;
	if (!up->no_sums) {
		up->summing++;
		pthread_mutex_unlock(&up->lock);
		pst_object_send_prepare(part, &err); /* cannot fail in host memory */
		pthread_mutex_lock(&up->lock);
		up->summing--;
	}
	part->state = PART_READY;
	up->ready_count++;
}

void pst_object_send_parts(struct pst_object_upload *up)
{
	if (up->ready_count && !up->err.code && up->id_state == ID_NONE)
		id_ask(up);
	if (up->id_state == ID_KNOWN && !up->err.code)
		parts_send(up);
}

void pst_object_send_stop(struct pst_object_upload *up)
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
		up->device_moving -= part->window != NULL;
		part->state = PART_FILLING;
		up->sending--;
	}
	if (up->id_state == ID_ASKED && pst_http_cancel(&up->create.http))
		up->id_state = ID_NONE;
	while (up->sending || up->summing || up->working || up->id_state == ID_ASKED)
		pthread_cond_wait(&up->changed, &up->lock);
	pthread_mutex_unlock(&up->lock);
}
