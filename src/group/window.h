/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of a group's ranks: each reads into its own and copies out of all of them.
 */
#ifndef PST_GROUP_WINDOW_H
#define PST_GROUP_WINDOW_H

#include "group/group.h"

struct pst_window {
	void *ptr;
	bool imported;
};

struct pst_windows {
	struct pst_window *list; /* of each rank */
	unsigned count, rank;
	size_t len;
	struct penstock_device *dev;  /* where they lie for this process */
	struct penstock_device *host; /* the same, if that is the host's memory; else NULL */
};

/* Collective, as is what comes of it. Left and closed in any case. */
int pst_windows_open(struct pst_windows *ws, struct penstock_group *g, struct pst_load *load,
		     struct penstock_device *dev, size_t len);
/* Collective: nobody copies out of another's window from here on. */
void pst_windows_leave(struct pst_windows *ws, struct penstock_group *g, bool done);
/* This rank's own; with a queue whose reads into it have not ended, both go when they have. */
void pst_windows_close(struct pst_windows *ws, struct pst_load *load, struct penstock_queue *busy);

/* Takes a queue over, and what it reads into; closes both when its reads have ended, which
 * are from files of `w`. */
void pst_orphan_leave(struct penstock_queue *q, struct penstock_weights *w,
		      struct penstock_device *dev, void *ptr, size_t len, bool mapped);

#endif
