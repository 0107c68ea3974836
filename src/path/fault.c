/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "fault" wraps another path and injects faults into chunks that a seed selects, so that
 * tests can check how the library handles faults. A selected chunk fails, is delayed, or lies: it
 * reports that all bytes were moved although they were not. A request uses this path only if the
 * request names the path. The wrapped path moves the bytes of a chunk in pieces; for each piece,
 * this file makes a request with one chunk. After a failure, a chunk may be retried on another
 * path, without further faults.
 *
 * The syntax is fault[:PATH][?NAME=VALUE&...], with these names:
 *
 * 	eio	the chunk fails with -EIO
 * 	short	the first half of the chunk is moved, and only that half is reported
 * 	lost	nothing is moved, but all bytes are reported
 * 	cut	the second half is not moved, but all bytes are reported
 * 	swap	the two halves change places; if their memory is not contiguous, nothing is
 * 		moved, as with lost
 * 	The value of these five is N, which selects one chunk in N by seed, or @OFFSET, which
 * 	selects the chunk that holds this byte of the storage.
 * 	delay_us=N	delays each chunk by 0 to N microseconds
 * 	seed=N		sets the seed
 * 	op=read|write	injects faults into this operation only
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/thread.h"
#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/splitmix64.h"
#include "core/lane/chunk.h"
#include "core/lane/inbox.h"
#include "core/lane/lane.h"
#include "core/request/plan.h"
#include "core/request/spans.h"
#include "path/fault.h"

/* Alignment of the two halves of a chunk, for paths that need aligned offsets. */
#define BLOCK 4096u
#define PIECES_MAX 3

enum fault { FAULT_EIO, FAULT_SHORT, FAULT_LOST, FAULT_CUT, FAULT_SWAP, FAULTS };

static const char *const fault_names[FAULTS] = {"eio", "short", "lost", "cut", "swap"};

enum { PICK_NONE, PICK_RATE, PICK_AT };

/* The parsed arguments of the path, stored in the request's wrap_state. */
struct fault_spec {
	uint64_t seed, delay_us;
	uint64_t number[FAULTS];
	uint8_t pick[FAULTS];
	/* 1 + the value of enum penstock_op for the operation that gets no faults; 0 if reads and
	 * writes get faults. */
	uint8_t spared;
};
_Static_assert(sizeof(struct fault_spec) <= sizeof(((struct pst_request *)NULL)->wrap_state),
	       "room");

/* ---- parsing the arguments ---- */

static int arg_parse_number(const char *text, size_t len, uint64_t *out)
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

static int arg_parse(struct fault_spec *spec, const char *name, size_t name_len, const char *value,
		     size_t value_len)
{
	if (name_len == 4 && !memcmp(name, "seed", 4))
		return arg_parse_number(value, value_len, &spec->seed);
	if (name_len == 8 && !memcmp(name, "delay_us", 8))
		return arg_parse_number(value, value_len, &spec->delay_us);
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
		if (arg_parse_number(value + at, value_len - at, &spec->number[i]))
			return -EINVAL;
		return at || spec->number[i] ? 0 : -EINVAL;
	}
	return -EINVAL;
}

static int fault_wrap(const char *args, void *state, struct pst_err *err)
{
	struct fault_spec *spec = state;

	memset(spec, 0, sizeof(*spec));
	while (*args) {
		size_t len = strcspn(args, "&"), name_len = strcspn(args, "=&");

		if (name_len >= len ||
		    arg_parse(spec, args, name_len, args + name_len + 1, len - name_len - 1))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"fault: '%.*s' is none of eio, short, lost, cut, swap (=N, "
					"=@OFFSET), delay_us=N, seed=N, op=read, op=write",
					(int)(len < 60 ? len : 60), args);
		args += len + (args[len] == '&');
	}
	return 0;
}

/* ---- choosing the chunks ---- */

/* Returns a pseudo-random number that depends on the seed, the chunk and `purpose`. */
static uint64_t chunk_random(const struct fault_spec *spec, const struct pst_chunk *chunk,
			     unsigned purpose)
{
	return pst_splitmix64(spec->seed ^ pst_splitmix64(chunk->off ^ pst_splitmix64(purpose)));
}

static bool chunk_is_hit(const struct fault_spec *spec, const struct pst_chunk *chunk,
			 enum fault fault)
{
	uint64_t n = spec->number[fault];

	if (spec->pick[fault] == PICK_AT)
		return n >= chunk->off && n - chunk->off < chunk->len;
	return spec->pick[fault] == PICK_RATE && chunk_random(spec, chunk, fault) % n == 0;
}

/* ---- delayed chunks: one thread completes them when they are due ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	/* Delayed chunks (parts of requests), sorted by the time at which each is due. That time is
	 * stored in io->off. */
	struct pst_io *list;
	/* The process that started the thread, as its pst_fork_generation() + 1; 0 if no thread was
	 * started. */
	unsigned generation;
} delayed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *delay_main(void *arg)
{
	pthread_mutex_lock(&delayed.lock);
	for (;;) {
		struct pst_io *io = delayed.list;
		struct timespec until;

		if (!io) {
			pthread_cond_wait(&delayed.more, &delayed.lock);
			continue;
		}
		if (pst_now_ns() < io->off) {
			until.tv_sec = (time_t)(io->off / 1000000000u);
			until.tv_nsec = (long)(io->off % 1000000000u);
			pthread_cond_timedwait(&delayed.more, &delayed.lock, &until);
			continue;
		}
		delayed.list = io->next;
		pst_io_done(io, 0);
	}
	return arg;
}

static int delay_start(void)
{
	pthread_t thread;
	int ret;

	if (delayed.generation == pst_fork_generation() + 1)
		return 0;
	pst_cond_init(&delayed.more);
	delayed.list = NULL;
	ret = pst_thread_start(&thread, delay_main, NULL);
	if (ret)
		return -ret;
	pthread_detach(thread);
	delayed.generation = pst_fork_generation() + 1;
	return 0;
}

static void delay_done(struct pst_io *io)
{
	struct pst_chunk *chunk = (struct pst_chunk *)((char *)io - offsetof(struct pst_chunk, io));

	pst_chunk_done(chunk, chunk->err.code);
}

/* Completes the chunk (a part of a request), after its delay if it has one. */
static void chunk_complete(struct pst_chunk *chunk)
{
	const struct fault_spec *spec = (const struct fault_spec *)chunk->req->wrap_state;
	struct pst_io *io = &chunk->io, **at = &delayed.list;

	if (!spec->delay_us) {
		delay_done(io);
		return;
	}
	io->lane = chunk->lane;
	io->done = delay_done;
	io->off = pst_now_ns() + chunk_random(spec, chunk, FAULTS) % (spec->delay_us + 1) * 1000;
	pthread_mutex_lock(&delayed.lock);
	if (delay_start()) {
		pthread_mutex_unlock(&delayed.lock);
		delay_done(io);
		return;
	}
	while (*at && (*at)->off <= io->off)
		at = &(*at)->next;
	io->next = *at;
	*at = io;
	pthread_cond_signal(&delayed.more);
	pthread_mutex_unlock(&delayed.lock);
}

/* ---- pieces: the work of the wrapped path ---- */

/* The storage's bytes [off, off + len). They are moved to or from the memory that belongs to
 * the bytes at storage offset mem_off. mem_off differs from `off` only if halves are swapped. */
struct fault_piece {
	uint64_t off, len, mem_off;
	uint32_t pad;
};

/* The pieces of one chunk, which are moved one after the other. After the last piece, the lane (a
 * thread of the library) keeps this struct for a later chunk instead of freeing it. Functions that
 * were called with `req` may still read the struct while they return. */
struct fault_work {
	struct pst_chunk *chunk;
	struct fault_piece pieces[PIECES_MAX];
	unsigned count, next;
	/* Whether the chunk reports that all its bytes were moved although they were not. */
	bool lies;
	struct pst_request req;
	struct pst_span span;
	struct penstock_seg seg;
	struct fault_work *link;
};

struct fault_lane {
	struct fault_work *free;
};

static struct fault_work *work_get(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;
	int index = pst_path_index(pst_path_fault.name);
	struct fault_lane *s = lane->path_state[index];
	struct fault_work *w;

	if (!s)
		s = lane->path_state[index] = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	w = s->free;
	if (w)
		s->free = w->link;
	else if ((w = calloc(1, sizeof(*w))))
		/* The lane (a thread of the library) keeps this reference until it closes, so `req`
		 * is never released before. */
		atomic_store(&w->req.refs, 1);
	if (w) {
		w->chunk = chunk;
		w->count = w->next = 0;
		w->lies = false;
	}
	return w;
}

static void work_put(struct fault_work *w)
{
	struct fault_lane *s = w->chunk->lane->path_state[pst_path_index(pst_path_fault.name)];

	w->link = s->free;
	s->free = w;
}

static void fault_lane_close(struct pst_lane *lane, unsigned index)
{
	struct fault_lane *s = lane->path_state[index];

	while (s->free) {
		struct fault_work *w = s->free;

		s->free = w->link;
		free(w);
	}
	free(s);
	lane->path_state[index] = NULL;
}

/* Prepares the request that the wrapped path gets. It has the segments of the caller's request, and
 * its spans (contiguous ranges of storage). For a piece that changes places with another piece, it
 * has only one segment and one span: this piece, with the other piece's memory. */
static void work_make_request(struct fault_work *w, const struct fault_piece *piece,
			      struct pst_chunk *inner)
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

static int piece_start(struct fault_work *w);

static void piece_done(struct pst_chunk *inner, int result)
{
	struct fault_work *w =
		(struct fault_work *)((char *)inner->req - offsetof(struct fault_work, req));
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
		result = piece_start(w);
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
	work_put(w);
	chunk_complete(chunk);
}

static int piece_start(struct fault_work *w)
{
	const struct fault_piece *piece = &w->pieces[w->next];
	struct pst_chunk *chunk = w->chunk, *inner;
	int ret;

	if (!chunk->lane->chunks_free)
		return -EAGAIN;
	inner = pst_chunk_get(chunk->lane);
	work_make_request(w, piece, inner);
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

static void piece_add(struct fault_work *w, uint64_t off, uint64_t len, uint64_t mem_off)
{
	const struct pst_chunk *chunk = w->chunk;
	bool last = off + len == chunk->off + chunk->len && mem_off == off;

	if (len)
		w->pieces[w->count++] =
			(struct fault_piece){off, len, mem_off, last ? chunk->pad : 0};
}

/* Returns half of the chunk's length. For a path that needs aligned offsets, the half is a
 * multiple of BLOCK. */
static uint64_t chunk_half(const struct pst_chunk *chunk)
{
	bool any = chunk->route->paths[chunk->path].facts.off_align <= 1;

	return any ? chunk->len / 2 : chunk->len / 2 / BLOCK * BLOCK;
}

/* Returns true if the chunk's two halves can change places, because both are in one piece of
 * memory. */
static bool chunk_is_swappable(const struct pst_chunk *chunk)
{
	const struct pst_span *span = &chunk->req->spans[chunk->span];
	struct pst_part part;

	return chunk_half(chunk) && !pst_span_part_at(chunk->req, span, chunk->off, &part) &&
	       part.row_len >= chunk->len;
}

static void work_cut(struct fault_work *w, const struct fault_spec *spec)
{
	const struct pst_chunk *chunk = w->chunk;
	uint64_t half = chunk_half(chunk), middle = chunk->off + half;

	if (chunk_is_hit(spec, chunk, FAULT_SHORT)) {
		piece_add(w, chunk->off, half, chunk->off);
	} else if (chunk_is_hit(spec, chunk, FAULT_CUT)) {
		w->lies = true;
		piece_add(w, chunk->off, half, chunk->off);
	} else if (chunk_is_hit(spec, chunk, FAULT_SWAP) && chunk_is_swappable(chunk)) {
		w->lies = true;
		piece_add(w, chunk->off, half, middle);
		piece_add(w, middle, half, chunk->off);
		piece_add(w, middle + half, chunk->len - 2 * half, middle + half);
	} else if (chunk_is_hit(spec, chunk, FAULT_LOST) || chunk_is_hit(spec, chunk, FAULT_SWAP)) {
		w->lies = true;
	} else {
		piece_add(w, chunk->off, chunk->len, chunk->off);
	}
}

static int fault_start(struct pst_chunk *chunk)
{
	const struct fault_spec *spec = (const struct fault_spec *)chunk->req->wrap_state;
	struct fault_work *w;
	int ret = 0;

	if (chunk->tries || spec->spared == 1 + chunk->route->op)
		return pst_paths[chunk->path]->start(chunk);
	if (chunk_is_hit(spec, chunk, FAULT_EIO)) {
		pst_fail_errno(&chunk->err, EIO, PENSTOCK_WHY_INJECTED,
			       "a fault was injected at offset %llu",
			       (unsigned long long)chunk->off);
		chunk_complete(chunk);
		return 0;
	}
	w = work_get(chunk);
	if (!w)
		return pst_fail(&chunk->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a fault");
	work_cut(w, spec);
	if (w->count) {
		ret = piece_start(w);
		if (ret)
			work_put(w);
		return ret;
	}
	chunk->moved = w->lies ? chunk->len : 0;
	if (!w->lies && chunk->req->op == PENSTOCK_WRITE)
		pst_fail(&chunk->err, PENSTOCK_WHY_INJECTED, "wrote none of %llu bytes",
			 (unsigned long long)chunk->len);
	work_put(w);
	chunk_complete(chunk);
	return 0;
}

static int fault_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		       char *fix)
{
	(void)route;
	(void)fix;
	(void)facts;
	return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
			"path fault only wraps another path: fault:PATH");
}

const struct pst_path_ops pst_path_fault = {
	.name = "fault",
	.traits = {.reads = true, .writes = true, .by_name_only = true},
	.probe = fault_probe,
	.wrap = fault_wrap,
	.start = fault_start,
	.lane_close = fault_lane_close,
};
