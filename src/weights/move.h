/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one load, and the steps that the different loads have in common: checking options,
 * allocating memory, setting up requests, and summing up the requests' reports.
 */
#ifndef PST_WEIGHTS_MOVE_H
#define PST_WEIGHTS_MOVE_H

#include "weights/extent.h"
#include "weights/model.h"
#include "weights/report.h"

struct pst_load {
	struct penstock_weights *w;
	struct penstock_load_opts opts;
	struct pst_report_sum sum;
	uint64_t held; /* Number of bytes of device memory that the load has allocated. */
	/* A read starts at a page boundary, so it may also read bytes in front of a tensor. This is
	 * the number of such bytes. */
	uint64_t lead;
	uint64_t looked_ns; /* Time of the last call of opts.look, in ns. */
	int failed; /* Code of the first error; its message is stored for this thread; 0 if none. */
};

/* Copies and checks the caller's options; NULL stands for the defaults. Clears all other
 * members. */
int pst_load_init(struct pst_load *load, struct penstock_weights *w,
		  const struct penstock_load_opts *opts);

/* Allocates `len` bytes of device memory with the caller's allocator, or with penstock_alloc if
 * the options name no allocator. */
int pst_load_alloc(struct pst_load *load, struct penstock_device *dev, size_t len, void **out);
/* Frees memory that pst_load_alloc allocated. Does nothing if `ptr` is NULL. */
void pst_load_free(const struct penstock_load_opts *opts, struct penstock_device *dev, void *ptr,
		   size_t len);

/* Submits one request for `count` extents (file ranges with the memory for them), all of the same
 * file. `user` and `id` are passed to penstock_submit. */
int pst_load_submit(const struct pst_load *load, struct penstock_queue *q,
		    const struct pst_extent *extents, size_t count, void *user, uint64_t *id);
/* Handles the completion of a request for `extents`: adds the request's report to the load's,
 * and calls opts.each. If this is the load's first error, it becomes load->failed, and its
 * message becomes this thread's message. */
void pst_load_complete(struct pst_load *load, const struct pst_extent *extents, size_t count,
		       const struct penstock_done *done);

/* Calls opts.look if 100 ms have passed since its last call. If opts.look asks to cancel,
 * load->failed becomes -ECANCELED. Returns load->failed. */
int pst_load_poll_caller(struct pst_load *load);
/* Returns the maximum time in ns that a wait for completions may take before pst_load_poll_caller
 * must be called again; -1 if there is no maximum. */
int64_t pst_load_wait_ns(const struct pst_load *load);

/* Fails with -ESTALE if any file of the extents has changed since its header was read. May
 * block. */
int pst_load_check_files(struct pst_load *load, const struct pst_extents *extents);
/* Sorts the extents (file ranges with the memory for them), submits requests for all of them and
 * waits. No request is in flight when it returns. */
int pst_load_move(struct pst_load *load, struct pst_extents *extents);

/* Copies the load's report into the caller's struct. */
void pst_load_report(const struct pst_load *load, struct penstock_load_report *out);

#endif
