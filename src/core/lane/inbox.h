/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests and completed transfers reach a lane: inboxes that any thread fills, and the
 * lane's own list of requests by priority.
 */
#ifndef PST_CORE_INBOX_H
#define PST_CORE_INBOX_H

#include "core/lane/lane.h"

/* Wakes a lane after something was put in an inbox of it. Any thread. */
void pst_lane_wake(struct pst_lane *lane);

/* Prepares a request's entry for the lane's inbox, before other threads may complete the
 * request. Any thread. */
struct pst_lane_entry *pst_inbox_entry(struct pst_lane *lane, struct pst_request *req);
/* Puts the entry in the lane's inbox and wakes the lane. Any thread. */
void pst_inbox_push(struct pst_lane *lane, struct pst_lane_entry *entry);
/* Takes what is in the inbox onto the lane's lists; returns how many. The lane's thread, like
 * all that follow. */
int pst_inbox_take(struct pst_lane *lane);

/* Puts a request on the lane's own list, unless it is there. */
void pst_lane_list(struct pst_lane *lane, struct pst_request *req);
/* Removes the entry at *at from list `priority`, and gives up `holds` of its request. */
void pst_lane_unlist(struct pst_lane *lane, unsigned priority, struct pst_lane_entry **at,
		     uint64_t holds);
/* Empties all lists before the lane closes. The requests have completed elsewhere. */
void pst_lane_unlist_all(struct pst_lane *lane);

/* Completes a transfer from any thread, for storages with threads of their own. Fills io->err
 * if it failed without a text. */
void pst_io_done(struct pst_io *io, int64_t result);
/* Calls done() of the transfers that other threads completed; returns how many. */
int pst_inbox_reap_io(struct pst_lane *lane);

#endif
