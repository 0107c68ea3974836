/* SPDX-License-Identifier: Apache-2.0 */
/* What pump.c needs of lane.c: opening, waking and closing one. */
#ifndef PST_CORE_LANE_H
#define PST_CORE_LANE_H

#include "core/pump.h"

/* On the thread that will drive it, its slots and pump set. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* On the same thread (borrowed lanes: any), nothing in flight. */
void pst_lane_close(struct pst_lane *lane);
/* After something was put in one of its inboxes. Any thread. */
void pst_lane_wake(struct pst_lane *lane);

/* One fill or drain, one copy, waited for; other chunks' completions are taken up
 * meanwhile. The lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);
int pst_lane_copy_now(struct pst_lane *lane, struct penstock_device *dev,
		      const struct pst_rect *rect, bool in);

#endif
