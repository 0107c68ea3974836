/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares loads whose last step, moving the bytes, can be replaced. Normally pst_load_move moves
 * the bytes. For several processes that load together, src/group passes a function that moves the
 * bytes instead.
 */
#ifndef PST_WEIGHTS_LOAD_H
#define PST_WEIGHTS_LOAD_H

#include "weights/move.h"

/* A function that a load calls instead of pst_load_move, and the function's argument. */
struct pst_load_mover {
	/* `status` is 0, or the error with which this load has already failed. The function is
	 * called even after an error, so that the other ranks of a group learn of the error.
	 * Returns 0 or the load's error. */
	int (*move)(void *arg, struct pst_load *load, struct pst_extents *extents, int status);
	void *arg;
};

/* Implements penstock_weights_load. If `mover` is NULL, pst_load_move moves the bytes. */
int pst_weights_load(const struct pst_load_mover *mover, struct penstock_weights *w,
		     struct penstock_device *const *devs, unsigned dev_count,
		     const struct penstock_load_opts *opts, struct penstock_load_report *report,
		     struct penstock_loaded **out);
/* Implements penstock_weights_load_into. If `mover` is NULL, pst_load_move moves the bytes. */
int pst_weights_load_into(const struct pst_load_mover *mover, struct penstock_weights *w,
			  const struct penstock_piece *pieces, uint64_t count,
			  const struct penstock_load_opts *opts,
			  struct penstock_load_report *report);

#endif
