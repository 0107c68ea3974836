/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals belong to the application's threads. A signal that the application has blocked stays
 * pending until the application unblocks it, and no signal handler runs on a thread of the
 * library. So every thread that the library starts must block all signals.
 */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>

#include "penstock.h"
#include "request.h"

#define LEN (1u << 20)
#define READS 8

static char name[256];
static unsigned char back[LEN];

static int setup(void **state)
{
	int fd;

	(void)state;
	test_file_name(name, sizeof(name), "penstock-signals");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, back, LEN) != LEN)
		return -1;
	return close(fd);
}

static int teardown(void **state)
{
	(void)state;
	return unlink(name);
}

/* Reports whether a thread blocks every signal that can be blocked. */
static bool blocks_all(const char *tid)
{
	unsigned long long blocked = 0;
	char path[64], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", tid);
	f = fopen(path, "re");
	if (!f)
		return true; /* the thread has exited, so it cannot run a handler */
	while (fgets(line, sizeof(line), f))
		sscanf(line, "SigBlk: %llx", &blocked);
	fclose(f);
	for (int s = 1; s < 32; s++)
		if (s != SIGKILL && s != SIGSTOP && !(blocked >> (s - 1) & 1))
			return false;
	return true;
}

/* Checks that every other thread of the process blocks all signals. Returns the number of these
 * threads. */
static unsigned check_other_threads(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *entry;
	unsigned count = 0;

	assert_non_null(d);
	while ((entry = readdir(d))) {
		if (entry->d_name[0] == '.' || strtol(entry->d_name, NULL, 10) == getpid())
			continue;
		count++;
		if (!blocks_all(entry->d_name))
			fail_msg("thread %s does not block all signals", entry->d_name);
	}
	closedir(d);
	return count;
}

static void drop_page_cache(void)
{
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0 && !fsync(fd));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void read_by_path(struct penstock_queue *q, struct penstock_storage *st,
			 struct penstock_device *dev, const char *path)
{
	struct penstock_seg seg = {.buf = back, .dev = dev, .row_len = LEN / READS};
	struct penstock_req req;
	unsigned have = 0;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = path;
	for (unsigned i = 0; i < READS; i++) {
		seg.buf = back + i * seg.row_len;
		seg.off = i * seg.row_len;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	while (have < READS)
		have += (unsigned)penstock_wait(q, NULL, 1, 0, -1);
}

/* Starts every kind of thread that the library has, and checks that each blocks all signals. The
 * kinds are the worker threads of engine "threads", which a device or a queue's inline lane starts,
 * and the thread that delays chunks of path fault. */
static void library_threads_block_all_signals(void **state)
{
	static const char *const engines[] = {"threads", "uring"};
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_queue_opts own = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_queue *q;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		opts.engine = engines[i];
		opts.lanes = 2;
		assert_int_equal(penstock_device_open("host", &opts, &own.own_lane), 0);
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		for (unsigned k = 0; k < 2; k++) {
			struct penstock_device *dev = own.own_lane;

			if (penstock_queue_open(k ? NULL : &own, &q))
				break; /* the kernel refuses this engine on this machine */
			read_by_path(q, st, dev, "bounce");
			read_by_path(q, st, dev, "fault:bounce?delay_us=100");
			drop_page_cache();
			read_by_path(q, st, dev, NULL); /* makes the engine start its threads */
			assert_true(check_other_threads() >= 2);
			penstock_queue_close(q);
		}
		penstock_close(st);
		penstock_device_close(own.own_lane);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(library_threads_block_all_signals),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
