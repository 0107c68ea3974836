/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one load or save, and the steps that all kinds of them share: checked options,
 * memory, requests, and one report over all requests.
 */
#ifndef PST_WEIGHTS_MOVE_H
#define PST_WEIGHTS_MOVE_H

#include "weights/extent.h"
#include "weights/model.h"

struct pst_load {
	struct penstock_weights *w;
	struct penstock_load_opts opts;
	struct penstock_load_report report;
	uint64_t path_bytes; /* Bytes that report.path carried in its largest request. */
	uint64_t held;	     /* Device memory that the load holds at the moment, in bytes. */
	uint64_t lead;	     /* Bytes read in front of tensors only to begin with a page. */
	uint64_t looked_ns;  /* Time of the last call of opts.look. */
	int failed;	     /* The first error, whose message is this thread's; 0: none. */
};

/* Copies and checks the caller's options (NULL: the defaults) and clears the rest. */
int pst_load_init(struct pst_load *load, struct penstock_weights *w,
		  const struct penstock_load_opts *opts);

/* Allocates `len` bytes of device memory, by the caller's allocator if the options have one. */
int pst_load_alloc(struct pst_load *load, struct penstock_device *dev, size_t len, void **out);
/* Frees memory of pst_load_alloc; NULL is ignored. */
void pst_load_free(const struct penstock_load_opts *opts, struct penstock_device *dev, void *ptr,
		   size_t len);

/* Sets up a request with the class, effort and path of the options. */
void pst_load_request(const struct pst_load *load, struct penstock_req *req);
/* Submits one request for extents of one file. `user` and `id` are those of penstock_submit. */
int pst_load_submit(const struct pst_load *load, struct penstock_queue *q,
		    const struct pst_extent *extents, size_t count, void *user, uint64_t *id);
/* Adds the report of one completed request to the load's. */
void pst_load_add_report(struct pst_load *load, int64_t result, const struct penstock_report *r);
/* Handles the completion of a request for `extents`: adds its report and calls opts.each. The
 * first error becomes load->failed and this thread's message. */
void pst_load_complete(struct pst_load *load, const struct pst_extent *extents, size_t count,
		       const struct penstock_done *done);

/* Calls opts.look if 100 ms have passed since the last call. Returns load->failed, which becomes
 * -ECANCELED if the caller cancels. */
int pst_load_poll_caller(struct pst_load *load);
/* Returns how long a wait for completions may last before pst_load_poll_caller is due; -1: no
 * limit. */
int64_t pst_load_wait_ns(const struct pst_load *load);

/* Fails with -ESTALE if a file of the extents changed since its header was read. May block. */
int pst_load_check_files(struct pst_load *load, const struct pst_extents *extents);
/* Sorts the extents, reads all of them and waits. Nothing is in flight when it returns. */
int pst_load_move(struct pst_load *load, struct pst_extents *extents);

/* Copies the load's report into the caller's struct. */
void pst_load_report(const struct pst_load *load, struct penstock_load_report *out);

#endif
