/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock cp`: copies a storage to another storage through device memory. It reads
 * blocks into a pool of device buffers and writes them from there, so that reads and writes of
 * different blocks overlap. The destination must get its name only when the copy is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "parts.h"

#define BLOCK (16u << 20)
#define BLOCKS 8
/* number of free bytes after each block, because direct paths transfer whole aligned units, and so
 * write beyond the end of an unaligned block */
#define SLACK 4096u

struct cp_args {
	const char *src, *dst, *via, *path, *engine;
	enum penstock_class require;
	enum penstock_effort effort;
	bool verify, durable, json, quiet;
};

struct block {
	char *mem;
	uint64_t off, len;
	uint64_t id; /* id of the request in flight; 0 if there is none */
	bool writing;
};

struct copy {
	const struct cp_args *a;
	struct penstock_storage *from, *to;
	struct penstock_device *dev;
	struct penstock_queue *q;
	struct block blocks[BLOCKS];
	char *mem;
	uint64_t length, next, written;
	unsigned busy;
	struct tally read, write;
	int code; /* exit code of the first failure */
	bool failed;
	char text[LINE_MAX_BYTES]; /* message of the first failure */
	/* temporary name of the copy until it is verified; NULL if it has none */
	char *temp;
	/* descriptor of the destination's folder if there is a temporary name, else -1. With it,
	 * the copy is removed even if the folder was renamed meanwhile */
	int dir;
	bool in_place; /* whether the destination is a block device */
	bool committed, verified, from_drive;
	struct parts parts; /* of the destination, after the commit */
	double start, shown;
};

static int cp_parse(int argc, char **argv, struct cp_args *a)
{
	static const struct option options[] = {{"via", required_argument, NULL, 'v'},
						{"require", required_argument, NULL, 'r'},
						{"effort", required_argument, NULL, 'e'},
						{"path", required_argument, NULL, 'p'},
						{"engine", required_argument, NULL, 'g'},
						{"verify", no_argument, NULL, 'V'},
						{"durable", no_argument, NULL, 'd'},
						{"json", no_argument, NULL, 'j'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	int c;

	a->via = "auto";
	while ((c = next_option(argc, argv, &cmd_cp, options)) != -1) {
		bool ok = true;

		if (c == 'v')
			a->via = optarg;
		else if (c == 'r')
			ok = parse_class(optarg, &a->require);
		else if (c == 'e')
			ok = parse_effort(optarg, &a->effort);
		else if (c == 'p')
			a->path = optarg;
		else if (c == 'g')
			ok = parse_engine(optarg, &a->engine);
		else if (c == 'V')
			a->verify = true;
		else if (c == 'd')
			a->durable = true;
		else if (c == 'j')
			a->json = true;
		else if (c == 'q')
			a->quiet = true;
		else
			return c == 'h' ? -1 : EXIT_USAGE;
		if (!ok)
			return EXIT_USAGE;
	}
	if (optind + 2 != argc)
		return fail(EXIT_USAGE,
			    "cp needs a source and a destination, see 'penstock cp --help'");
	if (a->path && !strcmp(a->path, "null"))
		return fail(EXIT_USAGE,
			    "--path null moves nothing: use it with 'penstock bench' only");
	a->src = argv[optind];
	a->dst = argv[optind + 1];
	if (a->verify && (!storage_path(a->src) || !storage_path(a->dst)))
		return fail(EXIT_USAGE,
			    "--verify compares files, and mem: storage or an object is not a file: "
			    "leave it out");
	return 0;
}

/* ---- failures ---- */

/* Records the library's last message as the failure of the copy. Does nothing if a failure is
 * already recorded. */
static void copy_fail_lib(struct copy *c, int code, const char *what)
{
	if (c->failed)
		return;
	c->failed = true;
	c->code = code;
	snprintf(c->text, sizeof(c->text), "%s%s%s%s", what ? what : "", what ? ": " : "",
		 penstock_errmsg(), advice_for(penstock_errwhy(), penstock_errmsg()));
}

/* Records a message as the failure of the copy. Does nothing if a failure is already recorded. */
__attribute__((format(printf, 2, 3))) static void copy_fail(struct copy *c, const char *fmt, ...)
{
	va_list args;

	c->failed = true;
	c->code = EXIT_FAILED;
	va_start(args, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, args);
	va_end(args);
}

static void copy_fail_device(struct copy *c)
{
	char what[64];

	snprintf(what, sizeof(what), "--via (%s)", penstock_why_name(penstock_errwhy()));
	copy_fail_lib(c, code_without_device(c->a->require), what);
}

/* ---- opening ---- */

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return storage_path(a) && storage_path(b) && !stat(storage_path(a), &x) &&
	       !stat(storage_path(b), &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void source_open(struct copy *c)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	int64_t length;

	if (same_file(c->a->src, c->a->dst)) {
		copy_fail(c, "%s and %s are the same file: name another destination", c->a->src,
			  c->a->dst);
		return;
	}
	/* An object's first bytes come by HTTP, which a stricter class refuses. */
	if (c->a->require == PENSTOCK_ANY)
		opts.flags = PENSTOCK_O_PREFETCH;
	if (penstock_open(c->a->src, &opts, &c->from)) {
		copy_fail_lib(c, EXIT_FAILED, NULL);
		return;
	}
	length = penstock_storage_length(c->from);
	if (length < 0)
		copy_fail_lib(c, EXIT_FAILED, NULL);
	c->length = length < 0 ? 0 : (uint64_t)length;
}

static void via_open(struct copy *c)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	void *mem = NULL;
	size_t each = BLOCK + SLACK;
	unsigned count = BLOCKS;

	opts.engine = c->a->engine;
	if (penstock_device_open(c->a->via, &opts, &c->dev) < 0) {
		copy_fail_device(c);
		return;
	}
	/* If the device has too little memory, this loop tries fewer blocks, and then shorter
	 * blocks. */
	while (penstock_alloc(c->dev, each * count, &mem)) {
		if (count > 2)
			count /= 2;
		else if (each > (1u << 20) + SLACK)
			each = (each - SLACK) / 2 + SLACK;
		else {
			copy_fail_device(c);
			return;
		}
	}
	c->mem = mem;
	for (unsigned i = 0; i < count; i++) {
		c->blocks[i].mem = c->mem + i * each;
		c->blocks[i].len = each - SLACK;
	}
}

static bool is_block_device(const char *storage)
{
	struct stat stat_buf;

	return storage_path(storage) && !stat(storage_path(storage), &stat_buf) &&
	       S_ISBLK(stat_buf.st_mode);
}

/* Returns the last part of a path. */
static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Opens the destination's folder, with the given flags in addition to O_DIRECTORY. Returns a
 * descriptor, or -1 with errno. */
static int folder_open(const struct copy *c, int flags)
{
	const char *dst = storage_path(c->a->dst);
	size_t len = (size_t)(base_name(dst) - dst);
	char *dir = len ? strndup(dst, len) : strdup(".");
	int fd = dir ? open(dir, flags | O_DIRECTORY | O_CLOEXEC) : -1;

	free(dir);
	return fd;
}

/* Returns whether the destination's path still leads to the folder in which the copy is. */
static bool folder_is_same(const struct copy *c)
{
	int fd = folder_open(c, O_PATH);
	struct stat there, ours;
	bool same = fd >= 0 && !fstat(fd, &there) && !fstat(c->dir, &ours) &&
		    there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;

	if (fd >= 0)
		close(fd);
	return same;
}

/* Removes the copy that has not been verified. */
static void temp_remove(const struct copy *c)
{
	if (c->temp && unlinkat(c->dir, base_name(c->temp), 0) && errno != ENOENT)
		fail(EXIT_FAILED, "%s cannot be removed: %m", c->temp);
}

/* Chooses a temporary name in the destination's folder. The copy keeps this name until it is
 * verified. The name is random, because processes of different machines or containers can have
 * the same process number. Returns false if it fails. */
static bool temp_name_choose(struct copy *c)
{
	const char *dst = storage_path(c->a->dst);
	int dir = (int)(base_name(dst) - dst);
	uint64_t random = 0;

	c->dir = folder_open(c, O_PATH);
	if (c->dir < 0) {
		copy_fail(c, "the folder of %s cannot be opened: %m", c->a->dst);
		return false;
	}
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
	if (asprintf(&c->temp, "%.*s.penstock-verify-%016llx", dir, dst,
		     (unsigned long long)random) < 0) {
		c->temp = NULL;
		copy_fail(c, "out of memory");
	}
	return c->temp;
}

/* Returns the permissions for the copy: the permissions of the file that it replaces or, if
 * there is no such file, the permissions of the source. Returns 0 if the library is to set the
 * permissions. */
static unsigned copy_permissions(const struct copy *c)
{
	const char *src = storage_path(c->a->src), *dst = storage_path(c->a->dst);
	struct stat stat_buf;

	if (dst && !lstat(dst, &stat_buf) && S_ISREG(stat_buf.st_mode))
		/* The copy has a temporary name. Until it replaces the destination, only its owner
		 * may read it. */
		return c->temp ? 0600 : 0;
	if (!src || stat(src, &stat_buf) || !S_ISREG(stat_buf.st_mode))
		return 0;
	return stat_buf.st_mode & 0777 ? stat_buf.st_mode & 0777 : 0600;
}

/* Fails the copy if the destination is a device that is too small. A device cannot grow, and a
 * write to it cannot be undone. */
static void capacity_check(struct copy *c)
{
	int64_t capacity = penstock_storage_length(c->to);

	if (capacity < 0)
		copy_fail_lib(c, EXIT_FAILED, NULL);
	else if ((uint64_t)capacity < c->length)
		copy_fail(c, "%s holds %lld bytes, but %s has %llu: name a larger device",
			  c->a->dst, (long long)capacity, c->a->src, (unsigned long long)c->length);
}

static void destination_open(struct copy *c)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts q = PENSTOCK_QUEUE_OPTS_INIT;

	/* From the first open of a destination on, a signal must leave no incomplete copy. The open
	 * of an object stores nothing, but may wait for the server for minutes, so a signal may end
	 * the process meanwhile. The same is true of the source. */
	if (!storage_is_object(c->a->dst))
		catch_signals();
	c->in_place = is_block_device(c->a->dst);
	opts.flags = PENSTOCK_O_REPLACE;
	if (c->a->verify && !c->in_place) {
		/* This open tests whether the destination can be replaced, before any byte is
		 * copied. */
		if (penstock_open(c->a->dst, &opts, &c->to)) {
			copy_fail_lib(c, EXIT_FAILED, NULL);
			return;
		}
		penstock_close(c->to);
		c->to = NULL;
		if (!temp_name_choose(c))
			return;
	}
	opts.length = c->length;
	opts.mode = copy_permissions(c);
	if (penstock_open(c->temp ? c->temp : c->a->dst, &opts, &c->to))
		copy_fail_lib(c, EXIT_FAILED, NULL);
	else if (c->in_place)
		capacity_check(c);
	if (storage_is_object(c->a->dst))
		catch_signals();
	q.requests_max = BLOCKS;
	q.segs_max = 1;
	if (!c->failed && penstock_queue_open(&q, &c->q))
		copy_fail_lib(c, EXIT_FAILED, NULL);
}

/* ---- transfer ---- */

static void block_submit(struct copy *c, struct block *b)
{
	struct penstock_seg seg = {.buf = b->mem,
				   .dev = c->dev,
				   .off = b->off,
				   .row_len = b->len,
				   .rows = 1,
				   .room = SLACK};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = b->writing ? c->to : c->from;
	req.op = b->writing ? PENSTOCK_WRITE : PENSTOCK_READ;
	req.segs = &seg;
	req.seg_count = 1;
	req.require = c->a->require;
	req.effort = c->a->effort;
	req.path = c->a->path;
	req.flags = PENSTOCK_R_EXACT;
	req.user = b;
	if (penstock_submit(c->q, &req, 1, &b->id) == 1) {
		c->busy++;
		return;
	}
	copy_fail_lib(c,
		      penstock_errwhy() == PENSTOCK_WHY_REQUIRE ||
				      (c->a->require > PENSTOCK_ANY &&
				       penstock_errwhy() == PENSTOCK_WHY_UNALIGNED)
			      ? EXIT_REFUSED
			      : EXIT_FAILED,
		      b->writing ? c->a->dst : c->a->src);
}

/* Starts a read of the next `len_max` bytes of the source into block `b`, unless the copy has
 * failed or has reached the end of the source. */
static void block_read(struct copy *c, struct block *b, uint64_t len_max)
{
	if (c->failed || stop_signal || c->next >= c->length)
		return;
	b->off = c->next;
	b->len = c->length - c->next < len_max ? c->length - c->next : len_max;
	b->writing = false;
	c->next += b->len;
	block_submit(c, b);
}

static void copy_progress(struct copy *c, bool last)
{
	double rate = (double)c->written / (seconds() - c->start + 1e-9);
	char done[32], speed[32];

	if (!progress_due(c->a->quiet, last, &c->shown))
		return;
	progress(last, "%3.0f %%  %s  %s/s  %.0f s left",
		 c->length ? 100.0 * (double)c->written / (double)c->length : 100.0,
		 human((double)c->written, done, sizeof(done)), human(rate, speed, sizeof(speed)),
		 rate > 0 ? (double)(c->length - c->written) / rate : 0.0);
}

/* Handles the completion of a request. If a block was read, starts to write it. If it was
 * written, starts to read the next block into it. If the request failed, records the failure. */
static void block_done(struct copy *c, const struct penstock_done *done, uint64_t len_max)
{
	struct block *b = done->user;

	c->busy--;
	b->id = 0;
	tally_add(b->writing ? &c->write : &c->read, done->report);
	if (done->result < 0) {
		/* After a signal, the command itself cancels the requests, which is no failure of
		 * the copy. */
		if (!c->failed && !(stop_signal && done->result == -ECANCELED)) {
			c->failed = true;
			c->code = done->report->why == PENSTOCK_WHY_REQUIRE ? EXIT_REFUSED
									    : EXIT_FAILED;
			/* With --require, the reasons CANARY (a test read failed) and NO_ROUTE also
			 * mean that no path met the required class. */
			if (c->a->require > PENSTOCK_ANY &&
			    (done->report->why == PENSTOCK_WHY_CANARY ||
			     done->report->why == PENSTOCK_WHY_NO_ROUTE))
				c->code = EXIT_REFUSED;
			snprintf(c->text, sizeof(c->text), "%s %s: %s (%s)%s",
				 b->writing ? "writing" : "reading",
				 b->writing ? c->a->dst : c->a->src, done->report->text,
				 penstock_why_name(done->report->why),
				 advice_for(done->report->why, done->report->text));
		}
		return;
	}
	if (!b->writing) {
		b->writing = true;
		if (!c->failed && !stop_signal)
			block_submit(c, b);
		return;
	}
	c->written += b->len;
	block_read(c, b, len_max);
}

/* Cancels all requests. A request to a server may otherwise take minutes to end. */
static void blocks_cancel(struct copy *c)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		if (c->blocks[i].id)
			penstock_cancel(c->q, c->blocks[i].id);
}

static void copy_transfer(struct copy *c)
{
	struct penstock_done done[BLOCKS];
	uint64_t len_max = c->blocks[0].len;
	bool cancelled = false;

	for (unsigned i = 0; i < BLOCKS && c->blocks[i].mem; i++)
		block_read(c, &c->blocks[i], len_max);
	while (c->busy) {
		int n = penstock_wait(c->q, done, 1, BLOCKS, 200000000);

		for (int i = 0; i < n; i++)
			block_done(c, &done[i], len_max);
		if (stop_signal && !cancelled) {
			cancelled = true;
			blocks_cancel(c);
		}
		copy_progress(c, false);
	}
	if (stop_signal && !c->failed) {
		c->failed = true;
		c->code = stop_text(c->text, sizeof(c->text));
	}
	copy_progress(c, true);
}

/* ---- report and cleanup ---- */

/* If the copy was refused before it began, adds to its report the reason why each path was not
 * possible. */
static void reasons_add(struct copy *c)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = c->dev, .row_len = 4096, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	if (c->code != EXIT_REFUSED || !c->dev || !c->from || c->read.path_count)
		return;
	req.storage = c->from;
	req.segs = &seg;
	req.seg_count = 1;
	req.require = c->a->require;
	if (penstock_explain(&req, &e))
		return;
	c->read.path_count = e.path_count;
	for (unsigned i = 0; i < e.path_count; i++) {
		c->read.names[i] = e.paths[i].name;
		c->read.why[i] = e.paths[i].why;
		snprintf(c->read.text[i], sizeof(c->read.text[i]), "%s", e.paths[i].text);
	}
}

static void report_print_json(const struct copy *c, double took)
{
	struct tally sum = {.path_count = 0};
	struct json j;

	tally_merge(&sum, &c->read);
	tally_merge(&sum, &c->write);
	json_open(&j, stdout);
	json_bool(&j, "ok", !c->failed);
	json_int(&j, "bytes", (int64_t)c->written);
	json_real(&j, "seconds", took);
	json_text(&j, "via", c->dev ? penstock_device_name(c->dev) : c->a->via);
	json_text(&j, "require", class_name(c->a->require));
	tally_json(&j, &sum);
	json_object(&j, "read");
	tally_json(&j, &c->read);
	json_end(&j);
	json_object(&j, "write");
	tally_json(&j, &c->write);
	json_end(&j);
	json_bool(&j, "verified", c->verified);
	parts_json(&j, &c->parts);
	if (c->failed)
		json_failure(&j, c->code, c->text);
	json_close(&j);
}

static void report_print(const struct copy *c, double took)
{
	char size[32], rate[32];

	if (c->a->json) {
		report_print_json(c, took);
		return;
	}
	if (c->failed || c->a->quiet)
		return;
	printf("%s in %.2f s, %s/s, through %s%s\n", human((double)c->written, size, sizeof(size)),
	       took, human((double)c->written / (took > 0 ? took : 1), rate, sizeof(rate)),
	       penstock_device_name(c->dev),
	       !c->verified    ? ""
	       : c->from_drive ? "; verified: both files read again from the drive, no difference"
			       : "; verified: both files read again, not from a drive, no "
				 "difference");
	tally_print(stdout, "read", &c->read);
	tally_print(stdout, "write", &c->write);
	parts_print(stdout, &c->parts);
}

/* Renames a verified copy to the destination. With --durable, also makes the new name durable. */
static void copy_rename(struct copy *c)
{
	const char *dst = storage_path(c->a->dst);
	int fd;

	if (!folder_is_same(c)) {
		copy_fail(c, "the folder of %s was renamed: copy again", c->a->dst);
		return;
	}
	keep_permissions(c->temp, dst);
	c->committed = !renameat(c->dir, base_name(c->temp), c->dir, base_name(dst));
	if (!c->committed)
		copy_fail(c, "the copy cannot be renamed to %s: %m", c->a->dst);
	if (!c->committed || !c->a->durable)
		return;
	fd = folder_open(c, O_RDONLY);
	if (fd < 0 || fsync(fd))
		copy_fail(c, "%s is complete, but its name cannot be made durable: %m", c->a->dst);
	if (fd >= 0)
		close(fd);
}

static void copy_verify(struct copy *c)
{
	struct verify v = {.src = c->a->src,
			   .copy = c->temp ? c->temp : c->a->dst,
			   .length = c->length,
			   .longer = c->in_place,
			   .progress = !c->a->quiet,
			   .stop_signal = &stop_signal,
			   .text = c->text,
			   .text_len = sizeof(c->text)};

	c->code = verify_files(&v);
	c->failed = c->code;
	if (!c->failed && c->temp)
		copy_rename(c);
	if (c->failed)
		temp_remove(c);
	c->verified = !c->failed;
	c->from_drive = v.from_drive;
}

static void copy_commit(struct copy *c)
{
	struct penstock_end_opts opts = PENSTOCK_END_OPTS_INIT;

	opts.durable = c->a->durable || c->a->verify;
	opts.stop = &stop_signal;
	c->committed = !c->temp;
	if (!penstock_commit_with(c->to, &opts)) {
		parts_get(&c->parts, c->to, c->dev);
	} else if (stop_signal && penstock_errwhy() == PENSTOCK_WHY_CANCELLED) {
		c->failed = true;
		c->code = stop_text(c->text, sizeof(c->text));
	} else {
		copy_fail_lib(c, EXIT_FAILED, NULL);
	}
}

static void copy_finish(struct copy *c)
{
	penstock_queue_close(c->q);
	if (c->to && !c->failed)
		copy_commit(c);
	if (c->failed)
		abort_storage(c->to);
	if (c->failed)
		/* A failed commit can leave a file with the temporary name, which may not be
		 * durable. */
		temp_remove(c);
	if (c->mem)
		penstock_free(c->dev, c->mem);
	reasons_add(c);
	penstock_close(c->to);
	penstock_close(c->from);
}

/* Prints the failure, and the state in which it leaves the destination. Returns the exit code. */
static int failure_print(struct copy *c)
{
	size_t n = strlen(c->text);

	if (!c->failed)
		return EXIT_DONE;
	if (c->start && !c->committed && storage_path(c->a->dst))
		snprintf(c->text + n, sizeof(c->text) - n,
			 c->in_place ? "; %s holds a part of the copy" : "; %s is unchanged",
			 c->a->dst);
	return fail(c->code, "%s", c->text);
}

static int cp_main(int argc, char **argv)
{
	struct cp_args a = {.require = PENSTOCK_ANY};
	struct copy *c;
	double took;
	int ret = cp_parse(argc, argv, &a);

	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	c = calloc(1, sizeof(*c));
	if (!c)
		return fail(EXIT_FAILED, "out of memory");
	c->a = &a;
	c->dir = -1;
	source_open(c);
	if (!c->failed)
		via_open(c);
	if (!c->failed)
		destination_open(c);
	if (!c->failed) {
		c->start = seconds();
		copy_transfer(c);
	}
	copy_finish(c);
	took = c->start ? seconds() - c->start : 0;
	if (!c->failed && a.verify)
		copy_verify(c);
	ret = failure_print(c);
	report_print(c, took);
	penstock_device_close(c->dev);
	if (c->dir >= 0)
		close(c->dir);
	free(c->temp);
	free(c);
	return ret;
}

const struct command cmd_cp = {
	.name = "cp",
	.usage = "SRC DST [options]",
	.summary = "copy a storage through device memory, and report the path",
	.help = "  --via DEVICE     device whose memory the bytes pass through (auto)\n"
		"  --require CLASS  any, no-cpu-copy or direct; exit 3 if it cannot be met\n"
		"  --effort E       thrifty (least CPU time), balanced (in between) or\n"
		"                   fast (most bytes per second)\n"
		"  --verify         read both files again from the drive and compare them\n"
		"  --durable        return only when DST survives a power cut\n"
		"  --path P         use only this path, for tests\n"
		"  --engine E       auto, uring or threads\n"
		"  --quiet          print only errors\n"
		"  --json           print one JSON object, see penstock-json(5)\n",
	.run = cp_main,
};
