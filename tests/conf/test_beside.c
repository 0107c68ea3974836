/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests direct and cached writes to one file. A cached write must wait for the direct writes
 * that are in flight in the same 2 MiB of the file. Otherwise the kernel could keep old bytes
 * in the page cache and report an I/O error at the next fsync. The linker wraps pwrite, so the
 * test sees the order of the system calls. In a second case, readers fill the page cache while
 * the writes run: every fsync must succeed and every byte must arrive.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#include "penstock.h"
#include "request.h"

#define GATE_LEN (2u << 20)
#define LEN (16 * GATE_LEN)
#define NEAR 8 /* number of cached writes in the same 2 MiB of the file as the direct write */
#define FAR 8  /* number of cached writes in other parts of the file */
#define SMALL 100
#define DIRECT_LEN 65536u

static struct penstock_device *dev;
static struct penstock_storage *st;
static struct penstock_queue *queue;
static unsigned char *mem;
static char name[256];

/* ---- the wrapper of pwrite ---- */

static _Atomic bool
	/* tells the wrapped pwrite to stop the next direct write until the test posts go_on */
	holding;
static sem_t began, go_on;
static _Atomic unsigned near_cached, together;
static _Atomic int direct_now;

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
	ssize_t n;

	if (direct && atomic_exchange(&holding, false)) {
		atomic_store(&direct_now, 1);
		sem_post(&began);
		while (sem_wait(&go_on) && errno == EINTR)
			;
		n = __real_pwrite64(fd, buf, len, off);
		atomic_store(&direct_now, 0);
		return n;
	}
	if (!direct && (uint64_t)off < GATE_LEN) {
		atomic_fetch_add(&near_cached, 1);
		if (atomic_load(&direct_now))
			atomic_fetch_add(&together, 1);
	}
	return __real_pwrite64(fd, buf, len, off);
}

/* ---- files ---- */

static bool open_all(const char *engine)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_req req;
	struct penstock_seg seg;
	bool usable = false;

	opts.engine = engine;
	opts.lanes = 1;
	how.flags = PENSTOCK_O_WRITE | PENSTOCK_O_CREATE;
	how.length = LEN;
	unlink(name);
	assert_true(penstock_device_open("host", &opts, &dev) >= 0);
	assert_int_equal(penstock_open(name, &how, &st), 0);
	assert_int_equal(penstock_queue_open(NULL, &queue), 0);
	seg = (struct penstock_seg){.buf = mem, .dev = dev, .row_len = DIRECT_LEN};
	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	assert_int_equal(penstock_explain(&req, &out), 0);
	for (unsigned i = 0; i < out.path_count; i++)
		usable |= !strcmp(out.paths[i].name, "odirect") && out.paths[i].usable;
	return usable;
}

static void close_all(void)
{
	penstock_queue_close(queue);
	penstock_close(st);
	penstock_device_close(dev);
}

static void submit(uintptr_t user, uint64_t off, uint64_t len)
{
	struct penstock_seg seg = {.buf = mem + off, .dev = dev, .off = off, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	req.user = (void *)user;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), 1);
}

/* Waits for a completion and returns the user value of its request. Returns 0 if no request
 * completes within 20 s. */
static uintptr_t next_done(void)
{
	struct penstock_done done;

	if (penstock_wait(queue, &done, 1, 1, 20000000000) != 1)
		return 0;
	if (done.result < 0)
		fail_msg("write %lu: %s", (unsigned long)(uintptr_t)done.user, done.report->text);
	return (uintptr_t)done.user;
}

/* ---- cases ---- */

/* A direct write is held in flight. Cached writes to the same 2 MiB wait for it; cached writes
 * elsewhere do not. User values: 1 for the direct write, 10 and more for the near cached writes,
 * 100 and more for the distant cached writes. */
static void cached_write_waits_for_direct_write(void **state)
{
	unsigned far_done = 0;

	(void)state;
	if (!open_all("threads")) {
		close_all();
		test_skip("path odirect is not usable on this file system");
	}
	atomic_store(&holding, true);
	submit(1, 0, DIRECT_LEN);
	while (sem_wait(&began) && errno == EINTR)
		;
	for (unsigned i = 0; i < NEAR; i++)
		submit(10 + i, DIRECT_LEN + 10000u * i + 1, SMALL);
	for (unsigned i = 0; i < FAR; i++)
		submit(100 + i, (uint64_t)GATE_LEN * (2 + i) + 1, SMALL);
	/* The distant writes were submitted after the near writes. At least half of the distant
	 * writes must complete. The others may wait, because the library counts writes in hashed
	 * counters, and a distant write may share a counter with a near one. */
	while (far_done < FAR / 2) {
		uintptr_t user = next_done();

		if (user < 100)
			break;
		far_done++;
	}
	assert_int_equal(atomic_load(&near_cached), 0);
	assert_int_equal(far_done, FAR / 2);
	sem_post(&go_on);
	for (unsigned left = 1 + NEAR + FAR - far_done; left; left--)
		assert_true(next_done());
	assert_int_equal(atomic_load(&near_cached), NEAR);
	assert_int_equal(atomic_load(&together), 0);
	close_all();
}

struct work {
	pthread_t thread;
	unsigned index;
	char text[200];
};

#define THREADS 4
#define PIECE 300001u
#define READERS 2
#define ROUNDS 6

/* Writes every fourth piece of the file. A piece does not begin at a page boundary, so some pages
 * contain bytes of two pieces. */
static void *write_pieces(void *arg)
{
	struct work *work = arg;

	for (uint64_t off = work->index * PIECE; off < LEN; off += THREADS * PIECE) {
		uint64_t n = LEN - off < PIECE ? LEN - off : PIECE;
		struct penstock_seg seg = {.buf = mem + off, .dev = dev, .off = off, .row_len = n};
		struct penstock_req req;

		req = test_request(st, &seg, 1, PENSTOCK_WRITE);
		req.flags = PENSTOCK_R_DURABLE * (off % 7 == 0);
		if (penstock_transfer(&req, NULL) != (int64_t)n && !work->text[0])
			snprintf(work->text, sizeof(work->text), "%.190s", penstock_errmsg());
	}
	return NULL;
}

static pid_t start_reader(void)
{
	pid_t child = fork();
	static char into[1 << 20];
	int fd;

	if (child)
		return child;
	fd = open(name, O_RDONLY);
	for (;;) {
		for (off_t at = 0; at < LEN; at += sizeof(into))
			if (pread(fd, into, sizeof(into), at) < 0)
				_exit(1);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
}

static void durable_writes_beside_a_reader(void **state)
{
	struct work works[THREADS];
	pid_t readers[READERS];
	int fd;

	(void)state;
	open_all("auto");
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	for (unsigned i = 0; i < READERS; i++)
		assert_true((readers[i] = start_reader()) > 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		memset(mem, (int)round + 1, LEN);
		memset(works, 0, sizeof(works));
		for (unsigned i = 0; i < THREADS; i++) {
			works[i].index = i;
			assert_int_equal(
				pthread_create(&works[i].thread, NULL, write_pieces, &works[i]), 0);
		}
		for (unsigned i = 0; i < THREADS; i++)
			pthread_join(works[i].thread, NULL);
		for (unsigned i = 0; i < THREADS; i++)
			if (works[i].text[0])
				fail_msg("round %u: %s", round, works[i].text);
		if (fsync(fd))
			fail_msg("round %u: fsync through another descriptor: %s", round,
				 strerror(errno));
	}
	for (unsigned i = 0; i < READERS; i++) {
		kill(readers[i], SIGKILL);
		waitpid(readers[i], NULL, 0);
	}
	for (off_t at = 0; at < LEN; at += PIECE) {
		unsigned char byte;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		assert_int_equal(byte, ROUNDS);
	}
	close(fd);
	close_all();
}

static int setup(void **state)
{
	(void)state;
	test_file_name(name, sizeof(name), "penstock-beside");
	mem = aligned_alloc(4096, LEN);
	memset(mem, 0x5a, LEN);
	sem_init(&began, 0, 0);
	sem_init(&go_on, 0, 0);
	return mem ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(mem);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_write_waits_for_direct_write),
		cmocka_unit_test(durable_writes_beside_a_reader),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
