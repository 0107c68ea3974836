/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock cp: storage to storage through device memory. A pool of device buffers;
 * each is read into, then written out, so that reads and writes of different blocks
 * overlap. The destination takes its name only when all of it is there.
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

#define BLOCK (16u << 20)
#define BLOCKS 8
#define ROOM 4096u /* behind a block, so that an unaligned tail goes direct too */

struct args {
	const char *src, *dst, *via, *path, *engine;
	enum penstock_class require;
	enum penstock_effort effort;
	bool verify, durable, json, quiet;
};

struct block {
	char *mem;
	uint64_t off, len;
	bool writing;
};

struct copy {
	const struct args *a;
	struct penstock_storage *from, *to;
	struct penstock_device *dev;
	struct penstock_queue *q;
	struct block blocks[BLOCKS];
	char *mem;
	uint64_t length, next, written;
	unsigned busy;
	struct tally read, write;
	int code; /* exit code once something failed */
	bool failed;
	char text[LINE_MAX_BYTES];
	char *aside; /* the copy's name until it is verified; NULL: its own */
	bool in_place, committed, verified, from_drive;
	double start, shown;
};

static int parse(int argc, char **argv, struct args *a)
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
			    "cp wants a source and a destination, see 'penstock cp --help'");
	if (a->path && !strcmp(a->path, "null"))
		return fail(EXIT_USAGE, "--path null moves nothing: it is for 'penstock bench'");
	a->src = argv[optind];
	a->dst = argv[optind + 1];
	if (a->verify && (!file_of(a->src) || !file_of(a->dst)))
		return fail(EXIT_USAGE, "--verify reads files again, mem: storage is none");
	return 0;
}

/* ---- opening ---- */

static void note(struct copy *c, int code, const char *what)
{
	if (c->failed)
		return;
	c->failed = true;
	c->code = code;
	snprintf(c->text, sizeof(c->text), "%s%s%s%s", what ? what : "", what ? ": " : "",
		 penstock_errmsg(), advice(penstock_errwhy()));
}

__attribute__((format(printf, 2, 3))) static void say(struct copy *c, const char *fmt, ...)
{
	va_list args;

	c->failed = true;
	c->code = EXIT_FAILED;
	va_start(args, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, args);
	va_end(args);
}

static void note_device(struct copy *c)
{
	char what[64];

	snprintf(what, sizeof(what), "--via (%s)", penstock_why_name(penstock_errwhy()));
	note(c, code_without_device(c->a->require), what);
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return file_of(a) && file_of(b) && !stat(file_of(a), &x) && !stat(file_of(b), &y) &&
	       x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void open_source(struct copy *c)
{
	int64_t length;

	if (same_file(c->a->src, c->a->dst)) {
		say(c, "%s and %s are the same file: name another destination", c->a->src,
		    c->a->dst);
		return;
	}
	if (penstock_open(c->a->src, NULL, &c->from)) {
		note(c, EXIT_FAILED, NULL);
		return;
	}
	length = penstock_storage_length(c->from);
	if (length < 0)
		note(c, EXIT_FAILED, NULL);
	c->length = length < 0 ? 0 : (uint64_t)length;
}

static void open_device(struct copy *c)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	void *mem = NULL;
	size_t each = BLOCK + ROOM;
	unsigned count = BLOCKS;

	opts.engine = c->a->engine;
	if (penstock_device_open(c->a->via, &opts, &c->dev) < 0) {
		note_device(c);
		return;
	}
	/* A small device gives what it has: fewer, then shorter blocks. */
	while (penstock_alloc(c->dev, each * count, &mem)) {
		if (count > 2)
			count /= 2;
		else if (each > (1u << 20) + ROOM)
			each = (each - ROOM) / 2 + ROOM;
		else {
			note_device(c);
			return;
		}
	}
	c->mem = mem;
	for (unsigned i = 0; i < count; i++) {
		c->blocks[i].mem = c->mem + i * each;
		c->blocks[i].len = each - ROOM;
	}
}

static bool is_device(const char *storage)
{
	struct stat stat_buf;

	return file_of(storage) && !stat(file_of(storage), &stat_buf) && S_ISBLK(stat_buf.st_mode);
}

/* What is to be verified gets a name of its own beside its place until then: other hosts and
 * containers may write there, too, with processes of the same number. */
static bool choose_aside(struct copy *c)
{
	const char *dst = file_of(c->a->dst), *slash = strrchr(dst, '/');
	int dir = slash ? (int)(slash - dst) + 1 : 0;
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
	if (asprintf(&c->aside, "%.*s.penstock-verify-%016llx", dir, dst,
		     (unsigned long long)random) < 0) {
		c->aside = NULL;
		say(c, "no memory");
	}
	return c->aside;
}

/* Who may read the copy: who may read what it replaces, else who may read the source. 0:
 * the library sees to it. */
static unsigned permissions(const struct copy *c)
{
	const char *src = file_of(c->a->src), *dst = file_of(c->a->dst);
	struct stat stat_buf;

	if (dst && !lstat(dst, &stat_buf) && S_ISREG(stat_buf.st_mode))
		return c->aside ? 0600 : 0; /* until it takes the place */
	if (!src || stat(src, &stat_buf) || !S_ISREG(stat_buf.st_mode))
		return 0;
	return stat_buf.st_mode & 0777 ? stat_buf.st_mode & 0777 : 0600;
}

/* A device does not grow, and what is written to it is there at once. */
static void check_room(struct copy *c)
{
	int64_t room = penstock_storage_length(c->to);

	if (room < 0)
		note(c, EXIT_FAILED, NULL);
	else if ((uint64_t)room < c->length)
		say(c, "%s has room for %lld bytes, %s has %llu: name a larger one", c->a->dst,
		    (long long)room, c->a->src, (unsigned long long)c->length);
}

static void open_target(struct copy *c)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts q = PENSTOCK_QUEUE_OPTS_INIT;

	c->in_place = is_device(c->a->dst);
	opts.flags = PENSTOCK_O_REPLACE;
	if (c->a->verify && !c->in_place) {
		/* Can it be had at all? Learnt before anything moves. */
		if (penstock_open(c->a->dst, &opts, &c->to)) {
			note(c, EXIT_FAILED, NULL);
			return;
		}
		penstock_close(c->to);
		c->to = NULL;
		if (!choose_aside(c))
			return;
	}
	opts.length = c->length;
	opts.mode = permissions(c);
	if (penstock_open(c->aside ? c->aside : c->a->dst, &opts, &c->to))
		note(c, EXIT_FAILED, NULL);
	else if (c->in_place)
		check_room(c);
	q.requests_max = BLOCKS;
	q.segs_max = 1;
	if (!c->failed && penstock_queue_open(&q, &c->q))
		note(c, EXIT_FAILED, NULL);
}

/* ---- moving ---- */

static void submit(struct copy *c, struct block *b)
{
	struct penstock_seg seg = {.buf = b->mem,
				   .dev = c->dev,
				   .off = b->off,
				   .row_len = b->len,
				   .rows = 1,
				   .room = ROOM};
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
	if (penstock_submit(c->q, &req, 1, NULL) == 1) {
		c->busy++;
		return;
	}
	note(c,
	     penstock_errwhy() == PENSTOCK_WHY_REQUIRE ||
			     (c->a->require > PENSTOCK_ANY &&
			      penstock_errwhy() == PENSTOCK_WHY_UNALIGNED)
		     ? EXIT_REFUSED
		     : EXIT_FAILED,
	     b->writing ? c->a->dst : c->a->src);
}

static void begin_block(struct copy *c, struct block *b, uint64_t most)
{
	if (c->failed || stopped || c->next >= c->length)
		return;
	b->off = c->next;
	b->len = c->length - c->next < most ? c->length - c->next : most;
	b->writing = false;
	c->next += b->len;
	submit(c, b);
}

static void show(struct copy *c, bool last)
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

static void take(struct copy *c, const struct penstock_done *done, uint64_t most)
{
	struct block *b = done->user;

	c->busy--;
	tally_add(b->writing ? &c->write : &c->read, done->report);
	if (done->result < 0) {
		if (!c->failed) {
			c->failed = true;
			c->code = done->report->why == PENSTOCK_WHY_REQUIRE ? EXIT_REFUSED
									    : EXIT_FAILED;
			/* In flight under a required class: the class is what failed. */
			if (c->a->require > PENSTOCK_ANY &&
			    (done->report->why == PENSTOCK_WHY_CANARY ||
			     done->report->why == PENSTOCK_WHY_NO_ROUTE))
				c->code = EXIT_REFUSED;
			snprintf(c->text, sizeof(c->text), "%s %s: %s (%s)%s",
				 b->writing ? "writing" : "reading",
				 b->writing ? c->a->dst : c->a->src, done->report->text,
				 penstock_why_name(done->report->why), advice(done->report->why));
		}
		return;
	}
	if (!b->writing) {
		b->writing = true;
		if (!c->failed && !stopped)
			submit(c, b);
		return;
	}
	c->written += b->len;
	begin_block(c, b, most);
}

static void move(struct copy *c)
{
	struct penstock_done done[BLOCKS];
	uint64_t most = c->blocks[0].len;

	for (unsigned i = 0; i < BLOCKS && c->blocks[i].mem; i++)
		begin_block(c, &c->blocks[i], most);
	while (c->busy) {
		int n = penstock_wait(c->q, done, 1, BLOCKS, 200000000);

		for (int i = 0; i < n; i++)
			take(c, &done[i], most);
		show(c, false);
	}
	if (stopped && !c->failed) {
		c->failed = true;
		c->code = say_stopped(c->text, sizeof(c->text));
	}
	show(c, true);
}

/* ---- the end ---- */

static void add_refusals(struct copy *c)
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

static void report_json(const struct copy *c, double took)
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
	if (c->failed)
		json_text(&j, "error", c->text);
	json_close(&j);
}

static void report(const struct copy *c, double took)
{
	char size[32], rate[32];

	if (c->a->json) {
		report_json(c, took);
		return;
	}
	if (c->failed)
		return;
	printf("%s in %.2f s, %s/s, through %s%s\n", human((double)c->written, size, sizeof(size)),
	       took, human((double)c->written / (took > 0 ? took : 1), rate, sizeof(rate)),
	       penstock_device_name(c->dev),
	       !c->verified	? ""
	       : c->from_drive ? "; both files read again from the drive: the same"
			       : "; both files read again, not from a drive: the same");
	tally_print(stdout, "read", &c->read);
	tally_print(stdout, "write", &c->write);
}

/* Puts a copy that was verified in its place; durable if that was asked for. */
static void put_in_place(struct copy *c)
{
	const char *dst = file_of(c->a->dst), *slash = strrchr(dst, '/');
	char *dir = slash ? strndup(dst, (size_t)(slash - dst) + 1) : strdup(".");
	int fd;

	keep_permissions(c->aside, dst);
	c->committed = !rename(c->aside, dst);
	if (!c->committed)
		say(c, "%s cannot be put in its place: %m", c->a->dst);
	if (!c->committed || !c->a->durable) {
		free(dir);
		return;
	}
	fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (fd < 0 || fsync(fd))
		say(c, "%s is in its place, but cannot be made durable there: %m", c->a->dst);
	if (fd >= 0)
		close(fd);
	free(dir);
}

static void verify(struct copy *c)
{
	struct verify v = {.src = c->a->src,
			   .copy = c->aside ? c->aside : c->a->dst,
			   .length = c->length,
			   .longer = c->in_place,
			   .progress = !c->a->quiet,
			   .stopped = &stopped,
			   .text = c->text,
			   .text_len = sizeof(c->text)};

	c->code = verify_files(&v);
	c->failed = c->code;
	if (!c->failed && c->aside)
		put_in_place(c);
	if (c->failed && c->aside)
		unlink(c->aside);
	c->verified = !c->failed;
	c->from_drive = v.from_drive;
}

static void finish(struct copy *c)
{
	penstock_queue_close(c->q);
	if (c->to && !c->failed) {
		c->committed = !c->aside;
		if (penstock_commit(c->to, c->a->durable || c->a->verify))
			note(c, EXIT_FAILED, NULL);
	}
	if (c->failed)
		give_up(c->to);
	if (c->failed && c->aside)
		unlink(c->aside); /* it may have that name, and not be durable */
	if (c->mem)
		penstock_free(c->dev, c->mem);
	add_refusals(c);
	penstock_close(c->to);
	penstock_close(c->from);
}

/* One line: what failed, and what that left. */
static int tell(struct copy *c)
{
	size_t n = strlen(c->text);

	if (!c->failed)
		return EXIT_DONE;
	if (c->start && !c->committed && file_of(c->a->dst))
		snprintf(c->text + n, sizeof(c->text) - n,
			 c->in_place ? "; %s holds a part" : "; %s is as it was", c->a->dst);
	return fail(c->code, "%s", c->text);
}

static int run(int argc, char **argv)
{
	struct args a = {.require = PENSTOCK_ANY};
	struct copy *c;
	double took;
	int ret = parse(argc, argv, &a);

	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	c = calloc(1, sizeof(*c));
	if (!c)
		return fail(EXIT_FAILED, "no memory");
	c->a = &a;
	catch_signals();
	open_source(c);
	if (!c->failed)
		open_device(c);
	if (!c->failed)
		open_target(c);
	if (!c->failed) {
		c->start = seconds();
		move(c);
	}
	finish(c);
	took = c->start ? seconds() - c->start : 0;
	if (!c->failed && a.verify)
		verify(c);
	ret = tell(c);
	report(c, took);
	penstock_device_close(c->dev);
	free(c->aside);
	free(c);
	return ret;
}

const struct command cmd_cp = {
	.name = "cp",
	.usage = "SRC DST [options]",
	.summary = "storage to storage through device memory, with the report of the path",
	.help = "  --via DEVICE     where the bytes pass through (auto)\n"
		"  --require CLASS  any, no-cpu-copy or direct; exit 3 if it cannot be met\n"
		"  --effort E       thrifty (least CPU) or fast (most bytes a second)\n"
		"  --verify         read both files again from the drive and compare them\n"
		"  --durable        done only when it survives a power cut\n"
		"  --path P         only this path, for tests\n"
		"  --engine E       auto, uring or threads\n"
		"  --quiet          no progress\n"
		"  --json           one object, see penstock-json(5)\n",
	.run = run,
};
