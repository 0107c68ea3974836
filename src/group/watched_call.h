/* SPDX-License-Identifier: Apache-2.0 */
/* Runs calls that may block for a long time, while this rank keeps checking whether another rank of
 * its group has failed. */
#ifndef PST_GROUP_WATCHED_CALL_H
#define PST_GROUP_WATCHED_CALL_H

#include "group/barrier.h"

/*
 * Calls work(w, which) on another thread and returns its result. If a rank fails or is lost during
 * the call, returns the group's error without waiting for the call. The call then continues on its
 * thread, which holds a reference to `w` until the call returns. Not collective: a single rank may
 * call this function.
 */
int pst_group_watched_call(struct penstock_group *g, struct penstock_weights *w,
			   int (*work)(struct penstock_weights *w, unsigned which), unsigned which);

#endif
