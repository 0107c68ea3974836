/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the inboxes and lists of a lane (a worker loop): see inbox.h. Submitting threads,
 * storages and other lanes push onto the inboxes, and the lane's loop empties them. These functions
 * must never allocate memory or block.
 */
#include "core/lane/inbox.h"

#include <unistd.h>

#include "core/base/lifo.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"

void pst_inbox_wake(struct pst_lane *lane)
{
	uint64_t one = 1;

	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&lane->asleep, memory_order_relaxed) && lane->wake_fd >= 0 &&
	    write(lane->wake_fd, &one, sizeof(one)) < 0)
		return; /* the eventfd's counter is full, so the lane will wake anyway */
}

/* ---- requests ---- */

struct pst_lane_entry *pst_inbox_entry(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_lane_entry *entry = &req->entries[lane->index];

	entry->req = req;
	entry->watch = false;
	atomic_fetch_add_explicit(&req->refs, PST_LISTED, memory_order_relaxed);
	atomic_fetch_add_explicit(&lane->load, 1, memory_order_relaxed);
	return entry;
}

void pst_inbox_push(struct pst_lane *lane, struct pst_lane_entry *entry)
{
	PST_LIFO_PUSH(&lane->inbox, entry, next, memory_order_release);
	pst_inbox_wake(lane);
}

/* Appends an entry for a request to the lane's list of requests of the same priority. */
static void todo_add(struct pst_lane *lane, struct pst_lane_entry *entry)
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

void pst_inbox_list(struct pst_lane *lane, struct pst_request *req)
{
	if (req->entries[lane->index].listed)
		return; /* the request is on the list already, and the lane will start its new
			 * phase */
	todo_add(lane, pst_inbox_entry(lane, req));
}

void pst_inbox_unlist(struct pst_lane *lane, unsigned priority, struct pst_lane_entry **at,
		      uint64_t holds)
{
	struct pst_lane_entry *entry = *at;

	*at = entry->next;
	if (!entry->next)
		lane->todo_end[priority] = at;
	lane->todo_count--;
	entry->listed = false;
	atomic_fetch_sub_explicit(&lane->load, 1, memory_order_relaxed);
	pst_req_put(entry->req, PST_LISTED + holds);
}

void pst_inbox_unlist_all(struct pst_lane *lane)
{
	pst_inbox_take(lane);
	for (unsigned p = 0; p < PST_PRIORITIES; p++)
		while (lane->todo[p])
			pst_inbox_unlist(lane, p, &lane->todo[p], 0);
	while (lane->watched) {
		struct pst_stage *stage = lane->watched;

		lane->watched = stage->next;
		pst_req_put(stage->req, PST_LISTED);
	}
}

/* Adds a stream-ordered request to the list of requests whose streams the lane polls. */
static void watched_add(struct pst_lane *lane, struct pst_lane_entry *entry)
{
	struct pst_stage *stage = entry->req->stage;

	stage->next = lane->watched;
	lane->watched = stage;
	atomic_fetch_sub_explicit(&lane->load, 1, memory_order_relaxed);
}

int pst_inbox_take(struct pst_lane *lane)
{
	struct pst_lane_entry *list;
	int taken = 0;

	if (PST_LIFO_EMPTY(&lane->inbox))
		return 0;
	PST_LIFO_TAKE(&lane->inbox, list, next);
	while (list) {
		struct pst_lane_entry *entry = list;

		list = entry->next;
		taken++;
		if (entry->watch)
			watched_add(lane, entry);
		else
			todo_add(lane, entry);
	}
	return taken;
}

/* ---- transfers ---- */

void pst_io_done(struct pst_io *io, int64_t result)
{
	struct pst_lane *lane = io->lane;
	struct pst_pump *pump = lane->pump;

	/* As soon as the transfer is in the inbox, its request may complete and the pump (the
	 * lane's set of threads) may be stopped. So the pump counts the threads that are in this
	 * function, and waits for them before it is freed. */
	atomic_fetch_add_explicit(&pump->outside, 1, memory_order_relaxed);
	io->result = result;
	if (result < 0 && !io->err.code)
		pst_fail_errno(&io->err, (int)result, pst_why_from_errno((int)result), "%s: %m",
			       io->st->ops->name);
	PST_LIFO_PUSH(&lane->io_inbox, io, next, memory_order_release);
	pst_inbox_wake(lane);
	atomic_fetch_sub_explicit(&pump->outside, 1, memory_order_release);
}

int pst_inbox_reap_io(struct pst_lane *lane)
{
	struct pst_io *list;
	int reaped = 0;

	if (PST_LIFO_EMPTY(&lane->io_inbox))
		return 0;
	PST_LIFO_TAKE(&lane->io_inbox, list, next);
	while (list) {
		struct pst_io *io = list;

		list = io->next;
		io->done(io);
		reaped++;
	}
	return reaped;
}
