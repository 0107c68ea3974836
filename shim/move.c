/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does the work that all transfers share: checks the arguments, keeps the file from being closed,
 * fills the library's request, and logs the first use of a file. sync.c, batch.c and async.c call
 * it. A transfer that succeeds must never allocate, take a lock or log, except that it logs the
 * first use of a file.
 */
#include "move.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "buffer.h"
#include "log.h"
#include "open.h"
#include "state.h"

void shim_move_request(struct shim_move *m, const struct penstock_seg *segs, unsigned count,
		       enum penstock_op op)
{
	m->req = (struct penstock_req)PENSTOCK_REQ_INIT;
	m->req.storage = m->file->st;
	m->req.segs = segs;
	m->req.seg_count = count;
	m->req.op = op;
	/* With this flag, the library checks that an address of host memory is valid before it
	 * accesses the memory. An address for which no GPU was found may be GPU memory that was
	 * freed. */
	m->req.flags = PENSTOCK_R_UNSURE;
	m->req.effort = atomic_load_explicit(&shim.effort, memory_order_relaxed);
	m->req.require = atomic_load_explicit(&shim.require, memory_order_relaxed);
}

int shim_move_begin(struct shim_move *m, void *fh, const void *base, size_t len, off_t file_off,
		    off_t base_off, enum penstock_op op)
{
	off_t end;
	void *addr = NULL;
	int code = 0;

	m->file = shim_file_enter(fh);
	if (!m->file) {
		/* A call with a wrong handle opens the driver, too, as in NVIDIA's library. */
		code = shim_need();
		return code ? code : CUF_HANDLE_NOT_REGISTERED;
	}
	memset(&m->seg, 0, sizeof(m->seg));
	if (len > SSIZE_MAX || file_off < 0 || __builtin_add_overflow(file_off, len, &end))
		code = CUF_INVALID_VALUE;
	if (!code)
		code = shim_resolve(base, base_off, len, &addr, &m->seg.dev);
	if (code) {
		shim_file_leave(m->file);
		m->file = NULL;
		return code;
	}
	m->seg.buf = addr;
	m->seg.off = (uint64_t)file_off;
	m->seg.row_len = len;
	m->seg.rows = 1;
	shim_move_request(m, &m->seg, 1, op);
	return 0;
}

void shim_move_end(struct shim_move *m)
{
	if (m->file)
		shim_file_leave(m->file);
}

static const char *file_name(const struct shim_move *m)
{
	return m->file->name ? m->file->name : "file";
}

void shim_log_failed(const struct shim_move *m, const char *how, int code, const char *text)
{
	const char *what = m->req.op == PENSTOCK_READ ? "read" : "write";

	if (code == CUF_IO_NOT_SUPPORTED)
		shim_log_refused("%s: %s%s is refused: %s", file_name(m), how, what, text);
	else
		shim_log(SHIM_ERROR, "%s: %s%s failed: %s", file_name(m), how, what, text);
}

/* Returns the reason why the transfer did not use the most direct path, or NULL if it did. Paths
 * that do not support this kind of device or this direction do not count. */
static const char *fallback_reason(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++) {
		const struct penstock_report_path *row = &report->paths[i];

		if (!strcmp(row->name, report->path))
			break;
		if (row->why != PENSTOCK_WHY_NONE && row->why != PENSTOCK_WHY_HOST_ONLY &&
		    row->why != PENSTOCK_WHY_DEVICE_ONLY && row->why != PENSTOCK_WHY_NOT_READ &&
		    row->why != PENSTOCK_WHY_NOT_WRITE)
			return row->text;
	}
	return NULL;
}

#define NAMES_MAX 16u
#define KINDS_MAX 64u

/* Adds a hash to a list. Returns false if the list already contains the hash or is full. Any
 * thread may call this function. */
static bool hash_add(_Atomic uint64_t *list, unsigned max, uint64_t hash)
{
	for (unsigned i = 0; i < max; i++) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&list[i], &none, hash))
			return true;
		if (none == hash)
			return false;
	}
	return false;
}

/* Returns whether to log the first use of a file. In a log file, every file gets a line. On
 * stderr, which a person reads, a line is logged only for the first NAMES_MAX files, and for
 * each path or reason that has not been logged before. */
static bool first_use_logged(const char *name, const char *path, const char *why)
{
	static _Atomic uint64_t kinds[KINDS_MAX], names[NAMES_MAX];
	uint64_t kind = shim_hash(shim_hash(SHIM_HASH, path), why ? why : "");
	bool new_name, new_kind;

	if (shim_log_to_file())
		return true;
	new_name = hash_add(names, NAMES_MAX, shim_hash(kind, name));
	/* also adds the kind of the first use (its path and reason), even if the name is new */
	new_kind = hash_add(kinds, KINDS_MAX, kind);
	return new_name || new_kind;
}

void shim_log_first_use(const struct shim_move *m, const struct penstock_report *report)
{
	unsigned bit = 1u << m->req.op;
	const char *why;

	if (!report->bytes ||
	    atomic_fetch_or_explicit(&m->file->logged, bit, memory_order_relaxed) & bit)
		return;
	why = fallback_reason(report);
	if (!first_use_logged(file_name(m), report->path, why))
		return;
	shim_log(SHIM_NOTICE, "%s: %s %s by path %s, engine %s%s%s", file_name(m),
		 m->req.op == PENSTOCK_READ ? "read into" : "written from",
		 penstock_device_name(m->seg.dev), report->path, report->engine,
		 why ? "; no more direct one: " : "", why ? why : "");
}
