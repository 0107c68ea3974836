/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the probe of `penstock check`. It creates a scratch file next to the path that is
 * checked. Then it calls penstock_explain, which makes a test read, to find out which paths of the
 * library can be used for this file. It measures each of these paths, and compares the bytes.
 * Called by check.c, on the running machine only. The scratch file has no name, so it disappears
 * however the process ends. If no scratch file can be created, or if the target is a block device,
 * the probe reads the target itself, and must never write to it.
 */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/splitmix64.h"
#include "target.h"

#define SCRATCH_BYTES (64u << 20)
#define SCRATCH_QUICK (8u << 20)
/* Length of one request in bytes. The library divides such a request among all its threads for the
 * device. If the device has too little memory, the probe halves the length until it fits. */
#define STEP_BYTES (32u << 20)
#define FILL_BYTES (4u << 20)
#define FILL_SECONDS 2.0
#define FILL_SECONDS_QUICK 0.5

struct probe {
	struct pst_check_facts *f;
	struct penstock_storage *st;
	struct penstock_device *dev, *host;
	void *buf;     /* device buffer of `step` bytes */
	char *got;     /* host copy of the device buffer */
	char *want;    /* expected bytes */
	uint64_t step; /* length of one request in bytes */
	uint64_t len;  /* length of the scratch file, or of the part of the target to read */
	int fd;
	/* whether the probe reads the user's target itself instead of a scratch file; it must then
	 * never write */
	bool foreign;
};

static int probe_fail(struct probe *p, const char *what, const char *why)
{
	snprintf(p->f->probe_error, sizeof(p->f->probe_error), "%.80s: %.150s", what, why);
	return -1;
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Fills the buffer with the content that the scratch file has at offset `off`. No two 8-byte
 * words of the file are equal. */
static void buffer_fill(char *buf, uint64_t len, uint64_t off)
{
	for (uint64_t at = 0; at < len; at += 8) {
		uint64_t word = pst_splitmix64(off + at);

		memcpy(buf + at, &word, 8);
	}
}

/* ---- the scratch file ---------------------------------------------------------- */

static uint64_t scratch_bytes(const struct probe *p)
{
	return p->f->opts->quick ? SCRATCH_QUICK : SCRATCH_BYTES;
}

/* Creates the scratch file without a name. If the file system cannot do that, creates a file
 * with a name, and removes the name at once while all signals are blocked. Only SIGKILL between
 * these two steps leaves a file behind, which is then empty. */
static int scratch_create(struct probe *p, const char *folder)
{
	char name[4096];
	sigset_t all, before;
	int fd, error;

	p->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (p->fd >= 0)
		return 0;
	if ((size_t)snprintf(name, sizeof(name), "%s/.penstock-check-XXXXXX", folder) >=
	    sizeof(name))
		return probe_fail(p, "the scratch file cannot be created", strerror(ENAMETOOLONG));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	fd = mkostemp(name, O_CLOEXEC);
	error = errno;
	if (fd >= 0)
		/* Ignores a failure, since there is no other way to remove the name. */
		(void)unlink(name);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (fd < 0)
		return probe_fail(p, "the scratch file cannot be created", strerror(error));
	p->fd = fd;
	return 0;
}

/* Writes FILL_BYTES at offset `off` of the scratch file, through to the drive. */
static int scratch_write(struct probe *p, uint64_t off)
{
	uint64_t done = 0;

	buffer_fill(p->got, FILL_BYTES, off);
	while (done < FILL_BYTES) {
		ssize_t n = pwrite(p->fd, p->got + done, FILL_BYTES - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return probe_fail(p, "writing the scratch file",
					  n < 0 ? strerror(errno) : "pwrite() wrote nothing");
		done += (uint64_t)n;
	}
	return fdatasync(p->fd) ? probe_fail(p, "writing the scratch file", strerror(errno)) : 0;
}

static int scratch_fill(struct probe *p)
{
	double limit = now_s() + (p->f->opts->quick ? FILL_SECONDS_QUICK : FILL_SECONDS);
	uint64_t available, off;
	struct statvfs fs;

	if (fstatvfs(p->fd, &fs))
		return probe_fail(p, "the space of the file system cannot be read",
				  strerror(errno));
	/* The scratch file uses at most a quarter of the free space, so that it cannot fill the
	 * drive. */
	available = (uint64_t)fs.f_bavail * fs.f_frsize / 4;
	p->len = scratch_bytes(p);
	while (p->len > available && p->len > FILL_BYTES)
		p->len /= 2;
	if (p->len > available)
		return probe_fail(p, "the scratch file cannot be written",
				  "the file system is almost full");
	/* On a slow drive the scratch file becomes shorter, so that writing it does not take
	 * minutes. */
	for (off = 0; off < p->len && (!off || now_s() < limit); off += FILL_BYTES)
		if (scratch_write(p, off))
			return -1;
	p->len = off;
	posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

/* Stores in `out` the path of the folder that contains `path`, or `path` itself if it is a
 * folder. */
static void path_folder(const char *path, char *out, size_t len)
{
	struct stat st;
	char *slash;

	snprintf(out, len, "%s", path);
	if (!stat(out, &st) && S_ISDIR(st.st_mode))
		return;
	slash = strrchr(out, '/');
	if (!slash)
		snprintf(out, len, ".");
	else if (slash == out)
		out[1] = '\0';
	else
		*slash = '\0';
}

/* Opens the target itself for reading. The probe reads only the first megabytes of it. */
static int probe_open_target(struct probe *p, const char *path)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	p->foreign = true;
	p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (p->fd < 0 || penstock_open(path, &opts, &p->st))
		return probe_fail(p, "it cannot be read",
				  p->fd < 0 ? strerror(errno) : penstock_errmsg());
	p->len = (uint64_t)penstock_storage_length(p->st) & ~(uint64_t)4095;
	if (p->len > scratch_bytes(p))
		p->len = scratch_bytes(p);
	return p->len ? 0 : probe_fail(p, "it cannot be read", "it is shorter than a page");
}

static int probe_open_storage(struct probe *p)
{
	const char *path = pst_check_target_path(p->f);
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char folder[4096];
	struct stat st;

	if (p->f->is_block)
		return probe_open_target(p, path);
	path_folder(path, folder, sizeof(folder));
	if (scratch_create(p, folder) || scratch_fill(p)) {
		if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size < 4096)
			return -1;
		if (p->fd >= 0)
			close(p->fd);
		/* The scratch file could not be made, so the probe reads the target file itself.
		 * The failed function has stored the reason, which the output of the gate "probe"
		 * contains. */
		return probe_open_target(p, path);
	}
	if (penstock_open_fd(p->fd, &opts, &p->st))
		return probe_fail(p, "the scratch file cannot be opened", penstock_errmsg());
	return 0;
}

/* Records the alignment that O_DIRECT needs according to the kernel. The gate "align" uses it. */
static void alignment_read(struct probe *p)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (p->fd < 0 || syscall(SYS_statx, p->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) ||
	    !(stx.stx_mask & STATX_DIOALIGN))
		return;
	p->f->dio_told = true;
	p->f->dio_none = !stx.stx_dio_offset_align;
	p->f->dio_off = stx.stx_dio_offset_align;
	p->f->dio_mem = stx.stx_dio_mem_align;
#else
	struct penstock_storage_info info = {.size = sizeof(info)};

	if (penstock_storage_get_info(p->st, &info))
		return;
	p->f->dio_told = info.off_align != 0;
	p->f->dio_off = info.off_align;
	p->f->dio_mem = info.mem_align;
#endif
}

/* ---- one path -------------------------------------------------------------------- */

/* Returns the length of the probe's request at offset `off`. */
static uint64_t step_len(const struct probe *p, uint64_t off)
{
	return p->len - off < p->step ? p->len - off : p->step;
}

static int64_t path_read(struct probe *p, const char *path, uint64_t off,
			 struct penstock_report *report)
{
	struct penstock_seg seg = {
		.buf = p->buf, .dev = p->dev, .off = off, .row_len = step_len(p, off), .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = p->st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	req.flags = PENSTOCK_R_EXACT;
	return penstock_transfer(&req, report);
}

/* Fills p->want with the expected bytes. If the probe reads the target itself, the expected
 * bytes come from plain pread(2). */
static int expected_bytes(struct probe *p, uint64_t off, uint64_t len)
{
	uint64_t at = 0;

	if (!p->foreign) {
		buffer_fill(p->want, len, off);
		return 0;
	}
	while (at < len) {
		ssize_t n = pread(p->fd, p->want + at, len - at, (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += (uint64_t)n;
	}
	return 0;
}

/* Copies the device buffer to host memory and compares it with the expected bytes. Returns 0, or
 * -1 with a sentence in out->error. */
static int device_compare(struct probe *p, uint64_t off, struct pst_check_path *out)
{
	uint64_t len = step_len(p, off), at = 0;
	struct penstock_copy_args copy = {.size = sizeof(copy),
					  .dst_dev = p->host,
					  .dst = p->got,
					  .src_dev = p->dev,
					  .src = p->buf,
					  .row_len = len};

	if (penstock_copy(&copy, 1) < 0) {
		snprintf(out->error, sizeof(out->error), "copying it back from the device: %.200s",
			 penstock_errmsg());
		return -1;
	}
	if (expected_bytes(p, off, len)) {
		snprintf(out->error, sizeof(out->error),
			 "the file became shorter during the check");
		return -1;
	}
	if (!memcmp(p->got, p->want, len))
		return 0;
	while (p->got[at] == p->want[at])
		at++;
	snprintf(out->error, sizeof(out->error), "it reported success, but byte %llu is wrong",
		 (unsigned long long)(off + at));
	return -1;
}

/* Returns whether the path reads through the page cache. These paths also fill the page cache,
 * so they are measured after all other paths. */
static bool path_reads_cache(const char *name)
{
	return !strcmp(name, "mapped") || !strcmp(name, "bounce");
}

struct sum {
	uint64_t bytes, copied, laid;
	double seconds;
};

static int path_time(struct probe *p, struct pst_check_path *out, uint64_t off, struct sum *sum)
{
	struct penstock_report report = {.size = sizeof(report)};
	double start = now_s();

	if (path_read(p, out->explained.name, off, &report) < 0) {
		snprintf(out->error, sizeof(out->error), "%s", report.text);
		return -1;
	}
	sum->seconds += now_s() - start;
	sum->bytes += report.bytes;
	sum->copied += report.cpu_copied;
	sum->laid += report.dram_laid;
	return 0;
}

/*
 * Measures one path. The first round compares every byte with its expected value. The later
 * rounds are timed. The first round has filled the page cache, so a path that reads through the
 * page cache is timed with cached bytes. If the drive is so slow that there is no second round,
 * the time of the first round is used.
 */
static void path_measure(struct probe *p, struct pst_check_path *out)
{
	double limit = p->f->opts->quick ? 0.05 : 1.0, begin;
	struct sum first = {0}, rest = {0}, *sum;
	uint64_t off;

	for (off = 0; off < p->len; off += step_len(p, off))
		if (path_time(p, out, off, &first) || device_compare(p, off, out))
			return;
	begin = now_s();
	for (off = 0; now_s() - begin < limit && first.seconds < 2 * limit;) {
		if (path_time(p, out, off, &rest))
			return;
		off += step_len(p, off);
		off = off < p->len ? off : 0;
	}
	sum = rest.bytes ? &rest : &first;
	out->measured = true;
	out->cached = path_reads_cache(out->explained.name) && sum == &rest;
	out->gb_per_s = sum->seconds > 0 ? (double)sum->bytes / sum->seconds / 1e9 : 0;
	out->cpu_copies = (double)sum->copied / (double)sum->bytes;
	out->dram_passes = (double)sum->laid / (double)sum->bytes;
}

static void paths_measure(struct probe *p)
{
	struct pst_check *check = p->f->check;

	for (int round = 0; round < 2; round++)
		for (unsigned i = 0; i < check->path_count; i++) {
			struct pst_check_path *path = &check->paths[i];

			if (!path->explained.usable || !strcmp(path->explained.name, "null") ||
			    path_reads_cache(path->explained.name) != (round == 1))
				continue;
			path_measure(p, path);
		}
}

static int paths_explain(struct probe *p)
{
	struct pst_check *check = p->f->check;
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = p->dev, .row_len = p->len, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = p->st;
	req.segs = &seg;
	req.seg_count = 1;
	if (penstock_explain(&req, &e))
		return probe_fail(p, "explain", penstock_errmsg());
	check->cold = e.cold >= 0 ? e.cold : e.taken;
	check->warm = e.warm;
	check->path_count = e.path_count;
	for (unsigned i = 0; i < e.path_count; i++)
		check->paths[i].explained = e.paths[i];
	snprintf(check->engine, sizeof(check->engine), "%s", e.engine ? e.engine : "none");
	return 0;
}

static int probe_run(struct probe *p)
{
	const char *name = p->f->device_name[0] ? p->f->device_name : "host";

	if (p->f->device_error)
		return probe_fail(p, "the device cannot be opened", p->f->device_text);
	if (!p->f->host && !p->f->peermem && strcmp(p->f->devices[0].maker, "nvidia"))
		return probe_fail(p, "the device cannot be opened",
				  "this version does not support GPUs of this maker");
	if (posix_memalign((void **)&p->got, 4096, 2 * STEP_BYTES))
		return probe_fail(p, "host memory", strerror(ENOMEM));
	p->want = p->got + STEP_BYTES;
	if (probe_open_storage(p))
		return -1;
	if (penstock_device_open("host", NULL, &p->host) < 0 ||
	    penstock_device_open(name, NULL, &p->dev) < 0)
		return probe_fail(p, "the device cannot be opened", penstock_errmsg());
	for (p->step = STEP_BYTES; penstock_alloc(p->dev, p->step, &p->buf); p->step /= 2)
		if (p->step <= FILL_BYTES / 4)
			return probe_fail(p, "device memory", penstock_errmsg());
	alignment_read(p);
	if (paths_explain(p))
		return -1;
	paths_measure(p);
	p->f->check->probed = true;
	return 0;
}

void pst_check_probe(struct pst_check_facts *f)
{
	struct probe p = {.f = f, .fd = -1};

	if (probe_run(&p))
		f->check->probed = false;
	if (p.buf)
		penstock_free(p.dev, p.buf);
	penstock_close(p.st);
	penstock_device_close(p.dev);
	penstock_device_close(p.host);
	if (p.fd >= 0)
		close(p.fd);
	free(p.got);
}
