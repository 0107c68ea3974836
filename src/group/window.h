/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The windows of a group's ranks. A window is memory that one rank reads file data into and that
 * all ranks copy from.
 */
#ifndef PST_GROUP_WINDOW_H
#define PST_GROUP_WINDOW_H

#include "group/barrier.h"

struct pst_window {
	void *ptr;
	/* Whether the window is imported device memory of another process; if not, it is mapped
	 * host memory. */
	bool imported;
};

struct pst_windows {
	struct pst_window *list; /* One for each rank. */
	unsigned count, rank;
	size_t len;		     /* Length of each window in bytes. */
	struct penstock_device *dev; /* Device in whose memory the windows are. */
	/* The device "host" if the windows are host memory, else NULL. */
	struct penstock_device *host;
};

/* Allocates this rank's window (a buffer that all ranks copy from) and maps the windows of the
 * other ranks (collective). Even after a failure the caller must call pst_windows_unmap and
 * pst_windows_close. */
int pst_windows_open(struct pst_windows *ws, struct penstock_group *g, struct pst_load *load,
		     struct penstock_device *dev, size_t len);
/* Unmaps the windows of the other ranks, then waits until all ranks have done the same
 * (collective). `done` tells whether the load succeeded. */
void pst_windows_unmap(struct pst_windows *ws, struct penstock_group *g, bool done);
/* Frees this rank's own window. `busy` is a queue whose reads into the window are still in
 * flight, or NULL if there are no such reads. If `busy` is not NULL, the queue and the window
 * are freed later, when these reads have completed. */
void pst_windows_close(struct pst_windows *ws, struct pst_load *load, struct penstock_queue *busy);

#endif
