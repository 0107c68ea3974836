/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one pass of `penstock gdsio` over its files. Each thread makes the transfers of its flow,
 * which is a range of a file with a buffer. With -x 6 and 7 a thread submits the next transfers of
 * several flows as a batch. The latency covers only the transfers. The time of the pass also
 * includes filling and comparing buffers. Called by gdsio.c. It must never print.
 */
#include "gdsio_run.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdsio_data.h"
#include "stop.h"
#include "thread.h"

/* CU_STREAM_PER_THREAD: the value by which CUDA names the calling thread's default stream */
#define PER_THREAD ((void *)2)
#define PAGE 4096u

/* ---- buffers and offsets ---- */

/* Fills the buffer of a flow (the transfers of one thread or batch entry). If `random` is true,
 * writes random bytes, for writes without -V. Otherwise writes a constant, which a later read must
 * overwrite. */
static int flow_fill(struct gdsio_run *r, struct flow *f, bool random, size_t len, char *error)
{
	uint64_t state = f->state, value;

	if (!random)
		memset(f->host, 0x5a, len);
	for (size_t at = 0; random && at < len; at += sizeof(value)) {
		value = gdsio_random(&state);
		memcpy(f->host + at, &value, len - at < 8 ? len - at : 8);
	}
	f->state = state;
	return gdsio_copy(r, f, true, len, error);
}

/* Sets the file offset and the length of the next transfer of `f`, a sequence of transfers. Returns
 * false if `f` has no more transfers. */
static bool flow_next(const struct gdsio_run *r, struct flow *f)
{
	const struct gdsio_args *a = r->a;
	bool once = !r->until || (r->replay && !a->random);
	uint64_t unit, choices; /* every offset is a multiple of `unit` */

	if (atomic_load(&r->failed) || stop_signal || f->ops == f->ops_max ||
	    (once && f->moved >= f->len && !(r->replay && a->random)) ||
	    (!once && !r->replay && seconds() >= r->until))
		return false;
	f->n = f->io;
	f->io = f->io + a->io_step > a->io_max || !a->io_step ? a->io_min : f->io + a->io_step;
	if (a->random) {
		unit = a->unaligned ? 1 : a->io_min == a->io_max ? f->n : PAGE;
		choices = (f->len - f->n) / unit + 1;
		f->off = f->from + (gdsio_random(&f->state) >> 11) % choices * unit;
	} else {
		if (f->pos == f->len)
			f->pos = 0;
		if (f->n > f->len - f->pos)
			f->n = f->len - f->pos;
		f->off = f->from + f->pos;
		f->pos += f->n;
	}
	f->moved += f->n;
	f->ops++;
	return true;
}

/* Puts the bytes of the next write into the flow's buffer. */
static int transfer_prepare(struct worker *w, struct flow *f)
{
	const struct gdsio_args *a = w->r->a;

	if (!w->r->write)
		return 0;
	if (a->verify) {
		gdsio_pattern(f->host, f->n, f->off, a->seed);
		return gdsio_copy(w->r, f, true, f->n, w->result.error);
	}
	/* The random bytes of -F come from a random generator of their own. So a seed (-k) leads
	 * to the same offsets with and without -F. */
	if (a->refill) {
		uint64_t state = f->state;
		int ret;

		f->state = gdsio_splitmix64(f->off ^ f->ops) | 1;
		ret = flow_fill(w->r, f, true, f->n, w->result.error);
		f->state = state;
		return ret;
	}
	return 0;
}

/* Adds a completed transfer to the result. With -V, also compares the bytes that it read. */
static int transfer_finish(struct worker *w, struct flow *f, double us)
{
	const struct gdsio_args *a = w->r->a;
	size_t at;

	w->result.ops++;
	w->result.bytes += f->n;
	w->result.latency_us += us;
	if (w->r->write || !a->verify)
		return 0;
	if (f->mem && f->mem != f->host)
		memset(f->host, 0, f->n);
	if (gdsio_copy(w->r, f, false, f->n, w->result.error))
		return EXIT_FAILED;
	at = gdsio_differs(f->host, f->n, f->off, a->seed);
	if (at == f->n)
		return 0;
	return gdsio_fail(w->result.error,
			  "verify: %s differs at byte %llu from the bytes that -V writes with the "
			  "seed %llu",
			  f->file->name, (unsigned long long)(f->off + at),
			  (unsigned long long)a->seed);
}

/* ---- transfers ---- */

static void request_set(const struct worker *w, struct flow *f, struct penstock_seg *seg,
			struct penstock_req *req)
{
	*seg = (struct penstock_seg){
		.buf = f->mem, .dev = f->dev, .off = f->off, .row_len = f->n, .rows = 1};
	*req = (struct penstock_req)PENSTOCK_REQ_INIT;
	req->storage = f->file->st;
	req->segs = seg;
	req->seg_count = 1;
	req->op = w->r->write ? PENSTOCK_WRITE : PENSTOCK_READ;
	req->effort = PENSTOCK_FAST;
	req->flags = PENSTOCK_R_EXACT;
	req->path = w->r->a->cached ? "bounce" : w->r->a->xfer == GDSIO_STAGED ? "staged" : NULL;
	req->user = f;
	if (gdsio_is_ordered(w->r->a))
		req->stream = PER_THREAD;
}

/* Makes the flow's current transfer with pread(2) or pwrite(2), and with a copy from or to the
 * device. */
static int transfer_plain(struct worker *w, struct flow *f)
{
	bool write = w->r->write;
	ssize_t n;

	if (write && gdsio_copy(w->r, f, false, f->n, w->result.error))
		return EXIT_FAILED;
	for (size_t done = 0; done < f->n; done += (size_t)n) {
		off_t off = (off_t)(f->off + done);

		n = write ? pwrite(f->file->fd, f->host + done, f->n - done, off)
			  : pread(f->file->fd, f->host + done, f->n - done, off);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n <= 0)
			return gdsio_fail(
				w->result.error, "%s at byte %lld: %s%s", f->file->name,
				(long long)off, n ? strerror(errno) : "the file became shorter",
				n && errno == EINVAL && !gdsio_is_cached(w->r->a)
					? ": O_DIRECT needs whole blocks, use -O 1 for other sizes"
				: n ? advice_errno(errno)
				    : "");
	}
	return write ? 0 : gdsio_copy(w->r, f, true, f->n, w->result.error);
}

static int transfer_one(struct worker *w, struct flow *f)
{
	struct penstock_report report = {.size = sizeof(report)};
	struct penstock_seg seg;
	struct penstock_req req;
	double begun = seconds();

	if (gdsio_is_plain(w->r->a)) {
		if (transfer_plain(w, f))
			return EXIT_FAILED;
		return transfer_finish(w, f, (seconds() - begun) * 1e6);
	}
	request_set(w, f, &seg, &req);
	if (penstock_transfer(&req, &report) < 0)
		return gdsio_fail(w->result.error, "%s: %s%s", f->file->name, penstock_errmsg(),
				  advice(penstock_errwhy()));
	begun = (seconds() - begun) * 1e6;
	tally_add(&w->result.tally, &report);
	return transfer_finish(w, f, begun);
}

/* Submits one transfer of each flow as a batch, and waits until all have completed. The latency
 * of the batch counts as the latency of each of its transfers. */
static int transfer_batch(struct worker *w, struct flow **flows, unsigned count,
			  struct penstock_req *reqs, struct penstock_seg *segs,
			  struct penstock_done *done)
{
	double begun = seconds();
	int taken, got = 0, ret = 0;

	for (unsigned i = 0; i < count; i++)
		request_set(w, flows[i], &segs[i], &reqs[i]);
	taken = penstock_submit(w->q, reqs, count, NULL);
	if (taken < (int)count)
		ret = gdsio_fail_lib(w->result.error);
	while (got < taken) {
		int n = penstock_wait(w->q, done, (unsigned)(taken - got), count, -1);

		if (n <= 0)
			return gdsio_fail_lib(w->result.error);
		for (int i = 0; i < n; i++) {
			tally_add(&w->result.tally, done[i].report);
			if (done[i].result < 0 && !ret)
				ret = gdsio_fail(w->result.error, "%s: %s",
						 ((struct flow *)done[i].user)->file->name,
						 done[i].report->text);
		}
		got += n;
	}
	begun = (seconds() - begun) * 1e6;
	for (unsigned i = 0; !ret && i < count; i++)
		ret = transfer_finish(w, flows[i], begun);
	return ret;
}

static int worker_run_batches(struct worker *w)
{
	struct flow **flows = calloc(w->count, sizeof(struct flow *));
	struct penstock_req *reqs = calloc(w->count, sizeof(*reqs));
	struct penstock_seg *segs = calloc(w->count, sizeof(*segs));
	struct penstock_done *done = calloc(w->count, sizeof(*done));
	unsigned count = 1;
	int ret = flows && reqs && segs && done ? 0 : gdsio_fail(w->result.error, "out of memory");

	while (!ret && count) {
		count = 0;
		for (unsigned i = 0; !ret && i < w->count; i++) {
			if (!flow_next(w->r, &w->flows[i]))
				continue;
			flows[count++] = &w->flows[i];
			ret = transfer_prepare(w, &w->flows[i]);
		}
		if (!ret && count)
			ret = transfer_batch(w, flows, count, reqs, segs, done);
	}
	free(flows);
	free(reqs);
	free(segs);
	free(done);
	return ret;
}

/* ---- the pass ---- */

/* Binds the calling thread to the CPUs of a NUMA node. */
static int thread_bind(int node, char *error)
{
	char path[96], text[512] = "";
	cpu_set_t cpus;
	unsigned first, last;
	int fd, used;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	if (fd < 0 && !node && access("/sys/devices/system/node", F_OK))
		/* A kernel without NUMA support cannot bind threads, but it has only node 0. */
		return 0;
	CPU_ZERO(&cpus);
	for (const char *at = text; sscanf(at, "%u%n", &first, &used) == 1; at += *at == ',') {
		at += used;
		last = first;
		if (*at == '-' && sscanf(at, "-%u%n", &last, &used) == 1)
			at += used;
		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET(first, &cpus);
	}
	if (!CPU_COUNT(&cpus))
		return gdsio_fail(
			error, "-n %d: there is no such node, or it has no CPU; see lscpu", node);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		return gdsio_fail(error, "-n %d: %s", node, strerror(errno));
	return 0;
}

static void *worker_thread(void *arg)
{
	struct worker *w = arg;
	struct flow *f = w->flows;

	if (w->job->node >= 0)
		w->code = thread_bind(w->job->node, w->result.error);
	if (w->q && !w->code)
		w->code = worker_run_batches(w);
	while (!w->q && !w->code && flow_next(w->r, f)) {
		w->code = transfer_prepare(w, f);
		if (!w->code)
			w->code = transfer_one(w, f);
	}
	if (w->code)
		atomic_store(&w->r->failed, true);
	return NULL;
}

/* Resets every flow before a new pass. */
static int flows_reset(struct gdsio_run *r, char *error)
{
	for (unsigned i = 0; i < r->flow_count; i++) {
		struct flow *f = &r->flows[i];

		f->state = gdsio_splitmix64(r->a->seed + i) | 1;
		if (flow_fill(r, f, r->a->fill && r->write, (size_t)r->a->io_max, error))
			return EXIT_FAILED;
		f->state = gdsio_splitmix64(r->a->seed + i) | 1;
		f->ops_max = r->replay ? f->ops : UINT64_MAX;
		f->ops = f->pos = f->moved = 0;
		f->io = r->a->io_min;
	}
	return 0;
}

int gdsio_pass(struct gdsio_run *r, bool write, bool replay, struct gdsio_result *out)
{
	unsigned made = 0;
	double begun;
	int ret;

	memset(out, 0, sizeof(*out));
	r->write = write;
	r->replay = replay;
	atomic_store(&r->failed, false);
	if (flows_reset(r, out->error))
		return EXIT_FAILED;
	begun = seconds();
	r->until = r->a->runtime_s ? begun + r->a->runtime_s : 0;
	for (; made < r->worker_count; made++) {
		memset(&r->workers[made].result, 0, sizeof(r->workers[made].result));
		r->workers[made].code = 0;
		if (pst_thread_start(&r->workers[made].thread, worker_thread, &r->workers[made]))
			break;
	}
	ret = made < r->worker_count
		      ? gdsio_fail(out->error, "no more threads can be started: use a smaller -w")
		      : 0;
	for (unsigned i = 0; i < made; i++) {
		struct worker *w = &r->workers[i];

		pthread_join(w->thread, NULL);
		out->ops += w->result.ops;
		out->bytes += w->result.bytes;
		out->latency_us += w->result.latency_us;
		tally_merge(&out->tally, &w->result.tally);
		if (w->code && !ret)
			ret = gdsio_fail(out->error, "%s", w->result.error);
	}
	if (stop_signal && !ret)
		ret = stop_text(out->error, sizeof(out->error));
	out->seconds = seconds() - begun;
	for (unsigned i = 0; i < r->flow_count; i++)
		out->size += r->flows[i].len;
	return ret;
}
