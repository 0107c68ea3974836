/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for tests/s3/faults. It does through the C API what the command cannot do:
 *
 *	object cancel URL	reads, cancels when a byte arrives on standard input, and reports
 *				whether the memory stayed unchanged after the completion
 *	object late URL MS	like cancel, but with a deadline after MS milliseconds
 *	object many URL N	reads N ranges of 64 KiB at random offsets, 64 at a time, and sums
 *				their bytes
 *	object fork URL		opens, forks, and lets parent and child read
 *	object write URL N HOW	writes N bytes of a pattern as pieces of 1 MiB: HOW is forward,
 *				backward, twice (each byte two times) or gap (without the second
 *				piece), then commits; or abort, create (without replacing), or
 *				again (like create; after an error, opens the object and commits
 *				once more)
 *	object wait URL N MS	writes N bytes in one request with a deadline after MS
 *				milliseconds, and then aborts
 *	object stop URL N MS	writes N bytes and commits; if MS is 0, stops the commit when a
 *				byte arrives on standard input, and otherwise sets a deadline after
 *				MS milliseconds. For each further byte it commits again ('c') or
 *				aborts ('a')
 *	object grow URL N MS	like stop, but opens the object without its length; for 'w', writes
 *				a piece where the part after the N bytes begins
 *	object hold URL N	writes N bytes, prints "written", and waits for standard input
 *	object save URL N	saves a model with one tensor of N bytes
 *	object check URL N	compares the object with the pattern
 *	object device URL NAME FILE
 *				for each line of standard input, reads the object into memory of the
 *				device and compares it with the file
 *	object parts URL N AT..	reads N bytes at each offset, one after another, and reports each
 *				read in a line
 *	object first URL N AT..	like parts, but opens the object with PENSTOCK_O_PREFETCH. Also
 *				reports the sum of the bytes, and how many of them the CPU has
 *				copied
 *	object firsts URL N URL..
 *				like first, reads the first N bytes of each object, one after
 *				another
 *
 * It prints the result, and exits with 0 unless the program itself is at fault.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "penstock.h"
#include "penstock_weights.h"

#define PIECE (1u << 20)
#define PART (8u << 20) /* length of the first parts of an upload */
#define RANGE (64u << 10)
#define DEPTH 64

static unsigned char pattern(uint64_t at)
{
	return (unsigned char)(at * 2654435761u >> 13 ^ at >> 20);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int report(int64_t result)
{
	if (result < 0)
		printf("error %" PRId64 " %s: %s\n", result, penstock_why_name(penstock_errwhy()),
		       penstock_errmsg());
	else
		printf("ok %" PRId64 "\n", result);
	return 0;
}

static struct penstock_storage *open_or_exit(const char *url, unsigned flags, uint64_t length)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	int ret;

	opts.flags = flags;
	opts.length = length;
	ret = penstock_open(url, &opts, &st);
	if (!ret)
		return st;
	report(ret);
	exit(0);
}

static struct penstock_device *host(void)
{
	struct penstock_device *dev;

	if (penstock_device_open("host", NULL, &dev) < 0)
		exit(2);
	return dev;
}

/* Reads a whole object in one request that is cancelled, or has a deadline after `ms`
 * milliseconds if `ms` is not 0. */
static int read_and_cancel(const char *url, uint64_t ms)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0);
	uint64_t len = (uint64_t)penstock_storage_length(st), changed = 0;
	struct penstock_queue *q;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.dev = host(), .row_len = len, .rows = 1};
	struct penstock_done done;
	uint64_t id, late_ms;
	void *mem;
	char byte;

	if (penstock_queue_open(NULL, &q) || penstock_alloc(seg.dev, len, &mem))
		return 2;
	seg.buf = mem;
	req.storage = st;
	req.op = PENSTOCK_READ;
	req.segs = &seg;
	req.seg_count = 1;
	req.deadline_ns = ms ? now_ns() + ms * 1000000 : 0;
	if (penstock_submit(q, &req, 1, &id) != 1)
		return report(-1);
	if (!ms && read(0, &byte, 1) == 1)
		penstock_cancel(q, id);
	if (penstock_wait(q, &done, 1, 1, -1) != 1)
		return 2;
	late_ms = ms ? (now_ns() - req.deadline_ns) / 1000000 : 0;
	memset(mem, 0xee, len);
	/* When the test reads this line, its server sends more bytes if the connection is still
	 * open. */
	printf("done %" PRId64 " %s", done.result, penstock_why_name(done.report->why));
	if (ms)
		printf(" after %" PRIu64 " ms", late_ms);
	puts("");
	fflush(stdout);
	if (read(0, &byte, 1) != 1)
		return 2;
	for (uint64_t i = 0; i < len; i++)
		changed += ((unsigned char *)mem)[i] != 0xee;
	printf("changed %" PRIu64 "\n", changed);
	penstock_queue_close(q);
	penstock_close(st);
	return 0;
}

static int read_many(const char *url, unsigned count)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0);
	uint64_t len = (uint64_t)penstock_storage_length(st), sum = 0, random = 1;
	struct penstock_device *dev = host();
	struct penstock_queue *q;
	struct penstock_done done;
	unsigned begun = 0, ended = 0;
	unsigned char *mem;
	void *all;

	if (penstock_queue_open(NULL, &q) || penstock_alloc(dev, (size_t)RANGE * DEPTH, &all))
		return 2;
	mem = all;
	while (ended < count) {
		unsigned slot = begun;

		if (begun >= DEPTH || begun >= count) {
			if (penstock_wait(q, &done, 1, 1, -1) != 1)
				return 2;
			slot = (unsigned)(uintptr_t)done.user;
			if (done.result < 0) {
				printf("error %" PRId64 " %s\n", done.result, done.report->text);
				return 0;
			}
			for (unsigned i = 0; i < RANGE; i++)
				sum += mem[(size_t)slot * RANGE + i];
			ended++;
		}
		if (begun < count) {
			struct penstock_req req = PENSTOCK_REQ_INIT;
			struct penstock_seg seg = {.buf = mem + (size_t)slot * RANGE,
						   .dev = dev,
						   .row_len = RANGE,
						   .rows = 1};

			random = random * 6364136223846793005u + 1442695040888963407u;
			seg.off = (random >> 16) % (len - RANGE);
			req.storage = st;
			req.op = PENSTOCK_READ;
			req.segs = &seg;
			req.seg_count = 1;
			req.user = (void *)(uintptr_t)slot;
			if (penstock_submit(q, &req, 1, NULL) != 1)
				return report(-1);
			begun++;
		}
	}
	printf("ok %u %" PRIu64 "\n", ended, sum);
	penstock_queue_close(q);
	penstock_close(st);
	return 0;
}

static int64_t read_first(struct penstock_storage *st)
{
	static char buf[4096];

	return penstock_read(st, host(), buf, sizeof(buf), 0);
}

static int fork_and_read(const char *url)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0), *own;
	int64_t parent = read_first(st);
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		int64_t old = read_first(st), ret;

		own = open_or_exit(url, 0, 0);
		ret = read_first(own);
		penstock_close(own);
		printf("child %" PRId64 " %" PRId64 "\n", old, ret);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	printf("parent %" PRId64 " %" PRId64 " status %d\n", parent, read_first(st), status);
	penstock_close(st);
	return 0;
}

static int write_piece(struct penstock_storage *st, uint64_t off, uint64_t total)
{
	static unsigned char piece[PIECE];
	size_t len = total - off < PIECE ? (size_t)(total - off) : PIECE;
	int64_t n;

	for (size_t i = 0; i < len; i++)
		piece[i] = pattern(off + i);
	n = penstock_write(st, host(), piece, len, off);
	return n < 0 ? (int)n : 0;
}

static int write_object(const char *url, uint64_t total, const char *how)
{
	bool again = !strcmp(how, "again"), create = again || !strcmp(how, "create");
	bool known = !strcmp(how, "known");
	struct penstock_storage *st = open_or_exit(
		url, create ? PENSTOCK_O_CREATE : PENSTOCK_O_REPLACE, known ? total : 0);
	uint64_t count = (total + PIECE - 1) / PIECE;
	int ret = 0;

	for (uint64_t i = 0; i < count && !ret; i++) {
		uint64_t at = strcmp(how, "backward") ? i : count - 1 - i;

		if (!strcmp(how, "gap") && at == 1)
			continue;
		ret = write_piece(st, at * PIECE, total);
		if (!ret && !strcmp(how, "twice"))
			ret = write_piece(st, at * PIECE, total);
	}
	if (!ret)
		ret = strcmp(how, "abort") ? penstock_commit(st, 1) : penstock_abort(st);
	if (ret && again) {
		printf("again: ");
		/* Opening the object sends a HEAD request, after which the test's server answers
		 * commits again. */
		penstock_close(open_or_exit(url, 0, 0));
		ret = penstock_commit(st, 1);
	}
	if (!ret && !strcmp(how, "abort"))
		ret = penstock_commit(st, 1);
	if (!ret && total >= 4096)
		ret = (int)read_first(st); /* after the commit, the object can be read */
	report(ret);
	penstock_close(st);
	return 0;
}

static int write_and_wait(const char *url, uint64_t total, uint64_t ms)
{
	struct penstock_storage *st = open_or_exit(url, PENSTOCK_O_REPLACE, total);
	struct penstock_report done = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.dev = host(), .row_len = total, .rows = 1};
	int64_t ret;

	if (penstock_alloc(seg.dev, total, &seg.buf))
		return 2;
	req.storage = st;
	req.op = PENSTOCK_WRITE;
	req.segs = &seg;
	req.seg_count = 1;
	req.deadline_ns = now_ns() + ms * 1000000;
	ret = penstock_transfer(&req, &done);
	printf("done %" PRId64 " %s after %" PRIu64 " ms\n", ret, penstock_why_name(done.why),
	       (now_ns() - req.deadline_ns) / 1000000);
	fflush(stdout);
	memset(seg.buf, 0, total);
	report(penstock_abort(st));
	penstock_close(st);
	return 0;
}

static volatile int stopped;

static void *stop_later(void *arg)
{
	char byte;

	if (read(0, &byte, 1) == 1)
		__atomic_store_n(&stopped, 1, __ATOMIC_RELAXED);
	return arg;
}

/* Prints the result of a commit or an abort, and how long after the time `ns` it ended. */
static void report_after(int ret, uint64_t ns)
{
	printf("%" PRIu64 " ms: ", ns ? (now_ns() - ns) / 1000000 : 0);
	report(ret);
	fflush(stdout);
}

/* Writes an object and stops its commit. Then carries out the command that each byte of the
 * standard input names. If `grows` is true, opens the object without its length. */
static int write_and_stop(const char *url, uint64_t total, uint64_t ms, bool grows)
{
	struct penstock_storage *st = open_or_exit(url, PENSTOCK_O_REPLACE, grows ? 0 : total);
	struct penstock_end_opts opts = PENSTOCK_END_OPTS_INIT;
	const uint64_t next = (total + PART - 1) / PART * PART;
	pthread_t thread;
	char byte;

	for (uint64_t at = 0; at < total; at += PIECE)
		if (write_piece(st, at, total))
			return report(-1);
	opts.stop = &stopped;
	opts.deadline_ns = ms ? now_ns() + ms * 1000000 : 0;
	if (!ms && pthread_create(&thread, NULL, stop_later, NULL))
		return 2;
	report_after(penstock_commit_with(st, &opts), opts.deadline_ns);
	if (!ms)
		pthread_join(thread, NULL);
	while (read(0, &byte, 1) == 1 && byte != 'q')
		report_after(byte == 'c'   ? penstock_commit(st, 1)
			     : byte == 'w' ? write_piece(st, next, next + PIECE)
					   : penstock_abort(st),
			     0);
	penstock_close(st);
	return 0;
}

static int write_and_hold(const char *url, uint64_t total)
{
	struct penstock_storage *st = open_or_exit(url, PENSTOCK_O_REPLACE, total);
	char byte;

	for (uint64_t at = 0; at < total - PIECE; at += PIECE)
		if (write_piece(st, at, total))
			return report(-1);
	puts("written");
	fflush(stdout);
	return read(0, &byte, 1) == 1 ? 0 : 2;
}

static int check_object(const char *url, uint64_t total)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0);
	unsigned char *mem = malloc(total ? total : 1);
	int64_t n = mem ? penstock_read(st, host(), mem, total, 0) : -1;
	uint64_t wrong = 0;

	if (n < 0)
		return report(n);
	for (uint64_t i = 0; i < (uint64_t)n; i++)
		wrong += mem[i] != pattern(i);
	printf("read %" PRId64 " of %" PRId64 ", wrong %" PRIu64 "\n", n,
	       penstock_storage_length(st), wrong);
	free(mem);
	penstock_close(st);
	return 0;
}

static int read_parts(const char *url, uint64_t len, char **offsets)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0);
	unsigned char *mem = malloc(len);

	if (!mem)
		return 2;
	for (; *offsets; offsets++)
		report(penstock_read(st, host(), mem, len, strtoull(*offsets, NULL, 0)));
	free(mem);
	penstock_close(st);
	return 0;
}

static int read_first_parts(const char *url, uint64_t len, char **offsets)
{
	struct penstock_storage *st = open_or_exit(url, PENSTOCK_O_PREFETCH, 0);
	unsigned char *mem = malloc(len);

	if (!mem)
		return 2;
	for (; *offsets; offsets++) {
		struct penstock_report done = PENSTOCK_REPORT_INIT;
		struct penstock_req req = PENSTOCK_REQ_INIT;
		struct penstock_seg seg = {.off = strtoull(*offsets, NULL, 0),
					   .buf = mem,
					   .dev = host(),
					   .row_len = len,
					   .rows = 1};
		uint64_t sum = 0;
		int64_t n;

		req.storage = st;
		req.op = PENSTOCK_READ;
		req.segs = &seg;
		req.seg_count = 1;
		n = penstock_transfer(&req, &done);
		for (int64_t i = 0; i < n; i++)
			sum += mem[i];
		if (n < 0)
			report(n);
		else
			printf("ok %" PRId64 " sum %" PRIu64 " copied %" PRIu64 " dram %" PRIu64
			       "\n",
			       n, sum, done.cpu_copied, done.dram_laid);
	}
	free(mem);
	penstock_close(st);
	return 0;
}

static int read_firsts(const char *url, uint64_t len, char **urls)
{
	char *start[] = {"0", NULL};
	int ret = read_first_parts(url, len, start);

	for (; *urls; urls++)
		ret |= read_first_parts(*urls, len, start);
	return ret;
}

/* Prints the result of a read in one line: the bytes that moved on the paths "rdma" and "bounce",
 * the reason, the retries, and how many bytes are wrong. */
static void report_read(int64_t result, const struct penstock_report *report, const char *found,
			const char *expected, size_t len)
{
	unsigned long long bytes[2] = {0}, wrong = 0;
	const char *why = "none";

	for (unsigned i = 0; i < report->path_count; i++) {
		const struct penstock_report_path *row = &report->paths[i];

		if (!strcmp(row->name, "rdma")) {
			bytes[0] = row->bytes;
			why = penstock_why_name(row->why);
		} else if (!strcmp(row->name, "bounce")) {
			bytes[1] = row->bytes;
		}
	}
	for (size_t i = 0; i < len && result >= 0; i++)
		wrong += found[i] != expected[i];
	printf("%" PRId64 " rdma %llu %s bounce %llu retries %llu dram %llu wrong %llu\n", result,
	       bytes[0], why, bytes[1], (unsigned long long)report->retries,
	       (unsigned long long)report->dram_laid, wrong);
	if (result < 0)
		fprintf(stderr, "%s\n", report->text);
	fflush(stdout);
}

static int read_to_device(const char *url, const char *name, const char *path)
{
	struct penstock_storage *st = open_or_exit(url, 0, 0), *file;
	size_t len = (size_t)penstock_storage_length(st);
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.row_len = len, .rows = 1};
	char *found = malloc(len + 1), *expected = malloc(len + 1), line[16];

	if (!found || !expected || penstock_open(path, NULL, &file) ||
	    penstock_read(file, host(), expected, len, 0) != (int64_t)len ||
	    penstock_device_open(name, NULL, &seg.dev) < 0 ||
	    penstock_alloc(seg.dev, len, &seg.buf))
		return report(-1) + 2;
	req.storage = st;
	req.op = PENSTOCK_READ;
	req.segs = &seg;
	req.seg_count = 1;
	while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
		struct penstock_report done = PENSTOCK_REPORT_INIT;
		struct penstock_copy_args copy = {.size = sizeof(copy),
						  .dst_dev = host(),
						  .dst = found,
						  .src_dev = seg.dev,
						  .src = seg.buf,
						  .row_len = len};
		int64_t result;

		memset(found, 0xee, len);
		result = penstock_transfer(&req, &done);
		if (result >= 0 && penstock_copy(&copy, 1))
			return report(-1) + 2;
		report_read(result, &done, found, expected, len);
	}
	penstock_close(st);
	penstock_close(file);
	penstock_free(seg.dev, seg.buf);
	penstock_device_close(seg.dev);
	free(found);
	free(expected);
	return 0;
}

static int save_model(const char *url, uint64_t count)
{
	struct penstock_out out = {.size = sizeof(out),
				   .name = "tensor",
				   .dtype = PENSTOCK_DTYPE_U8,
				   .rank = 1,
				   .shape = &count,
				   .dev = host()};
	unsigned char *bytes;
	void *mem;

	if (penstock_alloc(out.dev, count, &mem))
		return 2;
	bytes = mem;
	for (uint64_t i = 0; i < count; i++)
		bytes[i] = pattern(i);
	out.ptr = mem;
	return report(penstock_weights_save(url, &out, 1, NULL, NULL));
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	uint64_t n = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;

	if (!strcmp(what, "cancel"))
		return read_and_cancel(argv[2], 0);
	if (!strcmp(what, "late") && argc > 3)
		return read_and_cancel(argv[2], n);
	if (!strcmp(what, "many") && argc > 3)
		return read_many(argv[2], (unsigned)n);
	if (!strcmp(what, "fork"))
		return fork_and_read(argv[2]);
	if (!strcmp(what, "write") && argc > 4)
		return write_object(argv[2], n, argv[4]);
	/* When the second object is created, the first has already shown that the server accepts
	 * tokens. */
	if (!strcmp(what, "pair") && argc > 4)
		return write_object(argv[2], n, "first") + write_object(argv[4], n, "create");
	if (!strcmp(what, "wait") && argc > 4)
		return write_and_wait(argv[2], n, strtoull(argv[4], NULL, 0));
	if ((!strcmp(what, "stop") || !strcmp(what, "grow")) && argc > 4)
		return write_and_stop(argv[2], n, strtoull(argv[4], NULL, 0), *what == 'g');
	if (!strcmp(what, "hold") && argc > 3)
		return write_and_hold(argv[2], n);
	if (!strcmp(what, "save") && argc > 3)
		return save_model(argv[2], n);
	if (!strcmp(what, "check") && argc > 3)
		return check_object(argv[2], n);
	if (!strcmp(what, "device") && argc > 4)
		return read_to_device(argv[2], argv[3], argv[4]);
	if (!strcmp(what, "parts") && argc > 4)
		return read_parts(argv[2], n, argv + 4);
	if (!strcmp(what, "first") && argc > 4)
		return read_first_parts(argv[2], n, argv + 4);
	if (!strcmp(what, "firsts") && argc > 4)
		return read_firsts(argv[2], n, argv + 4);
	fprintf(stderr, "usage: object COMMAND URL [N [HOW...]]\n");
	return 2;
}
