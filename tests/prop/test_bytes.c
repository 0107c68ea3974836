/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any transfer, by seed: files and offsets and lengths of any size, rows, segments
 * over three devices, several requests at once, a page cache in disorder, any path,
 * engine, class and effort, injected faults. Whatever the library says of a request
 * is true: each byte it counts is there, exactly once, nothing beside is touched,
 * what stands beside a write in its block is kept, and the report adds up.
 *
 * Runs for 3 s, or PENSTOCK_PROP_SECONDS, one world after the other; a failure
 * prints the seed of its own world, and PENSTOCK_SEED begins with that one.
 */
#include "world.h"

#define REQS 6
#define SEGS 12
#define BATCHES 40 /* in one world */

struct ask {
	struct penstock_req req;
	struct penstock_seg segs[SEGS];
	char path[96];
	bool faulty;  /* its chunks may fail, or come short */
	bool stopped; /* cancelled, or late */
	int64_t result;
	struct penstock_report report;
};

static struct ask asks[REQS];
static unsigned ask_count;
static unsigned char *care[DEVICES]; /* 0: may be anything */
static unsigned char *before;	     /* the storage, before writes that may fail */
static unsigned long moved_by[PENSTOCK_PATHS_MAX], requests, refused, failed;
static const char *path_names[PENSTOCK_PATHS_MAX];

/* ---- asking ---- */

static uint64_t any_row(void)
{
	switch (any(12)) {
	case 0:
	case 1:
		return any(64);
	case 2:
	case 3:
		return any(5000);
	case 4:
	case 5:
		return 4096 * (1 + any(8));
	case 6:
		return 512 * any(40);
	case 7:
		return 65535 + any(3);
	case 8:
		return any(300000);
	case 9:
		return any(2u << 20);
	default: /* windows on the page cache begin at 8 MiB */
		return once_in(3) ? w.len : any(once_in(2) ? w.len + 1 : 500000);
	}
}

static uint64_t any_offset(void)
{
	uint64_t off = any(w.len + (once_in(10) ? 100000 : 1));

	return once_in(2) ? off : off / 4096 * 4096;
}

/* A place in an arena for the segment, with guards around; false: no room. */
static bool place_buffer(struct penstock_seg *seg, unsigned d)
{
	static const uint64_t aligns[] = {1, 64, 512, 4096};
	struct arena *a = &w.arenas[d];
	uint64_t align = aligns[once_in(2) ? 3 : any(4)],
		 at = (a->used + any(300) + align - 1) / align * align;
	uint64_t len = seg->rows > 1 ? seg->rows * seg->buf_pitch : seg->row_len;

	if (align > 1 && !once_in(3))
		at += seg->off % align; /* aligned together with the storage */
	if (at + len + seg->room + 64 > ARENA)
		return false;
	a->used = at + len + seg->room + 64;
	seg->dev = once_in(8) ? NULL : a->dev;
	seg->buf_off = once_in(2) ? 0 : any(at + 1);
	seg->buf = a->mem + (at - seg->buf_off);
	return true;
}

static bool any_rows(struct penstock_seg *seg)
{
	if (!once_in(5))
		return false;
	seg->row_len = seg->row_len > 20000 ? any(20000) : seg->row_len;
	seg->rows = 2 + any(once_in(3) ? 300 : 12);
	seg->pitch = seg->row_len + any(once_in(2) ? 100 : 9000);
	seg->buf_pitch = seg->row_len + any(2) * any(100);
	if (once_in(3))
		seg->pitch = seg->row_len + 4096 - seg->row_len % 4096;
	return true;
}

static uint64_t end_of(const struct penstock_seg *seg)
{
	return seg->off + (seg->rows > 1 ? (seg->rows - 1) * seg->pitch : 0) + seg->row_len;
}

static void ask_reads(struct ask *ask, int only)
{
	unsigned n = once_in(2) ? 1 : 1 + (unsigned)any(SEGS);
	uint64_t off = any_offset(), last = off;

	for (unsigned i = 0; i < n; i++) {
		struct penstock_seg seg = {.row_len = any_row(), .rows = any(2)};

		switch (any(6)) {
		case 0:
			seg.off = last; /* the same, or what begins there */
			break;
		case 1:
			seg.off = any_offset();
			break;
		case 2:
			seg.off = off + any(6000);
			break;
		default:
			seg.off = off;
		}
		any_rows(&seg);
		seg.room = once_in(3) ? any(9000) : 0;
		if (!place_buffer(&seg, only >= 0 ? (unsigned)only : (unsigned)any(DEVICES)))
			break;
		ask->segs[ask->req.seg_count++] = seg;
		last = seg.off;
		off = end_of(&seg);
	}
}

/* Every `grain` bytes from `off` may be a border between two requests' pieces. */
static uint64_t any_piece(uint64_t left)
{
	uint64_t len = any_row();

	len = len ? len : 1;
	return len < left ? len : left;
}

/* Pieces of one stretch of storage, dealt to the requests: neighbours share blocks. */
static void ask_writes(int only)
{
	uint64_t max = w.kind == MEM || w.kind == CREATED || once_in(2) ? w.len : BYTES_MAX;
	uint64_t off = any_offset(), grain = once_in(4) ? 4096 : 1;

	off = off < max ? off / grain * grain : 0;
	for (unsigned n = 1 + (unsigned)any(4 * REQS); n && off < max; n--) {
		struct ask *ask = &asks[any(ask_count)];
		struct penstock_seg seg = {.off = off, .row_len = any_piece(max - off)};

		if (seg.row_len > grain)
			seg.row_len -= seg.row_len % grain;
		if (grain == 1 && any_rows(&seg) && end_of(&seg) > max)
			break;
		off = end_of(&seg);
		seg.room = once_in(2) ? any(9000) : 0;
		if (once_in(8))
			off = (off + any(5000)) / grain * grain + grain; /* a gap */
		if (ask->req.seg_count == SEGS ||
		    !place_buffer(&seg, only >= 0 ? (unsigned)only : (unsigned)any(DEVICES)))
			continue;
		ask->segs[ask->req.seg_count++] = seg;
		if (ask->req.seg_count > 1 && once_in(3)) { /* not in order */
			struct penstock_seg *at = &ask->segs[any(ask->req.seg_count)];
			struct penstock_seg other = *at;

			*at = seg;
			ask->segs[ask->req.seg_count - 1] = other;
		}
	}
}

/* Names that a request may give. Of the faults those that do not lie. */
static void any_path(struct ask *ask, bool alone)
{
	static const char *const names[] = {"bounce", "staged", "odirect", "mapped", "p2p"};
	bool read = ask->req.op == PENSTOCK_READ;
	/* A named direct path takes ends of writes too, which no neighbour may share. */
	const char *name = names[read || alone ? any(5) : 0];
	size_t at = 0;

	if (once_in(2))
		return;
	ask->req.path = ask->path;
	ask->faulty = once_in(2);
	if (!ask->faulty) {
		snprintf(ask->path, sizeof(ask->path), "%s", name);
		return;
	}
	at = (size_t)snprintf(ask->path, sizeof(ask->path), "fault%s%s?seed=%d",
			      once_in(2) ? ":" : "", "", (int)any(1000));
	if (strchr(ask->path, ':'))
		at = (size_t)snprintf(ask->path, sizeof(ask->path), "fault:%s?seed=%d", name,
				      (int)any(1000));
	if (once_in(2))
		at += (size_t)snprintf(ask->path + at, sizeof(ask->path) - at, "&eio=%d",
				       1 + (int)any(8));
	if (once_in(2))
		at += (size_t)snprintf(ask->path + at, sizeof(ask->path) - at, "&short=%d",
				       1 + (int)any(8));
	if (once_in(2))
		snprintf(ask->path + at, sizeof(ask->path) - at, "&delay_us=%d", (int)any(300));
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void describe(const struct ask *ask)
{
	const struct penstock_req *req = &ask->req;

	tell("%s, path %s, class %d, %s, flags %x%s:\n", req->op ? "write" : "read",
	     req->path ? req->path : "-", (int)req->require, req->effort ? "fast" : "thrifty",
	     req->flags, ask->stopped ? ", stopped" : "");
	for (unsigned i = 0; i < req->seg_count; i++) {
		const struct penstock_seg *s = &ask->segs[i];
		unsigned d = 0;

		while (d < DEVICES - 1 && ((char *)s->buf + s->buf_off < w.arenas[d].mem ||
					   (char *)s->buf + s->buf_off >= w.arenas[d].mem + ARENA))
			d++;
		tell("  off %llu len %llu rows %llu pitch %llu %llu room %llu to %s + %llu\n",
		     (unsigned long long)s->off, (unsigned long long)s->row_len,
		     (unsigned long long)s->rows, (unsigned long long)s->pitch,
		     (unsigned long long)s->buf_pitch, (unsigned long long)s->room, device_names[d],
		     (unsigned long long)((char *)s->buf + s->buf_off - w.arenas[d].mem));
	}
}

static void ask_all(void)
{
	bool write = w.writable && once_in(2);
	int only = once_in(2) ? (int)any(DEVICES) : -1;

	ask_count = once_in(2) ? 1 : 1 + (unsigned)any(REQS);
	for (unsigned d = 0; d < DEVICES; d++)
		w.arenas[d].used = 4096;
	for (unsigned i = 0; i < ask_count; i++) {
		struct ask *ask = &asks[i];

		*ask = (struct ask){.req = PENSTOCK_REQ_INIT};
		ask->req.storage = w.st;
		ask->req.op = write ? PENSTOCK_WRITE : PENSTOCK_READ;
		ask->req.segs = ask->segs;
		ask->req.effort = (enum penstock_effort)any(2);
		ask->req.priority = (int)any(8) - 4;
		ask->req.user = ask;
		if (once_in(4))
			ask->req.require = (enum penstock_class)any(3);
		if (once_in(6))
			ask->req.flags |= PENSTOCK_R_EXACT;
		if (write && once_in(8))
			ask->req.flags |= PENSTOCK_R_DURABLE;
		any_path(ask, ask_count == 1);
		if (!write)
			ask_reads(ask, only);
	}
	if (write)
		ask_writes(only);
}

/* ---- doing ---- */

static void take_result(struct ask *ask, int64_t result, const struct penstock_report *report)
{
	ask->result = result;
	if (report)
		ask->report = *report;
	tell("-> %lld %s\n", (long long)result,
	     result < 0 && !report ? penstock_errmsg() : ask->report.text);
}

static void do_queued(void)
{
	struct penstock_done done[REQS];
	unsigned in_flight = 0;

	for (unsigned i = 0; i < ask_count; i++) {
		struct ask *ask = &asks[i];
		uint64_t id;
		int ret;

		if (once_in(25)) {
			ask->req.deadline_ns = now_ns() + any(2000000);
			ask->stopped = true;
		}
		ret = penstock_submit(w.queue, &ask->req, 1, &id);
		if (ret != 1) {
			take_result(ask, ret, NULL);
			ask->report.size = 0; /* none: it was refused */
			continue;
		}
		in_flight++;
		if (once_in(25)) {
			penstock_cancel(w.queue, id);
			ask->stopped = true;
		}
	}
	while (in_flight) {
		int n = penstock_wait(w.queue, done, 1, REQS, 30000000000);

		if (n <= 0)
			wrong("%u requests do not end", in_flight);
		for (int i = 0; i < n; i++)
			take_result(done[i].user, done[i].result, done[i].report);
		in_flight -= (unsigned)n;
	}
}

static void do_all(void)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;

	for (unsigned i = 0; i < ask_count; i++)
		describe(&asks[i]);
	if (ask_count > 1 || once_in(2)) {
		do_queued();
		return;
	}
	n = penstock_transfer(&asks[0].req, &report);
	take_result(&asks[0], n, report.path_count ? &report : NULL); /* refused: not written */
}

#include "judge.h"

/* ---- copies between devices ---- */

#define ZONE (256u << 10) /* of one copy's destination; sources are in the first MiB */

static void any_copy(struct penstock_copy_args *c, unsigned index)
{
	uint64_t rows = once_in(2) ? any(2) : 2 + any(40), pitch, from, to;
	unsigned src = (unsigned)any(DEVICES), dst = (unsigned)any(DEVICES);
	struct arena *a = &w.arenas[src], *b = &w.arenas[dst];

	c->size = sizeof(*c);
	c->row_len = any(once_in(3) ? ZONE / 2 : once_in(2) ? 70000 : 300);
	c->rows = rows > 1 && c->row_len ? rows : any(2);
	rows = c->rows ? c->rows : 1;
	pitch = c->row_len + any(100);
	c->row_len = pitch * rows > ZONE - 4096 ? (ZONE - 4096) / rows - 100 : c->row_len;
	c->src_pitch = c->row_len + any(100);
	c->dst_pitch = c->row_len + any(100);
	from = any((1u << 20) - rows * c->src_pitch);
	to = (1u << 20) + index * ZONE + any(4096 - 100);
	c->src_dev = a->dev;
	c->src = a->mem + from;
	c->dst_dev = b->dev;
	c->dst = b->mem + to;
	tell("copy %s + %llu to %s + %llu, %llu rows of %llu, pitch %llu to %llu\n",
	     device_names[src], (unsigned long long)from, device_names[dst], (unsigned long long)to,
	     (unsigned long long)c->rows, (unsigned long long)c->row_len,
	     (unsigned long long)c->src_pitch, (unsigned long long)c->dst_pitch);
	for (uint64_t r = 0; r < rows; r++)
		memcpy(b->shadow + to + r * c->dst_pitch, a->shadow + from + r * c->src_pitch,
		       c->row_len);
}

static void copy_batch(void)
{
	struct penstock_copy_args copies[4];
	unsigned n = 1 + (unsigned)any(4);
	size_t text = w.text_len;

	for (unsigned d = 0; d < DEVICES; d++)
		w.arenas[d].used = 2u << 20;
	fill_arenas();
	for (unsigned i = 0; i < n; i++)
		any_copy(&copies[i], i);
	if (penstock_copy(copies, n))
		wrong("copy: %s", penstock_errmsg());
	for (unsigned d = 0; d < DEVICES; d++)
		memset(care[d], 1, w.arenas[d].used);
	check_arenas(care);
	w.text_len = text;
}

static void any_copies(void **state)
{
	uint64_t seed = test_seed(20261121), start = now_ns();

	(void)state;
	do {
		open_world(seed++);
		for (unsigned i = 0; i < BATCHES; i++)
			copy_batch();
		close_world();
	} while (now_ns() - start < run_ns() / 8);
}

static int setup(void **state)
{
	(void)state;
	make_noise();
	before = malloc(BYTES_MAX);
	for (unsigned d = 0; d < DEVICES; d++)
		care[d] = malloc(ARENA);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_transfers),
		cmocka_unit_test(any_copies),
	};

	setenv("PENSTOCK_STANDIN_DEVICES", "2", 0);
	test_use_standin();
	return cmocka_run_group_tests(tests, setup, NULL);
}
