/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests and completed transfers reach a lane: two inboxes that any thread pushes onto,
 * and the lane's own lists of requests, one for each priority.
 */
#ifndef PST_CORE_INBOX_H
#define PST_CORE_INBOX_H

#include "core/lane/lane.h"

/* Wakes a lane after a change that it must see, such as a push onto its inbox. Any thread. */
void pst_inbox_wake(struct pst_lane *lane);

/* Prepares a request's entry for the lane's inbox, and counts it. Must be called before other
 * threads may complete the request. Any thread. */
struct pst_lane_entry *pst_inbox_entry(struct pst_lane *lane, struct pst_request *req);
/* Pushes the entry onto the lane's inbox and wakes the lane. Any thread. */
void pst_inbox_push(struct pst_lane *lane, struct pst_lane_entry *entry);
/* Moves the entries of the inbox to the lane's lists and returns their number. This function and
 * all below, except pst_io_done, run on the lane's thread. */
int pst_inbox_take(struct pst_lane *lane);

/* Puts a request on the lane's own list, unless it is on it. */
void pst_inbox_list(struct pst_lane *lane, struct pst_request *req);
/* Removes the entry at *at from list `priority`. Drops the list's reference and `holds`. */
void pst_inbox_unlist(struct pst_lane *lane, unsigned priority, struct pst_lane_entry **at,
		      uint64_t holds);
/* Empties all lists before the lane closes. Their requests have completed already. */
void pst_inbox_unlist_all(struct pst_lane *lane);

/* Completes a transfer from any thread, for storages that have threads. Fills io->err if the
 * transfer failed without a text. */
void pst_io_done(struct pst_io *io, int64_t result);
/* Calls done() of the transfers that other threads completed. Returns their number. */
int pst_inbox_reap_io(struct pst_lane *lane);

#endif
