/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens what a run of `penstock gdsio` needs, each thread's share of a file and its
 * buffers, and closes it again: what was written is kept, or after a failure what was
 * created goes. Never moves a byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gdsio_flow.h"

#define PAGE 4096u

/* ---- errors ---- */

int gdsio_say(char *error, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(error, GDSIO_TEXT_MAX, fmt, args);
	va_end(args);
	return EXIT_FAILED;
}

int gdsio_say_lib(char *error)
{
	return gdsio_say(error, "%s%s", penstock_errmsg(), advice(penstock_errwhy()));
}

/* ---- places ---- */

bool gdsio_plain(const struct gdsio_args *a)
{
	return a->xfer == GDSIO_CPU || a->xfer == GDSIO_CPU_GPU;
}

/* Asked before it is opened: that would wait at a pipe. */
static int judge_plain(struct gdsio_run *r, const struct place *p, const char *path)
{
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISBLK(st.st_mode))
		return 0; /* what is not there is open(2)'s to say */
	return gdsio_say(r->error, "%s is %s", p->name,
			 S_ISDIR(st.st_mode) ? "a directory: -D takes one, -f a file"
					     : "neither a regular file nor a block device: name "
					       "another");
}

static int open_plain(struct gdsio_run *r, struct place *p)
{
	const char *path = file_of(p->name);
	int flags = (r->a->write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC |
		    (r->a->cached ? 0 : O_DIRECT);

	if (!path)
		return gdsio_say(r->error, "-x 1 and -x 2 want a file, %s is none", p->name);
	if (judge_plain(r, p, path))
		return EXIT_FAILED;
	p->fd = open(path, flags, 0666);
	if (p->fd < 0 && errno == EINVAL && !r->a->cached)
		return gdsio_say(r->error, "%s cannot be opened with O_DIRECT: -O 1 does without",
				 p->name);
	return p->fd < 0 ? gdsio_say(r->error, "%s: %s%s", p->name, strerror(errno),
				     advice_errno(errno))
			 : 0;
}

static int64_t length_of(const struct place *p)
{
	struct stat st;

	if (p->st)
		return penstock_storage_length(p->st);
	if (fstat(p->fd, &st))
		return -1;
	return S_ISREG(st.st_mode) ? st.st_size : lseek(p->fd, 0, SEEK_END);
}

/* A file that is shorter than what is written gets its whole length at once: random
 * offsets need not come to its end, and who reads it afterwards says the same -s. */
static int make_long(struct gdsio_run *r, const struct place *p)
{
	const char *path = file_of(p->name);
	uint64_t end = r->a->start + r->a->size;
	struct stat st;

	if (!path || stat(path, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size >= end)
		return 0;
	return truncate(path, (off_t)end) ? gdsio_say(r->error, "%s: %s%s", p->name,
						      strerror(errno), advice_errno(errno))
					  : 0;
}

static int open_place(struct gdsio_run *r, struct place *p, bool in_folder)
{
	const struct gdsio_args *a = r->a;
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	const char *path = file_of(p->name);
	int64_t length;

	p->created = a->write && path && access(path, F_OK);
	if (!a->write && in_folder && access(path, F_OK))
		return gdsio_say(r->error,
				 "%s is not there: write first (-I 1), with as many threads",
				 p->name);
	if (a->write) {
		opts.flags = PENSTOCK_O_CREATE;
		opts.length = a->start + a->size;
	}
	if (gdsio_plain(a)) {
		if (open_plain(r, p))
			return EXIT_FAILED;
	} else if (penstock_open(p->name, &opts, &p->st)) {
		return gdsio_say_lib(r->error);
	}
	length = length_of(p);
	p->size = a->size;
	if (a->write)
		return make_long(r, p);
	if (length < 0 || (uint64_t)length < a->start || (uint64_t)length - a->start < a->size)
		return gdsio_say(r->error, "%s has %lld bytes, -o and -s want %llu", p->name,
				 (long long)length, (unsigned long long)(a->start + a->size));
	if (!p->size)
		p->size = (uint64_t)length - a->start;
	return p->size ? 0 : gdsio_say(r->error, "%s: there is nothing to read", p->name);
}

/* ---- buffers ---- */

static int alloc_host(struct gdsio_run *r, struct flow *f, const struct gdsio_job *job, size_t len)
{
	if (job->memory == GDSIO_MMAP) {
		f->host =
			mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		f->mapped = f->host != MAP_FAILED;
		if (!f->mapped)
			f->host = NULL;
	} else {
		f->host = aligned_alloc(PAGE, len);
	}
	return f->host ? 0 : gdsio_say(r->error, "no memory for -i and -w");
}

int gdsio_copy(struct gdsio_run *r, const struct flow *f, bool to_device, size_t len, char *error)
{
	struct penstock_copy_args c = {.size = sizeof(c), .row_len = len};

	if (!f->mem || f->mem == f->host)
		return 0;
	c.dst_dev = to_device ? f->dev : r->host;
	c.dst = to_device ? f->mem : f->host;
	c.src_dev = to_device ? r->host : f->dev;
	c.src = to_device ? f->host : f->mem;
	return penstock_copy(&c, 1) ? gdsio_say_lib(error) : 0;
}

static int alloc_flow(struct gdsio_run *r, struct flow *f, const struct gdsio_job *job,
		      struct penstock_device *gpu)
{
	const struct gdsio_args *a = r->a;
	size_t len = (size_t)((a->io_max + PAGE - 1) & ~(uint64_t)(PAGE - 1));
	bool on_device = a->xfer != GDSIO_CPU && job->memory == GDSIO_DEVICE;
	void *mem;

	if (alloc_host(r, f, job, len))
		return EXIT_FAILED;
	f->dev = on_device ? gpu : r->host;
	if (on_device) {
		if (penstock_alloc(gpu, len, &mem))
			return gdsio_say_lib(r->error);
		f->allocated = true;
		f->mem = mem;
	} else if (a->xfer != GDSIO_CPU) {
		f->mem = f->host;
	}
	/* Pinned: what -m 2 asks for, and the bounce of -x 2 unless -b. */
	if (gpu && gpu != r->host &&
	    (job->memory == GDSIO_PINNED || (a->xfer == GDSIO_CPU_GPU && !a->skip_register))) {
		if (penstock_register(gpu, f->host, len))
			return gdsio_say_lib(r->error);
		f->registered = true;
	}
	return 0;
}

static void free_flow(struct flow *f, struct penstock_device *gpu, uint64_t io_max)
{
	if (f->registered)
		penstock_unregister(gpu, f->host);
	if (f->allocated)
		penstock_free(f->dev, f->mem);
	if (f->mapped)
		munmap(f->host, (size_t)((io_max + PAGE - 1) & ~(uint64_t)(PAGE - 1)));
	else
		free(f->host);
}

/* ---- opening ---- */

/* A share of the file for thread `index` of `count`; in whole transfers, if it can be. */
static int cut_range(struct gdsio_run *r, struct flow *f, unsigned index, unsigned count)
{
	uint64_t size = f->place->size, share = size / count, io = r->a->io_max;

	if (share > io)
		share -= share % io;
	f->from = r->a->start + share * index;
	f->len = index + 1 == count ? size - share * index : share;
	if (!f->len || (r->a->random && f->len < io))
		return gdsio_say(r->error,
				 "%llu bytes for a thread are less than one transfer: -s "
				 "takes more, -w or -i less",
				 (unsigned long long)f->len);
	return 0;
}

/* The device that a job needs; NULL: none. */
static int open_device(struct gdsio_run *r, unsigned j)
{
	const struct gdsio_job *job = &r->a->jobs[j];
	bool gpu = job->memory == GDSIO_DEVICE || job->memory == GDSIO_PINNED;

	if (r->a->xfer == GDSIO_CPU || !gpu)
		return 0;
	if (penstock_device_open(job->device, NULL, &r->devs[j]) >= 0)
		return 0;
	r->devs[j] = NULL;
	return gdsio_say(r->error, "-d: %s%s", penstock_errmsg(),
			 penstock_errwhy() == PENSTOCK_WHY_NO_DRIVER
				 ? ": install the GPU's driver, or use -d host"
				 : "");
}

static int open_worker(struct gdsio_run *r, const struct gdsio_job *job, struct flow *flows,
		       unsigned count)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct worker *w = &r->workers[r->worker_count];

	*w = (struct worker){.r = r, .job = job, .flows = flows, .count = count};
	opts.requests_max = count;
	opts.segs_max = 1;
	if ((r->a->xfer == GDSIO_BATCH || r->a->xfer == GDSIO_ASYNC) &&
	    penstock_queue_open(&opts, &w->q))
		return gdsio_say_lib(r->error);
	r->worker_count++;
	return 0;
}

static int open_job(struct gdsio_run *r, unsigned j)
{
	const struct gdsio_job *job = &r->a->jobs[j];
	struct flow *flows = &r->flows[r->flow_count];
	unsigned depth = gdsio_depth(r->a), count = gdsio_flows(r->a, job);
	bool one = r->a->xfer == GDSIO_BATCH && !r->a->batch; /* thread for all flows */
	int ret = open_device(r, j);

	for (unsigned i = 0; !ret && i < count; i++) {
		struct flow *f = &r->flows[r->flow_count++];

		if ((job->dir[0] && i % depth == 0) || !i) {
			struct place *p = &r->places[r->place_count++];

			p->fd = -1;
			if (job->dir[0])
				snprintf(p->name, sizeof(p->name), "%s/gdsio.%u", job->dir,
					 i / depth);
			else
				snprintf(p->name, sizeof(p->name), "%s", job->file);
			ret = open_place(r, p, job->dir[0]);
		}
		f->place = &r->places[r->place_count - 1];
		if (!ret)
			ret = cut_range(r, f, job->dir[0] ? i % depth : i,
					job->dir[0] ? depth : count);
		if (!ret)
			ret = alloc_flow(r, f, job, r->devs[j]);
		if (!ret && !one && i % depth == 0)
			ret = open_worker(r, job, f, depth);
	}
	if (!ret && one)
		ret = open_worker(r, job, flows, count);
	return ret;
}

struct gdsio_run *gdsio_open(const struct gdsio_args *a, char *error)
{
	struct gdsio_run *r = calloc(1, sizeof(*r));
	unsigned flows = 0;
	int ret = 0;

	for (unsigned j = 0; j < a->job_count; j++)
		flows += gdsio_flows(a, &a->jobs[j]);
	if (!r || !(r->flows = calloc(flows, sizeof(*r->flows))) ||
	    !(r->places = calloc(flows, sizeof(*r->places))) ||
	    !(r->workers = calloc(flows, sizeof(*r->workers))))
		ret = gdsio_say(error, "no memory");
	if (!r)
		return NULL;
	r->a = a;
	r->error = error;
	if (!ret && penstock_device_open("host", NULL, &r->host) < 0)
		ret = gdsio_say_lib(error);
	for (unsigned j = 0; !ret && j < a->job_count; j++)
		ret = open_job(r, j);
	if (!ret)
		return r;
	gdsio_close(r, true, error);
	return NULL;
}

static int settle(struct place *p, bool write, bool failed, char *error)
{
	int ret = 0;

	if (write && failed)
		give_up(p->st);
	else if (p->st && write && penstock_commit(p->st, 0))
		ret = gdsio_say_lib(error);
	penstock_close(p->st);
	if (p->fd > 0 && close(p->fd) && !failed)
		ret = gdsio_say(error, "%s: %s", p->name, strerror(errno));
	if (p->fd > 0 && failed && p->created)
		unlink(file_of(p->name));
	return ret;
}

int gdsio_close(struct gdsio_run *r, bool failed, char *error)
{
	unsigned f = 0;
	int ret = 0;

	for (unsigned i = 0; i < r->worker_count; i++)
		penstock_queue_close(r->workers[i].q);
	for (unsigned j = 0; j < r->a->job_count; j++)
		for (unsigned i = 0; i < gdsio_flows(r->a, &r->a->jobs[j]) && f < r->flow_count;
		     i++)
			free_flow(&r->flows[f++], r->devs[j], r->a->io_max);
	for (unsigned i = 0; i < r->place_count; i++)
		if (settle(&r->places[i], r->a->write, failed || ret, error))
			ret = EXIT_FAILED;
	for (unsigned j = 0; j < r->a->job_count; j++)
		penstock_device_close(r->devs[j]);
	penstock_device_close(r->host);
	free(r->workers);
	free(r->places);
	free(r->flows);
	free(r);
	return ret;
}
