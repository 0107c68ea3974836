/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a lane (a worker loop, see lane.h), runs its loop and closes it. Each pass of the loop,
 * called a turn, takes requests from the inbox, reaps completed system calls and copies, claims and
 * starts chunks, and sleeps if there was nothing to do. The turns run in a worker thread of the
 * device's pump, in a caller's thread (borrowed lanes), or inside the public functions on a queue
 * (inline lanes). An open lane must never allocate memory, lock or log, with three exceptions. A
 * borrowed lane opens a copy queue for each device, at its first copy to or from this device. A
 * pump's lane opens its io_uring at the first call that needs it. It pins the second part of its
 * staging memory when it is short of slots.
 */
#include "core/lane/lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/lane/inbox.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/request/plan.h"

/* Total length in bytes of the big staging slots, and number of small slots, that a lane pins when
 * it opens. They are enough to read cached bytes. Because the other slots are pinned later,
 * starting a device's lanes takes 6 to 8 ms instead of 11 to 16 ms. The first 64 MiB that a process
 * reads take 10 to 13 ms instead of 17 to 20 ms (H200, 8 lanes with 20 MiB of slots each). */
#define FIRST_BIG_BYTES (8u << 20)
#define FIRST_SMALL 16u
#define ENGINE_DEPTH (PST_LANE_CHUNKS + 8)

/* A number of bytes that no link to a device can move within one microsecond. The lane divides the
 * length of its copies by this number, to estimate the least time in us that they take. If the
 * estimate is too long, the lane notices the end of the copies late. If it is too short, the lane
 * queries the copies once more. */
#define COPY_BYTES_US 200000u
/* The lane sleeps until this many microseconds before the estimated end of its copies, and then
 * polls. It does not wait in the CUDA driver, which would wake the thread 0.1 to 0.7 ms after the
 * copy is done. A timer wakes the thread only 0.1 ms late (H200, virtual machine). */
#define POLL_US 100
/* Number of CPU pause instructions between two queries of the copies, for each microsecond of the
 * estimated time. The lane pauses because other threads cannot call the CUDA driver during a query.
 * One pause takes about 40 ns. */
#define PAUSES_PER_US 8
/* If copies are not done POLL_SELDOM_NS after their estimated end, something else delays them, and
 * the lane queries them only every SELDOM_US. It also queries seldom if LONG_COPY or more bytes are
 * being copied while drive reads are in flight. The completion of the next read wakes the lane
 * anyway. Polling until then would cost as much CPU time as all other work of the request. */
#define POLL_SELDOM_NS 3000000u
#define LONG_COPY (256u << 10)
#define SELDOM_US 500
/* Maximum time in ns to start a mixed chunk: one on a path that is used while the request's other
 * lanes use another path. Meanwhile these lanes cannot copy, because this lane occupies the driver,
 * so they pass their copies to this lane. They can go on reading for 1.5 to 2 ms until their
 * staging slots are full (H200, 8 MiB of slots for each lane). */
#define MIXED_START_NS 1000000u
/* MIXED_START_NS with effort fast. The copies that other lanes pass then wait for a shorter time:
 * reads are 1.07 to 1.09 times as fast, and take 1.1 times the CPU time (two machines with an
 * H200). */
#define MIXED_START_FAST_NS 500000u
/* A CUDA stream cannot wake a lane. So a lane with requests or chunks that wait for a stream polls:
 * first for WATCH_SPINS turns of its loop without a pause, then every WATCH_US microseconds. If it
 * polls only for requests that are captured in CUDA graphs, it polls every WATCH_SELDOM_US
 * microseconds after about a second. Such a request may wait for hours until its graph is
 * launched. */
#define WATCH_SPINS 2000
#define WATCH_US 50
#define WATCH_SELDOM_SPINS (WATCH_SPINS + 10000)
#define WATCH_SELDOM_US 500

/* ---- opening ---- */

/* Opens the plain engine, which makes ordinary system calls and works on every machine. Borrowed
 * lanes have no other engine. */
static int lane_open_plain(struct pst_lane *lane, unsigned depth, struct pst_err *err)
{
	lane->engine_ops = pst_engine_plain;
	return lane->engine_ops->open(&lane->engine, depth, lane->wake_fd, err);
}

/* Opens an engine, which is a way to make system calls, for example io_uring. Takes the first
 * engine in order of preference that the device's options allow and that works on this machine. */
static int lane_open_engine(struct pst_lane *lane, struct pst_err *err)
{
	const char *want = lane->pump->dev->opts.engine;
	int ret = -ENODEV;

	for (unsigned i = 0; pst_engines[i]; i++) {
		bool named = want && strcmp(want, "auto") != 0;

		if (named && strcmp(want, pst_engines[i]->name) != 0)
			continue;
		ret = pst_engines[i]->open(&lane->engine, ENGINE_DEPTH, lane->wake_fd, err);
		if (ret == 0) {
			lane->engine_ops = pst_engines[i];
			/* clear the error of an engine that was tried before this one */
			err->code = 0;
			return 0;
		}
		/* Keep the error for reports: it is the reason why the next engine is used. */
		lane->engine_why = *err;
		lane->call_why = err->why;
	}
	if (ret == -ENODEV)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "engine '%s' does not exist", want);
	return ret;
}

/* Returns whether the lane may delay opening its preferred engine (io_uring) until the first call
 * that needs it. Reads of cached bytes need only the plain engine. Opening an io_uring may take
 * long: up to 44 ms for the last of eight lanes (H200 machine). The first lane opens its engine at
 * once, because reports show which engine works. If the caller named the engine, every lane opens
 * it at once, because without it the device cannot be used. */
static bool lane_engine_may_wait(const struct pst_lane *lane)
{
	const char *want = lane->pump->dev->opts.engine;

	return lane->index && (!want || !strcmp(want, "auto"));
}

static int lane_open_first_engine(struct pst_lane *lane, struct pst_err *err)
{
	if (lane->kind == PST_LANE_BORROWED)
		return lane_open_plain(lane, 0, err);
	lane->engine_due = lane_engine_may_wait(lane);
	return lane->engine_due ? lane_open_plain(lane, ENGINE_DEPTH, err)
				: lane_open_engine(lane, err);
}

/* Allocates the buffer through which path `bounce` copies cached bytes to a GPU. Only the worker
 * threads' lanes use it, and only for a device whose memory the CPU cannot address. */
static int lane_open_l2_buffer(struct pst_lane *lane, struct pst_err *err)
{
	if (lane->kind != PST_LANE_PUMP || lane->pump->dev->facts.cpu_addressable)
		return 0;
	lane->l2_buffer = aligned_alloc(4096, PST_L2_BOUNCE_BYTES);
	return lane->l2_buffer ? 0 : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
}

/* Returns how many big and small staging slots are pinned when the lane opens. */
static struct pst_slot_counts lane_first_slots(const struct pst_lane *lane)
{
	unsigned big = FIRST_BIG_BYTES / (unsigned)lane->slot_bytes;

	big = big ? big : 1;
	if (lane->kind != PST_LANE_PUMP || big >= lane->slot_counts.big)
		return lane->slot_counts;
	return (struct pst_slot_counts){
		big, lane->slot_counts.small < FIRST_SMALL ? lane->slot_counts.small : FIRST_SMALL};
}

static int lane_open_slots(struct pst_lane *lane, struct pst_err *err)
{
	const struct pst_pump *pump = lane->pump;
	size_t len = pst_slots_bytes(lane->slot_bytes, lane->slot_counts);
	int ret = pst_ring_map(&lane->ring, &pump->numa, len, err);

	return ret ? ret
		   : pst_slots_open(&lane->slots, lane->ring.base, lane->slot_bytes,
				    lane->slot_counts, lane_first_slots(lane), err);
}

int pst_lane_open(struct pst_lane *lane, struct pst_err *err)
{
	int ret;

	for (unsigned p = 0; p < PST_PRIORITIES; p++)
		lane->todo_end[p] = &lane->todo[p];
	lane->deferred_end = &lane->deferred;
	lane->passed_todo_end = &lane->passed_todo;
	lane->chunks = calloc(PST_LANE_CHUNKS, sizeof(*lane->chunks));
	if (!lane->chunks)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
	for (unsigned i = 0; i < PST_LANE_CHUNKS; i++) {
		lane->chunks[i].lane = lane;
		lane->chunks[i].next = lane->chunks_free;
		lane->chunks_free = &lane->chunks[i];
	}
	ret = lane_open_slots(lane, err);
	if (!ret)
		ret = lane_open_l2_buffer(lane, err);
	if (ret)
		return ret;
	if (lane->wake_fd < 0)
		lane->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (lane->wake_fd < 0)
		return pst_fail_errno(err, errno, pst_why_from_errno(errno), "eventfd: %m");
	ret = lane_open_first_engine(lane, err);
	if (ret)
		return ret;
	if (!pst_copyq_of(lane, lane->pump->dev)) {
		*err = lane->open_err;
		return err->code;
	}
	for (unsigned i = 0; i < pst_path_count; i++) {
		if (!pst_paths[i]->lane_open)
			continue;
		ret = pst_paths[i]->lane_open(lane, i, err);
		if (ret)
			return ret;
	}
	return 0;
}

/* Registers a piece of the lane's staging memory with the engine. If the kernel has refused the
 * first piece, the lane does not try the second, which the kernel would refuse, too. Also, a kernel
 * before 5.13 registers the first piece only while no call is in flight. Once the lane runs, it
 * always has a call in flight, which polls wake_fd. */
static void lane_register_slots(struct pst_lane *lane, size_t at, size_t end, struct pst_err *why)
{
	if (!lane->engine_ops->register_slots || (at && !lane->fixed))
		return;
	if (lane->engine_ops->register_slots(lane->engine, lane->slots.base + at, end - at, why))
		lane->call_why = why->why;
	else
		lane->fixed = true;
}

/* Pins the lane's staging memory (its ring) up to offset `end`: populates the pages, and registers
 * them with the device and the engine. */
static void lane_pin_to(struct pst_lane *lane, size_t end, struct pst_err *why)
{
	size_t at = lane->ring.pinned;

	pst_ring_pin(&lane->ring, end, lane->pump->dev);
	lane_register_slots(lane, at, end, why);
}

void pst_lane_want_engine(struct pst_lane *lane)
{
	const struct pst_engine_ops *plain_ops = lane->engine_ops;
	struct pst_engine *plain = lane->engine;
	struct pst_err err;

	if (!lane->engine_due)
		return;
	lane->engine_due = false;
	if (lane_open_engine(lane, &err)) { /* an error; the lane keeps the plain engine */
		lane->engine_ops = plain_ops;
		lane->engine = plain;
		return;
	}
	plain_ops->close(plain);
	lane_register_slots(lane, 0, lane->ring.pinned, &lane->engine_why);
}

void pst_lane_pin(struct pst_lane *lane)
{
	lane_pin_to(lane, lane->slots.first_len, &lane->engine_why);
}

/* Returns whether the lane shall pin the second part of its staging memory. It shall if it has run
 * out of slots, and no other lane of the device is pinning staging memory at the moment. */
static bool lane_may_grow(const struct pst_lane *lane)
{
	return lane->wants_ring && lane->slots.first_len < lane->slots.len &&
	       !atomic_load_explicit(&lane->pump->growing, memory_order_relaxed);
}

/* Pins the second part of the lane's staging memory, if lane_may_grow permits it. Returns 1 if the
 * lane got more slots, else 0. */
static int lane_grow(struct pst_lane *lane)
{
	struct pst_pump *pump = lane->pump;
	/* Nobody reads `why`, because lane_pin_to also stores the reason in lane->call_why. */
	struct pst_err why;

	if (!lane_may_grow(lane) ||
	    atomic_exchange_explicit(&pump->growing, true, memory_order_acquire))
		return 0;
	lane_pin_to(lane, lane->slots.len, &why);
	pst_slots_rest(&lane->slots);
	lane->wants_ring = false;
	atomic_store_explicit(&pump->growing, false, memory_order_release);
	/* Wake the other lanes, because one of them may be waiting to pin staging memory, too. */
	for (unsigned i = 0; i < pump->lane_count; i++)
		pst_inbox_wake(&pump->lanes[i]);
	return 1;
}

void pst_lane_close(struct pst_lane *lane)
{
	pst_inbox_unlist_all(lane);
	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->lane_close && lane->path_state[i])
			pst_paths[i]->lane_close(lane, i);
	pst_copyqs_adopt(lane);
	for (unsigned i = 0; i < lane->copyq_count; i++)
		pst_copyq_close(lane->copyqs[i]);
	lane->copyq_count = 0;
	if (lane->engine)
		lane->engine_ops->close(lane->engine);
	lane->engine = NULL;
	pst_slots_close(&lane->slots);
	pst_ring_close(&lane->ring, lane->pump->dev);
	free(lane->l2_buffer);
	free(lane->chunks);
	lane->l2_buffer = NULL;
	lane->chunks = lane->chunks_free = NULL;
}

/* ---- phases ---- */

/* Completes the sync of a durable write. If bytes of several writes are lost, the kernel reports
 * that to one sync only. So when a sync fails, all durable writes that are in flight fail. */
static void req_synced(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	struct pst_request *req = chunk->req;

	if (io->result < 0 && io->result != -ECANCELED && io->result != -EINTR &&
	    io->result != -EAGAIN) /* with these errors no bytes are lost */
		atomic_fetch_add(&req->st->losses, 1);
	else if (io->result >= 0 && atomic_load(&req->st->losses) != req->losses)
		io->result = pst_fail_errno(&io->err, EIO, PENSTOCK_WHY_IO_ERROR,
					    "another request's sync failed while this one was in "
					    "flight and may have lost its bytes: write them "
					    "again");
	if (io->result < 0)
		pst_req_fail(req, &io->err);
	pst_chunk_put(chunk);
	pst_req_last_bytes_done(req, 1); /* the sync counts as the only byte of its phase */
}

/* Starts the sync of a durable write. It is the last phase of the request. */
static void req_start_sync(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_chunk *chunk = pst_chunk_get(lane);
	int ret;

	chunk->req = req;
	chunk->io =
		(struct pst_io){.st = req->st, .lane = lane, .op = PST_IO_SYNC, .done = req_synced};
	ret = pst_chunk_io_start(chunk);
	if (ret) {
		chunk->io.result = ret;
		chunk->io.err = chunk->err;
		if (!chunk->io.err.code)
			pst_fail_errno(&chunk->io.err, ret, pst_why_from_errno(ret), "sync: %m");
		req_synced(&chunk->io);
	}
}

/* ---- starting chunks ---- */

/* Returns whether the chunk could not start for lack of a free staging slot, and more slots would
 * help. More slots would not help a long chunk of cached bytes: copies to the device limit the
 * speed of such a read, so more copies would only wait. */
static bool chunk_lacks_slot(const struct pst_chunk *chunk)
{
	return !chunk->slot && !chunk->req->stage &&
	       chunk->route->paths[chunk->path].facts.slotted &&
	       (chunk->residency != PST_WARM || chunk->len <= PST_SLOT_SMALL);
}

/* Starts a chunk. Returns false if no staging slot is free, and puts the chunk on the list of
 * deferred chunks. Until the chunk starts, this lane claims no more chunks of its request, but may
 * claim chunks of other requests. */
static bool chunk_start(struct pst_lane *lane, struct pst_chunk *chunk)
{
	const struct pst_path_ops *wrap = chunk->req->wrap;
	int ret = (wrap ? wrap : pst_paths[chunk->path])->start(chunk);

	if (ret == -EAGAIN) {
		lane->wants_ring |= chunk_lacks_slot(chunk);
		lane->stage_waits |= chunk->req->stage != NULL;
		pst_chunk_defer(lane, chunk);
		return false;
	}
	if (!ret)
		return true;
	if (!chunk->err.code)
		pst_fail_errno(&chunk->err, ret, pst_why_from_errno(ret), "starting a chunk: %m");
	pst_chunk_done(chunk, ret);
	return true;
}

/* Starts deferred chunks, or fails them if their request is cancelled or past its deadline. Returns
 * the number of chunks that it has started or failed. */
static int lane_start_deferred(struct pst_lane *lane)
{
	struct pst_chunk *list = lane->deferred;
	int started = 0;

	lane->deferred = NULL;
	lane->deferred_end = &lane->deferred;
	lane->stage_waits = false;
	/* Try each chunk once. chunk_start puts chunks that find no slot back on the list, in the
	 * same order. */
	while (list) {
		struct pst_chunk *chunk = list;

		list = chunk->next;
		chunk->req->entries[lane->index].stalled--;
		started += pst_chunk_abandon(chunk) || chunk_start(lane, chunk);
	}
	return started;
}

/* Returns an upper bound for the number of chunks that the request's unclaimed bytes become. It
 * assumes that they are as short as a request's first chunk, or as `chunk` if that is shorter. */
static uint64_t req_chunks_left(const struct pst_request *req, const struct pst_chunk *chunk)
{
	uint64_t next = atomic_load_explicit(&req->next, memory_order_relaxed);
	uint64_t limit = atomic_load_explicit(&req->limit, memory_order_relaxed);
	uint64_t least = chunk->route->paths[chunk->path].facts.chunk_first;

	if (!least || least > chunk->len)
		least = chunk->len;
	return limit > next ? (limit - next + least - 1) / least : 0;
}

/* Returns the lane of this device with the least load, except lanes whose bits are set in `taken`.
 * If several lanes are idle, returns the first of them after `lane` in the pump's order. That one
 * gets the most requests, so it has slept for the shortest time. */
static struct pst_lane *lane_least_load(const struct pst_lane *lane, uint64_t taken)
{
	struct pst_pump *pump = lane->pump;
	struct pst_lane *best = NULL;
	unsigned least = UINT32_MAX;

	for (unsigned i = 1; i < pump->lane_count && least; i++) {
		struct pst_lane *other = &pump->lanes[(lane->index + i) % pump->lane_count];
		unsigned load = atomic_load_explicit(&other->load, memory_order_relaxed) +
				atomic_load_explicit(&other->busy_seen, memory_order_relaxed);

		if ((taken >> other->index & 1) || (best && load >= least))
			continue;
		best = other;
		least = load;
	}
	return best;
}

/* Passes the request to other lanes of the device, so that they share the work. As many lanes share
 * it as the path of `chunk` needs for full speed, but at most one lane for each chunk that is left.
 * Waking seven lanes takes 23 us, in which one lane copies 200 KiB (H200). With effort
 * PENSTOCK_BALANCED, at most three quarters of the device's lanes share a request, but at least two
 * may. Does nothing if the request has been passed on before. */
static void req_spread(struct pst_lane *lane, const struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_pump *pump = req->pump;
	unsigned lanes = chunk->route->paths[chunk->path].facts.lanes, one = 1, most;
	uint64_t left, taken = 0;
	bool few;

	if (lane->kind != PST_LANE_PUMP || lanes == 1)
		return;
	left = req_chunks_left(req, chunk);
	if (!left)
		return;
	lanes = lanes && lanes < pump->lane_count ? lanes : pump->lane_count;
	most = pump->lane_count * 3 / 4 > 2 ? pump->lane_count * 3 / 4 : 2;
	if (req->effort == PENSTOCK_BALANCED && lanes > most)
		lanes = most;
	few = lanes > 1 + left;
	if (few)
		lanes = 1 + (unsigned)left;
	if (atomic_load_explicit(&req->spread, memory_order_relaxed) >= lanes ||
	    !atomic_compare_exchange_strong(&req->spread, &one, lanes))
		return;
	for (unsigned i = 1; i < lanes; i++) {
		/* If there is enough work for all, take the lanes in the pump's order. A plan with
		 * mixed paths relies on that order: it gives its first path to the lanes right
		 * after this one. Otherwise take the lanes with the least load. */
		struct pst_lane *other = few ? lane_least_load(lane, taken)
					     : &pump->lanes[(lane->index + i) % pump->lane_count];

		taken |= (uint64_t)1 << other->index;
		pst_inbox_push(other, pst_inbox_entry(other, req));
	}
}

/* Returns whether other lanes have passed chunks to this lane for copying, or have given back this
 * lane's chunks after copying them. */
static bool lane_may_exchange(const struct pst_lane *lane)
{
	return atomic_load_explicit(&lane->passed, memory_order_relaxed) || lane->passed_todo ||
	       atomic_load_explicit(&lane->returned, memory_order_relaxed);
}

/* Sets lane->drives. A mixed path is used while the request's other lanes use another path.
 * Starting a chunk on it occupies the device's driver, so other lanes pass their copies of the same
 * storage's bytes to this lane meanwhile. `chunk` is the chunk that the lane starts, or NULL if it
 * starts none. */
static void lane_set_drives(struct pst_lane *lane, const struct pst_chunk *chunk)
{
	struct penstock_storage *st = NULL;

	if (chunk && chunk->route->paths[chunk->path].facts.mixed_max &&
	    chunk->req->spans[chunk->span].plan->mixed > 1 && lane->kind == PST_LANE_PUMP &&
	    chunk->req->forced < 0)
		st = chunk->req->st;
	if (atomic_load_explicit(&lane->drives, memory_order_relaxed) != st)
		atomic_store_explicit(&lane->drives, st, memory_order_relaxed);
}

/* Limits the length of the request's next mixed chunk, so that starting it takes at most
 * MIXED_START_NS (or MIXED_START_FAST_NS). Starting the previous mixed chunk, which had `len`
 * bytes, took `ns` nanoseconds. */
static void req_limit_mixed(struct pst_request *req, uint64_t len, uint64_t ns)
{
	uint64_t most_ns = req->effort == PENSTOCK_FAST ? MIXED_START_FAST_NS : MIXED_START_NS;
	uint64_t kib = (len >> 10) * most_ns / (ns ? ns : 1);

	atomic_store_explicit(&req->mixed_kib, kib < UINT32_MAX ? (uint32_t)kib : UINT32_MAX,
			      memory_order_relaxed);
}

/* Why req_work stopped: the request has nothing left to start (WORK_DONE), its last chunk found no
 * free staging slot (WORK_STALLED), or the lane has no free chunk (WORK_FULL). */
enum work { WORK_DONE, WORK_STALLED, WORK_FULL };

/* Claims (reserves) and starts chunks of one request. Adds the number of these chunks to
 * *started. */
static enum work req_work(struct pst_lane *lane, struct pst_request *req, int *started)
{
	while (lane->chunks_free) {
		struct pst_chunk *chunk;
		struct pst_claim claim;
		uint64_t from_ns;

		/* If the previous chunk has completed the write's bytes, the request is in its sync
		 * phase. */
		if (req->phase == PST_PHASE_SYNC) {
			/* Only one lane starts the sync, although several may have the request on
			 * their lists. */
			if (!atomic_exchange_explicit(&req->sync_taken, true,
						      memory_order_relaxed)) {
				req_start_sync(lane, req);
				(*started)++;
			}
			return WORK_DONE;
		}
		if (!pst_claim(lane, req, pst_pump_lane_number(req, lane), &claim))
			return WORK_DONE;
		chunk = pst_chunk_get(lane);
		pst_chunk_claimed(chunk, req, &claim);
		(*started)++;
		lane->spin.limit_ns = pst_spin_limit(req->effort, chunk->len);
		req_spread(lane, chunk);
		lane_set_drives(lane, chunk);
		from_ns = chunk->start_ns;
		if (!chunk_start(lane, chunk))
			return WORK_STALLED;
		if (atomic_load_explicit(&lane->drives, memory_order_relaxed))
			req_limit_mixed(req, claim.len, pst_now_ns() - from_ns);
		/* Queue the copies that other lanes have passed to this lane, and continue the
		 * chunks whose copies another lane has made. */
		if (lane_may_exchange(lane))
			pst_chunks_exchange(lane);
		if (lane->passed_count)
			pst_copyqs_reap(lane, PST_REAP_RECORD);
		else if (lane->copies && !(*started % 4))
			/* Process completed copies, because that frees their staging slots. */
			pst_copyqs_reap(lane, PST_REAP_LOOK);
	}
	return WORK_FULL;
}

/* Abandons requests on the lane's lists that are cancelled or past their deadline: the lane starts
 * no more of their bytes. Returns their number. The lane does this even if no staging slot is free,
 * because the transfers that use the slots may never complete. */
static int lane_abandon(struct pst_lane *lane)
{
	uint64_t first = 0;
	int count = 0;

	for (unsigned p = 0; p < PST_PRIORITIES; p++) {
		struct pst_lane_entry **at = &lane->todo[p];

		while (*at) {
			struct pst_request *req = (*at)->req;
			/* In this phase all bytes are written and only the sync is missing, so do
			 * not abandon it. */
			bool syncs = req->phase == PST_PHASE_SYNC;

			if (!syncs && pst_claim_abandon(req)) {
				pst_inbox_unlist(lane, p, at, 0);
				count++;
				continue;
			}
			if (!syncs && req->deadline_ns && (!first || req->deadline_ns < first))
				first = req->deadline_ns;
			at = &(*at)->next;
		}
	}
	lane->deadline_ns = first;
	return count;
}

/* Starts chunks of the requests on the lane's lists: highest priority first, and in order of
 * arrival within a priority. Returns the number of started chunks, plus the number of requests that
 * left the lists. Such a request may have completed without a chunk, and a borrowed lane must not
 * sleep after its request has completed. */
static int lane_start_new(struct pst_lane *lane)
{
	int did = 0;

	for (int p = PST_PRIORITIES - 1; p >= 0 && lane->todo_count; p--) {
		struct pst_lane_entry **at = &lane->todo[p];

		while (*at) {
			struct pst_request *req = (*at)->req;
			enum work work = WORK_DONE;
			bool held;

			if ((*at)->stalled) {
				at = &(*at)->next;
				continue;
			}
			/* Get a reference to the request. This fails if another thread has
			 * completed it. */
			held = pst_req_hold(req);
			if (held)
				work = req_work(lane, req, &did);
			if (work == WORK_DONE) {
				pst_inbox_unlist(lane, (unsigned)p, at, held ? PST_HOLD : 0);
				did++;
				continue;
			}
			at = &(*at)->next;
			pst_req_put(req, PST_HOLD);
			if (work == WORK_FULL)
				return did;
		}
	}
	return did;
}

/* ---- closing storages and devices, cancelled requests ---- */

void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev)
{
	uint64_t keeps = 0;

	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->invalidate && lane->path_state[i])
			keeps |= pst_paths[i]->invalidate(lane, i, st, dev);
	atomic_store(&lane->caches, keeps);
	pst_copyqs_adopt(lane);
	for (unsigned i = 0; dev && i < lane->copyq_count; i++) {
		if (lane->copyqs[i]->dev != dev)
			continue;
		pst_copyq_close(lane->copyqs[i]);
		lane->copyqs[i--] = lane->copyqs[--lane->copyq_count];
	}
	if (dev)
		atomic_fetch_and(&lane->copies_to, ~((uint64_t)1 << dev->index));
}

bool pst_lane_caches(const struct pst_lane *lane, const struct penstock_storage *st,
		     const struct penstock_device *dev)
{
	return (st && atomic_load(&lane->caches) & st->cache_bit) ||
	       (dev && atomic_load(&lane->copies_to) >> dev->index & 1);
}

/* If another thread is closing a storage or a device and has set lane->invalidate_due, drops the
 * lane's cached state of that storage or device. */
static void lane_invalidate_due(struct pst_lane *lane)
{
	struct pst_pump *pump = lane->pump;

	if (!atomic_load_explicit(&lane->invalidate_due, memory_order_acquire))
		return;
	pst_lane_invalidate(lane,
			    atomic_load_explicit(&pump->closing_storage, memory_order_relaxed),
			    atomic_load_explicit(&pump->closing_device, memory_order_relaxed));
	atomic_store_explicit(&lane->invalidate_due, false, memory_order_release);
}

/* Asks storages to cancel the transfers of requests that are cancelled or past their deadline.
 * Returns the number of these transfers. */
static int lane_cut(struct pst_lane *lane)
{
	int asked = 0;

	lane->cut_ns = 0; /* set again below for the transfers that go on */
	for (unsigned i = 0; i < PST_LANE_CHUNKS; i++)
		asked += pst_chunk_cancel(&lane->chunks[i]);
	return asked;
}

/* If a request of this device's lanes was cancelled since the last call, cancels its transfers, and
 * abandons cancelled requests on the lane's lists. Returns the number of these transfers and
 * requests. */
static int lane_cancel(struct pst_lane *lane)
{
	unsigned turn = atomic_load_explicit(&lane->pump->cancel_turn, memory_order_acquire);
	int asked;

	if (turn == lane->cancel_turn)
		return 0;
	lane->cancel_turn = turn;
	asked = lane_cut(lane);
	return asked + lane_abandon(lane);
}

void pst_lane_trim(struct pst_lane *lane)
{
	bool more = false;

	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->idle && lane->path_state[i])
			more |= pst_paths[i]->idle(lane, i);
	lane->trim_due = more;
}

/* ---- the loop ---- */

/* Decides how the lane waits for its copies in flight. If it shall query them again soon, the
 * function pauses and returns true. If it shall sleep, the function returns false and may shorten
 * *wait_us, the maximum time to sleep. */
static bool lane_poll_copies(struct pst_lane *lane, int64_t *wait_us)
{
	int64_t guess = (int64_t)(lane->copy_bytes / COPY_BYTES_US);

	if (!lane->idle_since)
		lane->idle_since = pst_now_ns();
	if ((lane->reading && lane->copy_bytes >= LONG_COPY) ||
	    pst_now_ns() - lane->idle_since > POLL_SELDOM_NS + (uint64_t)guess * 1000) {
		guess = SELDOM_US + POLL_US;
	} else if (guess <= POLL_US) {
		pst_relax((unsigned)guess * PAUSES_PER_US);
		return true;
	}
	if (*wait_us < 0 || guess - POLL_US < *wait_us)
		*wait_us = guess - POLL_US;
	return false;
}

/* Returns whether the thread that runs this inline lane need not wait for work: a request of the
 * lane's queue has completed, or none is in flight. */
static bool lane_owner_may_go(const struct pst_lane *lane)
{
	return lane->kind == PST_LANE_INLINE &&
	       (atomic_load_explicit(lane->completed, memory_order_relaxed) ||
		!atomic_load_explicit(lane->inflight, memory_order_relaxed));
}

/* Returns the earliest deadline at which the lane has something to do; 0 if there is none. */
static uint64_t lane_due_ns(const struct pst_lane *lane)
{
	uint64_t due_ns = lane->deadline_ns;

	return lane->cut_ns && (!due_ns || lane->cut_ns < due_ns) ? lane->cut_ns : due_ns;
}

/* Shortens the waiting time *wait_us, so that it ends no later than the deadline due_ns. */
static void lane_bound_wait(uint64_t due_ns, int64_t *wait_us)
{
	uint64_t now = pst_now_ns();
	int64_t left = 0;

	if (due_ns > now)
		left = (int64_t)((due_ns - now) / 1000) + 1;
	if (*wait_us < 0 || left < *wait_us)
		*wait_us = left;
}

/* Called when the lane's loop found nothing to do. Returns at once or after a short pause if the
 * lane shall poll. Otherwise sleeps for at most wait_us, until something wakes the lane. */
static void lane_sleep(struct pst_lane *lane, int64_t wait_us)
{
	if (lane->copies) {
		if (lane_poll_copies(lane, &wait_us))
			return;
	} else if (lane->kind != PST_LANE_BORROWED && pst_spin_on(&lane->spin)) {
		return;
	}
	if (lane_due_ns(lane))
		lane_bound_wait(lane_due_ns(lane), &wait_us);
	atomic_store_explicit(&lane->asleep, true, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&lane->inbox, memory_order_relaxed) &&
	    !atomic_load_explicit(&lane->io_inbox, memory_order_relaxed) &&
	    !lane_may_exchange(lane) &&
	    !atomic_load_explicit(&lane->invalidate_due, memory_order_relaxed) &&
	    atomic_load_explicit(&lane->pump->cancel_turn, memory_order_relaxed) ==
		    lane->cancel_turn &&
	    !lane_may_grow(lane) &&
	    !atomic_load_explicit(&lane->pump->stop, memory_order_relaxed) &&
	    !lane_owner_may_go(lane))
		lane->engine_ops->wait(lane->engine, wait_us);
	atomic_store_explicit(&lane->asleep, false, memory_order_relaxed);
	lane->engine_ops->poll(lane->engine);
}

/* Returns whether the lane polls streams only for requests that are captured in CUDA graphs, and no
 * chunk waits for a stream. */
static bool lane_watches_graphs(const struct pst_lane *lane)
{
	const struct pst_stage *stage = lane->watched;

	while (stage && stage->captured)
		stage = stage->next;
	return !stage && !lane->stage_waits;
}

void pst_lane_turn(struct pst_lane *lane, int64_t wait_us)
{
	int did = pst_inbox_take(lane);

	if (lane->kind != PST_LANE_BORROWED)
		lane_invalidate_due(lane);
	did += lane->engine_ops->poll(lane->engine);
	did += pst_inbox_reap_io(lane);
	did += lane_cancel(lane);
	if (lane_may_exchange(lane))
		did += pst_chunks_exchange(lane);
	if (lane->copies)
		did += pst_copyqs_reap(lane, PST_REAP_RECORD);
	if (lane->watched)
		did += lane->pump->stream_hooks->poll(lane);
	did += lane_start_deferred(lane);
	if (lane->deadline_ns && pst_now_ns() > lane->deadline_ns)
		did += lane_abandon(lane);
	if (lane->cut_ns && pst_now_ns() > lane->cut_ns)
		did += lane_cut(lane);
	did += lane_start_new(lane);
	lane_set_drives(lane, NULL);
	did += lane_grow(lane);
	atomic_store_explicit(&lane->busy_seen, lane->busy, memory_order_relaxed);
	did += lane->engine_ops->poll(lane->engine); /* submits the calls that were queued above */
	atomic_store_explicit(&lane->turns,
			      atomic_load_explicit(&lane->turns, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	if (did) {
		lane->idle_turns = 0;
		pst_spin_found(&lane->spin);
		lane->idle_since = 0;
		return;
	}
	if (lane->trim_due && !lane->busy)
		pst_lane_trim(lane);
	else if (!wait_us)
		return;
	else if (!lane->watched && !lane->stage_waits)
		lane_sleep(lane, wait_us);
	else if (lane->idle_turns++ > WATCH_SPINS)
		lane_sleep(lane, lane->idle_turns > WATCH_SELDOM_SPINS && lane_watches_graphs(lane)
					 ? WATCH_SELDOM_US
					 : WATCH_US);
}

/* ---- single transfers, for canaries ---- */

static void io_now_done(struct pst_io *io)
{
	io->lane = NULL; /* pst_lane_io_now waits until this is NULL */
}

int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io)
{
	int ret;

	io->lane = lane;
	io->done = io_now_done;
	ret = io->op == PST_IO_FILL ? io->st->ops->fill(io) : io->st->ops->drain(io);
	if (ret)
		return ret;
	while (io->lane) {
		if (!lane->engine_ops->poll(lane->engine) && !pst_inbox_reap_io(lane) && io->lane)
			lane->engine_ops->wait(lane->engine, 1000);
	}
	return io->result < 0 ? (int)io->result : 0;
}
