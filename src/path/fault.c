/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path fault: wraps any other and breaks what it does, by seed, so that tests can
 * see what the rest makes of it. A chunk that is hit fails, is late, or lies: it
 * says that all is there, and is not. Taken only when named. Each piece that it does
 * move goes through the wrapped path's own code, as a request of one chunk. A chunk
 * that failed and goes on by another path is left alone.
 *
 *	fault[:PATH][?NAME=WHICH&...]
 *	eio	the chunk fails with -EIO
 *	short	its first half is moved, and no more is said to be
 *	lost	nothing is moved
 *	cut	its second half is not moved
 *	swap	its two halves change places (lost, where they have no two places)
 *	WHICH	N: one chunk in N by seed; @OFFSET: the one with that storage byte
 *	delay_us=N (each chunk is late by 0 to N), seed=N, op=read or op=write (only those)
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/splitmix64.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "path/paths.h"

#define BLOCK 4096u /* halves end on one, for paths that need it */
#define PIECES_MAX 3

enum fault { FAULT_EIO, FAULT_SHORT, FAULT_LOST, FAULT_CUT, FAULT_SWAP, FAULTS };

static const char *const fault_names[FAULTS] = {"eio", "short", "lost", "cut", "swap"};

enum { PICK_NONE, PICK_RATE, PICK_AT };

/* What was asked for; lies in the request's wrap_state. */
struct spec {
	uint64_t seed, delay_us;
	uint64_t number[FAULTS];
	uint8_t pick[FAULTS];
	uint8_t spared; /* 1 + the operation that is left alone, 0: none */
};
_Static_assert(sizeof(struct spec) <= sizeof(((struct pst_request *)NULL)->wrap_state), "room");

/* ---- reading the arguments ---- */

static int number(const char *text, size_t len, uint64_t *out)
{
	uint64_t value = 0;

	if (!len)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
			return -EINVAL;
	}
	*out = value;
	return 0;
}

static int argument(struct spec *spec, const char *name, size_t name_len, const char *value,
		    size_t value_len)
{
	if (name_len == 4 && !memcmp(name, "seed", 4))
		return number(value, value_len, &spec->seed);
	if (name_len == 8 && !memcmp(name, "delay_us", 8))
		return number(value, value_len, &spec->delay_us);
	if (name_len == 2 && !memcmp(name, "op", 2)) {
		spec->spared = value_len == 4 && !memcmp(value, "read", 4)    ? 1 + PENSTOCK_WRITE
			       : value_len == 5 && !memcmp(value, "write", 5) ? 1 + PENSTOCK_READ
									      : 0;
		return spec->spared ? 0 : -EINVAL;
	}
	for (unsigned i = 0; i < FAULTS; i++) {
		bool at = value_len && value[0] == '@';

		if (strlen(fault_names[i]) != name_len || memcmp(fault_names[i], name, name_len))
			continue;
		spec->pick[i] = at ? PICK_AT : PICK_RATE;
		if (number(value + at, value_len - at, &spec->number[i]))
			return -EINVAL;
		return at || spec->number[i] ? 0 : -EINVAL;
	}
	return -EINVAL;
}

static int wrap(const char *args, void *state, struct pst_err *err)
{
	struct spec *spec = state;

	memset(spec, 0, sizeof(*spec));
	while (*args) {
		size_t len = strcspn(args, "&"), name_len = strcspn(args, "=&");

		if (name_len >= len ||
		    argument(spec, args, name_len, args + name_len + 1, len - name_len - 1))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"fault: '%.*s' is none of eio, short, lost, cut, swap (=N, "
					"=@OFFSET), delay_us=N, seed=N, op=read, op=write",
					(int)(len < 60 ? len : 60), args);
		args += len + (args[len] == '&');
	}
	return 0;
}

/* ---- which chunks ---- */

/* One number for each chunk and purpose. */
static uint64_t draw(const struct spec *spec, const struct pst_chunk *chunk, unsigned purpose)
{
	return pst_splitmix64(spec->seed ^ pst_splitmix64(chunk->off ^ pst_splitmix64(purpose)));
}

static bool hit(const struct spec *spec, const struct pst_chunk *chunk, enum fault fault)
{
	uint64_t n = spec->number[fault];

	if (spec->pick[fault] == PICK_AT)
		return n >= chunk->off && n - chunk->off < chunk->len;
	return spec->pick[fault] == PICK_RATE && draw(spec, chunk, fault) % n == 0;
}

/* ---- chunks that are late: one thread lets them go on ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct pst_io *list; /* the next due first; off is when */
	unsigned generation; /* of the process that has the thread, plus one */
} late = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *late_main(void *arg)
{
	pthread_mutex_lock(&late.lock);
	for (;;) {
		struct pst_io *io = late.list;
		struct timespec until;

		if (!io) {
			pthread_cond_wait(&late.more, &late.lock);
			continue;
		}
		if (pst_now_ns() < io->off) {
			until.tv_sec = (time_t)(io->off / 1000000000u);
			until.tv_nsec = (long)(io->off % 1000000000u);
			pthread_cond_timedwait(&late.more, &late.lock, &until);
			continue;
		}
		late.list = io->next;
		pst_io_done(io, 0);
	}
	return arg;
}

static int late_start(void)
{
	pthread_condattr_t attr;
	pthread_t thread;
	int ret;

	if (late.generation == pst_fork_generation() + 1)
		return 0;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&late.more, &attr);
	pthread_condattr_destroy(&attr);
	late.list = NULL;
	ret = pst_thread_start(&thread, late_main, NULL);
	if (ret)
		return -ret;
	pthread_detach(thread);
	late.generation = pst_fork_generation() + 1;
	return 0;
}

static void end(struct pst_io *io)
{
	struct pst_chunk *chunk = (struct pst_chunk *)((char *)io - offsetof(struct pst_chunk, io));

	pst_chunk_done(chunk, chunk->err.code);
}

/* The chunk ends, perhaps not at once. */
static void finish(struct pst_chunk *chunk)
{
	const struct spec *spec = (const struct spec *)chunk->req->wrap_state;
	struct pst_io *io = &chunk->io, **at = &late.list;

	if (!spec->delay_us) {
		end(io);
		return;
	}
	io->lane = chunk->lane;
	io->done = end;
	io->off = pst_now_ns() + draw(spec, chunk, FAULTS) % (spec->delay_us + 1) * 1000;
	pthread_mutex_lock(&late.lock);
	if (late_start()) {
		pthread_mutex_unlock(&late.lock);
		end(io);
		return;
	}
	while (*at && (*at)->off <= io->off)
		at = &(*at)->next;
	io->next = *at;
	*at = io;
	pthread_cond_signal(&late.more);
	pthread_mutex_unlock(&late.lock);
}

/* ---- pieces: what the wrapped path is given to do ---- */

/* Storage bytes [off, off + len) with the memory of those at mem_off. */
struct piece {
	uint64_t off, len, mem_off;
	uint32_t pad;
};

/* One chunk's pieces, one after the other. Kept by the lane when done: whoever was
 * called for the request in it may look at it once more on his way back. */
struct work {
	struct pst_chunk *chunk;
	struct piece pieces[PIECES_MAX];
	unsigned count, next;
	bool lies; /* says that all was moved */
	struct pst_request req;
	struct pst_span span;
	struct penstock_seg seg;
	struct work *link;
};

struct state {
	struct work *free;
};

static struct work *take_work(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;
	int index = pst_path_index(pst_path_fault.name);
	struct state *s = lane->path_state[index];
	struct work *w;

	if (!s)
		s = lane->path_state[index] = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	w = s->free;
	if (w)
		s->free = w->link;
	else if ((w = calloc(1, sizeof(*w))))
		atomic_store(&w->req.refs, 1); /* ours, for good: who takes more gives them back */
	if (w) {
		w->chunk = chunk;
		w->count = w->next = 0;
		w->lies = false;
	}
	return w;
}

static void put_work(struct work *w)
{
	struct state *s = w->chunk->lane->path_state[pst_path_index(pst_path_fault.name)];

	w->link = s->free;
	s->free = w;
}

static void lane_close(struct pst_lane *lane, unsigned index)
{
	struct state *s = lane->path_state[index];

	while (s->free) {
		struct work *w = s->free;

		s->free = w->link;
		free(w);
	}
	free(s);
	lane->path_state[index] = NULL;
}

/* The request that the wrapped path sees: the caller's, or one of the piece alone
 * where its memory is elsewhere. */
static void make_request(struct work *w, const struct piece *piece, struct pst_chunk *inner)
{
	const struct pst_request *real = w->chunk->req;
	struct pst_part part;

	w->req.st = real->st;
	w->req.op = real->op;
	w->req.effort = real->effort;
	w->req.segs = real->segs;
	w->req.spans = real->spans;
	w->req.seg_count = real->seg_count;
	w->req.span_count = real->span_count;
	inner->span = w->chunk->span;
	if (piece->mem_off == piece->off)
		return;
	pst_span_part_at(real, &real->spans[w->chunk->span], piece->mem_off, &part);
	w->seg = (struct penstock_seg){.buf = part.mem,
				       .dev = part.dev,
				       .off = piece->off,
				       .row_len = piece->len,
				       .rows = 1,
				       .pitch = piece->len,
				       .buf_pitch = piece->len};
	w->span = (struct pst_span){
		.off = piece->off, .len = piece->len, .route = w->chunk->route, .seg_count = 1};
	w->req.segs = &w->seg;
	w->req.spans = &w->span;
	w->req.seg_count = w->req.span_count = 1;
	inner->span = 0;
}

static int start_piece(struct work *w);

static void piece_done(struct pst_chunk *inner, int result)
{
	struct work *w = (struct work *)((char *)inner->req - offsetof(struct work, req));
	struct pst_chunk *chunk = w->chunk;

	chunk->moved += inner->moved;
	chunk->cpu_copied += inner->cpu_copied;
	chunk->dram_laid += inner->dram_laid;
	chunk->engine = inner->engine;
	chunk->io.engine_why = inner->io.engine_why;
	if (result)
		chunk->err = inner->err;
	pst_chunk_put(inner);
	if (!result && w->next < w->count) {
		result = start_piece(w);
		if (!result)
			return;
		if (!chunk->err.code)
			pst_fail_errno(&chunk->err, result, PENSTOCK_WHY_INJECTED,
				       "a piece of the chunk could not start: %m");
	}
	if (!result && w->lies)
		chunk->moved = chunk->len;
	else if (!result && chunk->req->op == PENSTOCK_WRITE && chunk->moved < chunk->len)
		pst_fail(&chunk->err, PENSTOCK_WHY_INJECTED, "wrote %llu of %llu bytes",
			 (unsigned long long)chunk->moved, (unsigned long long)chunk->len);
	put_work(w);
	finish(chunk);
}

static int start_piece(struct work *w)
{
	const struct piece *piece = &w->pieces[w->next];
	struct pst_chunk *chunk = w->chunk, *inner;
	int ret;

	if (!chunk->lane->chunks_free)
		return -EAGAIN;
	inner = pst_chunk_get(chunk->lane);
	make_request(w, piece, inner);
	inner->req = &w->req;
	inner->route = chunk->route;
	inner->off = piece->off;
	inner->len = piece->len;
	inner->pad = piece->pad;
	inner->path = chunk->path;
	inner->residency = chunk->residency;
	inner->start_ns = chunk->start_ns;
	inner->on_done = piece_done;
	w->next++;
	ret = pst_paths[inner->path]->start(inner);
	if (!ret)
		return 0;
	w->next--;
	chunk->err = inner->err;
	pst_chunk_put(inner);
	return ret;
}

static void add_piece(struct work *w, uint64_t off, uint64_t len, uint64_t mem_off)
{
	const struct pst_chunk *chunk = w->chunk;
	bool last = off + len == chunk->off + chunk->len && mem_off == off;

	if (len)
		w->pieces[w->count++] = (struct piece){off, len, mem_off, last ? chunk->pad : 0};
}

/* Half of the chunk, ending on a block if the path needs that. */
static uint64_t half_of(const struct pst_chunk *chunk)
{
	bool any = chunk->route->paths[chunk->path].facts.off_align <= 1;

	return any ? chunk->len / 2 : chunk->len / 2 / BLOCK * BLOCK;
}

/* Can both halves change places? Only where they are one piece of memory. */
static bool swappable(const struct pst_chunk *chunk)
{
	const struct pst_span *span = &chunk->req->spans[chunk->span];
	struct pst_part part;

	return half_of(chunk) && !pst_span_part_at(chunk->req, span, chunk->off, &part) &&
	       part.row_len >= chunk->len;
}

static void cut_up(struct work *w, const struct spec *spec)
{
	const struct pst_chunk *chunk = w->chunk;
	uint64_t half = half_of(chunk), middle = chunk->off + half;

	if (hit(spec, chunk, FAULT_SHORT)) {
		add_piece(w, chunk->off, half, chunk->off);
	} else if (hit(spec, chunk, FAULT_CUT)) {
		w->lies = true;
		add_piece(w, chunk->off, half, chunk->off);
	} else if (hit(spec, chunk, FAULT_SWAP) && swappable(chunk)) {
		w->lies = true;
		add_piece(w, chunk->off, half, middle);
		add_piece(w, middle, half, chunk->off);
		add_piece(w, middle + half, chunk->len - 2 * half, middle + half);
	} else if (hit(spec, chunk, FAULT_LOST) || hit(spec, chunk, FAULT_SWAP)) {
		w->lies = true;
	} else {
		add_piece(w, chunk->off, chunk->len, chunk->off);
	}
}

static int start(struct pst_chunk *chunk)
{
	const struct spec *spec = (const struct spec *)chunk->req->wrap_state;
	struct work *w;
	int ret = 0;

	if (chunk->tries || spec->spared == 1 + chunk->route->op)
		return pst_paths[chunk->path]->start(chunk);
	if (hit(spec, chunk, FAULT_EIO)) {
		pst_fail_errno(&chunk->err, EIO, PENSTOCK_WHY_INJECTED,
			       "a fault was injected at offset %llu",
			       (unsigned long long)chunk->off);
		finish(chunk);
		return 0;
	}
	w = take_work(chunk);
	if (!w)
		return pst_fail(&chunk->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a fault");
	cut_up(w, spec);
	if (w->count) {
		ret = start_piece(w);
		if (ret)
			put_work(w);
		return ret;
	}
	chunk->moved = w->lies ? chunk->len : 0;
	if (!w->lies && chunk->req->op == PENSTOCK_WRITE)
		pst_fail(&chunk->err, PENSTOCK_WHY_INJECTED, "wrote none of %llu bytes",
			 (unsigned long long)chunk->len);
	put_work(w);
	finish(chunk);
	return 0;
}

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	(void)route;
	(void)fix;
	(void)facts;
	return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "it carries nothing by itself");
}

const struct pst_path_ops pst_path_fault = {
	.name = "fault",
	.traits = {.reads = true, .writes = true, .by_name_only = true},
	.probe = probe,
	.wrap = wrap,
	.start = start,
	.lane_close = lane_close,
};
