/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lane: its loop, its chunks and its copies. Runs on its own thread, or on a
 * caller's for a borrowed lane. Nothing here allocates, locks or logs once the
 * lane is open, except that a caller's lane opens a copier at its first copy to a device,
 * and a pump's its io_uring at the first call for it and the rest of its ring (lane_open.c).
 */
#include <errno.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "core/queue/stream.h"

/* More than any device's link moves in a microsecond, to guess how long copies take at
 * least: who guesses too long looks too late, who guesses too short looks again. */
#define COPY_BYTES_US 200000u
/* The last so much of the guess is waited for by looking: the driver's way of sleeping
 * until a copy is done comes back 0.1 to 0.7 ms late, and a timer 0.1 ms (H200, virtual
 * machine). */
#define LOOK_US 100
/* Between two looks passes a part of the guess, because each keeps others from the driver
 * (a processor's pause is some 40 ns). */
#define LOOKS_APART 8
/* Unless they take so long that something else holds them up, or are long ones from a drive
 * that has more to bring: its next bytes wake the lane, and to look for these before then
 * costs as much time as all the rest of such a read. Then this often. */
#define LOOK_NS 3000000u
#define LONG_COPY (256u << 10)
#define SELDOM_US 500
/* A stream that reaches its request cannot wake a lane, so a lane that watches one
 * looks: at first without a pause, then so often. */
#define WATCH_SPINS 2000
#define WATCH_US 50

void pst_io_done(struct pst_io *io, int64_t result)
{
	struct pst_lane *lane = io->lane;
	struct pst_pump *pump = lane->pump;

	/* Once it is in the inbox it may end, and with it all that keeps the pump. */
	atomic_fetch_add_explicit(&pump->outside, 1, memory_order_relaxed);
	io->result = result;
	if (result < 0 && !io->err.code)
		pst_fail_errno(&io->err, (int)result, pst_why_of_errno((int)result), "%s: %m",
			       io->st->ops->name);
	io->next = atomic_load_explicit(&lane->io_inbox, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&lane->io_inbox, &io->next, io,
						      memory_order_release, memory_order_relaxed))
		;
	pst_lane_wake(lane);
	atomic_fetch_sub_explicit(&pump->outside, 1, memory_order_release);
}

static int reap_io_inbox(struct pst_lane *lane)
{
	struct pst_io *io, *list = NULL;
	int ended = 0;

	if (!atomic_load_explicit(&lane->io_inbox, memory_order_relaxed))
		return 0;
	io = atomic_exchange_explicit(&lane->io_inbox, NULL, memory_order_acquire);
	while (io) { /* turn the stack round */
		struct pst_io *next = io->next;

		io->next = list;
		list = io;
		io = next;
	}
	while (list) {
		io = list;
		list = io->next;
		io->done(io);
		ended++;
	}
	return ended;
}

/* ---- the loop ---- */

void pst_lane_wake(struct pst_lane *lane)
{
	uint64_t one = 1;

	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&lane->asleep, memory_order_relaxed) && lane->wake_fd >= 0 &&
	    write(lane->wake_fd, &one, sizeof(one)) < 0)
		return; /* its counter is full: it is awake */
}

static void list_entry(struct pst_lane *lane, struct pst_lane_entry *entry)
{
	unsigned p = entry->req->priority;
	uint64_t deadline_ns = entry->req->deadline_ns;

	if (deadline_ns && (!lane->deadline_ns || deadline_ns < lane->deadline_ns))
		lane->deadline_ns = deadline_ns;
	entry->next = NULL;
	entry->listed = true;
	*lane->todo_end[p] = entry;
	lane->todo_end[p] = &entry->next;
	lane->todo_count++;
}

void pst_lane_list(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_lane_entry *entry = &req->entries[lane->index];

	if (entry->listed)
		return; /* still on the list: it will see the new limit */
	atomic_fetch_add_explicit(&req->refs, PST_LISTED, memory_order_relaxed);
	atomic_fetch_add_explicit(&lane->load, 1, memory_order_relaxed);
	entry->req = req;
	list_entry(lane, entry);
}

static void watch(struct pst_lane *lane, struct pst_lane_entry *entry)
{
	entry->next = lane->watched;
	lane->watched = entry;
	atomic_fetch_sub_explicit(&lane->load, 1, memory_order_relaxed);
}

static int take_inbox(struct pst_lane *lane)
{
	struct pst_lane_entry *entry, *list = NULL;
	int taken = 0;

	if (!atomic_load_explicit(&lane->inbox, memory_order_relaxed))
		return 0;
	entry = atomic_exchange_explicit(&lane->inbox, NULL, memory_order_acquire);
	while (entry) {
		struct pst_lane_entry *next = entry->next;

		entry->next = list;
		list = entry;
		entry = next;
	}
	while (list) {
		entry = list;
		list = entry->next;
		taken++;
		if (entry->req->phase == PST_PHASE_ARMED)
			watch(lane, entry);
		else
			list_entry(lane, entry);
	}
	return taken;
}

/* A storage says only once that bytes were lost. Those of every request that was under way
 * may be among them. */
static void synced(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;

	if (io->result < 0 && io->result != -ECANCELED && io->result != -EINTR &&
	    io->result != -EAGAIN) /* these lose nothing */
		atomic_fetch_add(&req->st->losses, 1);
	else if (io->result >= 0 && atomic_load(&req->st->losses) != req->losses)
		io->result = pst_fail_errno(&io->err, EIO, PENSTOCK_WHY_IO_ERROR,
					    "another request's sync failed while this one was "
					    "under way, and may have lost bytes of it: write it "
					    "again");
	if (io->result < 0)
		pst_req_fail(req, lane, &io->err);
	pst_chunk_put(chunk);
	pst_req_bytes_done(req, lane, 1);
}

/* The last phase of a durable write. */
static void start_sync(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_chunk *chunk = pst_chunk_get(lane);
	int ret;

	chunk->req = req;
	chunk->io = (struct pst_io){.st = req->st, .lane = lane, .op = PST_IO_SYNC, .done = synced};
	ret = pst_chunk_io_start(chunk);
	if (ret) {
		chunk->io.result = ret;
		chunk->io.err = chunk->err;
		if (!chunk->io.err.code)
			pst_fail_errno(&chunk->io.err, ret, pst_why_of_errno(ret), "sync: %m");
		synced(&chunk->io);
	}
}

/* A long chunk of cached bytes waits for copies of others, and with more slots for more of
 * them. */
static bool short_of_slots(const struct pst_chunk *chunk)
{
	return !chunk->slot && chunk->route->paths[chunk->path].facts.slotted &&
	       (chunk->residency != PST_WARM || chunk->len <= PST_SLOT_SMALL);
}

/* Starts it. False: no room for it, it is among the deferred. A chunk that waits keeps
 * its request from claiming more on this lane, and nobody else. */
static bool start(struct pst_lane *lane, struct pst_chunk *chunk)
{
	const struct pst_path_ops *wrap = chunk->req->wrap;
	int ret = (wrap ? wrap : pst_paths[chunk->path])->start(chunk);

	if (ret == -EAGAIN) {
		lane->wants_ring |= short_of_slots(chunk);
		pst_chunk_defer(lane, chunk);
		return false;
	}
	if (!ret)
		return true;
	if (!chunk->err.code)
		pst_fail_errno(&chunk->err, ret, pst_why_of_errno(ret), "starting a chunk: %m");
	pst_chunk_done(chunk, ret);
	return true;
}

static int start_deferred(struct pst_lane *lane)
{
	struct pst_chunk *list = lane->deferred;
	int started = 0;

	lane->deferred = NULL;
	lane->deferred_end = &lane->deferred;
	while (list) { /* each once; those that still have no room go back in order */
		struct pst_chunk *chunk = list;

		list = chunk->next;
		chunk->req->entries[lane->index].stalled--;
		started += pst_chunk_abandon(chunk) || start(lane, chunk);
	}
	return started;
}

/* What a path asks for once the first chunk of a request is claimed by it. */
static void spread(struct pst_lane *lane, const struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	unsigned lanes = chunk->route->paths[chunk->path].facts.lanes;

	if (!lane->borrowed && !pst_lane_is_own(lane) && lanes != 1 &&
	    atomic_load_explicit(&req->next, memory_order_relaxed) <
		    atomic_load_explicit(&req->limit, memory_order_relaxed))
		pst_pump_spread(req, lane, lanes);
}

enum work { WORK_DONE, WORK_STALLED, WORK_FULL };

/* Chunks of one request: until it has none left, one has no room, or the lane can
 * have no more chunks. */
static enum work work_on(struct pst_lane *lane, struct pst_request *req, int *started)
{
	while (lane->chunks_free) {
		struct pst_chunk *chunk;

		/* Perhaps since the last one, which may have ended at once. */
		if (req->phase == PST_PHASE_SYNC) {
			/* Other lanes may still have it listed. */
			if (!atomic_exchange_explicit(&req->sync_taken, true,
						      memory_order_relaxed)) {
				start_sync(lane, req);
				(*started)++;
			}
			return WORK_DONE;
		}
		chunk = pst_claim(req, lane);
		if (!chunk)
			return WORK_DONE;
		(*started)++;
		pst_spin_took(&lane->spin, req->effort == PENSTOCK_FAST, chunk->len);
		spread(lane, chunk);
		if (!start(lane, chunk))
			return WORK_STALLED;
		if (lane->copies && !(*started % 4))
			pst_lane_reap_copies(lane, PST_REAP_LOOK); /* slots come free while
								    * bytes are moved */
	}
	return WORK_FULL;
}

/* It also gives up `holds` of it. */
static void unlist(struct pst_lane *lane, unsigned p, struct pst_lane_entry **at, uint64_t holds)
{
	struct pst_lane_entry *entry = *at;

	*at = entry->next;
	if (!entry->next)
		lane->todo_end[p] = at;
	lane->todo_count--;
	entry->listed = false;
	atomic_fetch_sub_explicit(&lane->load, 1, memory_order_relaxed);
	pst_req_put(entry->req, PST_LISTED + holds);
}

/* Requests that have been cancelled, and those whose time has come, end here also when the
 * lane has no room to begin more: what it waits for may take for ever. */
static int end_over(struct pst_lane *lane)
{
	uint64_t first = 0;
	int ended = 0;

	for (unsigned p = 0; p < PST_PRIORITIES; p++) {
		struct pst_lane_entry **at = &lane->todo[p];

		while (*at) {
			struct pst_request *req = (*at)->req;
			bool syncs = req->phase == PST_PHASE_SYNC; /* all of it has begun */

			if (!syncs && pst_claim_abandon(req, lane)) {
				unlist(lane, p, at, 0);
				ended++;
				continue;
			}
			if (!syncs && req->deadline_ns && (!first || req->deadline_ns < first))
				first = req->deadline_ns;
			at = &(*at)->next;
		}
	}
	lane->deadline_ns = first;
	return ended;
}

/* Highest priority first; within one, as they came. A request that leaves the list counts
 * as well: it may have ended with nothing begun, and whoever turns a lane for it alone must
 * not sleep in that turn. */
static int start_new(struct pst_lane *lane)
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
			held = pst_req_hold(req); /* or others have ended it */
			if (held)
				work = work_on(lane, req, &did);
			if (work == WORK_DONE) {
				unlist(lane, (unsigned)p, at, held ? PST_HOLD : 0);
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

void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev)
{
	uint64_t keeps = 0;

	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->invalidate && lane->path_state[i])
			keeps |= pst_paths[i]->invalidate(lane, i, st, dev);
	atomic_store(&lane->caches, keeps);
	pst_lane_take_copyqs(lane);
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

void pst_lane_unlist_all(struct pst_lane *lane)
{
	take_inbox(lane);
	for (unsigned p = 0; p < PST_PRIORITIES; p++)
		while (lane->todo[p])
			unlist(lane, p, &lane->todo[p], 0);
	while (lane->watched) {
		struct pst_lane_entry *entry = lane->watched;

		lane->watched = entry->next;
		pst_req_put(entry->req, PST_LISTED);
	}
}

/* A storage or another device closes: what is kept of it is dropped. */
static void forget(struct pst_lane *lane)
{
	struct pst_pump *pump = lane->pump;

	if (!atomic_load_explicit(&lane->invalidate_due, memory_order_acquire))
		return;
	pst_lane_invalidate(lane, atomic_load_explicit(&pump->forget, memory_order_relaxed),
			    atomic_load_explicit(&pump->forget_device, memory_order_relaxed));
	atomic_store_explicit(&lane->invalidate_due, false, memory_order_release);
}

/* Somebody has cancelled a request of this pump: if this lane has chunks of it, their
 * storage is asked; what is on its lists is not begun. */
static int cancel(struct pst_lane *lane)
{
	unsigned turn = atomic_load_explicit(&lane->pump->cancel_turn, memory_order_acquire);
	int asked = 0;

	if (turn == lane->cancel_turn)
		return 0;
	lane->cancel_turn = turn;
	for (unsigned i = 0; i < PST_LANE_CHUNKS; i++)
		asked += pst_chunk_cancel(&lane->chunks[i]);
	return asked + end_over(lane);
}

/* Paths tidy up what they kept (registrations, mappings) when nothing else is to do. */
void pst_lane_trim(struct pst_lane *lane)
{
	bool more = false;

	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->idle && lane->path_state[i])
			more |= pst_paths[i]->idle(lane, i);
	lane->trim_due = more;
}

/* With copies under way: false when there is another way to spend the time than to look
 * again, in *wait_us for how long. */
static bool look_for_copies(struct pst_lane *lane, int64_t *wait_us)
{
	int64_t guess = (int64_t)(lane->copy_bytes / COPY_BYTES_US);

	if (!lane->idle_since)
		lane->idle_since = pst_now_ns();
	if ((lane->reading && lane->copy_bytes >= LONG_COPY) ||
	    pst_now_ns() - lane->idle_since > LOOK_NS + (uint64_t)guess * 1000) {
		guess = SELDOM_US + LOOK_US;
	} else if (guess <= LOOK_US) {
		pst_relax((unsigned)guess * LOOKS_APART);
		return true;
	}
	if (*wait_us < 0 || guess - LOOK_US < *wait_us)
		*wait_us = guess - LOOK_US;
	return false;
}

/* A queue's own lane, whose owner need not wait for anything more. */
static bool owner_may_go(const struct pst_lane *lane)
{
	return pst_lane_is_own(lane) &&
	       (atomic_load_explicit(lane->completed, memory_order_relaxed) ||
		!atomic_load_explicit(lane->inflight, memory_order_relaxed));
}

/* No longer than until the first deadline on its lists. */
static void bound_by_deadline(const struct pst_lane *lane, int64_t *wait_us)
{
	uint64_t now = pst_now_ns();
	int64_t left = 0;

	if (lane->deadline_ns > now)
		left = (int64_t)((lane->deadline_ns - now) / 1000) + 1;
	if (*wait_us < 0 || left < *wait_us)
		*wait_us = left;
}

static void sleep_until(struct pst_lane *lane, int64_t wait_us)
{
	if (lane->copies) {
		if (look_for_copies(lane, &wait_us))
			return;
	} else if (!lane->borrowed && pst_spin_on(&lane->spin)) {
		return;
	}
	if (lane->deadline_ns)
		bound_by_deadline(lane, &wait_us);
	atomic_store_explicit(&lane->asleep, true, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&lane->inbox, memory_order_relaxed) &&
	    !atomic_load_explicit(&lane->io_inbox, memory_order_relaxed) &&
	    !atomic_load_explicit(&lane->invalidate_due, memory_order_relaxed) &&
	    atomic_load_explicit(&lane->pump->cancel_turn, memory_order_relaxed) ==
		    lane->cancel_turn &&
	    !pst_lane_may_grow(lane) &&
	    !atomic_load_explicit(&lane->pump->stop, memory_order_relaxed) && !owner_may_go(lane))
		lane->engine_ops->wait(lane->engine, wait_us);
	atomic_store_explicit(&lane->asleep, false, memory_order_relaxed);
}

static void poll_storages(struct pst_lane *lane)
{
	for (unsigned i = 0; pst_storages[i]; i++)
		if (pst_storages[i]->poll)
			pst_storages[i]->poll(lane);
}

void pst_lane_turn(struct pst_lane *lane, int64_t wait_us)
{
	int did = take_inbox(lane);

	if (!lane->borrowed)
		forget(lane);
	did += lane->engine_ops->poll(lane->engine);
	did += reap_io_inbox(lane);
	did += cancel(lane);
	if (lane->copies)
		did += pst_lane_reap_copies(lane, PST_REAP_MARK);
	if (lane->watched)
		did += pst_stream_poll(lane);
	did += start_deferred(lane);
	if (lane->deadline_ns && pst_now_ns() > lane->deadline_ns)
		did += end_over(lane);
	did += start_new(lane);
	did += pst_lane_grow(lane);
	poll_storages(lane);
	atomic_store_explicit(&lane->busy_seen, lane->busy, memory_order_relaxed);
	did += lane->engine_ops->poll(lane->engine); /* what was just queued goes out */
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
	else if (!lane->watched)
		sleep_until(lane, wait_us);
	else if (lane->idle_turns++ > WATCH_SPINS)
		sleep_until(lane, WATCH_US);
}

/* ---- steps made at once, for canaries ---- */

static void io_now_done(struct pst_io *io)
{
	io->lane = NULL; /* what pst_lane_io_now waits for */
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
		if (!lane->engine_ops->poll(lane->engine) && !reap_io_inbox(lane) && io->lane)
			lane->engine_ops->wait(lane->engine, 1000);
	}
	return io->result < 0 ? (int)io->result : 0;
}
