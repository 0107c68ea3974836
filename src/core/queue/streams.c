/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements struct pst_streams, which has the pinned memory and the worker threads for a device's
 * stream-ordered requests: see streams.h. Only pst_streams_open and pst_stage_get may call the
 * driver, on the thread that submits.
 */
#include "core/queue/streams.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/devices.h"
#include "core/base/fork.h"

/* Size of a block: the pinned memory for the stages of requests grows by blocks of this size. */
#define BLOCK_BYTES ((size_t)32 << 20)
#define UNITS (BLOCK_BYTES / PST_STAGE_UNIT)

/* A stage is divided into pieces, so that the device copies one piece while lanes fill the others.
 * Requests of at most PIECE_BYTES bytes have one piece. Longer ones have up to PIECES_BEST pieces
 * of PIECE_BYTES. Reads of 16 MiB then move 1.2 times as many bytes a second as with 4 pieces of
 * 4 MiB, because more of the memory stays in the CPU's cache (H200: 24.9 instead of 20.7 GB/s). The
 * longest requests have longer pieces, because the number of rounds is limited. They have as many
 * as fit in STAGE_BYTES, but at least two. An early read of up to STAGE_BYTES may have a piece for
 * each round. */
#define PIECE_BYTES ((uint64_t)1 << 20)
#define PIECES_BEST 8u
#define STAGE_BYTES ((uint64_t)16 << 20)

/* If the stages would use more memory than this, early reads take over memory of earlier reads of
 * their stream. So the memory stays in the CPU's cache: on an H200, lanes copy cached bytes into
 * 64 MiB that are used again and again at 33 to 45 GB/s, and into 256 MiB that are used once at 25
 * to 28 GB/s. */
#define HOT_UNITS (((size_t)64 << 20) / PST_STAGE_UNIT)
/* Minimum length of memory that a read takes over. Shorter reads keep little memory in use. */
#define LENT_UNITS_MIN (((size_t)256 << 10) / PST_STAGE_UNIT)
/* A read takes over memory only if its stream has at least this number of reads in flight whose
 * memory it could take over. Then lanes can fill the memory of one read while the stream copies
 * that of another. */
#define LENDERS_MIN 2u

_Static_assert(PST_STAGE_BLOCKS_MAX *BLOCK_BYTES == (size_t)256 << 20 && PST_STAGES_MAX == 1024,
	       "pst_stage_get names these limits");

/* A block of pinned memory. It is divided into units of PST_STAGE_UNIT bytes. Bit i of `used` is
 * set if unit i belongs to a stage. */
struct pst_stage_block {
	struct pst_ring ring;
	uint64_t used[UNITS / 64];
};

/* Lock that pst_streams_open takes, so that it makes only one struct pst_streams for each device. A
 * thread that holds it takes no other lock of the library, but it starts threads and calls the
 * driver. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

/* Initialises the lock again in a forked child, where pst_fork_hook runs this function. Another
 * thread of the parent may have held the lock at the fork. */
static void streams_lock_reset(void)
{
	pthread_mutex_init(&streams_lock, NULL);
}

__attribute__((constructor)) static void stream_hook_fork(void)
{
	pst_fork_hook(streams_lock_reset);
}

/* ---- opening ---- */

/* Maps `len` bytes of host memory and pins them, so that the GPU can access them. */
static int pinned_open(const struct pst_streams *streams, struct pst_ring *ring, size_t len,
		       struct pst_err *err)
{
	int ret = pst_ring_map(ring, &streams->gpu_pump->numa, len, err);

	if (ret)
		return ret;
	pst_ring_pin(ring, len, streams->gpu);
	if (ring->registered_count || !streams->gpu->ops->host_register)
		return 0;
	pst_ring_close(ring, streams->gpu);
	return pst_fail(err, PENSTOCK_WHY_NO_MEMORY,
			"%s: cannot pin %zu MiB of host memory for requests in stream order",
			streams->gpu->name, len >> 20);
}

void pst_streams_close(struct pst_streams *streams)
{
	if (streams->pump)
		pst_pump_close_plain(streams->pump);
	for (unsigned i = 0; i < streams->block_count; i++) {
		pst_ring_close(&streams->blocks[i]->ring, streams->gpu);
		free(streams->blocks[i]);
	}
	pst_ring_close(&streams->words, streams->gpu);
	if (streams->host)
		pst_device_close_unlisted(streams->host);
	free(streams->stages);
	free(streams);
}

static int streams_start(struct pst_streams *streams, const struct pst_stream_hooks *hooks,
			 struct pst_err *err)
{
	struct penstock_device_opts opts = streams->gpu->opts;
	int ret;

	/* One worker thread more than the GPU has, because one is busy with polling the streams. */
	opts.lanes = streams->gpu_pump->lane_count + 1;
	ret = pst_device_open_unlisted("host", &opts, &streams->host, err);

	if (!ret)
		ret = pinned_open(streams, &streams->words,
				  PST_STAGES_MAX * sizeof(struct pst_stage_words), err);
	if (!ret)
		ret = pst_pump_open_plain(streams->gpu_pump, streams->host, streams, hooks,
					  &streams->pump, err);
	if (ret)
		return ret;
	for (unsigned i = PST_STAGES_MAX; i-- > 0;) {
		struct pst_stage *stage = &streams->stages[i];

		stage->words = &((struct pst_stage_words *)(void *)streams->words.base)[i];
		stage->next = streams->free;
		streams->free = stage;
	}
	return 0;
}

static int streams_make(struct pst_pump *pump, const struct pst_stream_hooks *hooks,
			struct pst_err *err)
{
	struct pst_streams *streams = calloc(1, sizeof(*streams));
	int ret;

	if (streams)
		streams->stages = calloc(PST_STAGES_MAX, sizeof(*streams->stages));
	if (!streams || !streams->stages) {
		free(streams);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for stages");
	}
	streams->gpu = pump->dev;
	streams->gpu_pump = pump;
	pthread_mutex_init(&streams->lock, NULL);
	pthread_mutex_init(&streams->grow_lock, NULL);
	ret = streams_start(streams, hooks, err);
	if (ret) {
		pst_streams_close(streams);
		return ret;
	}
	pump->stream_hooks = hooks;
	atomic_store_explicit(&pump->streams, streams, memory_order_release);
	return 0;
}

int pst_streams_open(struct pst_pump *pump, const struct pst_stream_hooks *hooks,
		     struct pst_err *err)
{
	int ret = 0;

	if (atomic_load_explicit(&pump->streams, memory_order_acquire))
		return 0;
	if (!pump->dev->ops->stream_begin)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "%s has no streams",
				pump->dev->name);
	pthread_mutex_lock(&streams_lock);
	if (!atomic_load_explicit(&pump->streams, memory_order_acquire))
		ret = streams_make(pump, hooks, err);
	pthread_mutex_unlock(&streams_lock);
	return ret;
}

/* ---- memory of stages ---- */

static bool units_used(const struct pst_stage_block *block, size_t unit)
{
	return block->used[unit / 64] >> unit % 64 & 1;
}

static void units_set(struct pst_stage_block *block, size_t unit, size_t count, bool used)
{
	for (; count--; unit++) {
		uint64_t bit = (uint64_t)1 << unit % 64;

		block->used[unit / 64] =
			used ? block->used[unit / 64] | bit : block->used[unit / 64] & ~bit;
	}
}

/* Returns the index of the first of `count` contiguous free units, searched from unit `from` on.
 * Returns UNITS if there are none. */
static size_t units_find(const struct pst_stage_block *block, size_t from, size_t count)
{
	size_t run = 0;

	for (size_t unit = from; unit < UNITS; unit++) {
		if (!(unit % 64) && block->used[unit / 64] == UINT64_MAX) {
			run = 0;
			unit += 63;
			continue;
		}
		run = units_used(block, unit) ? 0 : run + 1;
		if (run == count)
			return unit + 1 - count;
	}
	return UNITS;
}

/* Allocates `count` contiguous units of a block. Returns false if the block does not have as
 * many. */
static bool block_alloc(struct pst_stage_block *block, size_t count, size_t *unit)
{
	/* Search from the start of the block. Units there were probably used most recently, so they
	 * may still be in a CPU's cache. */
	*unit = units_find(block, 0, count);
	if (*unit == UNITS)
		return false;
	units_set(block, *unit, count, true);
	return true;
}

/* Returns the number of units that `len` bytes occupy. */
static size_t units_of(size_t len)
{
	return (len + PST_STAGE_UNIT - 1) / PST_STAGE_UNIT;
}

/* Returns the memory of a stage. */
static char *memory_of(const struct pst_streams *streams, const struct pst_stage *stage)
{
	return streams->blocks[stage->block]->ring.base + stage->at * PST_STAGE_UNIT;
}

/* Allocates `len` bytes of pinned memory for a stage. The caller holds streams->lock. Returns NULL
 * if no block has enough contiguous memory free. */
static char *memory_alloc(struct pst_streams *streams, struct pst_stage *stage, size_t len)
{
	size_t count = units_of(len), unit;

	for (unsigned i = 0; i < streams->block_count; i++) {
		if (!block_alloc(streams->blocks[i], count, &unit))
			continue;
		stage->block = i;
		stage->at = unit;
		stage->len = count;
		streams->units_used += count;
		return memory_of(streams, stage);
	}
	return NULL;
}

/* Returns the stage with the least memory, and the oldest of these, among the stream's stages in
 * flight that have at least `count` units and whose memory a later read may take over. Returns NULL
 * if there are fewer than LENDERS_MIN of them. The caller holds streams->lock. */
static struct pst_stage *lender_find(struct pst_streams *streams, const void *stream, size_t count)
{
	struct pst_stage *best = NULL;
	unsigned found = 0;

	for (unsigned i = 0; i < streams->users_count; i++) {
		struct pst_stage *stage = &streams->stages[i];
		uint64_t turn = atomic_load_explicit(&stage->turn, memory_order_relaxed);

		if (!streams->users[i].used || stage->stream != stream || stage->len < count ||
		    atomic_load_explicit(&stage->lends, memory_order_acquire) != turn)
			continue;
		found++;
		if (!best || stage->len < best->len ||
		    (stage->len == best->len && turn < best->turn))
			best = stage;
	}
	return found < LENDERS_MIN ? NULL : best;
}

/* Returns whether stages would use at most HOT_UNITS with `count` units more. Memory of captured
 * requests does not count, because early reads cannot take it over. */
static bool memory_stays_hot(const struct pst_streams *streams, size_t count)
{
	return streams->units_used - streams->units_captured + count <= HOT_UNITS;
}

/* Lets a stage that needs `len` bytes take over all memory of an earlier stage of its stream, if
 * the stages would use more than HOT_UNITS. The stage owns the memory from then on. Returns NULL if
 * no memory can be taken over. The caller holds streams->lock.
 *
 * No lane writes to the memory until the stream has passed the request of the earlier stage, see
 * pst_stage_is_vacated. Waiting for that cannot cause a deadlock: that request is earlier on the
 * same stream, and all its operations are queued, so it does not wait for this stage. The identity
 * of a stream must not be that of an earlier stream that still has work. */
static char *memory_take_over(struct pst_streams *streams, struct pst_stage *stage,
			      const void *stream, size_t len)
{
	size_t count = units_of(len);
	struct pst_stage *lender = NULL;

	if (count >= LENT_UNITS_MIN && !memory_stays_hot(streams, count))
		lender = lender_find(streams, stream, count);
	if (!lender)
		return NULL;
	stage->block = lender->block;
	stage->at = lender->at;
	stage->len = lender->len;
	stage->lender = lender;
	stage->lender_turn = lender->turn;
	lender->len = 0;
	return memory_of(streams, stage);
}

/* Adds a block of pinned memory. Returns false if the maximum number of blocks is reached, or if no
 * memory can be pinned. The caller must not hold streams->lock: pinning memory calls the driver,
 * and a lane that waits for the lock must never wait for a call of the driver. */
static bool memory_grow(struct pst_streams *streams, struct pst_err *err)
{
	struct pst_stage_block *block = NULL;

	pthread_mutex_lock(&streams->grow_lock);
	if (streams->block_count < PST_STAGE_BLOCKS_MAX) {
		block = calloc(1, sizeof(*block));
		if (!block)
			pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for stages");
	}
	if (block && pinned_open(streams, &block->ring, BLOCK_BYTES, err)) {
		free(block);
		block = NULL;
	}
	if (block) {
		pthread_mutex_lock(&streams->lock);
		streams->blocks[streams->block_count++] = block;
		pthread_mutex_unlock(&streams->lock);
	}
	pthread_mutex_unlock(&streams->grow_lock);
	return block;
}

/* ---- operations that are queued on streams; the caller holds streams->lock ---- */

/* Returns the entry of a stream, or NULL if the stream has no operations of requests in flight. */
static struct pst_stream_load *load_find(struct pst_streams *streams, const void *stream)
{
	for (unsigned i = 0; i < streams->load_count; i++)
		if (streams->loads[i].stream == stream)
			return &streams->loads[i];
	return NULL;
}

static bool load_is_full(struct pst_streams *streams, const void *stream)
{
	const struct pst_stream_load *load = load_find(streams, stream);

	return load && load->ops > PST_STREAM_OPS_MAX;
}

static void load_add(struct pst_streams *streams, const struct pst_stage *stage)
{
	struct pst_stream_load *load = load_find(streams, stage->stream);

	if (!load) {
		load = &streams->loads[streams->load_count++];
		*load = (struct pst_stream_load){.stream = stage->stream};
	}
	load->ops += stage->ops;
}

static void load_remove(struct pst_streams *streams, const struct pst_stage *stage)
{
	struct pst_stream_load *load = load_find(streams, stage->stream);

	load->ops -= stage->ops;
	if (!load->ops)
		*load = streams->loads[--streams->load_count];
}

/* Returns the maximum number of operations of a request that is not captured: the store to
 * `arrived`, a wait and a store to `passed` for each step (stage.h), and the copies. Before each
 * wait that follows copies by the copy engine, there is also a memset. */
static unsigned stage_ops(const struct pst_stage *stage, const struct pst_stage_shape *shape)
{
	unsigned ops = 1 + 2 * stage->last;

	return ops + (shape->by_kernel ? stage->rounds : shape->copies_queued + stage->last - 1);
}

/* ---- stages ---- */

/* Returns the entry of a stage in the list of the requests' `user` pointers. */
static struct pst_stage_user *stage_user(struct pst_streams *streams, const struct pst_stage *stage)
{
	return &streams->users[stage - streams->stages];
}

/* Frees the memory that a stage owns, and puts the stage on the list of free stages. If the stage
 * has taken over memory, the lender does not need it any more, unless the device has failed: a lane
 * gives back such a stage only after the stream has passed the lender's request, see
 * pst_stage_finish_later. The caller holds streams->lock. */
static void stage_free(struct pst_streams *streams, struct pst_stage *stage)
{
	if (stage->len)
		units_set(streams->blocks[stage->block], stage->at, stage->len, false);
	streams->units_used -= stage->len;
	if (stage->captured) {
		streams->units_captured -= stage->len;
		streams->stages_captured--;
	} else {
		load_remove(streams, stage);
	}
	stage_user(streams, stage)->used = false;
	stage->captured = false;
	stage->lender = NULL;
	stage->len = 0;
	stage->next = streams->free;
	streams->free = stage;
}

/* The list `owed` has stages whose request has ended, but whose stream had not passed the request
 * at that time. Frees those whose stream has passed it by this time. The caller holds
 * streams->lock. */
static void stages_reclaim(struct pst_streams *streams)
{
	struct pst_stage **at = &streams->owed;

	while (*at) {
		struct pst_stage *stage = *at;

		if (!pst_stage_passed(stage)) {
			at = &stage->next;
			continue;
		}
		*at = stage->next;
		stage_free(streams, stage);
	}
}

void pst_stage_put(struct pst_streams *streams, struct pst_stage *stage)
{
	pthread_mutex_lock(&streams->lock);
	if (pst_stage_passed(stage)) {
		stage_free(streams, stage);
	} else {
		stage->next = streams->owed;
		streams->owed = stage;
	}
	pthread_mutex_unlock(&streams->lock);
}

void pst_stage_put_unused(struct pst_streams *streams, struct pst_stage *stage)
{
	__atomic_store_n(&stage->words->passed, PST_STAGE_PASSED_ALL, __ATOMIC_RELEASE);
	pst_stage_put(streams, stage);
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

/* Returns the number of pieces of a stage that is not small. `whole` requests a piece for each
 * round. */
static unsigned pieces_best(uint64_t piece, unsigned rounds, bool whole)
{
	uint64_t fit = STAGE_BYTES / piece;

	/* One piece more gives room for all bytes of a read of STAGE_BYTES at any offset. */
	if (whole && rounds <= fit + 1)
		return rounds;
	fit = fit < PIECES_BEST ? fit : PIECES_BEST;
	return fit > 2 ? (unsigned)fit : 2;
}

void pst_stage_cut(struct pst_stage *stage, const struct pst_stage_shape *shape,
		   enum pst_stage_size size)
{
	uint64_t piece = round_up(shape->places, shape->block);

	if (piece > PIECE_BYTES) {
		piece = round_up(PIECE_BYTES, shape->block);
		while ((shape->places + piece - 1) / piece > PST_STAGE_ROUNDS_MAX)
			piece *= 2;
	}
	stage->piece_bytes = piece;
	stage->rounds = piece ? (unsigned)((shape->places + piece - 1) / piece) : 0;
	stage->pieces = size == PST_STAGE_SMALL || !piece
				? 2
				: pieces_best(piece, stage->rounds, size == PST_STAGE_WHOLE);
	if (stage->pieces > stage->rounds)
		stage->pieces = stage->rounds;
}

/* Returns whether captured requests may occupy one more stage of `len` bytes without exceeding
 * their limits. The caller holds streams->lock. */
static bool captured_fits(const struct pst_streams *streams, size_t len)
{
	return streams->stages_captured < PST_STAGES_CAPTURED_MAX &&
	       streams->units_captured + units_of(len) <= PST_STAGE_BLOCKS_MAX * UNITS / 2;
}

/* Maximum time in ms that a capture waits until a lane frees the stages of destroyed graphs. */
#define GONE_MS 200

/* Why stage_take returns no stage: all stages are in use (LACK_STAGE), too little memory is free
 * (LACK_MEMORY), captured requests have reached their limit (LACK_CAPTURED), or the stream has too
 * many operations queued (LACK_OPS). */
enum lack { LACK_NOTHING, LACK_STAGE, LACK_MEMORY, LACK_CAPTURED, LACK_OPS };

/* Allocates the stage's memory: first the memory of its pieces, then, if a GPU kernel makes the
 * copies, the lists of rounds and copies for it. The caller holds streams->lock. */
static enum lack stage_allocate(struct pst_streams *streams, struct pst_stage *stage,
				const struct pst_stage_shape *shape, enum pst_stage_size size)
{
	size_t room, len;

	pst_stage_cut(stage, shape, size);
	room = stage->pieces * stage->piece_bytes;
	len = room;
	if (shape->by_kernel)
		len += stage->rounds * sizeof(*stage->round) +
		       shape->copies * sizeof(*stage->copies);
	if (shape->captured && !captured_fits(streams, len))
		return LACK_CAPTURED;
	stage->mem = memory_alloc(streams, stage, len);
	if (!stage->mem)
		return LACK_MEMORY;
	stage->round = (struct pst_stream_round *)(void *)(stage->mem + room);
	stage->copies = (struct pst_stream_copy *)(void *)(stage->round + stage->rounds);
	stage->copies_max = shape->copies;
	return LACK_NOTHING;
}

/* Allocates the memory of an early read's stage. If possible, it has room for all bytes of the
 * read, because lanes may then start the read before its stream reaches it. It is new memory if all
 * stages then use at most HOT_UNITS, or else the memory of an earlier read of the stream. A read of
 * more than PIECES_BEST rounds gets a stage of normal size if its stream has already reached it. A
 * read whose copies a kernel makes takes over no memory, because its lists of copies need memory,
 * too. The caller holds streams->lock. */
static enum lack early_allocate(struct pst_streams *streams, struct pst_stage *stage,
				const struct pst_stage_shape *shape, enum pst_stage_size size)
{
	size_t len;

	pst_stage_cut(stage, shape, PST_STAGE_WHOLE);
	len = stage->pieces * stage->piece_bytes;
	if (stage->rounds > stage->pieces || (shape->reached && stage->rounds > PIECES_BEST))
		return stage_allocate(streams, stage, shape, size);
	if (memory_stays_hot(streams, units_of(len)) && size != PST_STAGE_SMALL)
		return stage_allocate(streams, stage, shape, PST_STAGE_WHOLE);
	stage->mem = shape->by_kernel ? NULL
				      : memory_take_over(streams, stage, shape->stream, len);
	return stage->mem ? LACK_NOTHING : stage_allocate(streams, stage, shape, size);
}

/* Stores the request's `user` for a stage that the request has just taken. The caller holds
 * streams->lock. */
static void stage_set_user(struct pst_streams *streams, const struct pst_stage *stage,
			   const struct pst_request *req)
{
	struct pst_stage_user *entry = stage_user(streams, stage);

	*entry = (struct pst_stage_user){.user = req->user, .used = true};
	if (entry - streams->users >= streams->users_count)
		streams->users_count = (unsigned)(entry - streams->users) + 1;
}

/* Sets all words to 0. Uses atomic stores, because lanes may still read the word `passed`: see
 * pst_stage_is_vacated. */
static void words_reset(struct pst_stage_words *words)
{
	__atomic_store_n(&words->released, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&words->arrived, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&words->passed, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&words->left, 0, __ATOMIC_RELAXED);
}

/* Removes a stage, whose memory is allocated, from the list of free stages, and counts it. The
 * caller holds streams->lock. */
static void stage_use(struct pst_streams *streams, struct pst_stage *stage,
		      const struct pst_request *req, const struct pst_stage_shape *shape)
{
	streams->free = stage->next;
	stage->turn = ++streams->turns;
	stage->captured = shape->captured;
	stage->crowded = streams->load_count > 0;
	if (shape->empty) {
		stage->rounds = stage->pieces = 0;
		stage->piece_bytes = 0;
	}
	stage->last = stage->rounds + (req->op == PENSTOCK_WRITE || !stage->rounds);
	/* Reset the words with the lock held, so that pst_streams_passed does not find the value of
	 * the stage's earlier request. */
	words_reset(stage->words);
	if (shape->captured) {
		streams->stages_captured++;
		streams->units_captured += stage->len;
		return;
	}
	stage->stream = shape->stream;
	stage->ops = stage_ops(stage, shape);
	load_add(streams, stage);
	stage_set_user(streams, stage, req);
}

/* Takes a free stage and allocates its memory. Returns NULL, with the reason in *lack, if a limit
 * is reached. */
static struct pst_stage *stage_take(struct pst_streams *streams, const struct pst_request *req,
				    const struct pst_stage_shape *shape, enum pst_stage_size size,
				    enum lack *lack)
{
	bool early = req->flags & PENSTOCK_R_EARLY && !shape->captured;
	struct pst_stage *stage;

	pthread_mutex_lock(&streams->lock);
	stages_reclaim(streams);
	stage = streams->free;
	/* If more than half of the maximum memory is in use, make the stage small, so that more
	 * requests can be in flight. */
	if (streams->units_used > PST_STAGE_BLOCKS_MAX * UNITS / 2)
		size = PST_STAGE_SMALL;
	*lack = stage ? LACK_NOTHING : LACK_STAGE;
	if (shape->captured && !captured_fits(streams, 0))
		*lack = LACK_CAPTURED;
	/* The operations of a captured request become nodes of a graph, so they are not queued on
	 * the stream. */
	if (!shape->captured && load_is_full(streams, shape->stream))
		*lack = LACK_OPS;
	if (!*lack && !shape->empty)
		*lack = early ? early_allocate(streams, stage, shape, size)
			      : stage_allocate(streams, stage, shape, size);
	if (*lack)
		stage = NULL;
	else
		stage_use(streams, stage, req, shape);
	pthread_mutex_unlock(&streams->lock);
	return stage;
}

static int fail_lack(enum lack lack, bool captured, struct pst_err *err)
{
	if (lack == LACK_OPS)
		return pst_fail(err, PENSTOCK_WHY_FULL,
				"more than %u operations of requests in stream order are queued on "
				"the stream: wait for some requests",
				PST_STREAM_OPS_MAX);
	if (captured)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY,
				"no stage for a captured request: captured requests may use 512 "
				"entries and 128 MiB of pinned memory, destroy some graphs");
	return pst_fail(err, PENSTOCK_WHY_FULL,
			"requests in stream order use all of their %s: wait for some",
			lack == LACK_MEMORY ? "pinned memory (256 MiB)" : "1024 entries");
}

/* First tries a stage of normal size, and adds memory if too little is free. If that fails, tries
 * the smallest stage for the request. */
int pst_stage_get(struct pst_streams *streams, struct pst_request *req,
		  const struct pst_stage_shape *shape, struct pst_stage **out, struct pst_err *err)
{
	struct pst_err grow_err = {0};
	enum lack lack;
	struct pst_stage *stage = stage_take(streams, req, shape, PST_STAGE_NORMAL, &lack);

	while (lack == LACK_MEMORY && memory_grow(streams, &grow_err))
		stage = stage_take(streams, req, shape, PST_STAGE_NORMAL, &lack);
	if (lack == LACK_MEMORY || lack == LACK_CAPTURED)
		stage = stage_take(streams, req, shape, PST_STAGE_SMALL, &lack);
	/* Retry for GONE_MS: after a graph is destroyed, it takes a moment until a lane frees the
	 * stages of its requests. */
	for (unsigned ms = 0; lack == LACK_CAPTURED && ms < GONE_MS; ms++) {
		usleep(1000);
		stage = stage_take(streams, req, shape, PST_STAGE_SMALL, &lack);
	}
	if (!stage && grow_err.code) {
		*err = grow_err;
		return err->code;
	}
	if (!stage)
		return fail_lack(lack, shape->captured, err);
	stage->req = req;
	stage->by_kernel = shape->by_kernel && !shape->empty;
	if (stage->by_kernel)
		memset(stage->round, 0, stage->rounds * sizeof(*stage->round));
	atomic_store(&stage->complete, 0);
	atomic_store(&stage->replays, 0);
	atomic_store(&stage->overlapped, false);
	/* For a write whose copies were queued at submit, let the stream fill the first pieces at
	 * once. If a kernel makes the copies, pst_stage_start does this after listing them. */
	if (req->op == PENSTOCK_WRITE && !stage->by_kernel)
		stage->words->released = stage->pieces;
	*out = stage;
	return 0;
}

bool pst_streams_passed(struct pst_streams *streams, const void *user)
{
	bool passed = true;

	pthread_mutex_lock(&streams->lock);
	for (unsigned i = 0; i < streams->users_count && passed; i++)
		if (streams->users[i].used && streams->users[i].user == user)
			passed = pst_stage_passed(&streams->stages[i]);
	pthread_mutex_unlock(&streams->lock);
	return passed;
}

/* ---- the last requests of streams ---- */

/* Returns the entry of the hash table `last_copies` for this stream. */
static struct pst_last_copies *last_copies_of(struct pst_streams *streams, const void *stream)
{
	uint64_t hash = (uintptr_t)stream * 0x9e3779b97f4a7c15u;

	return &streams->last_copies[hash >> 58];
}

enum pst_last pst_streams_last(struct pst_streams *streams, const void *stream)
{
	const struct pst_last_copies *last = last_copies_of(streams, stream);
	enum pst_last found = PST_LAST_OTHER;

	pthread_mutex_lock(&streams->lock);
	if (last->stream == stream && last->stage)
		found = last->stage->turn == last->turn && !pst_stage_passed(last->stage)
				? PST_LAST_COPYING
				: PST_LAST_COPIED;
	pthread_mutex_unlock(&streams->lock);
	return found;
}

void pst_streams_remember(struct pst_streams *streams, const void *stream,
			  const struct pst_stage *stage)
{
	pthread_mutex_lock(&streams->lock);
	*last_copies_of(streams, stream) =
		(struct pst_last_copies){stream, stage->by_kernel ? NULL : stage, stage->turn};
	pthread_mutex_unlock(&streams->lock);
}
