/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the arguments of a cuFile call to a request to the library (struct penstock_req). */
#ifndef SHIM_MOVE_H
#define SHIM_MOVE_H

#include "handle.h"
#include "penstock.h"

struct shim_move {
	struct shim_file *file; /* held */
	struct penstock_seg seg;
	struct penstock_req req;
};
/* Checks the arguments, keeps the file open until shim_move_end, and fills the request. If the
 * handle, the range or the memory is wrong, returns a cuFile code and does not keep the file
 * open. */
int shim_move_begin(struct shim_move *m, void *fh, const void *base, size_t len, off_t file_off,
		    off_t base_off, enum penstock_op op);
/* Releases the file, so that it may be closed. */
void shim_move_end(struct shim_move *m);
/* Fills the request for a transfer of m->file. The `count` segments must outlive the request. */
void shim_move_request(struct shim_move *m, const struct penstock_seg *segs, unsigned count,
		       enum penstock_op op);
/* Logs that a transfer failed. `code` and `text` are the reason. `how` names the kind of call:
 * "", "a batch's " or "a stream's ". */
void shim_log_failed(const struct shim_move *m, const char *how, int code, const char *text);
/* Logs the path that a file's first read or first write used, and why no path that is more direct
 * was used. Logs nothing for later transfers. */
void shim_log_first_use(const struct shim_move *m, const struct penstock_report *report);
/* Returns whether this is the first transfer of the file in this direction (read or write). */
static inline bool shim_is_first(const struct shim_move *m)
{
	return !(atomic_load_explicit(&m->file->logged, memory_order_relaxed) & (1u << m->req.op));
}

#endif
