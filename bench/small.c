/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures small requests. Random reads of 4 KiB into GPU memory and into host memory are compared
 * with reads by fio into host memory. A cached read of 4 KiB into host memory is compared
 * with pread. Also measures requests that move no bytes (`null`), and the time until a new
 * process has read its first byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"
#include "small_plain.h"

#define DEPTH_MAX 128

static void note_allocations(struct sample *s, struct allocations before)
{
	struct allocations now = allocations();
	size_t at = strlen(s->note);

	snprintf(s->note + at, sizeof(s->note) - at, "allocations %llu of others %llu",
		 (unsigned long long)(now.ours - before.ours),
		 (unsigned long long)(now.others - before.others));
}

/* ---- random reads ---- */

/* A way of reading. WAY_QUEUE: a queue whose reads the library's threads carry. WAY_OWN: a queue
 * with an inline lane, whose reads the calling thread carries. WAY_CALL: one call for each read. */
enum way_kind { WAY_QUEUE, WAY_OWN, WAY_CALL };
struct way {
	const char *name;
	enum way_kind kind;
	enum penstock_effort effort;
};

struct random_run {
	struct penstock_device *dev;
	char *mem; /* memory of the device with DEPTH_MAX blocks, one for each read in flight */
	/* The queues of the ways WAY_QUEUE and WAY_OWN. `q` is the one that is measured, or NULL
	 * for WAY_CALL. */
	struct penstock_queue *q, *queues[2];
	struct penstock_storage *st;
	struct penstock_req reqs[DEPTH_MAX];
	struct penstock_seg segs[DEPTH_MAX];
	uint64_t began[DEPTH_MAX];
	struct penstock_done done[DEPTH_MAX];
	struct small_latencies lat;
	uint64_t state, blocks;
	const char *path;
};

static void request_aim(struct random_run *r, unsigned i)
{
	r->segs[i].off = small_random(&r->state) % r->blocks * SMALL_BLOCK;
}

/* Submits the requests whose indices are in `which`. The latency of each request starts at this
 * call. */
static int requests_submit(struct random_run *r, const unsigned *which, unsigned count)
{
	struct penstock_req batch[DEPTH_MAX];
	uint64_t now = meter_ns();
	unsigned taken = 0;

	for (unsigned i = 0; i < count; i++) {
		request_aim(r, which[i]);
		batch[i] = r->reqs[which[i]];
		r->began[which[i]] = now;
	}
	while (taken < count) {
		int ret = penstock_submit(r->q, batch + taken, count - taken, NULL);

		if (ret <= 0)
			return ret ? ret : -EIO;
		taken += (unsigned)ret;
	}
	return 0;
}

static int completions_harvest(struct random_run *r, unsigned *idle, unsigned *idle_count)
{
	int n = penstock_wait(r->q, r->done, 1, DEPTH_MAX, -1);
	uint64_t now = meter_ns();

	for (int i = 0; i < n; i++) {
		unsigned which = (unsigned)(uintptr_t)r->done[i].user;

		if (r->done[i].result != SMALL_BLOCK)
			return -EIO;
		if (!r->path && r->done[i].report)
			r->path = r->done[i].report->path;
		r->lat.ns[r->lat.count++ % SMALL_SAMPLES] = (uint32_t)(now - r->began[which]);
		idle[(*idle_count)++] = which;
	}
	return n < 0 ? n : 0;
}

/* Reads with `depth` requests in flight until the time `until`. */
static int queue_reads(struct random_run *r, unsigned depth, uint64_t until)
{
	unsigned idle[DEPTH_MAX], idle_count = depth, left;
	int ret = 0;

	for (unsigned i = 0; i < depth; i++)
		idle[i] = i;
	for (left = depth; !ret && meter_ns() < until;) {
		ret = requests_submit(r, idle, idle_count);
		idle_count = 0;
		if (!ret)
			ret = completions_harvest(r, idle, &idle_count);
	}
	for (left -= idle_count; left && !ret;) {
		unsigned was = idle_count;

		ret = completions_harvest(r, idle, &idle_count);
		left -= idle_count - was;
	}
	return ret;
}

/* Makes one call for each read until the time `until`. */
static int call_reads(struct random_run *r, uint64_t until)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	while (meter_ns() < until) {
		uint64_t began = meter_ns();

		request_aim(r, 0);
		if (penstock_transfer(&r->reqs[0], r->path ? NULL : &report) != SMALL_BLOCK)
			return -EIO;
		r->path = r->path ? r->path : report.path;
		r->lat.ns[r->lat.count++ % SMALL_SAMPLES] = (uint32_t)(meter_ns() - began);
	}
	return 0;
}

static int random_run_measure(struct bench *b, struct random_run *r, unsigned depth,
			      struct sample *s)
{
	struct allocations before;
	uint64_t until;
	struct meter m;
	int ret;

	r->lat.count = 0;
	r->path = NULL;
	meter_start(&m);
	until = meter_ns() + (uint64_t)(b->seconds * 1e9);
	before = allocations();
	ret = r->q ? queue_reads(r, depth, until) : call_reads(r, until);
	meter_stop(&m, s);
	note_allocations(s, before);
	meter_settle(&m, s);
	s->ops = r->lat.count;
	s->bytes = s->ops * SMALL_BLOCK;
	snprintf(s->path, sizeof(s->path), "%s", r->path ? r->path : "");
	small_percentiles(&r->lat, s);
	if (ret)
		bench_bad(b, "random reads: %s", penstock_errmsg());
	return ret;
}

struct fio_way {
	const char *name, *options;
};
static const struct fio_way fio_ways[] = {
	{"fio", "--ioengine=io_uring"},
	{"fio-fixed", "--ioengine=io_uring --fixedbufs=1 --registerfiles=1"},
	{"fio-psync", "--ioengine=psync"},
};

/* Returns field `index` of fio's terse output, or NULL. */
static const char *fio_field(const char *line, unsigned index)
{
	while (index-- && line)
		line = (line = strchr(line, ';')) ? line + 1 : NULL;
	return line;
}

/* Runs fio and parses the line that its terse output format prints. Field 7 is the IOPS, fields 87
 * and 88 are the CPU time in percent, and the median latency in microseconds follows
 * "50.000000%=". The CPU time does not include fio's start. */
static int fio_measure(struct bench *b, unsigned depth, const struct fio_way *way, struct sample *s)
{
	static char line[8192];
	const char *iops, *user, *system, *at;
	char command[1024];
	FILE *p;

	snprintf(command, sizeof(command),
		 "%s --name=r %s --direct=1 --rw=randread --bs=4k --iodepth=%u "
		 "--runtime=%.0fms --time_based --size=%llu --filename=%s --norandommap "
		 "--randrepeat=0 --lat_percentiles=1 --clat_percentiles=0 "
		 "--output-format=terse --terse-version=3",
		 b->fio, way->options, depth, b->seconds * 1e3, (unsigned long long)b->len,
		 b->file);
	p = popen(command, "r");
	line[0] = 0;
	if (p && !fgets(line, sizeof(line), p))
		line[0] = 0;
	if (!p || pclose(p))
		return -EIO;
	iops = fio_field(line, 7);
	user = fio_field(line, 87);
	system = fio_field(line, 88);
	if (!iops || !user || !system || user[strcspn(user, "%;")] != '%')
		return -EIO;
	if ((at = strstr(line, ";50.000000%=")))
		s->p50_us = atof(at + 12);
	if ((at = strstr(line, ";99.000000%=")))
		s->p99_us = atof(at + 12);
	s->seconds = b->seconds;
	s->ops = (uint64_t)(atof(iops) * b->seconds);
	s->cpu = (atof(user) + atof(system)) / 100 * b->seconds;
	s->bytes = s->ops * SMALL_BLOCK;
	return s->ops && s->p99_us > 0 ? 0 : -EIO;
}

static void random_close(struct random_run *r)
{
	if (!r)
		return;
	for (int i = 0; i < 2; i++)
		penstock_queue_close(r->queues[i]);
	penstock_close(r->st);
	free(r->lat.ns);
	free(r);
}

/* Prepares reads into `mem`. Returns NULL after an error. */
static struct random_run *random_open(struct bench *b, struct penstock_device *dev, char *mem)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct random_run *r = calloc(1, sizeof(*r));

	if (r)
		r->lat.ns = malloc(SMALL_SAMPLES * sizeof(*r->lat.ns));
	if (!r || !r->lat.ns)
		goto err_close;
	memset(r->lat.ns, 0, SMALL_SAMPLES * sizeof(*r->lat.ns));
	opts.requests_max = DEPTH_MAX;
	opts.segs_max = 1;
	r->state = 88172645463325252u;
	r->blocks = b->len / SMALL_BLOCK;
	r->dev = dev;
	r->mem = mem;
	if (penstock_open(b->file, NULL, &r->st) || penstock_prepare(r->st, dev, PENSTOCK_READ) ||
	    penstock_queue_open(&opts, &r->queues[WAY_QUEUE]))
		goto err_close;
	opts.own_lane = dev;
	if (penstock_queue_open(&opts, &r->queues[WAY_OWN]))
		goto err_close;
	for (unsigned i = 0; i < DEPTH_MAX; i++) {
		r->segs[i] = (struct penstock_seg){.buf = mem,
						   .dev = dev,
						   .row_len = SMALL_BLOCK,
						   .buf_off = (uint64_t)i * SMALL_BLOCK};
		r->reqs[i] = (struct penstock_req)PENSTOCK_REQ_INIT;
		r->reqs[i].storage = r->st;
		r->reqs[i].segs = &r->segs[i];
		r->reqs[i].seg_count = 1;
		r->reqs[i].user = (void *)(uintptr_t)i;
	}
	return r;
err_close:
	bench_bad(b, "random reads: %s", r ? penstock_errmsg() : "no memory");
	random_close(r);
	return NULL;
}

/* Measures random reads by fio, once for each of the first `count` elements of fio_ways. */
static void fio_rows(struct bench *b, const char *group, unsigned depth, unsigned rep,
		     unsigned count)
{
	for (unsigned i = 0; i < count && b->fio; i++) {
		struct sample s = {0};

		if (fio_measure(b, depth, &fio_ways[i], &s))
			fprintf(stderr, "bench: fio failed or its output could not be parsed\n");
		else
			meter_row(b, group, fio_ways[i].name, rep, &s);
	}
}

/* Measures random reads once for each element of `ways`, which states how the reads are made.
 * Writes a row of the CSV for each element. Its name in the row is `prefix` and ways->name. */
static int random_rows(struct bench *b, struct random_run *r, const char *group, unsigned depth,
		       unsigned rep, const struct way *ways, const char *prefix)
{
	int ret = 0;

	for (; ways->name && !ret; ways++) {
		struct sample s = {0};
		char name[32];

		snprintf(name, sizeof(name), "%s%s", prefix, ways->name);
		r->q = ways->kind == WAY_CALL ? NULL : r->queues[ways->kind];
		for (unsigned i = 0; i < DEPTH_MAX; i++)
			r->reqs[i].effort = ways->effort;
		ret = random_run_measure(b, r, depth, &s);
		if (!ret)
			meter_row(b, group, name, rep, &s);
	}
	return ret;
}

/* Drops the file from the page cache and calls `rounds`. Then checks that the file is still not
 * cached. */
static int cold_rounds(struct bench *b, int (*rounds)(struct bench *b))
{
	int fd = open(b->file, O_RDONLY | O_CLOEXEC);
	int ret = fd < 0 ? -errno : cache_drop(fd, 0, b->len);
	int64_t cached;

	if (!ret)
		ret = rounds(b);
	cached = fd < 0 ? 0 : cache_bytes(fd, 0, b->len);
	if (cached)
		bench_bad(b, "random reads left %lld bytes in the page cache", (long long)cached);
	if (fd >= 0)
		close(fd);
	return ret;
}

static int rand_rounds(struct bench *b)
{
	static const struct way ways[] = {
		{"thrifty", WAY_QUEUE, PENSTOCK_THRIFTY},   {"fast", WAY_QUEUE, PENSTOCK_FAST},
		{"own thrifty", WAY_OWN, PENSTOCK_THRIFTY}, {"own fast", WAY_OWN, PENSTOCK_FAST},
		{NULL, WAY_QUEUE, PENSTOCK_THRIFTY},
	};
	struct random_run *r = random_open(b, b->dev, b->gpu);
	int ret = r ? 0 : -EIO;

	for (unsigned depth = 32; depth <= 128; depth += 96) {
		char group[16];

		snprintf(group, sizeof(group), "rand%u", depth);
		for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
			fio_rows(b, group, depth, rep, 2);
			ret = random_rows(b, r, group, depth, rep, ways, "");
		}
	}
	random_close(r);
	return ret;
}

static int section_rand(struct bench *b)
{
	return cold_rounds(b, rand_rounds);
}

/* ---- the CPU time of random reads, at depth 1 and 32, into host memory and GPU memory ---- */

static const struct way ways_of_1[] = {
	{"call", WAY_CALL, PENSTOCK_THRIFTY},	 {"call fast", WAY_CALL, PENSTOCK_FAST},
	{"queue", WAY_QUEUE, PENSTOCK_THRIFTY},	 {"queue fast", WAY_QUEUE, PENSTOCK_FAST},
	{"own lane", WAY_OWN, PENSTOCK_THRIFTY}, {"own lane fast", WAY_OWN, PENSTOCK_FAST},
	{NULL, WAY_QUEUE, PENSTOCK_THRIFTY},
};
/* The ways that are measured at depth 32. The first two ways make one call for each read, so they
 * have only one read in flight. */
#define WAYS_OF_32 (ways_of_1 + 2)

static int small_measure(struct bench *b, struct random_run *host, struct random_run *gpu)
{
	struct small_plain plain = {host->state, host->blocks, &host->lat};
	int ret = 0;

	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		fio_rows(b, "small1", 1, rep, 3);
		ret = random_rows(b, host, "small1", 1, rep, ways_of_1, "host ");
		if (!ret && gpu)
			ret = random_rows(b, gpu, "small1", 1, rep, ways_of_1, "gpu ");
		if (!ret && gpu)
			ret = small_plain_row(b, &plain, rep);
		fio_rows(b, "small32", 32, rep, 2);
		if (!ret)
			ret = random_rows(b, host, "small32", 32, rep, WAYS_OF_32, "host ");
		if (!ret)
			ret = small_plain_ring_row(b, &plain, false, rep);
		if (!ret && gpu)
			ret = random_rows(b, gpu, "small32", 32, rep, WAYS_OF_32, "gpu ");
		if (!ret && gpu)
			ret = small_plain_ring_row(b, &plain, true, rep);
	}
	return ret;
}

/* Measures reads into host memory, and into GPU memory if the run has a GPU. */
static int small_rounds(struct bench *b)
{
	struct random_run *host = NULL, *gpu = NULL;
	struct penstock_device *dev = NULL;
	void *mem = NULL;
	int ret = -EIO;

	if (!penstock_device_open("host", NULL, &dev) &&
	    !penstock_alloc(dev, DEPTH_MAX * SMALL_BLOCK, &mem))
		host = random_open(b, dev, mem);
	if (host && b->gpu)
		gpu = random_open(b, b->dev, b->gpu);
	if (host && (gpu || !b->gpu))
		ret = small_measure(b, host, gpu);
	random_close(gpu);
	random_close(host);
	if (mem)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	return ret;
}

static int section_small(struct bench *b)
{
	return cold_rounds(b, small_rounds);
}

/* ---- one 4 KiB read into host memory ---- */

#define ROUNDS 200
#define CALLS 500

struct one_read {
	int fd;
	struct penstock_storage *st;
	struct penstock_device *host;
	char *mem;
	uint64_t state, blocks;
};

static int host_reads(struct one_read *o, bool ours, struct small_latencies *l)
{
	for (int i = 0; i < CALLS; i++) {
		uint64_t off = small_random(&o->state) % o->blocks * SMALL_BLOCK,
			 began = meter_ns();
		int64_t n = ours ? penstock_read(o->st, o->host, o->mem, SMALL_BLOCK, off)
				 : pread(o->fd, o->mem, SMALL_BLOCK, (off_t)off);

		if (n != SMALL_BLOCK)
			return -EIO;
		l->ns[l->count++] = (uint32_t)(meter_ns() - began);
	}
	return 0;
}

/* Makes CALLS reads by pread, then CALLS reads by the library, and repeats this ROUNDS times. */
static int host_round(struct bench *b, struct one_read *o, struct small_latencies *l, unsigned rep)
{
	static const char *const names[] = {"pread", "penstock_read"};
	struct sample s[2] = {{0}, {0}};
	struct allocations before = allocations();
	int ret = 0;

	l[0].count = l[1].count = 0;
	for (int i = 0; i < 2 * ROUNDS && !ret; i++) {
		uint64_t began = meter_ns();

		ret = host_reads(o, i & 1, &l[i & 1]);
		s[i & 1].seconds += (double)(meter_ns() - began) * 1e-9;
	}
	note_allocations(&s[1], before);
	for (int i = 0; i < 2 && !ret; i++) {
		s[i].ops = l[i].count;
		s[i].bytes = s[i].ops * SMALL_BLOCK;
		small_percentiles(&l[i], &s[i]);
		meter_row(b, "host4k", names[i], rep, &s[i]);
	}
	return ret;
}

static int section_host4k(struct bench *b)
{
	struct one_read o = {.fd = open(b->file, O_RDONLY | O_CLOEXEC), .state = 4711};
	uint64_t len = b->len < 64 * MIB ? b->len : 64 * MIB;
	struct small_latencies l[2];
	int ret = o.fd < 0 ? -errno : cache_warm(o.fd, 0, len);

	o.blocks = len / SMALL_BLOCK;
	o.mem = aligned_alloc(SMALL_BLOCK, SMALL_BLOCK);
	for (int i = 0; i < 2; i++)
		l[i].ns = malloc(sizeof(uint32_t) * ROUNDS * CALLS);
	if (!ret && (penstock_open(b->file, NULL, &o.st) ||
		     penstock_device_open("host", NULL, &o.host) < 0 ||
		     penstock_prepare(o.st, o.host, PENSTOCK_READ)))
		ret = -EIO;
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		ret = host_round(b, &o, l, rep);
	if (ret)
		bench_bad(b, "4 KiB reads: %s", penstock_errmsg());
	penstock_close(o.st);
	penstock_device_close(o.host);
	free(o.mem);
	free(l[0].ns);
	free(l[1].ns);
	close(o.fd);
	return ret;
}

/* ---- null ---- */

#define NULL_OPS (1u << 21)

static int null_measure(struct bench *b, struct penstock_queue *q, struct penstock_req *req,
			unsigned depth, unsigned rep)
{
	static struct penstock_done done[DEPTH_MAX];
	struct penstock_req reqs[DEPTH_MAX];
	struct sample s = {.ops = 0};
	struct allocations before;
	struct meter m;
	char name[32];

	for (unsigned i = 0; i < depth; i++)
		reqs[i] = *req;
	meter_start(&m);
	before = allocations();
	while (s.ops < NULL_OPS) {
		unsigned left = depth;

		if (penstock_submit(q, reqs, depth, NULL) != (int)depth)
			return -EIO;
		while (left) {
			int n = penstock_poll(q, done, left);

			if (n < 0)
				return n;
			left -= (unsigned)n;
		}
		s.ops += depth;
	}
	meter_stop(&m, &s);
	snprintf(s.note, sizeof(s.note), "%.0f ns a request ", s.seconds * 1e9 / (double)s.ops);
	note_allocations(&s, before);
	meter_settle(&m, &s);
	snprintf(name, sizeof(name), "depth %u", depth);
	meter_row(b, "null", name, rep, &s);
	return 0;
}

static int section_null(struct bench *b)
{
	struct penstock_seg seg = {.row_len = SMALL_BLOCK};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_device *host = NULL;
	struct penstock_queue *q = NULL;
	void *mem = aligned_alloc(SMALL_BLOCK, SMALL_BLOCK);
	int ret = 0;

	if (penstock_open("mem:1MiB", NULL, &st) || penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_prepare(st, host, PENSTOCK_READ) || penstock_queue_open(NULL, &q))
		ret = -EIO;
	seg.buf = mem;
	seg.dev = host;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "null";
	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		ret = null_measure(b, q, &req, 1, rep);
		if (!ret)
			ret = null_measure(b, q, &req, 32, rep);
	}
	if (ret)
		bench_bad(b, "null: %s", penstock_errmsg());
	penstock_queue_close(q);
	penstock_close(st);
	penstock_device_close(host);
	free(mem);
	return ret;
}

/* ---- the first byte ---- */

static void startup_row(struct bench *b, const char *name, uint64_t *since)
{
	struct sample s = {.seconds = (double)(meter_ns() - *since) * 1e-9};

	meter_row(b, "startup", name, 0, &s);
	*since = meter_ns();
}

/* Measures the steps from the start of a process to its first byte; so it can run only once in
 * a process. Separate rows have the start of the CUDA driver and the creation of its context. */
static int section_startup(struct bench *b)
{
	struct penstock_storage *st = NULL;
	const struct pst_cuda *api;
	struct pst_cu_ctx *ctx;
	uint64_t began = meter_ns(), since = began;
	void *mem = NULL;
	int ret = 0;

	api = pst_cuda_get(NULL);
	startup_row(b, "driver", &since);
	if (api && !strncmp(b->device, "cuda:", 5))
		api->cuDevicePrimaryCtxRetain(&ctx, (int)strtol(b->device + 5, NULL, 10));
	startup_row(b, "context", &since);
	ret = bench_device_open(b, NULL);
	if (!ret)
		ret = penstock_alloc(b->dev, MIB, &mem);
	startup_row(b, "device and memory", &since);
	if (!ret)
		ret = penstock_open(b->file, NULL, &st);
	startup_row(b, "file", &since);
	if (!ret)
		ret = penstock_prepare(st, b->dev, PENSTOCK_READ);
	startup_row(b, "pump and canary", &since);
	if (!ret && penstock_read(st, b->dev, mem, SMALL_BLOCK, 0) != SMALL_BLOCK)
		ret = -EIO;
	startup_row(b, "first 4 KiB", &since);
	startup_row(b, "all", &began);
	if (ret)
		bench_bad(b, "start: %s", penstock_errmsg());
	penstock_close(st);
	if (mem)
		penstock_free(b->dev, mem);
	bench_device_close(b);
	return ret;
}

const struct bench_section bench_small[] = {
	{"rand", "random 4 KiB reads into GPU memory", true, section_rand},
	{"small", "random 4 KiB reads, depth 1 and 32, host and GPU memory", true, section_small},
	{"small_host", "the same into host memory only", false, section_small},
	{"host4k", "one 4 KiB page-cache read into host memory", false, section_host4k},
	{"null", "cost of a request that moves nothing", false, section_null},
	{"startup", "time to the first byte in a new process", false, section_startup},
	{NULL, NULL, false, NULL},
};
