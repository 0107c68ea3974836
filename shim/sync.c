/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuFileRead, cuFileWrite and their vector forms. Each call is one penstock_transfer on the
 * caller's thread. It requests a report only for the first use of a file and for statistics of
 * level 3. A call must never return before all of its bytes have arrived.
 */
#include "sync.h"

#include <limits.h>
#include <stdlib.h>

#include "buffer.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "move.h"
#include "open.h"
#include "stats.h"

#define IOV_FEW 64u
#define IOV_MOST 1024u

static ssize_t code_result(int code)
{
	return -(ssize_t)code;
}

static ssize_t move_run(struct shim_move *m, size_t len, bool vector)
{
	/* `report` is not initialised, because clearing its 1 KiB would take time. Only report.size
	 * is set below. */
	struct penstock_report report;
	bool first = shim_is_first(m);
	struct shim_timer timer = shim_timer_start();
	bool want_report = first || timer.level >= 3;
	enum penstock_op op = m->req.op;
	enum penstock_why why = PENSTOCK_WHY_NONE;
	int64_t ret;

	report.size = sizeof(report);
	ret = penstock_transfer(&m->req, want_report ? &report : NULL);
	if (ret < 0)
		why = penstock_errwhy();
	if (timer.level)
		shim_count_io(timer.level, shim_timer_us(&timer), op, vector, ret, m->req.segs,
			      m->req.seg_count, len, want_report ? &report : NULL);
	if (ret < 0)
		shim_log_failed(m, "", shim_code(ret, why), penstock_errmsg());
	else if (first)
		shim_log_first_use(m, &report);
	return shim_result(ret, why);
}

ssize_t shim_move_sync(void *fh, const void *base, size_t len, off_t file_off, off_t base_off,
		       enum penstock_op op)
{
	struct shim_move m;
	int code = shim_move_begin(&m, fh, base, len, file_off, base_off, op);
	ssize_t ret;

	if (code) {
		shim_count_io_refused(op, false);
		return code_result(code);
	}
	ret = move_run(&m, len, false);
	shim_move_end(&m);
	return ret;
}

ssize_t cuFileRead(void *fh, void *base, size_t len, off_t file_off, off_t base_off)
{
	return shim_move_sync(fh, base, len, file_off, base_off, PENSTOCK_READ);
}

ssize_t cuFileWrite(void *fh, const void *base, size_t len, off_t file_off, off_t base_off)
{
	return shim_move_sync(fh, base, len, file_off, base_off, PENSTOCK_WRITE);
}

/* ---- vectors ---- */

/* Makes one segment from each element of the vector that is not empty. The segments are adjacent
 * in the file. */
static int segs_fill(struct penstock_seg *segs, const struct cuf_iovec *iov, size_t count,
		     off_t file_off, unsigned *used, size_t *total)
{
	size_t sum = 0;

	*used = 0;
	for (size_t i = 0; i < count; i++) {
		struct penstock_seg *seg = &segs[*used];
		off_t end;
		int code;

		if (!iov[i].len)
			continue;
		*seg = (struct penstock_seg){
			.off = (uint64_t)file_off + sum, .row_len = iov[i].len, .rows = 1};
		if (__builtin_add_overflow(sum, iov[i].len, &sum) || sum > SSIZE_MAX ||
		    __builtin_add_overflow(file_off, sum, &end))
			return CUF_INVALID_VALUE;
		code = shim_resolve(iov[i].base, 0, iov[i].len, &seg->buf, &seg->dev);
		if (code)
			return code;
		++*used;
	}
	*total = sum;
	return 0;
}

static ssize_t move_segs(struct shim_file *f, struct penstock_seg *segs,
			 const struct cuf_iovec *iov, size_t count, off_t file_off,
			 enum penstock_op op)
{
	struct shim_move m = {.file = f};
	unsigned used;
	size_t total;
	int code = segs_fill(segs, iov, count, file_off, &used, &total);

	if (code) {
		shim_count_io_refused(op, true);
		return code_result(code);
	}
	if (!used)
		return 0;
	m.seg = segs[0];
	shim_move_request(&m, segs, used, op);
	return move_run(&m, total, true);
}

static ssize_t move_vector(void *fh, const struct cuf_iovec *iov, size_t count, off_t file_off,
			   unsigned flags, enum penstock_op op)
{
	struct penstock_seg few[IOV_FEW], *segs = few;
	struct shim_file *f = shim_file_enter(fh);
	ssize_t ret;
	int code;

	if (!f) {
		code = shim_need();
		shim_count_io_refused(op, true);
		return code_result(code ? code : CUF_HANDLE_NOT_REGISTERED);
	}
	code = 0;
	if ((!iov && count) || file_off < 0 || flags || count > IOV_MOST)
		code = CUF_INVALID_VALUE;
	else if (count > IOV_FEW && !(segs = malloc(count * sizeof(*segs))))
		code = CUF_NOMEM_ERROR;
	if (code)
		shim_count_io_refused(op, true);
	ret = code ? code_result(code) : move_segs(f, segs, iov, count, file_off, op);
	if (segs != few)
		free(segs);
	shim_file_leave(f);
	return ret;
}

ssize_t cuFileReadv(void *fh, const struct cuf_iovec *iov, size_t count, off_t file_off,
		    unsigned flags)
{
	return move_vector(fh, iov, count, file_off, flags, PENSTOCK_READ);
}

ssize_t cuFileWritev(void *fh, const struct cuf_iovec *iov, size_t count, off_t file_off,
		     unsigned flags)
{
	return move_vector(fh, iov, count, file_off, flags, PENSTOCK_WRITE);
}
