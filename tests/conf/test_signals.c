/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals are the application's threads' business: one that it has blocked waits until
 * it asks for it, and never comes to its handler on a thread of the library. So every
 * thread that the library began, on lanes and on the caller's own, blocks them all.
 */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>

#include "penstock.h"

#define LEN (1u << 20)
#define READS 8

static char name[256];
static unsigned char back[LEN];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s/penstock-signals-%d", tmp ? tmp : "/tmp", (int)getpid());
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

/* Are all signals blocked that one may block? */
static bool blocks_all(const char *tid)
{
	unsigned long long blocked = 0;
	char path[64], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", tid);
	f = fopen(path, "re");
	if (!f)
		return true; /* it has ended */
	while (fgets(line, sizeof(line), f))
		sscanf(line, "SigBlk: %llx", &blocked);
	fclose(f);
	for (int s = 1; s < 32; s++)
		if (s != SIGKILL && s != SIGSTOP && !(blocked >> (s - 1) & 1))
			return false;
	return true;
}

/* How many threads there are beside this one; all block every signal. */
static unsigned others(void)
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
			fail_msg("thread %s takes signals", entry->d_name);
	}
	closedir(d);
	return count;
}

static void forget_cached(void)
{
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0 && !fsync(fd));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void read_by(struct penstock_queue *q, struct penstock_storage *st,
		    struct penstock_device *dev, const char *path)
{
	struct penstock_seg seg = {.buf = back, .dev = dev, .row_len = LEN / READS};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned have = 0;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	for (unsigned i = 0; i < READS; i++) {
		seg.buf = back + i * seg.row_len;
		seg.off = i * seg.row_len;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	while (have < READS)
		have += (unsigned)penstock_wait(q, NULL, 1, 0, -1);
}

/* Workers of the engine threads, made by a lane and by the owner of one, and the thread
 * of chunks that are late. */
static void all_blocked(void **state)
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
				break; /* an engine that is refused here */
			read_by(q, st, dev, "bounce");
			read_by(q, st, dev, "fault:bounce?delay_us=100");
			forget_cached();
			read_by(q, st, dev, NULL); /* by the engine */
			assert_true(others() >= 2);
			penstock_queue_close(q);
		}
		penstock_close(st);
		penstock_device_close(own.own_lane);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_blocked),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
