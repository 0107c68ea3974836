/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests and completed transfers reach a lane (a worker loop). A lane has two inboxes, onto
 * which any thread pushes, and its own lists of requests, one for each priority.
 */
#ifndef PST_CORE_INBOX_H
#define PST_CORE_INBOX_H

#include "core/lane/lane.h"

/* Wakes a lane that may be sleeping, after another thread has changed something that the lane must
 * react to, such as its inbox. Any thread may call it. */
void pst_inbox_wake(struct pst_lane *lane);

/* Prepares the request's entry for this lane's inbox, and adds a reference to the request for it.
 * Must be called before other threads may complete the request. Any thread may call it. */
struct pst_lane_entry *pst_inbox_entry(struct pst_lane *lane, struct pst_request *req);
/* Pushes the entry onto the lane's inbox and wakes the lane. Any thread may call it. */
void pst_inbox_push(struct pst_lane *lane, struct pst_lane_entry *entry);
/* Moves all entries from the inbox to the lane's lists and returns their count. Only the lane's
 * thread may call this function and those below, except pst_io_done. */
int pst_inbox_take(struct pst_lane *lane);

/* Puts a request on the lane's list of requests to claim chunks from, unless the list contains it
 * already. */
void pst_inbox_list(struct pst_lane *lane, struct pst_request *req);
/* Removes the entry *at from the lane's list for `priority`. Drops the list's reference to the
 * request, and also `holds` references that belong to the caller. */
void pst_inbox_unlist(struct pst_lane *lane, unsigned priority, struct pst_lane_entry **at,
		      uint64_t holds);
/* Empties all lists of the lane before it closes. The requests on the lists have completed
 * already. */
void pst_inbox_unlist_all(struct pst_lane *lane);

/* Completes a transfer. Any thread may call it, so storages that have their own threads use it.
 * If the transfer failed and the storage has not filled io->err, fills it. */
void pst_io_done(struct pst_io *io, int64_t result);
/* Calls done() of each transfer that another thread has completed. Returns the number of
 * transfers. */
int pst_inbox_reap_io(struct pst_lane *lane);

#endif
