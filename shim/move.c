/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ways of moving bytes share: the checks in front, the hold on the file,
 * the core's request, and the line in the log when a file is first used. Called by
 * sync.c, batch.c and async.c. Success allocates nothing, takes no lock and logs
 * nothing but that first line.
 */
#include <stdio.h>
#include <string.h>

#include "shim.h"

int shim_move_begin(struct shim_move *m, void *fh, const void *base, size_t len, off_t file_off,
		    off_t base_off, enum penstock_op op)
{
	off_t end;
	void *addr = NULL;
	int code = 0;

	m->file = shim_file_enter(fh);
	if (!m->file) {
		/* The call opens the driver all the same, as the original's does. */
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
	m->req = (struct penstock_req)PENSTOCK_REQ_INIT;
	m->req.storage = m->file->st;
	m->req.segs = &m->seg;
	m->req.seg_count = 1;
	m->req.op = op;
	m->req.flags = PENSTOCK_R_UNSURE; /* a pointer that no GPU knows any more is one */
	m->req.effort = PENSTOCK_FAST;
	m->req.require = atomic_load_explicit(&shim.require, memory_order_relaxed);
	return 0;
}

void shim_move_end(struct shim_move *m)
{
	if (m->file)
		shim_file_leave(m->file);
}

static const char *name_of(const struct shim_move *m)
{
	return m->file->name ? m->file->name : "file";
}

void shim_say_failed(const struct shim_move *m, const char *how, int code, const char *text)
{
	const char *what = m->req.op == PENSTOCK_READ ? "read" : "write";

	if (code == CUF_IO_NOT_SUPPORTED)
		shim_log_refused("%s: %s%s is refused: %s", name_of(m), how, what, text);
	else
		shim_log(SHIM_ERROR, "%s: %s%s failed: %s", name_of(m), how, what, text);
}

/* Why the most direct path that did not carry it all was not taken: the first row
 * that has a say for this kind of device. */
static const char *reason(const struct penstock_report *report)
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

#define NAMED_MAX 16u
#define SAID_MAX 64u

/* Whether it is new in the list; what has no room is not. Any thread. */
static bool is_new(_Atomic uint64_t *list, unsigned max, uint64_t hash)
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

/* On stderr, which a person reads, the first few files are said by name and then only
 * what is another path or reason than before; a log file gets every one. */
static bool worth_saying(const char *name, const char *path, const char *why)
{
	static _Atomic uint64_t kinds[SAID_MAX], named[NAMED_MAX];
	uint64_t kind = shim_hash(shim_hash(SHIM_HASH, path), why ? why : "");
	bool of_file, of_kind;

	if (shim_log_to_file())
		return true;
	of_file = is_new(named, NAMED_MAX, shim_hash(kind, name)); /* each is remembered */
	of_kind = is_new(kinds, SAID_MAX, kind);
	return of_file || of_kind;
}

void shim_first_use(const struct shim_move *m, const struct penstock_report *report)
{
	unsigned bit = 1u << m->req.op;
	const char *why;

	if (!report->bytes ||
	    atomic_fetch_or_explicit(&m->file->said, bit, memory_order_relaxed) & bit)
		return;
	why = reason(report);
	if (!worth_saying(name_of(m), report->path, why))
		return;
	shim_log(SHIM_NOTICE, "%s: %s %s by path %s, engine %s%s%s", name_of(m),
		 m->req.op == PENSTOCK_READ ? "read into" : "written from",
		 penstock_device_name(m->seg.dev), report->path, report->engine,
		 why ? "; no more direct one: " : "", why ? why : "");
}
