/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures one bulk request through penstock.h: the time from opening the file until the bytes
 * have arrived, and the CPU time until the process is idle again. Fills the device memory with a
 * pattern before each request, and compares it with the drive afterwards. bulk.c and tune.c call
 * this file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static int request_move(struct bench *b, struct penstock_storage *st, enum penstock_op op,
			const struct transfer *t, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = b->gpu, .dev = b->dev, .off = t->off, .row_len = t->len};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	int64_t got;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = op;
	req.effort = t->effort;
	req.path = t->path;
	report->size = sizeof(*report);
	got = penstock_transfer(&req, report);
	if (got == (int64_t)t->len)
		return 0;
	bench_bad(b, "%lld of %llu bytes: %s", (long long)got, (unsigned long long)t->len,
		  got < 0 ? penstock_errmsg() : report->text);
	return got < 0 ? (int)got : -EIO;
}

/* Writes into the sample's note the values of the report that have no column in the CSV. */
static void report_note(struct sample *s, const struct penstock_report *r, double tidy)
{
	size_t at = 0;

	snprintf(s->path, sizeof(s->path), "%s", r->path ? r->path : "");
	snprintf(s->engine, sizeof(s->engine), "%s", r->engine ? r->engine : "");
	at += (size_t)snprintf(s->note, sizeof(s->note), "copies %.2f dram %.2f chunks %llu",
			       (double)r->cpu_copied / (double)r->bytes,
			       (double)r->dram_laid / (double)r->bytes,
			       (unsigned long long)r->chunks);
	if (tidy > 0.001)
		at += (size_t)snprintf(s->note + at, sizeof(s->note) - at, " tidy %.3f s", tidy);
	for (unsigned i = 0; i < r->path_count && at + 40 < sizeof(s->note); i++)
		if (r->paths[i].bytes)
			at += (size_t)snprintf(s->note + at, sizeof(s->note) - at, " %s %llu",
					       r->paths[i].name,
					       (unsigned long long)r->paths[i].bytes);
	if (r->retries)
		snprintf(s->note + at, sizeof(s->note) - at, " retries %llu",
			 (unsigned long long)r->retries);
}

static int storage_open(struct bench *b, const struct penstock_storage_opts *opts, const char *path,
			struct penstock_storage **st)
{
	int ret = penstock_open(path, opts, st);

	if (ret < 0)
		bench_bad(b, "%s", penstock_errmsg());
	return ret;
}

int transfer_read(struct bench *b, const struct transfer *t, struct sample *s)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	/* The report is static, because it is too large for the stack. */
	static struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st = NULL;
	bool opened_before = t->opened || t->again;
	struct meter m;
	double tidy;
	int ret = 0;

	memset(s, 0, sizeof(*s));
	s->bytes = t->len;
	opts.flags = t->flags;
	if (opened_before)
		ret = storage_open(b, &opts, b->file, &st);
	if (opened_before && ret >= 0)
		ret = penstock_prepare(st, b->dev, PENSTOCK_READ);
	if (t->again && ret >= 0)
		ret = request_move(b, st, PENSTOCK_READ, t, &report);
	gpu_poison(b, t->len);
	meter_start(&m);
	if (!opened_before)
		ret = storage_open(b, &opts, b->file, &st);
	if (ret >= 0)
		ret = request_move(b, st, PENSTOCK_READ, t, &report);
	meter_stop(&m, s);
	if (ret < 0) {
		penstock_close(st);
		return ret;
	}
	/* The measurement includes penstock_close, because it unregisters the memory that the
	 * request registered, which uses CPU time. */
	if (!t->again)
		penstock_close(st);
	tidy = meter_settle(&m, s);
	if (t->again)
		penstock_close(st);
	report_note(s, &report, tidy);
	return gpu_same(b, b->file, t->off, t->len) ? 0 : -EIO;
}

int transfer_save(struct bench *b, const char *path, uint64_t len, struct sample *s)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct transfer t = {.len = len};
	static struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st = NULL;
	struct meter m;
	double tidy;
	int ret;

	memset(s, 0, sizeof(*s));
	s->bytes = len;
	opts.flags = PENSTOCK_O_CREATE;
	opts.length = len;
	unlink(path);
	meter_start(&m);
	ret = storage_open(b, &opts, path, &st);
	if (ret >= 0)
		ret = request_move(b, st, PENSTOCK_WRITE, &t, &report);
	if (ret >= 0)
		ret = penstock_commit(st, 1);
	meter_stop(&m, s);
	penstock_close(st);
	tidy = meter_settle(&m, s);
	if (ret >= 0) {
		report_note(s, &report, tidy);
		ret = gpu_same(b, path, 0, len) ? 0 : -EIO;
	} else {
		bench_bad(b, "saving: %s", penstock_errmsg());
	}
	unlink(path);
	return ret;
}
