/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trial: a scratch file beside the path, what the library would do with it
 * (explain, with its canary), and each open path measured and compared. Called by
 * run.c, on the real machine only. The scratch file has no name, so that it cannot stay,
 * however this ends. Where there can be none, and of a block device, what is there is
 * read; it must never be written.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

#define SCRATCH_BYTES (64u << 20)
#define SCRATCH_QUICK (8u << 20)
/* One request: enough chunks for every lane. Halved where the device has less. */
#define STEP_BYTES (32u << 20)
#define FILL_BYTES (4u << 20)
#define FILL_SECONDS 2.0
#define FILL_SECONDS_QUICK 0.5
#define SEED 0x9e3779b97f4a7c15ULL

struct probe {
	struct facts *f;
	struct penstock_storage *st;
	struct penstock_device *dev, *host;
	void *buf;	  /* `step` bytes of the device */
	char *got, *want; /* the same, back in host memory; what it should be */
	uint64_t step;
	uint64_t len; /* of the scratch file */
	int fd;
	bool foreign; /* a file or device that we did not write: read only */
};

static int give_up(struct probe *p, const char *what, const char *why)
{
	snprintf(p->f->probe_error, sizeof(p->f->probe_error), "%.80s: %.150s", what, why);
	return -1;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* The word that belongs at an offset; no two of a file are alike. */
static uint64_t word_at(uint64_t off)
{
	uint64_t x = off + SEED;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static void fill(char *buf, uint64_t len, uint64_t off)
{
	for (uint64_t at = 0; at < len; at += 8) {
		uint64_t word = word_at(off + at);

		memcpy(buf + at, &word, 8);
	}
}

/* ---- the scratch file ---------------------------------------------------------- */

static uint64_t scratch_bytes(const struct probe *p)
{
	return p->f->opts->quick ? SCRATCH_QUICK : SCRATCH_BYTES;
}

/* Without a name from the start; where the file system cannot, made and unnamed with all
 * signals held back, so that only SIGKILL between these two calls leaves it, empty. */
static int make_scratch(struct probe *p, const char *folder)
{
	char name[4096];
	sigset_t all, before;
	int fd, error;

	p->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (p->fd >= 0)
		return 0;
	if ((size_t)snprintf(name, sizeof(name), "%s/.penstock-check-XXXXXX", folder) >=
	    sizeof(name))
		return give_up(p, "the scratch file", strerror(ENAMETOOLONG));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	fd = mkostemp(name, O_CLOEXEC);
	error = errno;
	if (fd >= 0)
		(void)unlink(name); /* there is no more that could be done */
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (fd < 0)
		return give_up(p, "the scratch file cannot be made", strerror(error));
	p->fd = fd;
	return 0;
}

/* Its next bytes, on the drive when this returns. */
static int write_piece(struct probe *p, uint64_t off)
{
	uint64_t done = 0;

	fill(p->got, FILL_BYTES, off);
	while (done < FILL_BYTES) {
		ssize_t n = pwrite(p->fd, p->got + done, FILL_BYTES - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return give_up(p, "writing the scratch file",
				       n < 0 ? strerror(errno) : "it was cut short");
		done += (uint64_t)n;
	}
	return fdatasync(p->fd) ? give_up(p, "writing the scratch file", strerror(errno)) : 0;
}

static int fill_scratch(struct probe *p)
{
	double limit = now() + (p->f->opts->quick ? FILL_SECONDS_QUICK : FILL_SECONDS);
	uint64_t room, off;
	struct statvfs fs;

	if (fstatvfs(p->fd, &fs))
		return give_up(p, "the scratch file", strerror(errno));
	/* A check must not be what fills a disk. */
	room = (uint64_t)fs.f_bavail * fs.f_frsize / 4;
	p->len = scratch_bytes(p);
	while (p->len > room && p->len > FILL_BYTES)
		p->len /= 2;
	if (p->len > room)
		return give_up(p, "the scratch file", "the file system is all but full");
	/* Nor take minutes where drives are slow: they are measured by less. */
	for (off = 0; off < p->len && (!off || now() < limit); off += FILL_BYTES)
		if (write_piece(p, off))
			return -1;
	p->len = off;
	posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

/* The folder beside the path. */
static void folder_of(const char *path, char *out, size_t len)
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

/* What is there already, for reading. Its first megabytes do. */
static int open_foreign(struct probe *p, const char *path)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	p->foreign = true;
	p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (p->fd < 0 || penstock_open(path, &opts, &p->st))
		return give_up(p, "it cannot be read",
			       p->fd < 0 ? strerror(errno) : penstock_errmsg());
	p->len = (uint64_t)penstock_storage_length(p->st) & ~(uint64_t)4095;
	if (p->len > scratch_bytes(p))
		p->len = scratch_bytes(p);
	return p->len ? 0 : give_up(p, "it cannot be read", "there is not a page in it");
}

static int open_storage(struct probe *p)
{
	const char *path = pst_check_path_of(p->f);
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char folder[4096];
	struct stat st;

	if (p->f->is_block)
		return open_foreign(p, path);
	folder_of(path, folder, sizeof(folder));
	if (make_scratch(p, folder) || fill_scratch(p)) {
		if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size < 4096)
			return -1;
		if (p->fd >= 0)
			close(p->fd);
		/* Why there is none stays in probe_error, which the gate adds. */
		return open_foreign(p, path);
	}
	if (penstock_open_fd(p->fd, &opts, &p->st))
		return give_up(p, "the scratch file", penstock_errmsg());
	return 0;
}

/* What the kernel says of O_DIRECT's alignment, for the gate of that name. */
static void note_alignment(struct probe *p)
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

static uint64_t piece(const struct probe *p, uint64_t off)
{
	return p->len - off < p->step ? p->len - off : p->step;
}

static int64_t read_piece(struct probe *p, const char *path, uint64_t off,
			  struct penstock_report *report)
{
	struct penstock_seg seg = {
		.buf = p->buf, .dev = p->dev, .off = off, .row_len = piece(p, off), .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = p->st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	req.flags = PENSTOCK_R_EXACT;
	return penstock_transfer(&req, report);
}

/* What plain system calls read there. */
static int reference(struct probe *p, uint64_t off, uint64_t len)
{
	uint64_t at = 0;

	if (!p->foreign) {
		fill(p->want, len, off);
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

/* What lies in the device's buffer, against what belongs there. */
static int compare(struct probe *p, uint64_t off, struct pst_check_path *out)
{
	uint64_t len = piece(p, off), at = 0;
	struct penstock_copy_args copy = {.size = sizeof(copy),
					  .dst_dev = p->host,
					  .dst = p->got,
					  .src_dev = p->dev,
					  .src = p->buf,
					  .row_len = len};

	if (penstock_copy(&copy, 1) < 0) {
		snprintf(out->error, sizeof(out->error), "reading it back: %.200s",
			 penstock_errmsg());
		return -1;
	}
	if (reference(p, off, len)) {
		snprintf(out->error, sizeof(out->error), "the file became shorter");
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

/* Paths that read the page cache are measured last: they fill it. */
static bool is_cached(const char *name)
{
	return !strcmp(name, "mapped") || !strcmp(name, "bounce");
}

struct sum {
	uint64_t bytes, copied, laid;
	double seconds;
};

static int add_piece(struct probe *p, struct pst_check_path *out, uint64_t off, struct sum *sum)
{
	struct penstock_report report = {.size = sizeof(report)};
	double start = now();

	if (read_piece(p, out->explained.name, off, &report) < 0) {
		snprintf(out->error, sizeof(out->error), "%s", report.text);
		return -1;
	}
	sum->seconds += now() - start;
	sum->bytes += report.bytes;
	sum->copied += report.cpu_copied;
	sum->laid += report.dram_laid;
	return 0;
}

/*
 * The first round is compared, in all of its bytes; the rounds after it are measured,
 * when the page cache holds what a path of that kind reads. A drive that is too slow
 * for a second round is measured by the first.
 */
static void measure(struct probe *p, struct pst_check_path *out)
{
	double limit = p->f->opts->quick ? 0.05 : 1.0, begin;
	struct sum first = {0}, rest = {0}, *sum;
	uint64_t off;

	for (off = 0; off < p->len; off += piece(p, off))
		if (add_piece(p, out, off, &first) || compare(p, off, out))
			return;
	begin = now();
	for (off = 0; now() - begin < limit && first.seconds < 2 * limit;) {
		if (add_piece(p, out, off, &rest))
			return;
		off += piece(p, off);
		off = off < p->len ? off : 0;
	}
	sum = rest.bytes ? &rest : &first;
	out->measured = true;
	out->cached = is_cached(out->explained.name) && sum == &rest;
	out->gb_per_s = sum->seconds > 0 ? (double)sum->bytes / sum->seconds / 1e9 : 0;
	out->cpu_copies = (double)sum->copied / (double)sum->bytes;
	out->dram_passes = (double)sum->laid / (double)sum->bytes;
}

static void measure_all(struct probe *p)
{
	struct pst_check *check = p->f->check;

	for (int round = 0; round < 2; round++)
		for (unsigned i = 0; i < check->path_count; i++) {
			struct pst_check_path *path = &check->paths[i];

			if (!path->explained.usable || !strcmp(path->explained.name, "null") ||
			    is_cached(path->explained.name) != (round == 1))
				continue;
			measure(p, path);
		}
}

static int explain(struct probe *p)
{
	struct pst_check *check = p->f->check;
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = p->dev, .row_len = p->len, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = p->st;
	req.segs = &seg;
	req.seg_count = 1;
	if (penstock_explain(&req, &e))
		return give_up(p, "explain", penstock_errmsg());
	check->cold = e.cold >= 0 ? e.cold : e.taken;
	check->warm = e.warm;
	check->path_count = e.path_count;
	for (unsigned i = 0; i < e.path_count; i++)
		check->paths[i].explained = e.paths[i];
	snprintf(check->engine, sizeof(check->engine), "%s", e.engine ? e.engine : "none");
	return 0;
}

static int run(struct probe *p)
{
	const char *name = p->f->device_name[0] ? p->f->device_name : "host";

	if (p->f->device_error)
		return give_up(p, "the device", p->f->device_text);
	if (!p->f->host && !p->f->peermem && strcmp(p->f->devices[0].maker, "nvidia"))
		return give_up(p, "the device", "this version has none for GPUs of this maker");
	if (posix_memalign((void **)&p->got, 4096, 2 * STEP_BYTES))
		return give_up(p, "memory", strerror(ENOMEM));
	p->want = p->got + STEP_BYTES;
	if (open_storage(p))
		return -1;
	if (penstock_device_open("host", NULL, &p->host) < 0 ||
	    penstock_device_open(name, NULL, &p->dev) < 0)
		return give_up(p, "the device", penstock_errmsg());
	for (p->step = STEP_BYTES; penstock_alloc(p->dev, p->step, &p->buf); p->step /= 2)
		if (p->step <= FILL_BYTES / 4)
			return give_up(p, "the device", penstock_errmsg());
	note_alignment(p);
	if (explain(p))
		return -1;
	measure_all(p);
	p->f->check->probed = true;
	return 0;
}

void pst_check_probe(struct facts *f)
{
	struct probe p = {.f = f, .fd = -1};

	if (run(&p))
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
