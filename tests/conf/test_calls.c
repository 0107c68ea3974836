/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the system calls and driver calls of small reads, so that the test detects a needless
 * call without measuring time. The linker replaces the functions that make these calls. The test's
 * io_uring hides a completion until the thread has waited for it in the kernel, so every read needs
 * the greatest number of calls. The clock advances by one microsecond whenever the library reads
 * it. The CUDA device is a simulated one of the stand-in driver.
 */
#include "copy.h"
#include "request.h"

#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/base/spin.h"
#include "core/lane/pump.h"

#define BLOCK 4096u
#define READS 64u
#define FILE_LEN (READS * BLOCK)

static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes;
static char name[256];

/* ---- the calls ---- */

/* True: the test counts the calls of all threads. False: it counts only those of its own thread. */
static _Atomic bool all_threads;
static pthread_t main_thread;
static _Atomic unsigned submits, submitted, waits, polls, writes, preads;
/* True after a submit: polls find no completion until this thread has waited in the kernel. */
static _Thread_local bool hides;
/* Minimum number of completions of each wait in the kernel; 0: the number that the library
 * requests. */
static _Atomic unsigned together;
/* True: each poll finds at most one completion. */
static _Atomic bool one_by_one;
static _Atomic uint64_t fake_us;
/* Result of the last attempt to open an io_uring. It is -ENOMEM if other processes of the same
 * ordinary user have reached RLIMIT_MEMLOCK. */
static _Atomic int ring_result;

int __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count);
ssize_t __real_write(int fd, const void *buf, size_t len);
ssize_t __wrap_write(int fd, const void *buf, size_t len);
ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);
int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);

static bool counts(void)
{
	return all_threads || pthread_equal(pthread_self(), main_thread);
}

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	ring_result = __real_io_uring_queue_init(entries, ring, flags);
	return ring_result;
}

int __wrap_io_uring_submit(struct io_uring *ring)
{
	int ret = __real_io_uring_submit(ring);

	submits += counts();
	submitted += counts() && ret > 0 ? (unsigned)ret : 0;
	hides = true;
	return ret;
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
	waits += counts();
	hides = false;
	return __real_io_uring_submit_and_wait(ring, together ? together : count);
}

unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count)
{
	polls += counts();
	return hides ? 0 : __real_io_uring_peek_batch_cqe(ring, cqes, one_by_one ? 1 : count);
}

ssize_t __wrap_write(int fd, const void *buf, size_t len)
{
	writes += fd > 2 && counts();
	return __real_write(fd, buf, len);
}

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	preads += counts();
	return __real_pread64(fd, buf, len, off);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int ret = __real_clock_gettime(id, ts);
	uint64_t us = ++fake_us;

	if (id == CLOCK_MONOTONIC)
		*ts = (struct timespec){1000000 + (time_t)(us / 1000000),
					(long)(us % 1000000 * 1000)};
	return ret;
}

static void calls_reset(void)
{
	submits = submitted = waits = polls = writes = preads = 0;
}

/* ---- reads ---- */

static unsigned long driver_calls(const char *symbol)
{
	unsigned long (*calls)(const char *);

	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	return calls(symbol);
}

static struct penstock_queue *queue_open(struct penstock_device *own_lane)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;

	opts.own_lane = own_lane;
	ring_result = 0;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	if (ring_result < 0) {
		penstock_queue_close(q);
		test_skip("io_uring is refused here: %s", strerror(-ring_result));
	}
	return q;
}

/* Submits reads of the blocks [first, first + count) by one call. */
static void blocks_submit(struct penstock_queue *q, struct penstock_device *dev, char *mem,
			  unsigned first, unsigned count, enum penstock_effort effort)
{
	struct penstock_req reqs[READS];
	struct penstock_seg segs[READS];

	for (unsigned i = 0; i < count; i++) {
		uint64_t at = (uint64_t)(first + i) * BLOCK;

		segs[i] = (struct penstock_seg){
			.buf = mem + at, .dev = dev, .off = at, .row_len = BLOCK};
		reqs[i] = test_request(st, &segs[i], 1, PENSTOCK_READ);
		reqs[i].effort = effort;
		reqs[i].path = dev == host ? "odirect" : "staged";
	}
	assert_int_equal(penstock_submit(q, reqs, count, NULL), count);
}

/* Reads all blocks, `depth` at a time. */
static void blocks_read(struct penstock_queue *q, struct penstock_device *dev, char *mem,
			unsigned depth, enum penstock_effort effort)
{
	struct penstock_done done[READS];

	for (unsigned i = 0; i < READS; i += depth) {
		blocks_submit(q, dev, mem, i, depth, effort);
		assert_int_equal(penstock_wait(q, done, depth, depth, -1), depth);
		for (unsigned k = 0; k < depth; k++)
			assert_int_equal(done[k].result, BLOCK);
	}
}

static void *mem_alloc(struct penstock_device *dev)
{
	void *mem;

	assert_int_equal(penstock_alloc(dev, FILE_LEN, &mem), 0);
	return mem;
}

static void mem_check(struct penstock_device *dev, void *mem)
{
	unsigned char *back = calloc(1, FILE_LEN);

	test_copy(host, back, dev, mem, FILE_LEN);
	assert_memory_equal(back, bytes, FILE_LEN);
	free(back);
	penstock_free(dev, mem);
}

/* ---- cases ---- */

/* Skips the case if reads cannot use O_DIRECT and io_uring. */
static void need_direct(void)
{
	const struct pst_pump *pump = atomic_load(&host->pump);

	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	if (strcmp(pump->lanes[0].engine_ops->name, "uring") != 0)
		test_skip("io_uring is refused here: %s", pump->lanes[0].engine_why.text);
}

/* A short read by penstock_read makes one system call, pread. It wakes no thread. */
static void one_call_reads_once(void **state)
{
	char *mem = mem_alloc(host);

	(void)state;
	assert_int_equal(penstock_read(st, host, mem, BLOCK, 0), BLOCK);
	calls_reset();
	for (unsigned i = 0; i < READS; i++)
		assert_int_equal(penstock_read(st, host, mem + i * BLOCK, BLOCK, i * BLOCK), BLOCK);
	assert_int_equal(preads, READS);
	assert_int_equal(writes + submits + waits, 0);
	mem_check(host, mem);
}

/* An inline lane works inside the caller's calls on the queue. With one read in flight, it makes
 * two system calls for each read: one submits it, and one waits for it. The lane does not wake
 * itself when the read completes. */
static void inline_lane_submits_and_waits(void **state)
{
	struct penstock_queue *q;
	char *mem;

	(void)state;
	need_direct();
	q = queue_open(host);
	mem = mem_alloc(host);
	calls_reset();
	blocks_read(q, host, mem, 1, PENSTOCK_THRIFTY);
	assert_int_equal(submits, READS);
	/* The first wait also submits a read of the eventfd by which other threads wake this
	 * thread. That read stays in flight, so it is submitted only once. */
	assert_int_equal(submitted, READS);
	assert_int_equal(waits, READS);
	assert_int_equal(writes, 0);
	assert_int_equal(preads, 0);
	penstock_queue_close(q);
	mem_check(host, mem);
}

/* If many reads are submitted together, the library passes them to the kernel in groups of four. */
static void inline_lane_submits_together(void **state)
{
	struct penstock_queue *q;
	char *mem;

	(void)state;
	need_direct();
	q = queue_open(host);
	mem = mem_alloc(host);
	calls_reset();
	blocks_read(q, host, mem, 32, PENSTOCK_THRIFTY);
	assert_int_equal(submits, READS / 4);
	assert_int_equal(submitted, READS);
	assert_in_range(waits, 1, READS);
	assert_int_equal(writes, 0);
	penstock_queue_close(q);
	mem_check(host, mem);
}

/* Each read that a worker thread (lane) of the device carries causes at most two wakes. The
 * submitting thread wakes the worker, and the worker wakes the waiting thread. */
static void lane_wakes_once(void **state)
{
	struct penstock_queue *q;
	char *mem;

	(void)state;
	need_direct();
	q = queue_open(NULL);
	mem = mem_alloc(host);
	/* The first reads make the worker thread open its io_uring, so these reads are not
	 * counted. */
	blocks_read(q, host, mem, 1, PENSTOCK_THRIFTY);
	all_threads = true;
	calls_reset();
	blocks_read(q, host, mem, 1, PENSTOCK_THRIFTY);
	all_threads = false;
	assert_in_range(submits, READS, 2 * READS);
	assert_in_range(waits, READS, 3 * READS);
	assert_in_range(writes, 0, 2 * READS);
	penstock_queue_close(q);
	mem_check(host, mem);
}

/* If the requests have PENSTOCK_THRIFTY, a thread that waits for a drive polls for
 * PST_SPIN_THRIFTY_NS at most, and polls less often if polling has found nothing before. With
 * PENSTOCK_FAST it polls for PST_SPIN_FAST_NS. */
static void thrifty_polls_shortly(void **state)
{
	struct penstock_queue *q;
	char *mem;

	(void)state;
	need_direct();
	q = queue_open(host);
	mem = mem_alloc(host);
	calls_reset();
	blocks_read(q, host, mem, 1, PENSTOCK_THRIFTY);
	/* While it waits, the library checks for completions twice in each iteration (two polls).
	 * A read needs about six polls even if the library does not spin. */
	assert_in_range(polls, READS, 10 * READS);
	calls_reset();
	blocks_read(q, host, mem, 1, PENSTOCK_FAST);
	assert_in_range(polls, READS * (PST_SPIN_FAST_NS / 1000 / 4), UINT_MAX);
	penstock_queue_close(q);
	mem_check(host, mem);
}

/* Returns the number of driver calls that have queued copies to the device. */
static unsigned long copy_calls(void)
{
	return driver_calls("cuMemcpy3DBatchAsync_v2") + driver_calls("cuMemcpy2DAsync_v2") +
	       driver_calls("cuMemcpyHtoDAsync_v2");
}

/* The lane (the worker of the GPU) finds the completed reads one after the other. It queues the
 * copy of the first read at once. While that copy runs, the lane collects the others, and then
 * queues their copies together. */
static void gpu_copies_wait_for_older(void **state)
{
	struct penstock_queue *q;
	unsigned long before;
	char *mem;

	(void)state;
	need_direct();
	q = queue_open(gpu);
	mem = mem_alloc(gpu);
	before = copy_calls();
	together = 32;
	one_by_one = true;
	blocks_read(q, gpu, mem, 32, PENSTOCK_THRIFTY);
	together = 0;
	one_by_one = false;
	assert_in_range(copy_calls() - before, 2, READS / 4);
	penstock_queue_close(q);
	mem_check(gpu, mem);
}

/* Reads into GPU memory complete together. Few driver calls must queue all their copies. */
static void gpu_copies_share_calls(void **state)
{
	struct penstock_queue *q;
	char *mem;
	unsigned long batches, alone, records;

	(void)state;
	need_direct();
	q = queue_open(gpu);
	mem = mem_alloc(gpu);
	blocks_read(q, gpu, mem, 32, PENSTOCK_THRIFTY);
	batches = driver_calls("cuMemcpy3DBatchAsync_v2");
	alone = driver_calls("cuMemcpy2DAsync_v2") + driver_calls("cuMemcpyHtoDAsync_v2");
	records = driver_calls("cuEventRecord");
	together = 32;
	calls_reset();
	blocks_read(q, gpu, mem, 32, PENSTOCK_THRIFTY);
	together = 0;
	/* The GPU's worker thread takes 16 completed reads at a time, so it needs 2 to 4
	 * batches. */
	assert_in_range(driver_calls("cuMemcpy3DBatchAsync_v2") - batches, 2, 4);
	assert_int_equal(driver_calls("cuMemcpy2DAsync_v2") + driver_calls("cuMemcpyHtoDAsync_v2"),
			 alone);
	assert_in_range(driver_calls("cuEventRecord") - records, 0, 4);
	assert_int_equal(submits, READS / 4);
	assert_int_equal(writes, 0);
	penstock_queue_close(q);
	mem_check(gpu, mem);
}

/* ---- setup ---- */

static int file_make(void)
{
	uint64_t seed = 17;
	int fd;

	bytes = malloc(FILE_LEN);
	for (size_t i = 0; i < FILE_LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-calls");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || __real_write(fd, bytes, FILE_LEN) != FILE_LEN || fsync(fd) ||
	    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) || close(fd))
		return -1;
	return 0;
}

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	(void)state;
	main_thread = pthread_self();
	opts.lanes = 1;
	if (file_make() || penstock_open(name, NULL, &st) ||
	    penstock_device_open("host", &opts, &host) < 0 ||
	    penstock_device_open("cuda:0", &opts, &gpu) < 0 ||
	    penstock_prepare(st, host, PENSTOCK_READ) || penstock_prepare(st, gpu, PENSTOCK_READ)) {
		fprintf(stderr, "%s\n", penstock_errmsg());
		return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	penstock_device_close(host);
	penstock_device_close(gpu);
	unlink(name);
	free(bytes);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_call_reads_once),
		cmocka_unit_test(inline_lane_submits_and_waits),
		cmocka_unit_test(inline_lane_submits_together),
		cmocka_unit_test(lane_wakes_once),
		cmocka_unit_test(thrifty_polls_shortly),
		cmocka_unit_test(gpu_copies_share_calls),
		cmocka_unit_test(gpu_copies_wait_for_older),
	};

	/* Each copy takes 2 ms, longer than the worker thread needs to detect all completed
	 * reads. */
	setenv("PENSTOCK_STANDIN_DELAY_US", "2000", 1);
	test_use_standin();
	return cmocka_run_group_tests_name("calls", tests, setup, teardown);
}
