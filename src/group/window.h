/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The windows of a group's ranks: memory that one rank reads into and all ranks copy from.
 */
#ifndef PST_GROUP_WINDOW_H
#define PST_GROUP_WINDOW_H

#include "group/barrier.h"

struct pst_window {
	void *ptr;
	bool imported; /* Device memory of another process; else mapped host memory. */
};

struct pst_windows {
	struct pst_window *list; /* One for each rank. */
	unsigned count, rank;
	size_t len;		      /* Bytes of each. */
	struct penstock_device *dev;  /* The device by which this process addresses them. */
	struct penstock_device *host; /* The same if they are host memory, else NULL. */
};

/* Allocates this rank's window and maps those of the others (collective). After a failure the
 * caller still calls unmap and close. */
int pst_windows_open(struct pst_windows *ws, struct penstock_group *g, struct pst_load *load,
		     struct penstock_device *dev, size_t len);
/* Unmaps the windows of other ranks, then waits until all ranks have (collective). `done`: the
 * load succeeded. */
void pst_windows_unmap(struct pst_windows *ws, struct penstock_group *g, bool done);
/* Frees this rank's own window. `busy`: a queue whose reads into it are still in flight, NULL:
 * none; queue and window are then freed when the reads have completed. */
void pst_windows_close(struct pst_windows *ws, struct pst_load *load, struct penstock_queue *busy);

#endif
