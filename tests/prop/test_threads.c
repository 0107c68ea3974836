/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight threads write adjacent ranges of odd lengths to one file at the same time. Neighbouring
 * ranges share a block. One of them may be written with O_DIRECT while the other is written
 * through the page cache. Then the test reads the file with pread, with the library, and from
 * the drive. Every byte must be the one that its thread wrote. Covers both engines; files that
 * are written, reserved, sparse and growing; and buffers whose alignment selects path "odirect",
 * staged or bounce. PENSTOCK_SEED repeats the lengths, but not the order in which the threads
 * run.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "mark.h"
#include "penstock.h"
#include "request.h"

#define THREADS 8
#define LEN (2u << 20)
#define PIECES_MAX 1024
#define GAP \
	8192 /* bytes of memory between two pieces, which make_pieces uses to align each piece */
#define BATCH 5 /* number of requests that one thread has in flight */

enum file { WRITTEN, RESERVED, SPARSE, GROWING, FILES };
static const char *const file_names[] = {"written", "reserved", "sparse", "growing"};

struct piece {
	uint64_t off, len;
	size_t at; /* offset in memory */
	const char *path;
};

static struct penstock_device *dev;
static struct penstock_storage *st;
static struct piece pieces[PIECES_MAX];
static unsigned piece_count;
static unsigned char *expected, *back, *staging;
static char *mem;
static size_t mem_len;
static char name[256];
static uint64_t random_state;
static pthread_barrier_t start;
static _Atomic uint64_t by_path[PENSTOCK_PATHS_MAX];
static _Atomic bool failed;
static char failure[512];

static uint64_t random_below(uint64_t below)
{
	return test_random(&random_state) % below;
}

static int setup(void **state)
{
	(void)state;
	test_use_standin();
	random_state = test_seed(20261121) * 2 + 1;
	mem_len = LEN + (size_t)PIECES_MAX * GAP;
	expected = malloc(LEN);
	back = aligned_alloc(4096, LEN);
	staging = malloc(mem_len);
	test_file_name(name, sizeof(name), "penstock-threads");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(expected);
	free(back);
	free(staging);
	return 0;
}

/* ---- what the threads write ---- */

static void make_file(enum file kind)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	if (kind == WRITTEN) {
		memset(back, 0xdd, LEN);
		assert_int_equal(write(fd, back, LEN), LEN);
	} else if (kind == RESERVED && fallocate(fd, 0, 0, LEN)) {
		/* If the file system cannot reserve blocks, the test only sets the file's
		 * length. */
		assert_int_equal(ftruncate(fd, LEN), 0);
	} else if (kind == SPARSE) {
		assert_int_equal(ftruncate(fd, LEN), 0);
	}
	assert_int_equal(fsync(fd), 0);
	if (random_below(2))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

/* Returns a random odd length: a few bytes, a few pages, or many pages. */
static uint64_t random_length(void)
{
	switch (random_below(8)) {
	case 0:
	case 1:
	case 2:
		return random_below(600) | 1;
	case 3:
	case 4:
	case 5:
		return random_below(5000) | 1;
	case 6:
		return random_below(30000) | 1;
	default:
		return random_below(200000) | 1;
	}
}

/* Divides the file into pieces. The memory address of each piece has the alignment of its file
 * offset plus `shift` bytes. If `shift` is -1, each piece has a random shift. */
static void make_pieces(int shift, const char *path)
{
	size_t at = 0;

	piece_count = 0;
	for (uint64_t off = 0; off < LEN; piece_count++) {
		struct piece *p = &pieces[piece_count];

		assert_true(piece_count < PIECES_MAX);
		p->off = off;
		p->len = random_length();
		p->len = p->len < LEN - off ? p->len : LEN - off;
		at = (at + 4095) / 4096 * 4096;
		p->at = at + off % 4096 + (shift < 0 ? random_below(2) : (uint64_t)shift);
		p->path = path ? path : shift < 0 && random_below(3) == 0 ? "bounce" : NULL;
		off += p->len;
		at = p->at + p->len;
		assert_true(at <= mem_len);
	}
	for (size_t i = 0; i < LEN; i++)
		expected[i] = (unsigned char)test_random(&random_state);
	for (unsigned i = 0; i < piece_count; i++)
		memcpy(staging + pieces[i].at, expected + pieces[i].off, pieces[i].len);
}

static void copy_memory(bool in)
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

static void record_failure(const char *what, const struct piece *p, int64_t n, const char *why)
{
	bool none = false;

	if (!__atomic_compare_exchange_n((bool *)&failed, &none, true, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		return;
	snprintf(failure, sizeof(failure), "%s off %llu len %llu path %s: %lld %.300s", what,
		 (unsigned long long)p->off, (unsigned long long)p->len, p->path ? p->path : "-",
		 (long long)n, why);
}

static void count_bytes(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++)
		by_path[i] += report->paths[i].bytes;
}

static struct penstock_req make_req(const struct piece *p, struct penstock_seg *seg,
				    enum penstock_op op)
{
	struct penstock_req req;

	*seg = (struct penstock_seg){
		.buf = mem + p->at, .dev = dev, .off = p->off, .row_len = p->len};
	req = test_request(st, seg, 1, op);
	req.path = p->path;
	req.user = (void *)(uintptr_t)p;
	return req;
}

static void transfer_piece(const struct piece *p, enum penstock_op op)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_seg seg;
	struct penstock_req req = make_req(p, &seg, op);
	int64_t n = penstock_transfer(&req, &report);

	if (n != (int64_t)p->len)
		record_failure("one call", p, n, penstock_errmsg());
	else
		count_bytes(&report);
}

static void harvest(struct penstock_queue *q, unsigned *in_flight, unsigned at_least)
{
	struct penstock_done done[BATCH];
	int n = penstock_wait(q, done, at_least, BATCH, -1);

	for (int i = 0; i < n; i++) {
		const struct piece *p = done[i].user;

		if (done[i].result != (int64_t)p->len)
			record_failure("queue", p, done[i].result, done[i].report->text);
		else
			count_bytes(done[i].report);
	}
	*in_flight -= n > 0 ? (unsigned)n : 0;
}

/* Writes every eighth piece. Neighbouring pieces belong to other threads. Every second thread
 * has several requests in flight. */
static void *thread_main(void *arg)
{
	const struct work *work = arg;
	struct penstock_queue *q = NULL;
	struct penstock_seg seg;
	unsigned in_flight = 0;

	if (work->index % 2 && penstock_queue_open(NULL, &q))
		record_failure("queue", &pieces[0], 0, penstock_errmsg());
	pthread_barrier_wait(&start);
	for (unsigned i = work->index; i < piece_count; i += THREADS) {
		struct penstock_req req = make_req(&pieces[i], &seg, work->op);

		if (!q) {
			transfer_piece(&pieces[i], work->op);
			continue;
		}
		if (penstock_submit(q, &req, 1, NULL) != 1)
			record_failure("submit", &pieces[i], 0, penstock_errmsg());
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

/* ---- checks ---- */

static void compare_with_expected(const char *how, enum file kind)
{
	for (unsigned i = 0; i < piece_count; i++) {
		const struct piece *p = &pieces[i];

		for (uint64_t b = p->off; b < p->off + p->len; b++)
			if (back[b] != expected[b])
				fail_msg("%s, %s file: byte %llu is %02x, not %02x, in the piece "
					 "from %llu to %llu",
					 how, file_names[kind], (unsigned long long)b, back[b],
					 expected[b], (unsigned long long)p->off,
					 (unsigned long long)(p->off + p->len));
	}
}

static void check_file(enum file kind)
{
	struct stat stat;
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0 && !fstat(fd, &stat));
	assert_int_equal(stat.st_size, LEN);
	/* The kernel sets an error mark on a file if cached pages remain after a direct write. This
	 * is the first query of the mark since the file was created. */
	if (test_marked(fd))
		fail_msg("%s file: the page cache kept what a direct write should have dropped",
			 file_names[kind]);
	memset(back, 0xee, LEN);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	compare_with_expected("a plain read", kind);
	if (fsync(fd))
		fail_msg("fsync: %s", strerror(errno));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	memset(back, 0xee, LEN);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	compare_with_expected("from the drive", kind);
	if (random_below(2))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void check_read(enum file kind)
{
	memset(staging, 0xee, mem_len);
	copy_memory(true);
	run_threads(PENSTOCK_READ);
	copy_memory(false);
	memset(back, 0xee, LEN);
	for (unsigned i = 0; i < piece_count; i++)
		memcpy(back + pieces[i].off, staging + pieces[i].at, pieces[i].len);
	compare_with_expected("read by the library", kind);
}

static bool path_usable(const char *path)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg;
	struct penstock_req req = make_req(&pieces[0], &seg, PENSTOCK_WRITE);

	assert_int_equal(penstock_explain(&req, &out), 0);
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, path))
			return out.paths[i].usable;
	return false;
}

static void print_paths(const char *expected_path, const char *what)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg;
	struct penstock_req req = make_req(&pieces[0], &seg, PENSTOCK_WRITE);

	assert_int_equal(penstock_explain(&req, &out), 0);
	printf("# %s, engine %s:", what, out.engine);
	for (unsigned i = 0; i < out.path_count; i++)
		if (by_path[i])
			printf(" %s %llu", out.paths[i].name, (unsigned long long)by_path[i]);
	printf("\n");
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, expected_path) && path_usable(expected_path) &&
		    !by_path[i])
			fail_msg("%s carried nothing", expected_path);
}

/* Runs the test on each kind of file, for one device and engine, with buffers whose alignment
 * selects one path. */
static void check_files(const char *device, const char *engine, int shift, const char *path,
			const char *expected_path)
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
		copy_memory(true);
		assert_int_equal(penstock_open(name, &how, &st), 0);
		run_threads(PENSTOCK_WRITE);
		check_file((enum file)kind);
		check_read((enum file)kind);
		if (kind == FILES - 1)
			print_paths(expected_path, path ? path : expected_path);
		penstock_close(st);
	}
	penstock_free(dev, mem);
	penstock_device_close(dev);
}

static void both_engines(const char *device, int shift, const char *path, const char *expected_path)
{
	check_files(device, "auto", shift, path, expected_path);
	check_files(device, "threads", shift, path, expected_path);
}

/* Memory addresses and file offsets have the same alignment. So path "odirect" must write the
 * aligned parts. */
static void writes_by_odirect(void **state)
{
	(void)state;
	both_engines("host", 0, NULL, "odirect");
}

/* Memory addresses and file offsets differ in alignment. So path "staged" must write the bytes,
 * through the library's pinned memory. */
static void writes_by_staged(void **state)
{
	(void)state;
	both_engines("host", 1, NULL, "staged");
}

static void writes_by_bounce(void **state)
{
	(void)state;
	both_engines("host", 1, "bounce", "bounce");
}

/* Uses all alignments and paths in one file. */
static void writes_by_all_paths(void **state)
{
	(void)state;
	both_engines("host", -1, NULL, "odirect");
}

static void writes_from_gpu_memory(void **state)
{
	(void)state;
	both_engines("cuda:0", -1, NULL, "staged");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_by_odirect),	  cmocka_unit_test(writes_by_staged),
		cmocka_unit_test(writes_by_bounce),	  cmocka_unit_test(writes_by_all_paths),
		cmocka_unit_test(writes_from_gpu_memory),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
