/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes random transfers from a seed: files, offsets and lengths of any size, rows, segments on
 * three devices, several requests at once, a partly cached file, any path, engine, class and
 * effort, and injected faults. Everything that the library reports must be true. Each byte that it
 * counts has arrived exactly once, and no other byte of memory is changed. If a write covers only a
 * part of a block, the other bytes of the block stay unchanged. The numbers in the report are
 * consistent.
 *
 * The program runs for 3 s, or for PENSTOCK_PROP_SECONDS, and makes one environment after the
 * other. Each environment has a seed. A failure prints the seed, and with that number in
 * PENSTOCK_SEED the program starts with the same environment.
 */
#include "environment.h"

#define REQS 6
#define SEGS 12
#define BATCHES 40 /* number of batches in one environment */

/* A generated request, and how it ended. */
struct gen {
	struct penstock_req req;
	struct penstock_seg segs[SEGS];
	char path[96];
	bool faulty;  /* true if chunks of the request may fail or move fewer bytes */
	bool stopped; /* true if the request may be cancelled or reach its deadline */
	int64_t result;
	struct penstock_report report;
};

static struct gen gens[REQS];
static unsigned gen_count;
/* For each byte of an arena: 1 if it must equal the byte in the arena's shadow (the test's copy),
 * 0 if it may have any value. */
static unsigned char *compared[DEVICES];
/* The bytes that the storage contained before writes that may fail. Also used as scratch memory
 * for other purposes. */
static unsigned char *scratch;
static unsigned long bytes_by_path[PENSTOCK_PATHS_MAX], requests, refused, failed;
static const char *path_names[PENSTOCK_PATHS_MAX];

/* ---- generating requests ---- */

static uint64_t random_row_len(void)
{
	switch (random_below(12)) {
	case 0:
	case 1:
		return random_below(64);
	case 2:
	case 3:
		return random_below(5000);
	case 4:
	case 5:
		return 4096 * (1 + random_below(8));
	case 6:
		return 512 * random_below(40);
	case 7:
		return 65535 + random_below(3);
	case 8:
		return random_below(300000);
	case 9:
		return random_below(2u << 20);
	default: /* the path "mapped" carries only ranges of 8 MiB or more */
		return one_in(3) ? env.len : random_below(one_in(2) ? env.len + 1 : 500000);
	}
}

static uint64_t random_offset(void)
{
	uint64_t off = random_below(env.len + (one_in(10) ? 100000 : 1));

	return one_in(2) ? off : off / 4096 * 4096;
}

/* Places the segment's buffer in the arena of device `d`, with guard bytes around it. Returns false
 * if the arena is full. */
static bool place_buffer(struct penstock_seg *seg, unsigned d)
{
	static const uint64_t aligns[] = {1, 64, 512, 4096};
	struct arena *a = &env.arenas[d];
	uint64_t align = aligns[one_in(2) ? 3 : random_below(4)],
		 at = (a->used + random_below(300) + align - 1) / align * align;
	uint64_t len = seg->rows > 1 ? seg->rows * seg->buf_pitch : seg->row_len;

	if (align > 1 && !one_in(3))
		at += seg->off % align; /* gives the address the alignment of the storage offset */
	if (at + len + seg->room + 64 > ARENA)
		return false;
	a->used = at + len + seg->room + 64;
	seg->dev = one_in(8) ? NULL : a->dev;
	seg->buf_off = one_in(2) ? 0 : random_below(at + 1);
	seg->buf = a->mem + (at - seg->buf_off);
	return true;
}

static bool random_rows(struct penstock_seg *seg)
{
	if (!one_in(5))
		return false;
	seg->row_len = seg->row_len > 20000 ? random_below(20000) : seg->row_len;
	seg->rows = 2 + random_below(one_in(3) ? 300 : 12);
	seg->pitch = seg->row_len + random_below(one_in(2) ? 100 : 9000);
	seg->buf_pitch = seg->row_len + random_below(2) * random_below(100);
	if (one_in(3))
		seg->pitch = seg->row_len + 4096 - seg->row_len % 4096;
	return true;
}

static uint64_t end_of(const struct penstock_seg *seg)
{
	return seg->off + (seg->rows > 1 ? (seg->rows - 1) * seg->pitch : 0) + seg->row_len;
}

static void make_reads(struct gen *gen, int only)
{
	unsigned n = one_in(2) ? 1 : 1 + (unsigned)random_below(SEGS);
	uint64_t off = random_offset(), last = off;

	for (unsigned i = 0; i < n; i++) {
		struct penstock_seg seg = {.row_len = random_row_len(), .rows = random_below(2)};

		switch (random_below(6)) {
		case 0:
			/* Uses the offset of the previous segment, so that both ranges overlap. */
			seg.off = last;
			break;
		case 1:
			seg.off = random_offset();
			break;
		case 2:
			seg.off = off + random_below(6000);
			break;
		default:
			seg.off = off;
		}
		random_rows(&seg);
		seg.room = one_in(3) ? random_below(9000) : 0;
		if (!place_buffer(&seg,
				  only >= 0 ? (unsigned)only : (unsigned)random_below(DEVICES)))
			break;
		gen->segs[gen->req.seg_count++] = seg;
		last = seg.off;
		off = end_of(&seg);
	}
}

/* Returns the length of a random piece of at most `left` bytes. */
static uint64_t random_piece_len(uint64_t left)
{
	uint64_t len = random_row_len();

	len = len ? len : 1;
	return len < left ? len : left;
}

/* Cuts one range of the storage into pieces and distributes them among the requests, so that
 * pieces of different requests share blocks. */
static void make_writes(int only)
{
	uint64_t max = env.kind == MEM || env.kind == CREATED || one_in(2) ? env.len : BYTES_MAX;
	uint64_t off = random_offset(), align = one_in(4) ? 4096 : 1;

	off = off < max ? off / align * align : 0;
	for (unsigned n = 1 + (unsigned)random_below(4 * REQS); n && off < max; n--) {
		struct gen *gen = &gens[random_below(gen_count)];
		struct penstock_seg seg = {.off = off, .row_len = random_piece_len(max - off)};

		if (seg.row_len > align)
			seg.row_len -= seg.row_len % align;
		if (align == 1 && random_rows(&seg) && end_of(&seg) > max)
			break;
		off = end_of(&seg);
		seg.room = one_in(2) ? random_below(9000) : 0;
		if (one_in(8))
			off = (off + random_below(5000)) / align * align + align; /* a gap */
		if (gen->req.seg_count == SEGS ||
		    !place_buffer(&seg,
				  only >= 0 ? (unsigned)only : (unsigned)random_below(DEVICES)))
			continue;
		gen->segs[gen->req.seg_count++] = seg;
		if (gen->req.seg_count > 1 &&
		    /* the order of the segments in a request need not be the order of their offsets
		     */
		    one_in(3)) {
			struct penstock_seg *at = &gen->segs[random_below(gen->req.seg_count)];
			struct penstock_seg other = *at;

			*at = seg;
			gen->segs[gen->req.seg_count - 1] = other;
		}
	}
}

/* Picks a path for the request to name. With the path "fault", the test uses only errors, short
 * transfers and delays, because the library detects these. It never uses faults that silently lose
 * bytes. */
static void random_path(struct gen *gen, bool alone)
{
	static const char *const names[] = {"bounce", "staged", "odirect", "mapped", "p2p"};
	bool read = gen->req.op == PENSTOCK_READ;
	/* If a request names a direct path, this path also carries the unaligned ends of a
	 * write. No other request may then write to the blocks of these ends. */
	const char *name = names[read || alone ? random_below(5) : 0];
	size_t at = 0;

	if (one_in(2))
		return;
	gen->req.path = gen->path;
	gen->faulty = one_in(2);
	if (!gen->faulty) {
		snprintf(gen->path, sizeof(gen->path), "%s", name);
		return;
	}
	at = (size_t)snprintf(gen->path, sizeof(gen->path), "fault%s%s?seed=%d",
			      one_in(2) ? ":" : "", "", (int)random_below(1000));
	if (strchr(gen->path, ':'))
		at = (size_t)snprintf(gen->path, sizeof(gen->path), "fault:%s?seed=%d", name,
				      (int)random_below(1000));
	if (one_in(2))
		at += (size_t)snprintf(gen->path + at, sizeof(gen->path) - at, "&eio=%d",
				       1 + (int)random_below(8));
	if (one_in(2))
		at += (size_t)snprintf(gen->path + at, sizeof(gen->path) - at, "&short=%d",
				       1 + (int)random_below(8));
	if (one_in(2))
		snprintf(gen->path + at, sizeof(gen->path) - at, "&delay_us=%d",
			 (int)random_below(300));
}

static void describe_request(const struct gen *gen)
{
	static const char *const efforts[] = {"thrifty", "fast", "balanced"};
	const struct penstock_req *req = &gen->req;

	describe("%s, path %s, class %d, %s, flags %x%s:\n", req->op ? "write" : "read",
		 req->path ? req->path : "-", (int)req->require, efforts[req->effort], req->flags,
		 gen->stopped ? ", stopped" : "");
	for (unsigned i = 0; i < req->seg_count; i++) {
		const struct penstock_seg *s = &gen->segs[i];
		unsigned d = 0;

		while (d < DEVICES - 1 &&
		       ((char *)s->buf + s->buf_off < env.arenas[d].mem ||
			(char *)s->buf + s->buf_off >= env.arenas[d].mem + ARENA))
			d++;
		describe("  off %llu len %llu rows %llu pitch %llu %llu room %llu to %s + %llu\n",
			 (unsigned long long)s->off, (unsigned long long)s->row_len,
			 (unsigned long long)s->rows, (unsigned long long)s->pitch,
			 (unsigned long long)s->buf_pitch, (unsigned long long)s->room,
			 device_names[d],
			 (unsigned long long)((char *)s->buf + s->buf_off - env.arenas[d].mem));
	}
}

static void make_batch(void)
{
	bool write = env.writable && one_in(2);
	int only = one_in(2) ? (int)random_below(DEVICES) : -1;

	gen_count = one_in(2) ? 1 : 1 + (unsigned)random_below(REQS);
	for (unsigned d = 0; d < DEVICES; d++)
		env.arenas[d].used = 4096;
	for (unsigned i = 0; i < gen_count; i++) {
		struct gen *gen = &gens[i];

		*gen = (struct gen){.req = PENSTOCK_REQ_INIT};
		gen->req.storage = env.st;
		gen->req.op = write ? PENSTOCK_WRITE : PENSTOCK_READ;
		gen->req.segs = gen->segs;
		gen->req.effort = (enum penstock_effort)random_below(3);
		gen->req.priority = (int)random_below(8) - 4;
		gen->req.user = gen;
		if (one_in(4))
			gen->req.require = (enum penstock_class)random_below(3);
		if (one_in(6))
			gen->req.flags |= PENSTOCK_R_EXACT;
		if (write && one_in(8))
			gen->req.flags |= PENSTOCK_R_DURABLE;
		random_path(gen, gen_count == 1);
		if (!write)
			make_reads(gen, only);
	}
	if (write)
		make_writes(only);
}

/* ---- running requests ---- */

static void record_result(struct gen *gen, int64_t result, const struct penstock_report *report)
{
	gen->result = result;
	if (report)
		gen->report = *report;
	describe("-> %lld %s\n", (long long)result,
		 result < 0 && !report ? penstock_errmsg() : gen->report.text);
}

static void run_queued(void)
{
	struct penstock_done done[REQS];
	unsigned in_flight = 0;

	for (unsigned i = 0; i < gen_count; i++) {
		struct gen *gen = &gens[i];
		uint64_t id;
		int ret;

		if (one_in(25)) {
			gen->req.deadline_ns = test_now_ns() + random_below(2000000);
			gen->stopped = true;
		}
		ret = penstock_submit(env.queue, &gen->req, 1, &id);
		if (ret != 1) {
			record_result(gen, ret, NULL);
			gen->report.size = 0; /* a refused request has no report */
			continue;
		}
		in_flight++;
		if (one_in(25)) {
			penstock_cancel(env.queue, id);
			gen->stopped = true;
		}
	}
	while (in_flight) {
		int n = penstock_wait(env.queue, done, 1, REQS, 30000000000);

		if (n <= 0)
			case_fail("%u requests do not complete", in_flight);
		for (int i = 0; i < n; i++)
			record_result(done[i].user, done[i].result, done[i].report);
		in_flight -= (unsigned)n;
	}
}

static void run_batch(void)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;

	for (unsigned i = 0; i < gen_count; i++)
		describe_request(&gens[i]);
	if (gen_count > 1 || one_in(2)) {
		run_queued();
		return;
	}
	n = penstock_transfer(&gens[0].req, &report);
	/* If the request was refused, no report is written. */
	record_result(&gens[0], n, report.path_count ? &report : NULL);
}

#include "check_batch.h"

/* ---- copies between devices ---- */

/* Length in bytes of the destination of one copy. The sources of copies are in the first MiB of
 * an arena. */
#define COPY_DST_LEN (256u << 10)

static void random_copy(struct penstock_copy_args *c, unsigned index)
{
	uint64_t rows = one_in(2) ? random_below(2) : 2 + random_below(40), pitch, from, to;
	unsigned src = (unsigned)random_below(DEVICES), dst = (unsigned)random_below(DEVICES);
	struct arena *a = &env.arenas[src], *b = &env.arenas[dst];

	c->size = sizeof(*c);
	c->row_len = random_below(one_in(3) ? COPY_DST_LEN / 2 : one_in(2) ? 70000 : 300);
	c->rows = rows > 1 && c->row_len ? rows : random_below(2);
	rows = c->rows ? c->rows : 1;
	pitch = c->row_len + random_below(100);
	c->row_len = pitch * rows > COPY_DST_LEN - 4096 ? (COPY_DST_LEN - 4096) / rows - 100
							: c->row_len;
	c->src_pitch = c->row_len + random_below(100);
	c->dst_pitch = c->row_len + random_below(100);
	from = random_below((1u << 20) - rows * c->src_pitch);
	to = (1u << 20) + index * COPY_DST_LEN + random_below(4096 - 100);
	c->src_dev = a->dev;
	c->src = a->mem + from;
	c->dst_dev = b->dev;
	c->dst = b->mem + to;
	describe("copy %s + %llu to %s + %llu, %llu rows of %llu, pitch %llu to %llu\n",
		 device_names[src], (unsigned long long)from, device_names[dst],
		 (unsigned long long)to, (unsigned long long)c->rows,
		 (unsigned long long)c->row_len, (unsigned long long)c->src_pitch,
		 (unsigned long long)c->dst_pitch);
	for (uint64_t r = 0; r < rows; r++)
		memcpy(b->shadow + to + r * c->dst_pitch, a->shadow + from + r * c->src_pitch,
		       c->row_len);
}

static void check_copies(void)
{
	struct penstock_copy_args copies[4];
	unsigned n = 1 + (unsigned)random_below(4);
	size_t text = env.text_len;

	for (unsigned d = 0; d < DEVICES; d++)
		env.arenas[d].used = 2u << 20;
	fill_arenas();
	for (unsigned i = 0; i < n; i++)
		random_copy(&copies[i], i);
	if (penstock_copy(copies, n))
		case_fail("copy: %s", penstock_errmsg());
	for (unsigned d = 0; d < DEVICES; d++)
		memset(compared[d], 1, env.arenas[d].used);
	check_arenas(compared);
	env.text_len = text;
}

static void random_copies(void **state)
{
	uint64_t seed = test_seed(20261121), start = test_now_ns();

	(void)state;
	do {
		environment_open(seed++);
		for (unsigned i = 0; i < BATCHES; i++)
			check_copies();
		environment_close();
	} while (test_now_ns() - start < run_ns() / 8);
}

static int setup(void **state)
{
	(void)state;
	make_random_bytes();
	scratch = malloc(BYTES_MAX);
	for (unsigned d = 0; d < DEVICES; d++)
		compared[d] = malloc(ARENA);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_transfers),
		cmocka_unit_test(random_copies),
	};

	setenv("PENSTOCK_STANDIN_DEVICES", "2", 0);
	test_use_standin();
	return cmocka_run_group_tests(tests, setup, NULL);
}
