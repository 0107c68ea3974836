/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run of `penstock gdsio`: threads that move what comes next in their flow; with
 * -x 6 one thread drives all flows of a job in batches. Latency is that of the
 * transfers alone; filling and comparing buffers counts in the time of the pass only.
 * Never prints.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdsio_flow.h"
#include "thread.h"

#define PER_THREAD ((void *)2) /* the calling thread's default stream */
#define PAGE 4096u

/* ---- what comes next ---- */

/* What a write without -V carries, and what a read must replace. */
static int fill(struct gdsio_run *r, struct flow *f, bool random, size_t len, char *error)
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

static bool next(const struct gdsio_run *r, struct flow *f)
{
	const struct gdsio_args *a = r->a;
	bool once = !r->until || (r->replay && !a->random);
	uint64_t grain, left;

	if (atomic_load(&r->failed) || stopped || f->ops == f->ops_max ||
	    (once && f->moved >= f->len && !(r->replay && a->random)) ||
	    (!once && !r->replay && seconds() >= r->until))
		return false;
	f->n = f->io;
	f->io = f->io + a->io_step > a->io_max || !a->io_step ? a->io_min : f->io + a->io_step;
	if (a->random) {
		grain = a->unaligned ? 1 : a->io_min == a->io_max ? f->n : PAGE;
		left = (f->len - f->n) / grain + 1;
		f->off = f->from + (gdsio_random(&f->state) >> 11) % left * grain;
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

static int before(struct worker *w, struct flow *f)
{
	const struct gdsio_args *a = w->r->a;

	if (!w->r->write)
		return 0;
	if (a->verify) {
		gdsio_pattern(f->host, f->n, f->off, a->seed);
		return gdsio_copy(w->r, f, true, f->n, w->result.error);
	}
	/* Its own sequence would depend on -F, and -k promises the same offsets. */
	if (a->refill) {
		uint64_t state = f->state;
		int ret;

		f->state = gdsio_mix(f->off ^ f->ops) | 1;
		ret = fill(w->r, f, true, f->n, w->result.error);
		f->state = state;
		return ret;
	}
	return 0;
}

static int after(struct worker *w, struct flow *f, double us)
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
	return gdsio_say(w->result.error,
			 "verify: %s differs at byte %llu from what -V writes with the seed %llu",
			 f->place->name, (unsigned long long)(f->off + at),
			 (unsigned long long)a->seed);
}

/* ---- transfers ---- */

static void make_req(const struct worker *w, struct flow *f, struct penstock_seg *seg,
		     struct penstock_req *req)
{
	*seg = (struct penstock_seg){
		.buf = f->mem, .dev = f->dev, .off = f->off, .row_len = f->n, .rows = 1};
	*req = (struct penstock_req)PENSTOCK_REQ_INIT;
	req->storage = f->place->st;
	req->segs = seg;
	req->seg_count = 1;
	req->op = w->r->write ? PENSTOCK_WRITE : PENSTOCK_READ;
	req->effort = PENSTOCK_FAST;
	req->flags = PENSTOCK_R_EXACT;
	req->path = w->r->a->cached ? "bounce" : NULL;
	req->user = f;
	if (w->r->a->xfer == GDSIO_ASYNC)
		req->stream = PER_THREAD;
}

/* With pread and pwrite, as a program does it that has no better way. */
static int move_plain(struct worker *w, struct flow *f)
{
	bool write = w->r->write;
	ssize_t n;

	if (write && gdsio_copy(w->r, f, false, f->n, w->result.error))
		return EXIT_FAILED;
	for (size_t done = 0; done < f->n; done += (size_t)n) {
		off_t off = (off_t)(f->off + done);

		n = write ? pwrite(f->place->fd, f->host + done, f->n - done, off)
			  : pread(f->place->fd, f->host + done, f->n - done, off);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n <= 0)
			return gdsio_say(
				w->result.error, "%s at byte %lld: %s%s", f->place->name,
				(long long)off, n ? strerror(errno) : "it became shorter",
				n && errno == EINVAL && !w->r->a->cached
					? ": O_DIRECT takes whole blocks only, -O 1 anything"
				: n ? advice_errno(errno)
				    : "");
	}
	return write ? 0 : gdsio_copy(w->r, f, true, f->n, w->result.error);
}

static int move_one(struct worker *w, struct flow *f)
{
	struct penstock_report report = {.size = sizeof(report)};
	struct penstock_seg seg;
	struct penstock_req req;
	double begun = seconds();

	if (gdsio_plain(w->r->a)) {
		if (move_plain(w, f))
			return EXIT_FAILED;
		return after(w, f, (seconds() - begun) * 1e6);
	}
	make_req(w, f, &seg, &req);
	if (penstock_transfer(&req, &report) < 0)
		return gdsio_say(w->result.error, "%s: %s%s", f->place->name, penstock_errmsg(),
				 advice(penstock_errwhy()));
	begun = (seconds() - begun) * 1e6;
	tally_add(&w->result.tally, &report);
	return after(w, f, begun);
}

/* All flows that have one left, together; each waits for the last of them. */
static int move_batch(struct worker *w, struct flow **flows, unsigned count,
		      struct penstock_req *reqs, struct penstock_seg *segs,
		      struct penstock_done *done)
{
	double begun = seconds();
	int taken, got = 0, ret = 0;

	for (unsigned i = 0; i < count; i++)
		make_req(w, flows[i], &segs[i], &reqs[i]);
	taken = penstock_submit(w->q, reqs, count, NULL);
	if (taken < (int)count)
		ret = gdsio_say_lib(w->result.error);
	while (got < taken) {
		int n = penstock_wait(w->q, done, (unsigned)(taken - got), count, -1);

		if (n <= 0)
			return gdsio_say_lib(w->result.error);
		for (int i = 0; i < n; i++) {
			tally_add(&w->result.tally, done[i].report);
			if (done[i].result < 0 && !ret)
				ret = gdsio_say(w->result.error, "%s: %s",
						((struct flow *)done[i].user)->place->name,
						done[i].report->text);
		}
		got += n;
	}
	begun = (seconds() - begun) * 1e6;
	for (unsigned i = 0; !ret && i < count; i++)
		ret = after(w, flows[i], begun);
	return ret;
}

static int drive_batches(struct worker *w)
{
	struct flow **flows = calloc(w->count, sizeof(struct flow *));
	struct penstock_req *reqs = calloc(w->count, sizeof(*reqs));
	struct penstock_seg *segs = calloc(w->count, sizeof(*segs));
	struct penstock_done *done = calloc(w->count, sizeof(*done));
	unsigned count = 1;
	int ret = flows && reqs && segs && done ? 0 : gdsio_say(w->result.error, "no memory");

	while (!ret && count) {
		count = 0;
		for (unsigned i = 0; !ret && i < w->count; i++) {
			if (!next(w->r, &w->flows[i]))
				continue;
			flows[count++] = &w->flows[i];
			ret = before(w, &w->flows[i]);
		}
		if (!ret && count)
			ret = move_batch(w, flows, count, reqs, segs, done);
	}
	free(flows);
	free(reqs);
	free(segs);
	free(done);
	return ret;
}

/* ---- the pass ---- */

static int bind_to(int node, char *error)
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
		return 0; /* a kernel without nodes: it is the only one */
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
		return gdsio_say(error, "-n %d: there is no such node, or it has no CPU", node);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		return gdsio_say(error, "-n %d: %s", node, strerror(errno));
	return 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct flow *f = w->flows;

	if (w->job->node >= 0)
		w->code = bind_to(w->job->node, w->result.error);
	if (w->q && !w->code)
		w->code = drive_batches(w);
	while (!w->q && !w->code && next(w->r, f)) {
		w->code = before(w, f);
		if (!w->code)
			w->code = move_one(w, f);
	}
	if (w->code)
		atomic_store(&w->r->failed, true);
	return NULL;
}

static void tally_sum(struct tally *to, const struct tally *from)
{
	struct penstock_report part = {.path_count = from->path_count,
				       .bytes = from->bytes,
				       .cpu_copied = from->cpu_copied,
				       .dram_laid = from->dram_laid,
				       .retries = from->retries,
				       .chunks = from->chunks,
				       .engine = from->engine,
				       .engine_why = from->engine_why};

	for (unsigned i = 0; i < from->path_count; i++)
		part.paths[i] = (struct penstock_report_path){.name = from->names[i],
							      .bytes = from->path_bytes[i],
							      .why = from->why[i],
							      .text = from->text[i]};
	if (from->path_count)
		tally_add(to, &part);
}

static int begin(struct gdsio_run *r, char *error)
{
	for (unsigned i = 0; i < r->flow_count; i++) {
		struct flow *f = &r->flows[i];

		f->state = gdsio_mix(r->a->seed + i) | 1;
		if (fill(r, f, r->a->fill && r->write, (size_t)r->a->io_max, error))
			return EXIT_FAILED;
		f->state = gdsio_mix(r->a->seed + i) | 1;
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
	if (begin(r, out->error))
		return EXIT_FAILED;
	begun = seconds();
	r->until = r->a->runtime_s ? begun + r->a->runtime_s : 0;
	for (; made < r->worker_count; made++) {
		memset(&r->workers[made].result, 0, sizeof(r->workers[made].result));
		r->workers[made].code = 0;
		if (pst_thread_start(&r->workers[made].thread, work, &r->workers[made]))
			break;
	}
	ret = made < r->worker_count ? gdsio_say(out->error, "no more threads can be had") : 0;
	for (unsigned i = 0; i < made; i++) {
		struct worker *w = &r->workers[i];

		pthread_join(w->thread, NULL);
		out->ops += w->result.ops;
		out->bytes += w->result.bytes;
		out->latency_us += w->result.latency_us;
		tally_sum(&out->tally, &w->result.tally);
		if (w->code && !ret)
			ret = gdsio_say(out->error, "%s", w->result.error);
	}
	if (stopped && !ret)
		ret = say_stopped(out->error, sizeof(out->error));
	out->seconds = seconds() - begun;
	for (unsigned i = 0; i < r->flow_count; i++)
		out->size += r->flows[i].len;
	return ret;
}
