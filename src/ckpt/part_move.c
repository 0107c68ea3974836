/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements part_move.h. A few requests are in flight at the same time. Each has at most
 * PST_SLICE_MAX bytes, so that the caller's progress callback is called often. Between its calls
 * that submit requests or wait for them, the calling thread computes checksums, a few slices at a
 * time. Called by part.c.
 */
#include "ckpt/part_move.h"

#include <errno.h>
#include <stdlib.h>

#include "weights/err.h"

#define REQUESTS 16u /* Maximum number of requests in flight. */
#define SEGS 1024u   /* Maximum number of segments of a request. */
/* Time in ns between two calls of opts.look. */
#define POLL_NS 100000000
/* Before this thread takes completed requests from the queue again, it computes the checksums of at
 * most SUMS ranges, which have at most SUM_BYTES bytes. A single range may have more bytes. */
#define SUMS 256u
#define SUM_BYTES (16u << 20)

/* The slices of one request. */
struct batch {
	uint64_t first, count;
	uint64_t id;
	bool in_flight;
	struct batch *next; /* next batch of the list state.ready */
};

struct state {
	struct pst_part_move *m;
	struct penstock_queue *q;
	struct batch *batches;
	uint64_t batch_count;
	uint64_t submitted, ended; /* numbers of batches */
	/* List of the batches (requests) for whose slices this thread can compute checksums.
	 * `slice` is the next slice of the first batch, and `row` is the next row of this slice. */
	struct batch *ready, **ready_end;
	uint64_t slice, row;
	uint64_t looked_ns; /* time of the last call of opts.look, in ns */
	/* the first error, whose message penstock_errmsg still returns; 0 if there was none */
	int failed;
};

/* ---- checksums ---- */

static void make_ready(struct state *s, struct batch *b)
{
	b->next = NULL;
	*s->ready_end = b;
	s->ready_end = &b->next;
	if (s->ready == b) {
		s->slice = b->first;
		s->row = 0;
	}
}

/* Sets s->slice to the next slice of the ready batches. */
static void next_slice(struct state *s)
{
	s->row = 0;
	if (++s->slice < s->ready->first + s->ready->count)
		return;
	s->ready = s->ready->next;
	if (s->ready)
		s->slice = s->ready->first;
	else
		s->ready_end = &s->ready;
}

/* Collects the next ranges whose checksums are to be computed, and the slice of each range. All of
 * them are on one device. Returns their number. */
static unsigned collect_sums(struct state *s, struct penstock_sum_args *sums,
			     struct pst_slice **owners)
{
	uint64_t bytes = 0;
	unsigned n = 0;

	while (s->ready && n < SUMS && bytes < SUM_BYTES) {
		struct pst_slice *slice = &s->m->slices.list[s->slice];
		const struct penstock_seg *seg = &slice->seg;

		if (!slice->sum || s->m->unsummed[slice->item]) {
			next_slice(s);
			continue;
		}
		if (n && sums[0].dev != seg->dev)
			break;
		sums[n] = (struct penstock_sum_args){
			.size = sizeof(sums[0]),
			.dev = seg->dev,
			.ptr = (const char *)seg->buf + s->row * seg->buf_pitch,
			.len = seg->row_len,
		};
		owners[n++] = slice;
		bytes += seg->row_len;
		if (++s->row >= seg->rows)
			next_slice(s);
	}
	return n;
}

static void sum_some(struct state *s)
{
	struct penstock_sum_args sums[SUMS];
	struct pst_slice *owners[SUMS];
	unsigned n = collect_sums(s, sums, owners);
	int ret = n ? penstock_sum(sums, n) : 0;

	if (ret && ret != -EOPNOTSUPP) {
		const struct pst_slice *slice = owners[0];

		s->failed = pst_weights_fail_lib(ret, s->m->path, s->m->items[slice->item].name,
						 slice->seg.off);
		return;
	}
	for (unsigned i = 0; i < n; i++) {
		if (ret)
			s->m->unsummed[owners[i]->item] = true;
		else
			owners[i]->crc32c = penstock_crc32c_join(owners[i]->crc32c, sums[i].crc32c,
								 sums[i].len);
	}
}

/* ---- requests ---- */

/* Returns the name of the item that contains the byte at `off`, or NULL. */
static const char *item_name_at(const struct pst_part_move *m, uint64_t off)
{
	for (uint64_t i = 0; i < m->item_count; i++)
		if (off >= m->items[i].off && off - m->items[i].off < m->items[i].len)
			return m->items[i].name;
	return NULL;
}

/* Calls opts.look if POLL_NS have passed since its last call. If it asks to cancel, sets
 * s->failed. */
static void look(struct state *s)
{
	const struct penstock_part_opts *opts = &s->m->opts;

	if (s->failed || !opts->look || pst_report_now_ns() - s->looked_ns < POLL_NS)
		return;
	if (opts->look(opts->user, s->m->sum.report.bytes))
		s->failed = pst_weights_fail(ECANCELED, PENSTOCK_WHY_CANCELLED, s->m->path, NULL,
					     PST_NO_OFF, "cancelled by the caller");
	/* Reads the clock again, because the callback may have run for a long time. */
	s->looked_ns = pst_report_now_ns();
}

static void submit(struct state *s)
{
	struct batch *b = &s->batches[s->submitted];
	const struct penstock_part_opts *opts = &s->m->opts;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	const struct pst_slice *first = &s->m->slices.list[b->first];
	int n;

	req.storage = s->m->st;
	req.op = s->m->slices.op;
	req.require = opts->require;
	req.effort = opts->effort;
	req.path = opts->path;
	req.priority = opts->priority;
	req.flags = PENSTOCK_R_EXACT;
	req.segs = &first->seg;
	req.seg_count = (unsigned)b->count;
	req.seg_size = sizeof(*first);
	req.user = b;
	n = penstock_submit(s->q, &req, 1, &b->id);
	if (n != 1) {
		s->failed = pst_weights_fail_lib(n, s->m->path, s->m->items[first->item].name,
						 first->seg.off);
		return;
	}
	s->submitted++;
	b->in_flight = true;
	if (req.op == PENSTOCK_WRITE)
		make_ready(s, b);
}

static void complete(struct state *s, const struct penstock_done *done)
{
	struct batch *b = done->user;
	const struct penstock_report *r = done->report;

	b->in_flight = false;
	s->ended++;
	pst_report_add(&s->m->sum, done->result, r);
	if (s->failed)
		return; /* Only the first failure is reported. */
	if (done->result < 0)
		s->failed = pst_weights_fail((int)done->result, r->why, s->m->path,
					     item_name_at(s->m, r->stop_off), r->stop_off, "%s",
					     r->text);
	else if (s->m->slices.op == PENSTOCK_READ)
		make_ready(s, b);
}

static void cancel_all(struct state *s)
{
	for (uint64_t i = 0; i < s->submitted; i++)
		if (s->batches[i].in_flight)
			/* penstock_cancel fails if the request has completed; that does no harm. */
			penstock_cancel(s->q, s->batches[i].id);
}

/* Takes completed requests from the queue. If no checksum remains to be computed, waits for at
 * least one request. */
static void harvest(struct state *s)
{
	struct penstock_done done[REQUESTS];
	bool summing = s->ready && !s->failed;
	int n;

	if (summing)
		n = penstock_poll(s->q, done, REQUESTS);
	else
		n = penstock_wait(s->q, done, 1, REQUESTS,
				  s->failed || !s->m->opts.look ? -1 : POLL_NS);
	for (int i = 0; i < n; i++)
		complete(s, &done[i]);
	if (n < 0 && !s->failed)
		s->failed = pst_weights_fail_lib(n, s->m->path, NULL, PST_NO_OFF);
}

static int move_all(struct state *s)
{
	bool cancelled = false;

	while (s->ended < s->submitted ||
	       (!s->failed && (s->submitted < s->batch_count || s->ready))) {
		look(s);
		while (!s->failed && s->submitted < s->batch_count &&
		       s->submitted - s->ended < REQUESTS)
			submit(s);
		if (s->failed && !cancelled) {
			cancel_all(s);
			cancelled = true;
		}
		if (s->ended < s->submitted)
			harvest(s);
		if (!s->failed && s->ready)
			sum_some(s);
	}
	return s->failed;
}

static int make_batches(struct state *s)
{
	const struct pst_slices *slices = &s->m->slices;
	uint64_t count = 0, next;

	for (uint64_t at = 0; at < slices->count; count++)
		at = pst_slices_batch_end(slices, at, SEGS);
	s->batches = calloc(count, sizeof(*s->batches));
	if (!s->batches)
		return pst_weights_no_memory("the list of requests");
	for (uint64_t at = 0; at < slices->count; at = next) {
		next = pst_slices_batch_end(slices, at, SEGS);
		s->batches[s->batch_count++] = (struct batch){.first = at, .count = next - at};
	}
	return 0;
}

int pst_part_move(struct pst_part_move *m)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct state s = {.m = m, .looked_ns = pst_report_now_ns()};
	int ret;

	s.ready_end = &s.ready;
	if (!m->slices.count)
		return 0;
	pst_slices_sort(&m->slices);
	ret = make_batches(&s);
	if (ret)
		return ret;
	opts.requests_max = REQUESTS;
	opts.segs_max = SEGS;
	ret = penstock_queue_open(&opts, &s.q);
	if (ret)
		ret = pst_weights_fail_lib(ret, m->path, NULL, PST_NO_OFF);
	else
		ret = move_all(&s);
	penstock_queue_close(s.q);
	free(s.batches);
	return ret;
}
