/* SPDX-License-Identifier: Apache-2.0 */
/* One transfer, from the arguments of a cuFile call to a request of the library. */
#ifndef SHIM_MOVE_H
#define SHIM_MOVE_H

#include "handle.h"
#include "penstock.h"

struct shim_move {
	struct shim_file *file; /* held */
	struct penstock_seg seg;
	struct penstock_req req;
};
/* Checks the arguments, holds the file and fills the request. Returns a code if the handle, the
 * range or the memory is wrong; then the file is not held. */
int shim_move_begin(struct shim_move *m, void *fh, const void *base, size_t len, off_t file_off,
		    off_t base_off, enum penstock_op op);
/* Releases the file. */
void shim_move_end(struct shim_move *m);
/* Fills the request of m->file for `count` segments, which must outlive it. */
void shim_move_request(struct shim_move *m, const struct penstock_seg *segs, unsigned count,
		       enum penstock_op op);
/* Logs that a transfer failed, with the reason. `how` is "", "a batch's " or "a stream's ". */
void shim_log_failed(const struct shim_move *m, const char *how, int code, const char *text);
/* Logs path and reason of a file's first read and first write. */
void shim_log_first_use(const struct shim_move *m, const struct penstock_report *report);
/* Whether the file was never read, or never written, before this transfer. */
static inline bool shim_is_first(const struct shim_move *m)
{
	return !(atomic_load_explicit(&m->file->logged, memory_order_relaxed) & (1u << m->req.op));
}

#endif
