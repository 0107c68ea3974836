/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving pieces of a model's files to their places: puts them in file order, makes one
 * request a file of them, submits all at once and waits. Called by the three ways to
 * receive. What fails is said with file, tensor and offset.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weights/weights.h"

#define SEGS_MAX 16384u	  /* of one request */
#define REQUESTS_MAX 256u /* in flight */
#define DONE_MAX 16u
#define LOOK_NS 100000000 /* a person who gives up waits no longer */

/* ---- pieces ---- */

/* No driver copies across two allocations, also where one ends at the other. */
static bool one_place(const struct pst_bits *bits, const struct pst_bit *bit)
{
	return !bits->apart || !strcmp(penstock_device_name(bit->seg.dev), "host");
}

static bool join(const struct pst_bits *bits, struct pst_bit *a, const struct pst_bit *b)
{
	if (a->shard != b->shard || a->seg.dev != b->seg.dev || a->seg.rows > 1 ||
	    b->seg.rows > 1 || a->seg.off + a->seg.row_len != b->seg.off ||
	    (char *)a->seg.buf + a->seg.row_len != (char *)b->seg.buf || !one_place(bits, a) ||
	    (bits->most && a->seg.row_len + b->seg.row_len > bits->most))
		return false;
	a->seg.row_len += b->seg.row_len;
	a->own_last = b->own_last;
	return true;
}

int pst_bits_add(struct pst_bits *bits, unsigned shard, const struct penstock_seg *seg)
{
	struct pst_bit bit = {*seg, shard, bits->own_pages, bits->own_pages, 0};

	if (!seg->row_len || (bits->count && join(bits, &bits->list[bits->count - 1], &bit)))
		return 0;
	if (bits->count == bits->room) {
		size_t room = bits->room ? bits->room * 2 : 256;
		struct pst_bit *more = reallocarray(bits->list, room, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of pieces");
		bits->list = more;
		bits->room = room;
	}
	bits->list[bits->count++] = bit;
	return 0;
}

static int in_file_order(const void *a, const void *b)
{
	const struct pst_bit *x = a, *y = b;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return x->seg.off < y->seg.off ? -1 : x->seg.off > y->seg.off;
}

void pst_bits_order(struct pst_bits *bits)
{
	size_t kept = 0;
	bool sorted = true;

	for (size_t i = 1; i < bits->count && sorted; i++)
		sorted = in_file_order(&bits->list[i - 1], &bits->list[i]) <= 0;
	if (sorted)
		return;
	qsort(bits->list, bits->count, sizeof(*bits->list), in_file_order);
	for (size_t i = 0; i < bits->count; i++)
		if (!kept || !join(bits, &bits->list[kept - 1], &bits->list[i]))
			bits->list[kept++] = bits->list[i];
	bits->count = kept;
}

/* ---- options, memory, reports ---- */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int pst_load_take(struct pst_load *load, struct penstock_weights *w,
		  const struct penstock_load_opts *opts)
{
	int ret;

	memset(load, 0, sizeof(*load));
	ret = pst_weights_take(&load->opts, sizeof(load->opts), opts, "penstock_load_opts");
	if (ret)
		return ret;
	if (load->opts.align > 4096 || (load->opts.align & (load->opts.align - 1)) ||
	    !load->opts.alloc != !load->opts.free)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"align is no power of two up to 4096, or alloc comes "
					"without free");
	load->w = w;
	load->report.path = load->report.engine = "none";
	load->report.start_ns = load->report.end_ns = load->looked_ns = now_ns();
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
					  "the caller's allocator has no more");
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
	if (load->held > load->report.device_bytes)
		load->report.device_bytes = load->held;
	return 0;
}

void pst_load_report(const struct pst_load *load, struct penstock_load_report *out)
{
	struct penstock_load_report report = load->report;

	report.bytes -= report.bytes > load->lead ? load->lead : report.bytes;
	pst_weights_give(out, &report, sizeof(report));
}

void pst_load_free(const struct penstock_load_opts *opts, struct penstock_device *dev, void *ptr,
		   size_t len)
{
	if (ptr && opts->free)
		opts->free(opts->user, dev, ptr, len);
	else if (ptr)
		penstock_free(dev, ptr); /* fails only for what is none of its memory */
}

void pst_load_request(const struct pst_load *load, struct penstock_req *req)
{
	*req = (struct penstock_req)PENSTOCK_REQ_INIT;
	req->require = load->opts.require;
	req->effort = load->opts.effort;
	req->path = load->opts.path;
	req->flags = PENSTOCK_R_EXACT;
}

int pst_load_submit(const struct pst_load *load, struct penstock_queue *q,
		    const struct pst_bit *bits, size_t count, void *user, uint64_t *id)
{
	const struct pst_shard *shard = &load->w->shards[bits->shard];
	struct penstock_req req;
	int ret;

	pst_load_request(load, &req);
	ret = pst_shard_storage(load->w, bits->shard, &req.storage);
	if (ret)
		return ret;
	req.segs = &bits->seg;
	req.seg_count = (unsigned)count;
	req.seg_size = sizeof(*bits);
	req.user = user;
	ret = penstock_submit(q, &req, 1, id);
	return ret == 1 ? 0
			: pst_weights_retell(ret, shard->path,
					     pst_shard_tensor_at(shard, bits->seg.off), PST_NO_OFF);
}

void pst_load_count(struct pst_load *load, int64_t result, const struct penstock_report *r)
{
	struct penstock_load_report *sum = &load->report;

	for (unsigned i = 0; i < r->path_count; i++) {
		if (r->paths[i].bytes <= load->path_bytes)
			continue;
		load->path_bytes = r->paths[i].bytes;
		sum->path = r->path;
		sum->engine = r->engine;
	}
	sum->read += r->bytes;
	sum->bytes += result > 0 ? (uint64_t)result : 0;
	sum->cpu_copied += r->cpu_copied;
	sum->dram_laid += r->dram_laid;
	sum->retries += r->retries;
	sum->requests++;
	sum->end_ns = now_ns();
}

static int cancelled(void)
{
	return pst_weights_fail(ECANCELED, PENSTOCK_WHY_CANCELLED, NULL, NULL, PST_NO_OFF,
				"cancelled by the caller");
}

/* Where a request stopped, and not in what it read before the first byte that is wanted. */
static uint64_t stop_of(const struct pst_bit *bits, size_t count, uint64_t off)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t begin = bits[i].seg.off;

		if (off >= begin && off < begin + bits[i].lead)
			return begin + bits[i].lead;
	}
	return off;
}

void pst_load_done(struct pst_load *load, const struct pst_bit *bits, size_t count,
		   const struct penstock_done *done)
{
	const struct penstock_report *r = done->report;
	const unsigned shard = bits->shard;
	const struct pst_shard *s = &load->w->shards[shard];
	uint64_t off;

	pst_load_count(load, done->result, r);
	if (load->failed)
		return; /* the first failure is the one that is told */
	off = r->stop_off == PST_NO_OFF ? PST_NO_OFF : stop_of(bits, count, r->stop_off);
	if (done->result < 0)
		load->failed = pst_weights_fail(
			(int)done->result, r->why, s->path,
			off == PST_NO_OFF ? NULL : pst_shard_tensor_at(s, off), off, "%s", r->text);
	else if (load->opts.each && load->opts.each(load->opts.user, shard, r))
		load->failed = cancelled();
}

int pst_load_look(struct pst_load *load)
{
	uint64_t now;

	if (load->failed || !load->opts.look)
		return load->failed;
	now = now_ns();
	if (now - load->looked_ns < LOOK_NS)
		return 0;
	if (load->opts.look(load->opts.user))
		load->failed = cancelled();
	load->looked_ns = now_ns(); /* the caller may take his time */
	return load->failed;
}

int64_t pst_load_patience(const struct pst_load *load)
{
	return load->failed || !load->opts.look ? -1 : LOOK_NS;
}

int pst_load_unchanged(struct pst_load *load, const struct pst_bits *bits)
{
	for (size_t i = 0; i < bits->count; i++) {
		unsigned shard = bits->list[i].shard;
		int ret;

		if (i && shard == bits->list[i - 1].shard)
			continue;
		ret = pst_shard_same(&load->w->shards[shard], load->w->sources[shard].fd);
		if (ret)
			return ret;
	}
	return 0;
}

/* ---- requests ---- */

struct batch {
	size_t first, count; /* bits */
	uint64_t id;
	bool ended;
};

struct batches {
	struct batch *list;
	size_t count;
	unsigned segs_max;
};

/* A request ends where its file does or it is long enough, but never between pieces of
 * the same bytes, which would then be read twice. */
static size_t batch_end(const struct pst_bits *bits, size_t first, uint64_t most)
{
	const struct pst_bit *list = bits->list;
	uint64_t reach = 0, len = 0;
	size_t i = first, cut = first;

	for (; i < bits->count && list[i].shard == list[first].shard; i++) {
		const struct penstock_seg *seg = &list[i].seg;
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + (rows - 1) * seg->pitch + seg->row_len;

		if (seg->off >= reach)
			cut = i; /* could end here */
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

static int make_batches(const struct pst_bits *bits, uint64_t most, struct batches *out)
{
	size_t room = 0, next;

	memset(out, 0, sizeof(*out));
	for (size_t at = 0; at < bits->count; at = next) {
		next = batch_end(bits, at, most);
		if (out->count == room) {
			struct batch *more;

			room = room ? room * 2 : 16;
			more = reallocarray(out->list, room, sizeof(*more));
			if (!more) {
				free(out->list);
				return pst_weights_no_memory("the list of requests");
			}
			out->list = more;
		}
		out->list[out->count++] = (struct batch){.first = at, .count = next - at};
		if (next - at > out->segs_max)
			out->segs_max = (unsigned)(next - at);
	}
	return 0;
}

static void cancel(struct penstock_queue *q, const struct batches *batches, size_t submitted)
{
	for (size_t i = 0; i < submitted; i++)
		if (!batches->list[i].ended)
			penstock_cancel(q, batches->list[i].id);
}

static int move_all(struct pst_load *load, struct penstock_queue *q, const struct pst_bits *bits,
		    struct batches *batches)
{
	struct penstock_done done[DONE_MAX];
	size_t submitted = 0, ended = 0;
	bool cancelled = false;

	while (ended < submitted || (!load->failed && submitted < batches->count)) {
		int n;

		/* A file's first request opens it, which may take long, too. */
		while (!pst_load_look(load) && submitted < batches->count &&
		       submitted - ended < REQUESTS_MAX) {
			struct batch *b = &batches->list[submitted];

			load->failed = pst_load_submit(load, q, &bits->list[b->first], b->count, b,
						       &b->id);
			submitted += !load->failed;
		}
		if (load->failed && !cancelled) {
			cancel(q, batches, submitted);
			cancelled = true;
		}
		n = ended < submitted ? penstock_wait(q, done, 1, DONE_MAX, pst_load_patience(load))
				      : 0;
		for (int i = 0; i < n; i++) {
			struct batch *b = done[i].user;

			b->ended = true;
			ended++;
			pst_load_done(load, &bits->list[b->first], b->count, &done[i]);
		}
	}
	return load->failed;
}

int pst_load_move(struct pst_load *load, struct pst_bits *bits)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;
	struct batches batches;
	int ret;

	pst_bits_order(bits);
	ret = make_batches(bits, load->opts.request_bytes, &batches);
	if (ret || !batches.count)
		return ret;
	opts.requests_max = batches.count < REQUESTS_MAX ? (unsigned)batches.count : REQUESTS_MAX;
	opts.segs_max = batches.segs_max;
	ret = penstock_queue_open(&opts, &q);
	if (ret) {
		free(batches.list);
		return pst_weights_retell(ret, NULL, NULL, PST_NO_OFF);
	}
	ret = move_all(load, q, bits, &batches);
	penstock_queue_close(q);
	free(batches.list);
	return ret ? ret : pst_load_unchanged(load, bits);
}
