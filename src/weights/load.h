/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two of the three ways to receive a model, with the step that moves the bytes left open: alone
 * it is pst_load_move, and a group passes a mover of its own.
 */
#ifndef PST_WEIGHTS_LOAD_H
#define PST_WEIGHTS_LOAD_H

#include "weights/move.h"

/* Hook that moves the extents of a load in place of pst_load_move. */
struct pst_load_mover {
	/* `status` is 0, or the error that this load has met so far: the hook is called either
	 * way, so that a group learns of it. Returns 0 or the load's error. */
	int (*move)(void *arg, struct pst_load *load, struct pst_extents *extents, int status);
	void *arg;
};

/* Implements penstock_weights_load; `mover` NULL: moves by pst_load_move. */
int pst_weights_load(const struct pst_load_mover *mover, struct penstock_weights *w,
		     struct penstock_device *const *devs, unsigned dev_count,
		     const struct penstock_load_opts *opts, struct penstock_load_report *report,
		     struct penstock_loaded **out);
/* Implements penstock_weights_load_into; `mover` NULL: moves by pst_load_move. */
int pst_weights_load_into(const struct pst_load_mover *mover, struct penstock_weights *w,
			  const struct penstock_piece *pieces, uint64_t count,
			  const struct penstock_load_opts *opts,
			  struct penstock_load_report *report);

#endif
