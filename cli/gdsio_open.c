/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the files, devices and buffers of a run of `penstock gdsio`, and divides the files between
 * the threads. At the end it commits the written files or, after a failure, removes the files that
 * the run created. Called by gdsio.c. It must never transfer a byte of a file.
 */
#include "gdsio_open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stop.h"

#define PAGE 4096u

/* ---- errors ---- */

int gdsio_fail(char *error, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(error, GDSIO_TEXT_MAX, fmt, args);
	va_end(args);
	return EXIT_FAILED;
}

int gdsio_fail_lib(char *error)
{
	return gdsio_fail(error, "%s%s", penstock_errmsg(), advice(penstock_errwhy()));
}

/* ---- files ---- */

/* Returns O_NOFOLLOW for a file to write, so that open(2) refuses a symbolic link. Returns 0 for a
 * read, or if --overwrite allows writes through links. */
static int link_flag(const struct gdsio_args *a)
{
	return a->write && !a->overwrite ? O_NOFOLLOW : 0;
}

/* Fails if the file is neither a regular file nor a block device. The caller makes this check
 * before it calls open(2), because open(2) would block on a pipe. */
static int plain_check(struct gdsio_run *r, const struct gdsio_file *p, const char *path)
{
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISBLK(st.st_mode))
		return 0; /* if stat(2) fails, open(2) later reports why */
	return gdsio_fail(r->error, "%s is %s", p->name,
			  S_ISDIR(st.st_mode) ? "a directory: use -D for a directory, -f for a file"
					      : "neither a regular file nor a block device: name "
						"another");
}

static int plain_open(struct gdsio_run *r, struct gdsio_file *p)
{
	const char *path = storage_path(p->name);
	bool cached = gdsio_is_cached(r->a);
	int flags = (r->a->write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | link_flag(r->a) |
		    (p->created ? O_EXCL : 0) | (cached ? 0 : O_DIRECT);

	if (!path)
		return gdsio_fail(r->error, "-x 1, 2 and 4 need a file, and %s is not one",
				  p->name);
	if (plain_check(r, p, path))
		return EXIT_FAILED;
	p->fd = open(path, flags, 0666);
	if (p->fd < 0 && errno == EINVAL && !cached) {
		if (p->created)
			unlink(path); /* open(2) creates a file before it refuses O_DIRECT */
		return gdsio_fail(r->error, "%s cannot be opened with O_DIRECT: use -O 1", p->name);
	}
	return p->fd < 0 ? gdsio_fail(r->error, "%s: %s%s", p->name, strerror(errno),
				      advice_errno(errno))
			 : 0;
}

static int64_t file_length(const struct gdsio_file *p)
{
	struct stat st;

	if (p->st)
		return penstock_storage_length(p->st);
	if (fstat(p->fd, &st))
		return -1;
	return S_ISREG(st.st_mode) ? st.st_size : lseek(p->fd, 0, SEEK_END);
}

/* Extends a file that is shorter than the range to write. Writes at random offsets may never
 * reach the end of the range, but a later read with the same -s needs the whole length. */
static int file_extend(struct gdsio_run *r, const struct gdsio_file *p)
{
	const char *path = storage_path(p->name);
	uint64_t end = r->a->start + r->a->size;
	struct stat st;
	int fd, ret = 0;

	if (!path)
		return 0;
	fd = p->fd >= 0 ? p->fd : open(path, O_WRONLY | O_CLOEXEC | link_flag(r->a));
	if (fd < 0 || fstat(fd, &st) ||
	    (S_ISREG(st.st_mode) && (uint64_t)st.st_size < end && ftruncate(fd, (off_t)end)))
		ret = gdsio_fail(r->error, "%s: %s%s", p->name, strerror(errno),
				 advice_errno(errno));
	if (fd >= 0 && fd != p->fd)
		close(fd);
	return ret;
}

/* Returns whether an earlier job of this run has opened the same file. */
static bool file_is_ours(const struct gdsio_run *r, const struct gdsio_file *p)
{
	for (const struct gdsio_file *other = r->files; other < p; other++)
		if (!strcmp(other->name, p->name))
			return true;
	return false;
}

/* Finds out whether the run will create the file to write. Fails if the name exists already and
 * --overwrite is not given. */
static int file_check_new(struct gdsio_run *r, struct gdsio_file *p)
{
	const char *path = storage_path(p->name);
	struct stat st;

	if (!path)
		return 0;
	if (lstat(path, &st)) {
		p->created = errno == ENOENT; /* open(2) later reports any other error */
		return 0;
	}
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode) && !S_ISLNK(st.st_mode))
		return 0; /* open(2) later reports that this is no file */
	if (r->a->overwrite || file_is_ours(r, p))
		return 0;
	return gdsio_fail(r->error, "%s %s: add --overwrite to write into it", p->name,
			  S_ISLNK(st.st_mode) ? "is a symbolic link" : "exists");
}

static int file_open(struct gdsio_run *r, struct gdsio_file *p, bool in_folder)
{
	const struct gdsio_args *a = r->a;
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	const char *path = storage_path(p->name);
	int64_t length;

	if (a->write && file_check_new(r, p))
		return EXIT_FAILED;
	if (!a->write && in_folder && access(path, F_OK))
		return gdsio_fail(r->error,
				  "%s does not exist: write it first (-I 1), with as many threads",
				  p->name);
	if (a->write) {
		opts.flags = PENSTOCK_O_CREATE | (a->overwrite ? 0 : PENSTOCK_O_NOFOLLOW);
		opts.length = a->start + a->size;
	}
	if (gdsio_is_plain(a)) {
		if (plain_open(r, p))
			return EXIT_FAILED;
	} else if (penstock_open(p->name, &opts, &p->st)) {
		return gdsio_fail_lib(r->error);
	}
	length = file_length(p);
	p->size = a->size;
	if (a->write)
		return file_extend(r, p);
	if (length < 0 || (uint64_t)length < a->start || (uint64_t)length - a->start < a->size)
		return gdsio_fail(r->error, "%s has %lld bytes, but -o and -s need %llu: give less",
				  p->name, (long long)length,
				  (unsigned long long)(a->start + a->size));
	if (!p->size)
		p->size = (uint64_t)length - a->start;
	return p->size ? 0 : gdsio_fail(r->error, "%s has no bytes to read: check -o", p->name);
}

/* ---- buffers ---- */

static int flow_alloc_host(struct gdsio_run *r, struct flow *f, const struct gdsio_job *job,
			   size_t len)
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
	return f->host ? 0 : gdsio_fail(r->error, "out of memory: give a smaller -i or -w");
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
	return penstock_copy(&c, 1) ? gdsio_fail_lib(error) : 0;
}

static int flow_alloc(struct gdsio_run *r, struct flow *f, const struct gdsio_job *job,
		      struct penstock_device *gpu)
{
	const struct gdsio_args *a = r->a;
	size_t len = (size_t)((a->io_max + PAGE - 1) & ~(uint64_t)(PAGE - 1));
	bool on_device = a->xfer != GDSIO_CPU && job->memory == GDSIO_DEVICE;
	void *mem;

	if (flow_alloc_host(r, f, job, len))
		return EXIT_FAILED;
	f->dev = on_device ? gpu : r->host;
	if (on_device) {
		if (penstock_alloc(gpu, len, &mem))
			return gdsio_fail_lib(r->error);
		f->allocated = true;
		f->mem = mem;
	} else if (a->xfer != GDSIO_CPU) {
		f->mem = f->host;
	}
	/* Registers host memory if the job wants pinned memory (-m 2). Also registers the buffer
	 * of -x 2 and -x 4, unless -b is given. */
	if (gpu && gpu != r->host &&
	    (job->memory == GDSIO_PINNED || (gdsio_is_plain(a) && !a->skip_register))) {
		if (penstock_register(gpu, f->host, len))
			return gdsio_fail_lib(r->error);
		f->registered = true;
	}
	return 0;
}

static void flow_free(struct flow *f, struct penstock_device *gpu, uint64_t io_max)
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

/* Assigns to flow `f` (a sequence of transfers) its share of the file. `count` flows divide the
 * file among them, and `index` is the position of `f` among them. A share that is longer than one
 * transfer is a multiple of the transfer size. */
static int flow_set_range(struct gdsio_run *r, struct flow *f, unsigned index, unsigned count)
{
	uint64_t size = f->file->size, share = size / count, io = r->a->io_max;

	if (share > io)
		share -= share % io;
	f->from = r->a->start + share * index;
	f->len = index + 1 == count ? size - share * index : share;
	if (!f->len || (r->a->random && f->len < io))
		return gdsio_fail(r->error,
				  "%llu bytes for each thread are less than one transfer: give a "
				  "larger -s, or a smaller -w or -i",
				  (unsigned long long)f->len);
	return 0;
}

/* Opens the device of the job with index `j`, if the job needs a device. */
static int job_device_open(struct gdsio_run *r, unsigned j)
{
	const struct gdsio_job *job = &r->a->jobs[j];
	bool gpu = job->memory == GDSIO_DEVICE || job->memory == GDSIO_PINNED;

	if (r->a->xfer == GDSIO_CPU || !gpu)
		return 0;
	if (penstock_device_open(job->device, NULL, &r->devs[j]) >= 0)
		return 0;
	r->devs[j] = NULL;
	return gdsio_fail(r->error, "-d: %s%s", penstock_errmsg(),
			  penstock_errwhy() == PENSTOCK_WHY_NO_DRIVER
				  ? ": install the GPU's driver, or use -d host"
				  : "");
}

static int worker_open(struct gdsio_run *r, const struct gdsio_job *job, struct flow *flows,
		       unsigned count)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct worker *w = &r->workers[r->worker_count];

	*w = (struct worker){.r = r, .job = job, .flows = flows, .count = count};
	opts.requests_max = count;
	opts.segs_max = 1;
	if ((gdsio_is_batch(r->a) || gdsio_is_ordered(r->a)) && penstock_queue_open(&opts, &w->q))
		return gdsio_fail_lib(r->error);
	r->worker_count++;
	return 0;
}

static int job_open(struct gdsio_run *r, unsigned j)
{
	const struct gdsio_job *job = &r->a->jobs[j];
	struct flow *flows = &r->flows[r->flow_count];
	unsigned depth = gdsio_depth(r->a), count = gdsio_flows(r->a, job);
	/* true if one thread submits the transfers of all flows */
	bool one = gdsio_is_batch(r->a) && !r->a->batch;
	int ret = job_device_open(r, j);

	for (unsigned i = 0; !ret && i < count; i++) {
		struct flow *f = &r->flows[r->flow_count++];

		if ((job->dir[0] && i % depth == 0) || !i) {
			struct gdsio_file *p = &r->files[r->file_count++];

			p->fd = -1;
			if (job->dir[0])
				snprintf(p->name, sizeof(p->name), "%s/gdsio.%u", job->dir,
					 i / depth);
			else
				snprintf(p->name, sizeof(p->name), "%s", job->file);
			ret = file_open(r, p, job->dir[0]);
		}
		f->file = &r->files[r->file_count - 1];
		if (!ret)
			ret = flow_set_range(r, f, job->dir[0] ? i % depth : i,
					     job->dir[0] ? depth : count);
		if (!ret)
			ret = flow_alloc(r, f, job, r->devs[j]);
		if (!ret && !one && i % depth == 0)
			ret = worker_open(r, job, f, depth);
	}
	if (!ret && one)
		ret = worker_open(r, job, flows, count);
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
	    !(r->files = calloc(flows, sizeof(*r->files))) ||
	    !(r->workers = calloc(flows, sizeof(*r->workers))))
		ret = gdsio_fail(error, "out of memory");
	if (!r)
		return NULL;
	r->a = a;
	r->error = error;
	if (!ret && penstock_device_open("host", NULL, &r->host) < 0)
		ret = gdsio_fail_lib(error);
	for (unsigned j = 0; !ret && j < a->job_count; j++)
		ret = job_open(r, j);
	if (!ret)
		return r;
	gdsio_close(r, true, error);
	return NULL;
}

/* Commits and closes a file. If the run has failed, removes the file instead, but only if the
 * run created it. */
static int file_close(struct gdsio_file *p, bool write, bool failed, char *error)
{
	int ret = 0;

	if (write && failed)
		abort_storage(p->st);
	else if (p->st && write && penstock_commit(p->st, 0))
		ret = gdsio_fail_lib(error);
	penstock_close(p->st);
	if (p->fd > 0 && close(p->fd) && !failed)
		ret = gdsio_fail(error, "%s: %s", p->name, strerror(errno));
	if (p->fd > 0 && failed && p->created)
		unlink(storage_path(p->name));
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
			flow_free(&r->flows[f++], r->devs[j], r->a->io_max);
	for (unsigned i = 0; i < r->file_count; i++)
		if (file_close(&r->files[i], r->a->write, failed || ret, error))
			ret = EXIT_FAILED;
	for (unsigned j = 0; j < r->a->job_count; j++)
		penstock_device_close(r->devs[j]);
	penstock_device_close(r->host);
	free(r->workers);
	free(r->files);
	free(r->flows);
	free(r);
	return ret;
}
