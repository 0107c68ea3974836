/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves the extents (file ranges with the memory for them) of a load: sorts them by file, makes
 * requests that each cover one file, submits all requests and waits for them. Called by all
 * functions that load a model. The message of a failure names file, tensor and offset.
 */
#include "weights/move.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"
#include "weights/file.h"
#include "weights/find.h"
#include "weights/url.h"

#define SEGS_MAX 16384u	  /* Maximum number of segments of a request. */
#define REQUESTS_MAX 256u /* Maximum number of requests in flight. */
#define DONE_MAX 16u
/* Maximum length in bytes of a load that the calling thread carries. penstock_transfer carries a
 * request for such a range without another thread. */
#define SHORT_BYTES (1u << 20)
#define SHORT_SEGS 16u /* Maximum number of segments of such a load. */
/* Time in ns between two calls of opts.look. A load notices after at most this time that the
 * user cancels. */
#define POLL_NS 100000000

/* ---- options, memory, reports ---- */

int pst_load_init(struct pst_load *load, struct penstock_weights *w,
		  const struct penstock_load_opts *opts)
{
	int ret;

	memset(load, 0, sizeof(*load));
	ret = pst_weights_struct_in(&load->opts, sizeof(load->opts), opts, "penstock_load_opts");
	if (ret)
		return ret;
	if (load->opts.align > 4096 || (load->opts.align & (load->opts.align - 1)) ||
	    !load->opts.alloc != !load->opts.free)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"align must be a power of two up to 4096, and alloc and "
					"free must be given together");
	load->w = w;
	pst_report_begin(&load->sum);
	load->looked_ns = load->sum.report.start_ns;
	return 0;
}

int pst_load_alloc(struct pst_load *load, struct penstock_device *dev, size_t len, void **out)
{
	const struct penstock_load_opts *opts = &load->opts;
	void *mem = NULL;
	int ret;

	if (opts->alloc) {
		mem = opts->alloc(opts->user, dev, len, 4096);
		ret = mem ? 0
			  : penstock_fail(ENOMEM, PENSTOCK_WHY_NO_MEMORY,
					  "the caller's allocator returned NULL");
		if (mem && (uintptr_t)mem % 4096) {
			opts->free(opts->user, dev, mem, len);
			ret = penstock_fail(EINVAL, PENSTOCK_WHY_UNALIGNED,
					    "the caller's allocator does not align to 4096");
		}
	} else {
		ret = penstock_alloc(dev, len, &mem);
	}
	if (ret)
		return pst_weights_fail(ret, penstock_errwhy(), NULL, NULL, PST_NO_OFF,
					"%llu bytes on %s: %s", (unsigned long long)len,
					penstock_device_name(dev), penstock_errmsg());
	*out = mem;
	load->held += len;
	if (load->held > load->sum.report.device_bytes)
		load->sum.report.device_bytes = load->held;
	return 0;
}

void pst_load_report(const struct pst_load *load, struct penstock_load_report *out)
{
	struct penstock_load_report report = load->sum.report;

	report.bytes -= report.bytes > load->lead ? load->lead : report.bytes;
	pst_weights_struct_out(out, &report, sizeof(report));
}

void pst_load_free(const struct penstock_load_opts *opts, struct penstock_device *dev, void *ptr,
		   size_t len)
{
	if (ptr && opts->free)
		opts->free(opts->user, dev, ptr, len);
	else if (ptr)
		/* penstock_free fails only for an address that penstock_alloc did not return;
		 * `ptr` is one that it returned. */
		penstock_free(dev, ptr);
}

/* Fills in a request for `count` extents, all of the same file. The first request of a file opens
 * the file. */
static int load_request(const struct pst_load *load, const struct pst_extent *extents, size_t count,
			struct penstock_req *req)
{
	*req = (struct penstock_req)PENSTOCK_REQ_INIT;
	req->require = load->opts.require;
	req->effort = load->opts.effort;
	req->path = load->opts.path;
	req->flags = PENSTOCK_R_EXACT;
	req->segs = &extents->seg;
	req->seg_count = (unsigned)count;
	req->seg_size = sizeof(*extents);
	return pst_model_file_storage(load->w, extents->file, &req->storage);
}

/* Reports that the library refused a request for `extents`. */
static int fail_refused(const struct pst_load *load, const struct pst_extent *extents, int code)
{
	const struct pst_model_file *file = &load->w->files[extents->file];

	return pst_weights_fail_lib(code, file->path,
				    pst_model_file_tensor_at(file, extents->seg.off), PST_NO_OFF);
}

int pst_load_submit(const struct pst_load *load, struct penstock_queue *q,
		    const struct pst_extent *extents, size_t count, void *user, uint64_t *id)
{
	struct penstock_req req;
	int ret = load_request(load, extents, count, &req);

	if (ret)
		return ret;
	req.user = user;
	ret = penstock_submit(q, &req, 1, id);
	return ret == 1 ? 0 : fail_refused(load, extents, ret);
}

static int fail_cancelled(void)
{
	return pst_weights_fail(ECANCELED, PENSTOCK_WHY_CANCELLED, NULL, NULL, PST_NO_OFF,
				"cancelled by the caller");
}

/* Returns the file offset at which a request stopped. Before some tensors, a request also reads
 * bytes that no tensor needs. If it stopped in such bytes, returns the offset of the tensor's first
 * byte. */
static uint64_t stop_offset(const struct pst_extent *extents, size_t count, uint64_t off)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t begin = extents[i].seg.off;

		if (off >= begin && off < begin + extents[i].lead)
			return begin + extents[i].lead;
	}
	return off;
}

void pst_load_complete(struct pst_load *load, const struct pst_extent *extents, size_t count,
		       const struct penstock_done *done)
{
	const struct penstock_report *r = done->report;
	const unsigned file = extents->file;
	const struct pst_model_file *s = &load->w->files[file];
	uint64_t off;

	pst_report_add(&load->sum, done->result, r);
	if (load->failed)
		return; /* The load reports only its first failure. */
	off = r->stop_off == PST_NO_OFF ? PST_NO_OFF : stop_offset(extents, count, r->stop_off);
	if (done->result < 0)
		load->failed = pst_weights_fail(
			(int)done->result, r->why, s->path,
			off == PST_NO_OFF ? NULL : pst_model_file_tensor_at(s, off), off, "%s",
			r->text);
	else if (load->opts.each && load->opts.each(load->opts.user, file, r))
		load->failed = fail_cancelled();
}

int pst_load_poll_caller(struct pst_load *load)
{
	uint64_t now;

	if (load->failed || !load->opts.look)
		return load->failed;
	now = pst_report_now_ns();
	if (now - load->looked_ns < POLL_NS)
		return 0;
	if (load->opts.look(load->opts.user))
		load->failed = fail_cancelled();
	/* Reads the clock again, because the callback may have run for a long time. */
	load->looked_ns = pst_report_now_ns();
	return load->failed;
}

int64_t pst_load_wait_ns(const struct pst_load *load)
{
	return load->failed || !load->opts.look ? -1 : POLL_NS;
}

int pst_load_check_files(struct pst_load *load, const struct pst_extents *extents)
{
	for (size_t i = 0; i < extents->count; i++) {
		unsigned file = extents->list[i].file;
		int ret;

		if (i && file == extents->list[i - 1].file)
			continue;
		ret = pst_model_file_check(&load->w->files[file], load->w->sources[file].fd);
		if (ret)
			return ret;
	}
	return 0;
}

/* ---- requests ---- */

struct load_batch {
	size_t first, count; /* Index of the batch's first extent; number of its extents. */
	uint64_t id;
	bool ended;
};

struct batches {
	struct load_batch *list;
	size_t count;
	unsigned segs_max;
};

/* Returns the index of the extent after the last one of the batch (one request) that begins at
 * extent `first`. A batch ends where its file ends, when it has `most` bytes or when it has
 * SEGS_MAX extents. Extents that read the same bytes belong to one batch, because two requests
 * would read these bytes twice. To keep them together, a batch may exceed SEGS_MAX and have up to
 * PENSTOCK_SEGS_MAX extents. */
static size_t batch_end(const struct pst_extents *extents, size_t first, uint64_t most)
{
	const struct pst_extent *list = extents->list;
	uint64_t reach = 0, len = 0;
	size_t i = first, cut = first;

	for (; i < extents->count && list[i].file == list[first].file; i++) {
		const struct penstock_seg *seg = &list[i].seg;
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + (rows - 1) * seg->pitch + seg->row_len;

		if (seg->off >= reach)
			/* All bytes of extent i are behind the bytes of the earlier extents, so
			 * the batch may end before extent i. */
			cut = i;
		if (i - first >= SEGS_MAX && cut > first)
			return cut;
		if (i - first == PENSTOCK_SEGS_MAX)
			return i;
		if (most && len >= most && cut == i)
			return i;
		len += rows * seg->row_len;
		reach = end > reach ? end : reach;
	}
	return i;
}

static int make_batches(const struct pst_extents *extents, uint64_t most, struct batches *out)
{
	size_t capacity = 0, next;

	memset(out, 0, sizeof(*out));
	for (size_t at = 0; at < extents->count; at = next) {
		next = batch_end(extents, at, most);
		if (out->count == capacity) {
			struct load_batch *more;

			capacity = capacity ? capacity * 2 : 16;
			more = reallocarray(out->list, capacity, sizeof(*more));
			if (!more) {
				free(out->list);
				return pst_weights_no_memory("the list of requests");
			}
			out->list = more;
		}
		out->list[out->count++] = (struct load_batch){.first = at, .count = next - at};
		if (next - at > out->segs_max)
			out->segs_max = (unsigned)(next - at);
	}
	return 0;
}

static void move_cancel_batches(struct penstock_queue *q, const struct batches *batches,
				size_t submitted)
{
	for (size_t i = 0; i < submitted; i++)
		if (!batches->list[i].ended)
			penstock_cancel(q, batches->list[i].id);
}

static int submit_and_wait(struct pst_load *load, struct penstock_queue *q,
			   const struct pst_extents *extents, struct batches *batches)
{
	struct penstock_done done[DONE_MAX];
	size_t submitted = 0, ended = 0;
	bool cancelled = false;

	while (ended < submitted || (!load->failed && submitted < batches->count)) {
		int n;

		/* Calls the caller's callback before each submission, because the first request of
		 * a file opens the file, which may take long. */
		while (!pst_load_poll_caller(load) && submitted < batches->count &&
		       submitted - ended < REQUESTS_MAX) {
			struct load_batch *b = &batches->list[submitted];

			load->failed = pst_load_submit(load, q, &extents->list[b->first], b->count,
						       b, &b->id);
			submitted += !load->failed;
		}
		if (load->failed && !cancelled) {
			move_cancel_batches(q, batches, submitted);
			cancelled = true;
		}
		n = ended < submitted ? penstock_wait(q, done, 1, DONE_MAX, pst_load_wait_ns(load))
				      : 0;
		for (int i = 0; i < n; i++) {
			struct load_batch *b = done[i].user;

			b->ended = true;
			ended++;
			pst_load_complete(load, &extents->list[b->first], b->count, &done[i]);
		}
	}
	return load->failed;
}

/* Returns whether the extents are one range of a file, of at most SHORT_BYTES. Only the queue calls
 * opts.look while a request runs, and only the queue reads distant rows with several threads. So
 * neither an object, whose server may answer late, nor distant rows are short. */
static bool extents_are_short(const struct pst_load *load, const struct pst_extents *extents)
{
	const struct pst_extent *list = extents->list;
	uint64_t most = load->opts.request_bytes, reach;

	if (!extents->count || extents->count > SHORT_SEGS ||
	    pst_url_match(load->w->files[list[0].file].path))
		return false;
	most = most && most < SHORT_BYTES ? most : SHORT_BYTES;
	reach = list[0].seg.off;
	for (size_t i = 0; i < extents->count; i++) {
		const struct penstock_seg *seg = &list[i].seg;
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + rows * seg->row_len;

		if (list[i].file != list[0].file || seg->off > reach ||
		    (rows > 1 && seg->pitch != seg->row_len))
			return false;
		reach = end > reach ? end : reach;
		if (reach - list[0].seg.off > most)
			return false;
	}
	return true;
}

/* Reads all extents in one request on the calling thread. */
static int transfer_short(struct pst_load *load, const struct pst_extents *extents)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_done done = {.report = &report};
	struct penstock_req req;
	int ret = pst_load_poll_caller(load);

	if (!ret)
		ret = load_request(load, extents->list, extents->count, &req);
	if (ret)
		return ret;
	done.result = penstock_transfer(&req, &report);
	if (done.result < 0 && !report.end_ns)
		return fail_refused(load, extents->list, (int)done.result);
	pst_load_complete(load, extents->list, extents->count, &done);
	return load->failed;
}

/* Reads all extents through a queue. */
static int transfer_long(struct pst_load *load, const struct pst_extents *extents)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;
	struct batches batches;
	int ret = make_batches(extents, load->opts.request_bytes, &batches);

	if (ret || !batches.count)
		return ret;
	opts.requests_max = batches.count < REQUESTS_MAX ? (unsigned)batches.count : REQUESTS_MAX;
	opts.segs_max = batches.segs_max;
	ret = penstock_queue_open(&opts, &q);
	if (ret) {
		free(batches.list);
		return pst_weights_fail_lib(ret, NULL, NULL, PST_NO_OFF);
	}
	ret = submit_and_wait(load, q, extents, &batches);
	penstock_queue_close(q);
	free(batches.list);
	return ret;
}

int pst_load_move(struct pst_load *load, struct pst_extents *extents)
{
	int ret;

	pst_extents_sort(extents);
	ret = extents_are_short(load, extents) ? transfer_short(load, extents)
					       : transfer_long(load, extents);
	return ret ? ret : pst_load_check_files(load, extents);
}
