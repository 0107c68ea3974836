/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight threads write adjacent ranges of odd lengths of one file at the same time:
 * neighbours share a block at every border, and one of them may go by O_DIRECT while
 * the other goes through the page cache. Then the file is read by a plain read, by
 * the library, and from the drive: no byte is lost, none is another's.
 *
 * Over both engines, over files that are written, reserved, sparse or grow, and with
 * buffers such that bodies go by odirect, by staged or by bounce. PENSTOCK_SEED
 * repeats the lengths; which thread comes first is for the machine to say.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "mark.h"
#include "penstock.h"

#define THREADS 8
#define LEN (2u << 20)
#define PIECES_MAX 1024
#define GAP 8192 /* between pieces in memory: room to align them */
#define BATCH 5	 /* requests of one thread in flight */

enum file { WRITTEN, RESERVED, SPARSE, GROWING, FILES };
static const char *const file_names[] = {"written", "reserved", "sparse", "growing"};

struct piece {
	uint64_t off, len;
	size_t at; /* in memory */
	const char *path;
};

static struct penstock_device *dev;
static struct penstock_storage *st;
static struct piece pieces[PIECES_MAX];
static unsigned piece_count;
static unsigned char *truth, *back, *staging;
static char *mem;
static size_t mem_len;
static char name[256];
static uint64_t random_state;
static pthread_barrier_t start;
static _Atomic uint64_t by_path[PENSTOCK_PATHS_MAX];
static _Atomic bool failed;
static char failure[512];

static uint64_t any(uint64_t below)
{
	return test_random(&random_state) % below;
}

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	test_use_standin();
	random_state = test_seed(20261121) * 2 + 1;
	mem_len = LEN + (size_t)PIECES_MAX * GAP;
	truth = malloc(LEN);
	back = aligned_alloc(4096, LEN);
	staging = malloc(mem_len);
	snprintf(name, sizeof(name), "%s/penstock-threads-%d", tmp ? tmp : "/tmp", (int)getpid());
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(truth);
	free(back);
	free(staging);
	return 0;
}

/* ---- what is to be written ---- */

static void make_file(enum file kind)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	if (kind == WRITTEN) {
		memset(back, 0xdd, LEN);
		assert_int_equal(write(fd, back, LEN), LEN);
	} else if (kind == RESERVED && fallocate(fd, 0, 0, LEN)) {
		assert_int_equal(ftruncate(fd, LEN), 0); /* not on this file system */
	} else if (kind == SPARSE) {
		assert_int_equal(ftruncate(fd, LEN), 0);
	}
	assert_int_equal(fsync(fd), 0);
	if (any(2))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

/* Lengths of a few bytes, of some pages, of many; always odd. */
static uint64_t any_length(void)
{
	switch (any(8)) {
	case 0:
	case 1:
	case 2:
		return any(600) | 1;
	case 3:
	case 4:
	case 5:
		return any(5000) | 1;
	case 6:
		return any(30000) | 1;
	default:
		return any(200000) | 1;
	}
}

/* The whole file in pieces. `shift`: of address against offset, -1: any. */
static void make_pieces(int shift, const char *path)
{
	size_t at = 0;

	piece_count = 0;
	for (uint64_t off = 0; off < LEN; piece_count++) {
		struct piece *p = &pieces[piece_count];

		assert_true(piece_count < PIECES_MAX);
		p->off = off;
		p->len = any_length();
		p->len = p->len < LEN - off ? p->len : LEN - off;
		at = (at + 4095) / 4096 * 4096;
		p->at = at + off % 4096 + (shift < 0 ? any(2) : (uint64_t)shift);
		p->path = path ? path : shift < 0 && any(3) == 0 ? "bounce" : NULL;
		off += p->len;
		at = p->at + p->len;
		assert_true(at <= mem_len);
	}
	for (size_t i = 0; i < LEN; i++)
		truth[i] = (unsigned char)test_random(&random_state);
	for (unsigned i = 0; i < piece_count; i++)
		memcpy(staging + pieces[i].at, truth + pieces[i].off, pieces[i].len);
}

static void copy(bool in)
{
	struct penstock_copy_args args = {.size = sizeof(args), .row_len = mem_len};
	struct penstock_device *host;

	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	args.dst_dev = in ? dev : host;
	args.dst = in ? (void *)mem : (void *)staging;
	args.src_dev = in ? host : dev;
	args.src = in ? (void *)staging : (void *)mem;
	if (penstock_copy(&args, 1))
		fail_msg("copy: %s", penstock_errmsg());
	penstock_device_close(host);
}

/* ---- the threads ---- */

struct work {
	pthread_t thread;
	unsigned index;
	enum penstock_op op;
};

static void note(const char *what, const struct piece *p, int64_t n, const char *why)
{
	bool none = false;

	if (!__atomic_compare_exchange_n((bool *)&failed, &none, true, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		return;
	snprintf(failure, sizeof(failure), "%s off %llu len %llu path %s: %lld %.300s", what,
		 (unsigned long long)p->off, (unsigned long long)p->len, p->path ? p->path : "-",
		 (long long)n, why);
}

static void count(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++)
		by_path[i] += report->paths[i].bytes;
}

static struct penstock_req ask(const struct piece *p, struct penstock_seg *seg, enum penstock_op op)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	*seg = (struct penstock_seg){
		.buf = mem + p->at, .dev = dev, .off = p->off, .row_len = p->len};
	req.storage = st;
	req.segs = seg;
	req.seg_count = 1;
	req.op = op;
	req.path = p->path;
	req.user = (void *)(uintptr_t)p;
	return req;
}

static void one_call(const struct piece *p, enum penstock_op op)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_seg seg;
	struct penstock_req req = ask(p, &seg, op);
	int64_t n = penstock_transfer(&req, &report);

	if (n != (int64_t)p->len)
		note("one call", p, n, penstock_errmsg());
	else
		count(&report);
}

static void harvest(struct penstock_queue *q, unsigned *in_flight, unsigned at_least)
{
	struct penstock_done done[BATCH];
	int n = penstock_wait(q, done, at_least, BATCH, -1);

	for (int i = 0; i < n; i++) {
		const struct piece *p = done[i].user;

		if (done[i].result != (int64_t)p->len)
			note("queue", p, done[i].result, done[i].report->text);
		else
			count(done[i].report);
	}
	*in_flight -= n > 0 ? (unsigned)n : 0;
}

/* Every eighth piece: its neighbours are always other threads'. Every other thread
 * has several in flight. */
static void *thread_main(void *arg)
{
	const struct work *work = arg;
	struct penstock_queue *q = NULL;
	struct penstock_seg seg;
	unsigned in_flight = 0;

	if (work->index % 2 && penstock_queue_open(NULL, &q))
		note("queue", &pieces[0], 0, penstock_errmsg());
	pthread_barrier_wait(&start);
	for (unsigned i = work->index; i < piece_count; i += THREADS) {
		struct penstock_req req = ask(&pieces[i], &seg, work->op);

		if (!q) {
			one_call(&pieces[i], work->op);
			continue;
		}
		if (penstock_submit(q, &req, 1, NULL) != 1)
			note("submit", &pieces[i], 0, penstock_errmsg());
		else if (++in_flight == BATCH)
			harvest(q, &in_flight, 1);
	}
	while (in_flight)
		harvest(q, &in_flight, in_flight);
	penstock_queue_close(q);
	return NULL;
}

static void run_threads(enum penstock_op op)
{
	struct work works[THREADS];

	pthread_barrier_init(&start, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++) {
		works[i] = (struct work){.index = i, .op = op};
		assert_int_equal(pthread_create(&works[i].thread, NULL, thread_main, &works[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(works[i].thread, NULL);
	pthread_barrier_destroy(&start);
	if (failed)
		fail_msg("%s", failure);
}

/* ---- what came of it ---- */

static void compare(const char *how, enum file kind)
{
	for (unsigned i = 0; i < piece_count; i++) {
		const struct piece *p = &pieces[i];

		for (uint64_t b = p->off; b < p->off + p->len; b++)
			if (back[b] != truth[b])
				fail_msg("%s, %s file: byte %llu is %02x, not %02x, in the piece "
					 "from %llu to %llu",
					 how, file_names[kind], (unsigned long long)b, back[b],
					 truth[b], (unsigned long long)p->off,
					 (unsigned long long)(p->off + p->len));
	}
}

static void check_file(enum file kind)
{
	struct stat stat;
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0 && !fstat(fd, &stat));
	assert_int_equal(stat.st_size, LEN);
	if (test_marked(fd)) /* since it was made; nobody has asked */
		fail_msg("%s file: the page cache kept what a direct write should have dropped",
			 file_names[kind]);
	memset(back, 0xee, LEN);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	compare("a plain read", kind);
	if (fsync(fd))
		fail_msg("fsync: %s", strerror(errno));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	memset(back, 0xee, LEN);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	compare("from the drive", kind);
	if (any(2))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void check_read(enum file kind)
{
	memset(staging, 0xee, mem_len);
	copy(true);
	run_threads(PENSTOCK_READ);
	copy(false);
	memset(back, 0xee, LEN);
	for (unsigned i = 0; i < piece_count; i++)
		memcpy(back + pieces[i].off, staging + pieces[i].at, pieces[i].len);
	compare("read by the library", kind);
}

static bool usable(const char *path)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg;
	struct penstock_req req = ask(&pieces[0], &seg, PENSTOCK_WRITE);

	assert_int_equal(penstock_explain(&req, &out), 0);
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, path))
			return out.paths[i].usable;
	return false;
}

static void print_paths(const char *expected, const char *what)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg;
	struct penstock_req req = ask(&pieces[0], &seg, PENSTOCK_WRITE);

	assert_int_equal(penstock_explain(&req, &out), 0);
	printf("# %s, engine %s:", what, out.engine);
	for (unsigned i = 0; i < out.path_count; i++)
		if (by_path[i])
			printf(" %s %llu", out.paths[i].name, (unsigned long long)by_path[i]);
	printf("\n");
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, expected) && usable(expected) && !by_path[i])
			fail_msg("%s carried nothing", expected);
}

/* One device and engine, buffers for one path, a file of each kind. */
static void round_of(const char *device, const char *engine, int shift, const char *path,
		     const char *expected)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;
	void *memory;

	opts.engine = engine;
	how.flags = PENSTOCK_O_WRITE;
	if (penstock_device_open(device, &opts, &dev))
		fail_msg("%s: %s", device, penstock_errmsg());
	assert_int_equal(penstock_alloc(dev, mem_len, &memory), 0);
	mem = memory;
	for (unsigned i = 0; i < PENSTOCK_PATHS_MAX; i++)
		by_path[i] = 0;
	for (unsigned kind = 0; kind < FILES; kind++) {
		make_file((enum file)kind);
		make_pieces(shift, path);
		copy(true);
		assert_int_equal(penstock_open(name, &how, &st), 0);
		run_threads(PENSTOCK_WRITE);
		check_file((enum file)kind);
		check_read((enum file)kind);
		if (kind == FILES - 1)
			print_paths(expected, path ? path : expected);
		penstock_close(st);
	}
	penstock_free(dev, mem);
	penstock_device_close(dev);
}

static void both_engines(const char *device, int shift, const char *path, const char *expected)
{
	round_of(device, "auto", shift, path, expected);
	round_of(device, "threads", shift, path, expected);
}

/* Address and offset are aligned together: bodies are written from where they are. */
static void odirect(void **state)
{
	(void)state;
	both_engines("host", 0, NULL, "odirect");
}

/* They are not: bodies go through the ring. */
static void staged(void **state)
{
	(void)state;
	both_engines("host", 1, NULL, "staged");
}

static void bounce(void **state)
{
	(void)state;
	both_engines("host", 1, "bounce", "bounce");
}

/* All of them side by side. */
static void mixed(void **state)
{
	(void)state;
	both_engines("host", -1, NULL, "odirect");
}

static void gpu(void **state)
{
	(void)state;
	both_engines("cuda:0", -1, NULL, "staged");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(odirect), cmocka_unit_test(staged), cmocka_unit_test(bounce),
		cmocka_unit_test(mixed),   cmocka_unit_test(gpu),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
