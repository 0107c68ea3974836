/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the storage named "object": "s3://BUCKET/KEY", and presigned URLs, which can only be
 * read. A read is a range GET, whose body the reactors (io/http.c) receive directly into the memory
 * of the transfer. object_upload.c handles writes.
 *
 * The open requests the object's length and ETag (object_find.c), and perhaps its first bytes. Each
 * GET names this ETag in If-Match, and the ETag of each response is compared with it. So the bytes
 * of two versions are never mixed: a GET of an object that has changed fails with -ESTALE.
 *
 * If the server has a checksum of the whole object, it is compared with the checksum of the
 * received bytes when all bytes have been read. If the two differ, the read that completes the
 * bytes fails, and the check begins again with the next read.
 *
 * An object cannot be changed in place. So a storage that is open for writing writes a whole
 * object, and can be read only after its commit.
 */
#include "storage/object.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/lane/inbox.h"
#include "storage/object_abort.h"
#include "storage/object_commit.h"
#include "storage/object_find.h"
#include "storage/object_reach.h"
#include "storage/object_request.h"
#include "storage/object_sum.h"
#include "storage/object_upload.h"
#include "storage/object_window.h"
#include "storage/object_worker.h"

/* Preferred number of bytes of a GET. Shorter GETs cost more requests for the same bytes. Longer
 * GETs need longer ranges of the staging buffer. */
#define GET_BYTES (4u << 20)

/* A read in flight. */
struct object_read {
	struct pst_object_call call; /* must be the first member */
	struct pst_object *object;
	struct pst_io *io;
	struct object_read *next;
	/* the server's access to the read's memory, if the read has a window */
	struct pst_object_grant grant;
	int64_t result;
	/* CRC-64/NVME of all bytes of the read, if it was computed */
	bool has_crc64;
	uint64_t crc64;
	/* For a window in the memory of a device: the next checksum that the device computes. */
	struct pst_object_job job;
	enum pst_hash_kind job_kind;
	uint64_t job_off, job_len;
};

struct pst_object {
	struct pst_object_place place;
	pthread_mutex_t lock; /* taken before the lock of io/http.c */
	struct object_read *reads;
	uint64_t length;
	char etag[256]; /* ETag at the open; "" if the server sends none */
	struct pst_object_sum sum;
	struct pst_object_first *first; /* prefetched bytes, or NULL */
	/* NULL if reads cannot use windows (memory that the server may access) */
	struct pst_object_windows *windows;
	struct pst_object_upload *upload;   /* NULL if the storage is open for reading */
	bool committed, aborted;
};

/* ---- open ---- */

/* Requests the facts of the object, and stores them. With `prefetch`, also requests its first
 * bytes. Returns -ENOENT if the object does not exist. */
static int object_find(struct pst_object *object, bool prefetch, struct pst_err *err)
{
	struct pst_object_found found;
	int ret = pst_object_find(&object->place, prefetch, &found, err);

	if (ret)
		return ret;
	object->length = found.length;
	memcpy(object->etag, found.etag, sizeof(object->etag));
	object->sum = found.sum;
	object->first = found.first;
	return 0;
}

/* Returns whether the open shall prefetch the object's first bytes by HTTP. If the server may move
 * them by RDMA, only reads of a short object use them. So then the open prefetches only if the
 * last object of this server was short, and if the URL does not ask for RDMA. */
static bool object_prefetches(const struct pst_object *object,
			      const struct penstock_storage_opts *opts)
{
	const struct pst_object_url *url = &object->place.url;
	struct pst_object_windows *windows;
	struct pst_err why;

	if (!(opts->flags & PENSTOCK_O_PREFETCH) || url->rdma == PST_OBJECT_RDMA_REQUIRE)
		return false;
	windows = pst_object_windows_find(&object->place, &why);
	if (!windows || pst_object_windows_check(windows, &why))
		return true;
	return url->rdma == PST_OBJECT_RDMA_AUTO && !url->transports[0] &&
	       !pst_object_windows_are_long(windows);
}

/* Chooses, for an object that the open might have prefetched, between the prefetched bytes and
 * RDMA. If they are the whole object, reads use no windows. Otherwise they use only windows, so
 * that HTTP and RDMA do not both carry a part of the object. Stores in `why` why reads use no
 * windows. */
static void object_choose(struct pst_object *object, struct pst_err *why)
{
	bool is_long = object->length > PST_OBJECT_FIRST_BYTES;

	pst_object_windows_note_long(object->windows, is_long);
	if (!object->first || pst_object_windows_check(object->windows, why))
		return;
	if (is_long) {
		pst_object_first_close(object->first);
		object->first = NULL;
		return;
	}
	object->windows = NULL;
	pst_fail_errno(why, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
		       "the open has prefetched the object by HTTP (PENSTOCK_O_PREFETCH)");
}

/* Opens the object for writing: checks that the URL and the options permit it, and starts an
 * upload. */
static int object_open_upload(struct pst_object *object, const struct penstock_storage_opts *opts,
			      struct pst_err *err)
{
	const char *name = object->place.url.name;
	bool replace = opts->flags & PENSTOCK_O_REPLACE;
	int ret;

	if (object->place.url.presigned)
		return pst_fail_errno(err, EROFS, PENSTOCK_WHY_UNSUPPORTED,
				      "%s: a presigned URL can only be read: write to s3://", name);
	if (!replace && !(opts->flags & PENSTOCK_O_CREATE))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "%s: an object cannot be changed in place: write a whole "
				      "object with PENSTOCK_O_REPLACE",
				      name);
	ret = object_find(object, false, err);
	if (!ret && !replace)
		return pst_fail_errno(err, EEXIST, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: it exists, and an object cannot be changed in place: "
				      "replace it with PENSTOCK_O_REPLACE",
				      name);
	/* Access keys that permit only writes get the status 403 (-EACCES) for this HEAD. Then the
	 * object may still be written. */
	if (ret && ret != -ENOENT && ret != -EACCES)
		return ret;
	err->code = 0;
	/* The commit replaces the object, so the checksum of the old object is of no use. */
	pst_object_sum_close(&object->sum);
	memset(&object->sum, 0, sizeof(object->sum));
	return pst_object_upload_open(&object->place, opts->length, !replace, &object->upload, err);
}

static void object_free(struct pst_object *object)
{
	pst_object_upload_close(object->upload);
	pst_object_sum_close(&object->sum);
	pst_object_first_close(object->first);
	pst_object_place_close(&object->place);
	pthread_mutex_destroy(&object->lock);
	free(object);
}

static void facts_set(struct penstock_storage *st, const struct pst_object *object,
		      const struct pst_err *why_windows)
{
	struct pst_storage_facts *facts = &st->facts;
	const char *check = "unchecked, because the server has no checksum of the whole object";
	bool crc32 = object->sum.kind == PST_HASH_CRC32;
	const char *kind = crc32				 ? "CRC32"
			   : object->sum.kind == PST_HASH_CRC32C ? "CRC32C"
								 : "CRC64NVME";
	char checked[100];

	facts->length = object->upload ? 0 : object->length;
	facts->version = object->upload ? 0 : pst_object_etag_hash(object->etag);
	facts->writable = object->upload;
	facts->chunk_best = GET_BYTES;
	pst_object_windows_facts(object->windows, why_windows,
				 object->place.url.rdma == PST_OBJECT_RDMA_REQUIRE, facts);
	pst_fail(&facts->why_direct, PENSTOCK_WHY_NO_FD,
		 "a direct path needs a file, and an object meets at most no-cpu-copy");
	if (!object->upload)
		pst_fail_errno(&facts->why_no_write, EROFS, PENSTOCK_WHY_UNSUPPORTED,
			       "an object cannot be changed in place: open it with "
			       "PENSTOCK_O_REPLACE");
	snprintf(checked, sizeof(checked), "checked by %s when all of it is read%s", kind,
		 crc32 && facts->windows ? ", except in a GPU's windows" : "");
	if (object->sum.state == PST_OBJECT_SUM_OPEN && crc32)
		facts->device_unchecked = "a GPU computes no CRC32";
	if (object->upload)
		check = "which appears at the commit";
	else if (object->sum.state == PST_OBJECT_SUM_OPEN)
		check = checked;
	else if (object->place.url.unchecked)
		check = "unchecked, as the URL asks";
	else if (!object->etag[0])
		check = "unchecked, and without an ETag changes go unnoticed";
	snprintf(facts->text, sizeof(facts->text), "object at %s://%.100s, %s",
		 object->place.server.tls ? "https" : "http", object->place.host, check);
}

/* Returns 0 if reads may use windows, into which the server writes the bytes. If a response is
 * lost, the read is repeated while the server may still serve the first attempt. Only If-Match
 * guarantees that both attempts write the same bytes. */
static int window_read_check(const struct pst_object *object, struct pst_err *err)
{
	if (pst_object_etag_is_strong(object->etag))
		return 0;
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
			      "the object has no strong ETag, without which a late transfer could "
			      "be of other bytes");
}

static int object_open(struct penstock_storage *st, const char *url, int fd,
		       const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct pst_object *object = calloc(1, sizeof(*object));
	struct pst_err why_windows;
	int ret;

	(void)fd;
	if (!object)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a storage");
	pthread_mutex_init(&object->lock, NULL);
	ret = pst_object_place_open(url, &object->place, err);
	if (!ret && !object->place.url.presigned && !object->place.url.key_len)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			       "%s: want s3://BUCKET/KEY, with a bucket and a key",
			       object->place.url.name);
	else if (!ret)
		ret = opts->flags & PENSTOCK_O_WRITE
			      ? object_open_upload(object, opts, err)
			      : object_find(object, object_prefetches(object, opts), err);
	if (ret) {
		object_free(object);
		return ret;
	}
	object->windows = pst_object_windows_find(&object->place, &why_windows);
	if (object->upload)
		object->windows = pst_object_upload_windows(object->upload, object->windows,
							    &why_windows);
	else if (object->windows && window_read_check(object, &why_windows))
		object->windows = NULL;
	if (object->windows && !object->upload && opts->flags & PENSTOCK_O_PREFETCH)
		object_choose(object, &why_windows);
	st->priv = object;
	facts_set(st, object, &why_windows);
	return 0;
}

static void object_close(struct penstock_storage *st)
{
	const struct pst_object *object = st->priv;

	if (object->sum.state == PST_OBJECT_SUM_OPEN && object->sum.count)
		pst_log(PST_LOG_INFO, "object", "%s is unchecked: only a part of it has been read",
			object->place.url.name);
	object_free(st->priv);
}

/* ---- reads ---- */

static void reads_remove(struct pst_object *object, const struct object_read *read)
{
	struct object_read **at = &object->reads;

	while (*at != read)
		at = &(*at)->next;
	*at = read->next;
}

/* Fails a read whose response is not the requested range of the opened object. */
static enum pst_http_verdict read_refuse(struct object_read *read, int code, enum penstock_why why,
					 const char *what)
{
	pst_fail_errno(&read->call.http.err, code, why, "%s", what);
	return PST_HTTP_FAIL;
}

/* Checks that a response belongs to the opened object, and has the requested range. The body should
 * have `length` bytes. */
static enum pst_http_verdict read_check_head(struct object_read *read, uint64_t length)
{
	const struct pst_object_call *call = &read->call;
	const struct pst_object *object = read->object;
	const struct pst_http_head *head = &call->http.head;
	uint64_t first = call->first + call->http.got, len = call->last - first + 1;
	bool whole = first == 0 && len == object->length;

	if (head->etag[0] && object->etag[0] && strcmp(head->etag, object->etag))
		return read_refuse(read, ESTALE, PENSTOCK_WHY_STALE,
				   "the object changed while it was read: open it again");
	/* With call->exchange, the PREPARE request has named the exact range, and the server
	 * replies 200 to the READY request after the transfer. So the range needs no check. */
	if (call->exchange)
		return PST_HTTP_BODY;
	if (head->status == 200 && !whole)
		return read_refuse(read, EIO, PENSTOCK_WHY_MALFORMED,
				   "the server ignores ranges (it answered 200, not 206)");
	if (head->status != 200 && head->status != 206)
		return read_refuse(read, EIO, PENSTOCK_WHY_MALFORMED,
				   "the answer to a GET is neither 200 nor 206");
	if (head->status == 206 &&
	    (!head->has_range || head->range_first != first || head->range_last != call->last))
		return read_refuse(read, EIO, PENSTOCK_WHY_MALFORMED,
				   "the server sent another range than was asked for "
				   "(Content-Range)");
	if ((head->has_total && head->range_total != object->length) ||
	    (head->has_length && head->length != length))
		return read_refuse(read, ESTALE, PENSTOCK_WHY_STALE,
				   "the object has another length than when it was opened: open "
				   "it again");
	return PST_HTTP_BODY;
}

/* Judges the response to a request with a token, the text that gives the server access to the
 * read's window. */
static enum pst_http_verdict read_judge_window(struct object_read *read)
{
	struct pst_object_call *call = &read->call;

	switch (pst_object_grant_judge(&read->grant, call, NULL)) {
	case PENSTOCK_OBJECT_DONE:
		return read_check_head(read, 0) == PST_HTTP_BODY ? PST_HTTP_TEXT : PST_HTTP_FAIL;
	case PENSTOCK_OBJECT_BODY:
		/* If the caller forbids bodies, another network card may still move the bytes. */
		if (read->object->place.url.rdma == PST_OBJECT_RDMA_REQUIRE &&
		    pst_object_grant_has_card(&read->grant))
			break;
		/* The body is received into the same memory, so the server's access to the window
		 * must end first. */
		if (!pst_object_grant_close(&read->grant))
			break;
		call->token = NULL;
		call->http.beside = 0;
		if (read->grant.result) {
			call->http.err = read->grant.err;
			return PST_HTTP_FAIL;
		}
		return read_check_head(read, call->last - call->first + 1);
	default:
		break;
	}
	pst_object_grant_why(&read->grant, &call->http.err);
	return PST_HTTP_FAIL;
}

static enum pst_http_verdict read_judge(struct pst_object_call *call)
{
	struct object_read *read = (struct object_read *)call;

	if (call->token)
		return read_judge_window(read);
	return read_check_head(read, call->last - (call->first + call->http.got) + 1);
}

/* Logs that the object's checksum will not be checked, because too many separate ranges were
 * read. */
static void check_give_up(const struct pst_object *object)
{
	pst_log(PST_LOG_WARN, "object",
		"%s is unchecked: more than %u separate ranges of it have been read",
		object->place.url.name, PST_OBJECT_SUM_PIECES_MAX);
}

/* Gives up the check of a checksum that no device computes: bytes come into a device's memory. */
static void check_by_device(struct pst_object *object)
{
	bool given_up;

	pthread_mutex_lock(&object->lock);
	given_up = pst_object_sum_by_device(&object->sum);
	pthread_mutex_unlock(&object->lock);
	if (given_up)
		pst_log(PST_LOG_INFO, "object", "%s is unchecked: a GPU computes no CRC32",
			object->place.url.name);
}

/* Finds the first bytes of a read at *at or later that the object's checksum still needs. Stores
 * their offset in *at. Returns their number, or 0 if the checksum needs no further bytes. */
static uint64_t check_gap(struct object_read *read, uint64_t *at)
{
	struct pst_object *object = read->object;
	uint64_t n;

	if (!object->sum.pieces) /* does not change after the open, so it needs no lock */
		return 0;
	pthread_mutex_lock(&object->lock);
	n = pst_object_sum_gap(&object->sum, at, read->call.first + read->call.http.in_len);
	pthread_mutex_unlock(&object->lock);
	return n;
}

/* Adds the checksum of `n` bytes at `at` to the object's checksum. If another read has added some
 * of these bytes meanwhile, the piece is ignored, and check_gap finds the bytes that are still
 * missing. Fails if these bytes complete the checksum and it is wrong. */
static int check_add(struct object_read *read, uint64_t at, uint64_t n, uint64_t crc)
{
	struct pst_object *object = read->object;
	struct pst_object_sum *sum = &object->sum;
	enum pst_object_sum_state before, state;
	char expected[17], found[17];

	pthread_mutex_lock(&object->lock);
	before = sum->state;
	state = pst_object_sum_add(sum, at, n, crc);
	if (state == PST_OBJECT_SUM_WRONG) /* `found` is set only in this state */
		pst_object_sum_text(sum->kind, sum->found, found);
	pthread_mutex_unlock(&object->lock);
	if (state == PST_OBJECT_SUM_GIVEN_UP && before != state)
		check_give_up(object);
	if (state != PST_OBJECT_SUM_WRONG)
		return 0;
	pst_object_first_drop(object->first); /* reads of the same bytes ask the server again */
	pst_object_sum_text(sum->kind, sum->expected, expected);
	return pst_fail_errno(&read->io->err, EBADMSG, PENSTOCK_WHY_MALFORMED,
			      "%s: the bytes have x-amz-checksum-%s %s, the object has %s: read it "
			      "again",
			      object->place.url.name, pst_hash_name(sum->kind), found, expected);
}

/* Adds the bytes of a read to the object's checksum, except bytes that have been added before.
 * Fails if these bytes complete the checksum and it is wrong. */
static int read_check(struct object_read *read)
{
	const struct pst_object_sum *sum = &read->object->sum;
	const struct pst_io *io = read->io;
	uint64_t first = read->call.first, at = first, n;
	int ret = 0;

	while (!ret && (n = check_gap(read, &at))) {
		bool whole = n == read->call.http.in_len;
		uint64_t crc = whole && read->has_crc64 && sum->kind == PST_HASH_CRC64NVME
				       ? read->crc64
				       : pst_object_sum_of(sum->kind, io->iov, io->iov_count,
							   at - first, n);

		ret = check_add(read, at, n, crc);
	}
	return ret;
}

/* Compares the checksum of the bytes in the window with the checksum in the response. */
static int read_compare(struct object_read *read, uint64_t crc)
{
	const struct penstock_object_verdict *verdict = &read->grant.verdict;

	read->has_crc64 = true;
	read->crc64 = crc;
	if (crc == verdict->crc64)
		return 0;
	return pst_fail_errno(&read->io->err, EBADMSG, PENSTOCK_WHY_MALFORMED,
			      "%s: the bytes in the window have CRC64NVME %016llx, the server sent "
			      "%016llx",
			      read->object->place.url.name, (unsigned long long)crc,
			      (unsigned long long)verdict->crc64);
}

/* Compares the bytes that the server has written to a window in host memory with the checksum in
 * the response, and adds them to the object's checksum. */
static int read_check_window(struct object_read *read)
{
	const struct pst_io *io = read->io;
	int ret = 0;

	if (read->grant.verdict.has_crc64)
		ret = read_compare(read,
				   pst_object_sum_of(PST_HASH_CRC64NVME, io->iov, io->iov_count, 0,
						     read->call.http.in_len));
	return ret ? ret : read_check(read);
}

/* Completes a read, whose bytes have been compared with their checksums. The server must have no
 * access to the read's memory any more. */
static void read_finish(struct object_read *read, int64_t result)
{
	struct pst_object_call *call = &read->call;
	struct pst_object *object = read->object;
	struct pst_io *io = read->io;

	if (!result)
		result = (int64_t)call->http.in_len;
	if (result == -ESTALE && call->http.head.status == 412)
		pst_fail_errno(&io->err, ESTALE, PENSTOCK_WHY_STALE,
			       "%s: the object changed while it was read: open it again",
			       object->place.url.name);
	pthread_mutex_lock(&object->lock);
	reads_remove(object, read);
	pthread_mutex_unlock(&object->lock);
	io->engine = io->by_window		? read->grant.transport
		     : object->place.server.tls ? "https"
						: "http";
	if (result >= 0 && read->grant.windows && !io->by_window)
		pst_object_grant_why(&read->grant, &io->err);
	pst_object_call_clear(call);
	free(read);
	/* from this call on, the caller of the read may reuse `io` and close the storage */
	pst_io_done(io, result);
}

/* ---- checksums by a device ---- */

/* Chooses the next checksum that the device must compute for a read. Returns false if there is
 * none. */
static bool sum_choose(struct object_read *read)
{
	read->job_off = read->call.first;
	read->job_len = read->call.http.in_len;
	read->job_kind = PST_HASH_CRC64NVME;
	check_by_device(read->object);
	if (read->grant.verdict.has_crc64 && !read->has_crc64)
		return true;
	read->job_kind = read->object->sum.kind;
	read->job_len = check_gap(read, &read->job_off);
	return read->job_len;
}

/* Takes the checksum that the device has computed. */
static int sum_take(struct object_read *read, uint64_t crc)
{
	if (read->grant.verdict.has_crc64 && !read->has_crc64)
		return read_compare(read, crc);
	return check_add(read, read->job_off, read->job_len, crc);
}

/* Lets the device compute the checksums of a read whose window is in its memory, and completes the
 * read. Runs on the device's thread of object_worker.c. If the device cannot compute them, the read
 * fails with -EOPNOTSUPP, and the lane reads the bytes through a window in host memory. */
static void sums_run(struct pst_object_job *job)
{
	struct object_read *read = (struct object_read *)((char *)job -
							  offsetof(struct object_read, job));
	struct pst_io *io = read->io;
	uint64_t crc;
	int ret = 0;

	do {
		ret = pst_object_device_sum(io->window->dev, read->job_kind,
					    io->window->mem + (read->job_off - read->call.first),
					    read->job_len, true, &crc, &io->err);
		ret = ret ? -EOPNOTSUPP : sum_take(read, crc);
	} while (!ret && sum_choose(read));
	read_finish(read, ret);
}

/* ---- the ends of reads ---- */

/* Compares the bytes of a read with their checksums, and completes it. */
static void read_check_and_finish(struct object_read *read)
{
	const struct pst_io *io = read->io;

	if (!io->by_window) {
		read_finish(read, read_check(read));
	} else if (!io->window || !io->window->dev) {
		read_finish(read, read_check_window(read));
	} else if (sum_choose(read)) {
		read->job.run = sums_run;
		if (!pst_object_work(io->window->dev, &read->job))
			sums_run(&read->job);
	} else {
		read_finish(read, 0);
	}
}

static struct object_read *read_of(struct pst_object_grant *grant)
{
	return (struct object_read *)((char *)grant - offsetof(struct object_read, grant));
}

static void read_released(struct pst_object_grant *grant)
{
	struct object_read *read = read_of(grant);
	int64_t result = read->result;

	if (result == -EOPNOTSUPP &&
	    pst_object_grant_restart(&read->grant, &read->call, &read->object->lock))
		return;
	if (!result && grant->result) {
		read->io->err = grant->err;
		result = grant->result;
	}
	if (result)
		read_finish(read, result);
	else
		read_check_and_finish(read);
}

/* Repeats a read with its token if its error may be temporary. Returns true if the read was started
 * again. */
static bool read_again(struct object_read *read)
{
	struct pst_object *object = read->object;
	struct pst_err err;
	bool started;

	/* The lock keeps object_cancel from finding this call before it is started. */
	pthread_mutex_lock(&object->lock);
	started =
		pst_object_call_may_pass(&read->call) && !pst_object_call_repeat(&read->call, &err);
	pthread_mutex_unlock(&object->lock);
	return started;
}

static void read_ended(struct pst_object_call *call)
{
	struct object_read *read = (struct object_read *)call;
	struct pst_io *io = read->io;
	enum penstock_object_next next;
	char code[64];

	read->result = pst_object_call_result(call, "read", &io->err);
	if (!call->token && read->result) {
		read_finish(read, read->result);
		return;
	}
	if (!call->token) {
		read_check_and_finish(read);
		return;
	}
	io->by_window = !read->result;
	io->by_dma = io->by_window && read->grant.dma;
	if (!call->http.result && call->http.head.status / 100 != 2) {
		pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
		next = pst_object_grant_judge(&read->grant, call, code);
		if (next == PENSTOCK_OBJECT_ERROR && read_again(read))
			return;
		if (next == PENSTOCK_OBJECT_RESEND)
			read->result = pst_object_grant_why(&read->grant, &io->err);
	}
	pst_object_grant_release(&read->grant, read_released);
}

/* Opens the window of a read of `len` bytes. Without a window in `io`, the window takes a file,
 * whose bytes the library copies to the memory of the transfer. */
static int read_grant(struct object_read *read, uint64_t len)
{
	struct pst_object_windows *windows = read->object->windows;
	struct pst_io *io = read->io;

	return io->window ? pst_object_grant_open(&read->grant, windows, io->window, PENSTOCK_READ,
						  len, &io->err)
			  : pst_object_grant_take(&read->grant, windows, io->iov->iov_base, len,
						  &io->err);
}

static int object_fill(struct pst_io *io)
{
	struct pst_object *object = io->st->priv;
	uint64_t left = io->off < object->length ? object->length - io->off : 0;
	struct object_read *read;
	bool whole; /* the open has prefetched all bytes of the read */
	int ret;

	if (object->upload && !object->committed)
		return pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "%s: an object can be read only after its commit",
				      object->place.url.name);
	left = left < io->len ? left : io->len;
	if (!left) {
		io->engine = "none";
		io->result = 0;
		io->done(io);
		return 0;
	}
	read = calloc(1, sizeof(*read));
	if (!read)
		return pst_fail(&io->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	pst_object_call_init(&read->call, &object->place, "GET", "");
	read->object = object;
	read->io = io;
	read->call.judge = read_judge;
	read->call.ended = read_ended;
	read->call.ranged = true;
	read->call.first = io->off;
	read->call.last = io->off + left - 1;
	read->call.http.in = io->iov;
	read->call.http.in_count = io->iov_count;
	read->call.http.in_len = left;
	if (!io->window && !(io->flags & PST_IO_FAR))
		/* With `got`, the GET requests only the rest. */
		read->call.http.got = io->kept =
			pst_object_first_copy(object->first, io->off, io->iov, io->iov_count, left);
	if (pst_object_etag_is_strong(object->etag))
		pst_object_call_header(&read->call, "if-match", object->etag);
	/* After many declined tokens, the server gets none for a pause. This call ends a pause that
	 * is over, so that later transfers have windows again. */
	if (object->windows && !io->window && !(io->flags & PST_IO_FAR))
		pst_object_windows_check(object->windows, &(struct pst_err){0});
	if (io->window || io->flags & PST_IO_FAR) {
		/* checked at each read, because a commit may have changed the object's ETag */
		ret = window_read_check(object, &io->err);
		if (!ret)
			ret = read_grant(read, left);
		if (ret) {
			free(read);
			return ret;
		}
		pst_object_grant_offer(&read->grant, &read->call);
	}
	pthread_mutex_lock(&object->lock);
	read->next = object->reads;
	object->reads = read;
	whole = io->kept == left;
	/* The lock keeps object_cancel from finding this call before it has been started. */
	ret = whole ? 0 : pst_http_start(&read->call.http, &io->err);
	if (ret)
		reads_remove(object, read);
	pthread_mutex_unlock(&object->lock);
	if (ret && read->call.token)
		/* no need to wait: the server never received the token */
		pst_object_grant_close(&read->grant);
	if (ret)
		free(read);
	if (whole)
		read_check_and_finish(read);
	return ret;
}

static void read_cancelled(struct pst_object_grant *grant)
{
	struct object_read *read = read_of(grant);
	struct pst_io *io = read->io;

	pst_object_call_clear(&read->call);
	free(read);
	pst_fail(&io->err, PENSTOCK_WHY_CANCELLED, "cancelled");
	pst_io_done(io, -ECANCELED);
}

static void object_cancel(struct pst_io *io)
{
	struct pst_object *object = io->st->priv;
	struct object_read *read;
	bool ended = false;

	pthread_mutex_lock(&object->lock);
	for (read = object->reads; read && read->io != io; read = read->next)
		;
	if (read && pst_http_cancel(&read->call.http)) {
		reads_remove(object, read);
		ended = true;
	}
	pthread_mutex_unlock(&object->lock);
	if (!read && object->upload)
		ended = pst_object_upload_cancel(object->upload, io);
	if (!ended)
		return;
	/* An earlier attempt may have passed the token to the server, so the server's access to the
	 * window must end first. */
	if (read && read->call.token) {
		pst_object_grant_release(&read->grant, read_cancelled);
		return;
	}
	if (read)
		pst_object_call_clear(&read->call);
	free(read);
	pst_fail(&io->err, PENSTOCK_WHY_CANCELLED, "cancelled");
	pst_io_done(io, -ECANCELED);
}

static int object_window_open(struct penstock_storage *st, struct penstock_device *dev, size_t len,
			      struct pst_window **out, struct pst_err *err)
{
	struct pst_object *object = st->priv;

	return pst_object_window_open(object->windows, dev, len, out, err);
}

static int object_windows_reach(struct penstock_storage *st, struct penstock_device *dev,
				enum penstock_op op, struct pst_err *err)
{
	const struct pst_object *object = st->priv;
	struct pst_err why;

	if (op == PENSTOCK_WRITE)
		return pst_object_upload_reach(object->upload, dev, err);

	if (object->upload || !object->length)
		return pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the object has no bytes to read");
	if (object->sum.pieces && object->sum.kind != PST_HASH_CRC32 &&
	    pst_object_device_sums(dev, object->sum.kind, &why))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
				      "the CPU compares the object's checksum with the bytes (add "
				      "unchecked=1 to the URL to compare none): %.100s",
				      why.text);
	return pst_object_reach(&object->place,
				pst_object_etag_is_strong(object->etag) ? object->etag : NULL,
				object->length, object->windows, dev, err);
}

/* ---- writes ---- */

static int object_drain(struct pst_io *io)
{
	struct pst_object *object = io->st->priv;

	if (!object->upload || object->committed || object->aborted)
		return pst_fail_errno(&io->err, EROFS, PENSTOCK_WHY_UNSUPPORTED, "%s: %s",
				      object->place.url.name,
				      object->committed ? "it has been committed, and an object "
							  "cannot be changed"
				      : object->aborted ? "its upload was aborted"
							: "it is open for reading only");
	return io->flags & PST_IO_PLACE ? pst_object_upload_place(object->upload, io)
					: pst_object_upload_write(object->upload, io);
}

static int object_placed(struct penstock_storage *st, uint64_t off, uint64_t len, bool copied,
			 struct pst_err *err)
{
	const struct pst_object *object = st->priv;

	return pst_object_upload_placed(object->upload, off, len, copied, err);
}

/* Refuses to make a single write durable, because no byte of an object is durable before the
 * commit. */
static int object_sync(struct pst_io *io)
{
	return pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
			      "an object becomes durable at its commit: leave out "
			      "PENSTOCK_R_DURABLE");
}

/* An object store responds to the commit only when the object is durable, so opts->durable has no
 * effect. */
static int object_commit(struct penstock_storage *st, const struct penstock_end_opts *opts,
			 struct pst_err *err)
{
	struct pst_object *object = st->priv;
	int ret;

	if (!object->upload || object->committed)
		return 0;
	if (object->aborted)
		return pst_fail_errno(err, ESTALE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: its upload was aborted", object->place.url.name);
	ret = pst_object_upload_commit(object->upload, opts, object->etag, sizeof(object->etag),
				       &object->length, err);
	object->committed = !ret;
	if (!ret)
		pst_object_upload_facts(object->upload, &st->facts);
	return ret;
}

static int object_abort(struct penstock_storage *st, const struct penstock_end_opts *opts,
			struct pst_err *err)
{
	struct pst_object *object = st->priv;

	if (!object->upload || object->committed)
		return 0;
	object->aborted = true;
	return pst_object_upload_abort(object->upload, opts, err);
}

static int object_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err)
{
	const struct pst_object *object = st->priv;

	(void)err;
	*out = object->upload && !object->committed ? pst_object_upload_length(object->upload)
						    : object->length;
	return 0;
}

const struct pst_storage_ops pst_storage_object = {
	.name = "object",
	.match = pst_object_url_match,
	.open = object_open,
	.close = object_close,
	.fill = object_fill,
	.drain = object_drain,
	.sync = object_sync,
	.cancel = object_cancel,
	.window_open = object_window_open,
	.windows_reach = object_windows_reach,
	.placed = object_placed,
	.commit = object_commit,
	.abort = object_abort,
	.length = object_length,
};
