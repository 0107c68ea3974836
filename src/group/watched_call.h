/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that may block for long, made while the rank keeps watching its group. */
#ifndef PST_GROUP_WATCHED_CALL_H
#define PST_GROUP_WATCHED_CALL_H

#include "group/barrier.h"

/*
 * Calls work(w, which) on another thread and returns its result. Returns the group's error
 * earlier if a rank fails or is lost meanwhile: the call then continues on its own thread and holds
 * a reference to `w` until it returns. Not collective.
 */
int pst_group_watched_call(struct penstock_group *g, struct penstock_weights *w,
			   int (*work)(struct penstock_weights *w, unsigned which), unsigned which);

#endif
