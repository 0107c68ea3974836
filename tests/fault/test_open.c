/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test opens, creates and commits files, and starts pumps (a pump is a device's threads and
 * their memory). In each of these operations the n-th system call fails, for every n. The operation
 * may fail with the errno of that call, a reason and a sentence; it then leaves no descriptor and
 * no file. Or the operation continues without the feature that needed the system call, and reports
 * that. Existing files keep their bytes.
 */
#include "fixture.h"
#include "request.h"

#include <dirent.h>

#include "calls.h"
#include "core/ops.h"

#define LEN ((1u << 20) + 777u)
#define TURNS_MAX 400
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static unsigned char *bytes, *back;
static struct penstock_device *host;
static char dir[256], name[300];

/* Counts the files in the folder, which no other test uses. */
static unsigned count_files(void)
{
	DIR *d = opendir(dir);
	unsigned count = 0;

	assert_non_null(d);
	while (readdir(d))
		count++;
	closedir(d);
	return count - 2;
}

static int setup(void **state)
{
	(void)state;
	bytes = malloc(LEN);
	back = malloc(LEN);
	snprintf(dir, sizeof(dir), "%s", fixture_name("dir", false));
	snprintf(name, sizeof(name), "%s/file", dir);
	if (mkdir(dir, 0700))
		return -1;
	host = fixture_open_device("host", "auto", 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(host);
	rmdir(dir);
	free(bytes);
	free(back);
	return 0;
}

static void check_file(unsigned salt, int kind, unsigned nth)
{
	struct stat stat;
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, LEN);
	assert_int_equal(read(fd, back, LEN), LEN);
	close(fd);
	fixture_fill(bytes, LEN, salt);
	if (memcmp(back, bytes, LEN))
		fail_msg("%s %u: the file is not what it was", calls_name((enum calls_kind)kind),
			 nth);
}

static void read_and_compare(struct penstock_storage *st)
{
	memset(back, 0xee, LEN);
	assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
	fixture_fill(bytes, LEN, 1);
	assert_memory_equal(back, bytes, LEN);
}

/* Checks that a failed call returns the errno `code`, and that the library has the reason and a
 * sentence. */
static void check_error(int ret, int code, enum calls_kind kind, unsigned nth)
{
	if (ret != -code)
		fail_msg("%s %u as %d: it ended with %d, '%s'", calls_name(kind), nth, code, ret,
			 penstock_errmsg());
	if (penstock_errwhy() != fixture_errno_why(code))
		fail_msg("%s %u as %d: the reason is %s", calls_name(kind), nth, code,
			 penstock_why_name(penstock_errwhy()));
	if (!strstr(penstock_errmsg(), strerror(code)))
		fail_msg("%s %u as %d: the sentence is '%s'", calls_name(kind), nth, code,
			 penstock_errmsg());
}

static void failed_calls_of_an_open(void **state)
{
	static const enum calls_kind kinds[] = {CALLS_OPEN, CALLS_LIST,	 CALLS_READ,
						CALLS_STAT, CALLS_STATX, CALLS_IOCTL};
	static const int codes[] = {EMFILE, EACCES, EIO, ENOMEM};
	struct penstock_storage *st;
	unsigned fds;

	(void)state;
	fixture_make_file(name, LEN, 1);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	/* the library opens some descriptors at the first read and then keeps them */
	read_and_compare(st);
	penstock_close(st);
	fds = fixture_open_fds();
	for (unsigned k = 0; k < COUNT(kinds); k++)
		for (unsigned c = 0; c < COUNT(codes); c++) {
			unsigned failed = 0, nth = 0, hits = 1;
			int ret;

			while (hits && nth++ < TURNS_MAX) {
				st = NULL;
				calls_arm(kinds[k], nth, codes[c]);
				ret = penstock_open(name, NULL, &st);
				if (!ret)
					ret = penstock_prepare(st, host, PENSTOCK_READ);
				hits = calls_disarm();
				if (ret < 0) {
					assert_true(hits);
					assert_null(st);
					check_error(ret, codes[c], kinds[k], nth);
					failed++;
				} else {
					read_and_compare(st);
				}
				penstock_close(st);
				if (fixture_open_fds() != fds)
					fail_msg("%s %u: %u descriptors are open, %u were",
						 calls_name(kinds[k]), nth, fixture_open_fds(),
						 fds);
			}
			assert_in_range(nth, 1, TURNS_MAX);
			if (!c)
				printf("# %s: %u calls, %u of them needed\n", calls_name(kinds[k]),
				       nth - 1, failed);
		}
	unlink(name);
}

/* If a signal interrupts an open call, the library repeats the call. */
static void interrupted_open_is_repeated(void **state)
{
	struct penstock_storage *st;
	bool direct;
	int fd;

	(void)state;
	fixture_make_file(name, LEN, 1);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	direct = st->facts.fd_direct >= 0;
	penstock_close(st);
	/* The first open call opens the file by its name. The second opens it again for
	 * O_DIRECT. */
	for (unsigned nth = 1; nth <= 2; nth++) {
		calls_arm(CALLS_OPEN, nth, EINTR);
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		assert_int_equal(calls_disarm(), nth == 1 || direct);
		assert_int_equal(st->facts.fd_direct >= 0, direct);
		read_and_compare(st);
		penstock_close(st);
	}
	fd = open(name, O_RDONLY);
	calls_arm(CALLS_OPEN, 1, EINTR);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(calls_disarm(), 1);
	assert_int_equal(st->facts.why_fd.code, 0);
	penstock_close(st);
	close(fd);
	unlink(name);
}

/* cachestat starts to fail after the storage was opened. The residency (are the bytes cached?) must
 * then be unknown, and the report must have the reason. */
static void refused_cachestat(void **state)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = LEN};
	struct penstock_explanation ex = {.size = sizeof(ex)};
	struct penstock_req req;
	struct penstock_storage *st;

	(void)state;
	fixture_make_file(name, LEN, 1);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	calls_arm(CALLS_CACHESTAT, 1, EPERM);
	assert_int_equal(penstock_explain(&req, &ex), 0);
	if (!calls_disarm()) {
		penstock_close(st);
		unlink(name);
		test_skip("the library does not query residency on TMPDIR");
	}
	assert_int_equal(ex.resident, -1);
	assert_int_equal(ex.resident_why, PENSTOCK_WHY_RESIDENCY_EPERM);
	read_and_compare(st);
	/* The path "fault" carries each chunk in two pieces. It does so for the chunk of the
	 * residency probe, too. */
	req.path = "fault:bounce?swap=1";
	assert_int_equal(penstock_transfer(&req, NULL), LEN);
	penstock_close(st);
	unlink(name);
}

/* ---- creating files ---- */

struct creation {
	unsigned flags;
	uint64_t length;
	bool old;	/* true if a file of this name exists before the creation */
	bool needs_all; /* true if the creation must fail after every injected failure */
};

/* Creates, writes and commits the file. Returns 0 or an error. Sets *step to the number of steps
 * that succeeded. */
static int create_file(const struct creation *c, int *step)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = NULL;
	int64_t ret;

	opts.flags = c->flags;
	opts.length = c->length;
	*step = 0;
	ret = penstock_open(name, &opts, &st);
	if (!ret) {
		*step = 1;
		ret = penstock_write(st, host, bytes, LEN, 0);
		ret = ret < 0 ? ret : ret == LEN ? 0 : -ENODATA;
	}
	if (!ret) {
		*step = 2;
		ret = penstock_commit(st, 1);
	}
	if (ret == 0)
		*step = 3;
	else if (st && !c->old) /* an abort removes the file if penstock_open has created it */
		(void)penstock_abort(st);
	penstock_close(st);
	return (int)ret;
}

static void fail_creation(const struct creation *c, enum calls_kind kind, const int *codes,
			  unsigned code_count)
{
	unsigned all = 0, fds = fixture_open_fds();

	for (unsigned i = 0; i < code_count; i++) {
		unsigned hits = 1, nth = 0;

		while (hits && nth++ < TURNS_MAX) {
			int ret, step;

			if (c->old)
				fixture_make_file(name, LEN, 1);
			fixture_fill(bytes, LEN, 2);
			calls_arm(kind, nth, codes[i]);
			ret = create_file(c, &step);
			hits = calls_disarm();
			all += hits;
			if (ret < 0) {
				assert_true(hits);
				check_error(ret, codes[i], kind, nth);
			}
			if (ret < 0 && c->old && count_files() != 1)
				fail_msg("%s %u: %u files are there", calls_name(kind), nth,
					 count_files());
			if (ret < 0 && c->old && step < 3) {
				/* The file is completely the old or completely the new one. The
				 * new file may already have its name, although the name is not
				 * durable. */
				bool whole = kind == CALLS_FSYNC || kind == CALLS_OPEN;

				fixture_fill(bytes, LEN, 2);
				if (!whole || step < 2)
					check_file(1, (int)kind, nth);
			} else if (ret < 0 && !c->old && count_files()) {
				fail_msg("%s %u: a file is left", calls_name(kind), nth);
			} else if (ret == 0) {
				check_file(2, (int)kind, nth);
			}
			if (hits && c->needs_all && ret == 0)
				fail_msg("%s %u as %d: the failure was not reported",
					 calls_name(kind), nth, codes[i]);
			unlink(name);
			if (count_files())
				fail_msg("%s %u: %u files are left", calls_name(kind), nth,
					 count_files());
			if (fixture_open_fds() != fds)
				fail_msg("%s %u: %u descriptors are open, %u were",
					 calls_name(kind), nth, fixture_open_fds(), fds);
		}
		assert_in_range(nth, 1, TURNS_MAX);
	}
	assert_true(all >= 1);
}

static void failed_calls_of_a_creation(void **state)
{
	static const int full[] = {ENOSPC, EDQUOT, EIO};
	static const int codes[] = {EMFILE, EACCES};
	const struct creation replace = {.flags = PENSTOCK_O_REPLACE, .old = true};
	const struct creation replace_len = {
		.flags = PENSTOCK_O_REPLACE, .length = LEN, .old = true};
	const struct creation fresh = {.flags = PENSTOCK_O_CREATE};
	const struct creation fresh_len = {.flags = PENSTOCK_O_CREATE, .length = LEN};
	struct creation strict;

	(void)state;
	fail_creation(&replace, CALLS_OPEN, codes, COUNT(codes));
	fail_creation(&fresh, CALLS_OPEN, codes, COUNT(codes));
	fail_creation(&replace, CALLS_STAT, full + 2, 1);
	fail_creation(&fresh, CALLS_STAT, full + 2, 1);
	strict = replace;
	strict.needs_all = true;
	fail_creation(&strict, CALLS_FSYNC, full, COUNT(full));
	fail_creation(&strict, CALLS_RENAME, full, COUNT(full));
	strict = fresh;
	strict.needs_all = true;
	fail_creation(&strict, CALLS_FSYNC, full, COUNT(full));
	strict = fresh_len;
	strict.needs_all = true;
	fail_creation(&strict, CALLS_FALLOCATE, full, COUNT(full));
	strict = replace_len;
	strict.needs_all = true;
	fail_creation(&strict, CALLS_FALLOCATE, full, COUNT(full));
}

/* If fallocate is interrupted, or not supported by the file system, the file still gets its
 * length. */
static void failed_reservation_still_sets_the_length(void **state)
{
	static const int codes[] = {EINTR, EOPNOTSUPP};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	(void)state;
	opts.flags = PENSTOCK_O_CREATE;
	opts.length = LEN;
	for (unsigned i = 0; i < COUNT(codes); i++) {
		calls_arm(CALLS_FALLOCATE, 1, codes[i]);
		assert_int_equal(penstock_open(name, &opts, &st), 0);
		assert_int_equal(calls_disarm(), 1);
		assert_int_equal(penstock_storage_length(st), LEN);
		assert_int_equal(penstock_abort(st), 0);
		penstock_close(st);
		assert_int_equal(count_files(), 0);
	}
}

/* The caller's descriptor has O_APPEND. The library opens the file again without this flag. If
 * that fails, writes are refused, because they would go to the end of the file. */
static void append_descriptor_is_reopened_or_refused(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	int fd;

	(void)state;
	fixture_make_file(name, LEN, 1);
	fd = open(name, O_RDWR | O_APPEND);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open_fd(fd, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, bytes, 100, 200), 100);
	penstock_close(st);
	calls_arm_onwards(CALLS_OPEN, 1, EACCES);
	assert_int_equal(penstock_open_fd(fd, &opts, &st), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "O_APPEND"));
	opts.flags = 0;
	assert_int_equal(penstock_open_fd(fd, &opts, &st), 0);
	assert_true(calls_disarm() >= 2);
	assert_int_equal(penstock_read(st, host, back, 100, 200), 100);
	assert_memory_equal(back, bytes, 100);
	assert_true(penstock_write(st, host, bytes, 100, 200) < 0);
	penstock_close(st);
	close(fd);
	unlink(name);
}

/* Opens a file that will replace another one. If `named`, the file system seems to have no files
 * without names (O_TMPFILE), so the file gets a temporary name. */
static struct penstock_storage *open_replacing(uint64_t length, bool named)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = length;
	if (named)
		/* Makes the second open call fail, because the first one opens the directory. */
		calls_arm(CALLS_OPEN, 2, EOPNOTSUPP);
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	if (named)
		assert_int_equal(calls_disarm(), 1);
	return st;
}

/* Makes the unfinished file longer than its final length, as a write with a padded tail does. */
static void lengthen_unfinished_file(void)
{
	DIR *d = opendir("/proc/self/fd");
	char link[PATH_MAX];
	struct dirent *e;
	int fd = -1;

	assert_non_null(d);
	while (fd < 0 && (e = readdir(d))) {
		ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		if (!strncmp(link, dir, strlen(dir)) &&
		    (strstr(link + strlen(dir), "penstock-") || strstr(link, "(deleted)")))
			fd = openat(dirfd(d), e->d_name, O_WRONLY);
	}
	closedir(d);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, LEN + 4096), 0);
	close(fd);
}

/* A commit truncates the file to its final length. If the truncation or a later step fails, the
 * commit fails. The commit can be repeated, unless data was lost. */
static void failed_commit_can_be_repeated(void **state)
{
	static const enum calls_kind kinds[] = {CALLS_TRUNCATE, CALLS_FSYNC, CALLS_RENAME};
	struct penstock_storage *st;

	(void)state;
	for (unsigned turn = 0; turn < 2 * COUNT(kinds); turn++)
		for (unsigned nth = 1, k = turn / 2;; nth++) {
			struct penstock_req req;
			struct penstock_seg seg = {.buf = bytes, .dev = host, .row_len = LEN};
			int ret;

			fixture_fill(bytes, LEN, 2);
			fixture_make_file(name, LEN, 1);
			st = open_replacing(LEN, turn % 2);
			req = test_request(st, &seg, 1, PENSTOCK_WRITE);
			assert_int_equal(penstock_transfer(&req, NULL), LEN);
			lengthen_unfinished_file();
			calls_arm(kinds[k], nth, EIO);
			ret = penstock_commit(st, 1);
			if (!calls_disarm()) {
				assert_int_equal(ret, 0);
				assert_true(nth > 1);
				penstock_close(st);
				check_file(2, (int)kinds[k], nth);
				break;
			}
			check_error(ret, EIO, kinds[k], nth);
			ret = penstock_commit(st, 1);
			if (kinds[k] == CALLS_FSYNC && nth == 1) {
				/* After a failed fsync of the data, the kernel drops the pages
				 * that it could not write. So the repeated commit must fail,
				 * too. */
				check_error(ret, EIO, kinds[k], nth);
				penstock_close(st);
				check_file(1, (int)kinds[k], nth);
				continue;
			}
			if (ret)
				fail_msg("%s %u: a second commit: %s", calls_name(kinds[k]), nth,
					 penstock_errmsg());
			penstock_close(st);
			check_file(2, (int)kinds[k], nth);
			assert_int_equal(count_files(), 1);
		}
	unlink(name);
}

/* The directory of a file is renamed while the file is written. The commit fails, because the
 * caller's path leads elsewhere. The close removes the file, wherever its directory is. */
static void renamed_directory_keeps_no_file(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	char moved[PATH_MAX];

	(void)state;
	snprintf(moved, sizeof(moved), "%.*s-moved", PATH_MAX - 16, dir);
	for (unsigned turn = 0; turn < 6; turn++) {
		opts.flags = PENSTOCK_O_CREATE;
		if (turn < 4)
			st = open_replacing(0, turn % 2);
		else
			assert_int_equal(penstock_open(name, &opts, &st), 0);
		assert_int_equal(penstock_write(st, host, bytes, 4096, 0), 4096);
		assert_int_equal(rename(dir, moved), 0);
		if (turn / 2 == 1) /* creates another directory with the old name */
			assert_int_equal(mkdir(dir, 0700), 0);
		if (turn < 4)
			assert_int_equal(penstock_commit(st, 0), turn < 2 ? -ENOENT : -ESTALE);
		else
			assert_int_equal(penstock_abort(st), 0);
		penstock_close(st);
		if (turn / 2 == 1) {
			assert_int_equal(count_files(), 0);
			assert_int_equal(rmdir(dir), 0);
		}
		assert_int_equal(rename(moved, dir), 0);
		assert_int_equal(count_files(), 0);
	}
}

/* A write to a file that is being created fails. If the file is then closed without a commit, its
 * length is exactly the number of bytes written. */
static void failed_write_leaves_exact_length(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.buf = bytes, .dev = host, .row_len = 256u << 10};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st;

	(void)state;
	opts.flags = PENSTOCK_O_CREATE;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.path = "bounce";
	for (unsigned i = 0; i < 4; i++) {
		const bool good = i & 1;
		struct stat there;

		/* space that is only reserved does not count as written */
		opts.length = i & 2 ? 4u << 20 : 0;
		assert_int_equal(penstock_open(name, &opts, &st), 0);
		req.storage = st;
		seg.off = 0;
		if (good)
			assert_int_equal(penstock_transfer(&req, &report), seg.row_len);
		seg.off = 1u << 20;
		calls_arm(CALLS_DRAIN, 1, ENOSPC);
		assert_int_equal(penstock_transfer(&req, &report), -ENOSPC);
		assert_int_equal(calls_disarm(), 1);
		assert_int_equal(report.why, PENSTOCK_WHY_NO_SPACE);
		assert_int_equal(report.bytes, 0);
		penstock_close(st);
		assert_int_equal(stat(name, &there), 0);
		assert_int_equal(there.st_size, good ? seg.row_len : 0);
		unlink(name);
	}
}

/* ---- starting a pump ---- */

/* Opens a device, uses it and closes it. Returns 0 or the first error. */
static int open_use_close_device(const char *device, const char *engine,
				 struct penstock_report *report)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_req req;
	struct penstock_seg seg = {.row_len = LEN};
	struct penstock_storage *st = NULL;
	struct penstock_device *dev;
	int64_t ret;

	opts.engine = engine;
	opts.lanes = 2;
	opts.slot_bytes = 256u << 10;
	opts.ring_bytes = 2u << 20;
	ret = penstock_device_open(device, &opts, &dev);
	if (ret < 0)
		return (int)ret;
	ret = penstock_alloc(dev, LEN, &seg.buf);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret) {
		seg.dev = dev;
		req = test_request(st, &seg, 1, PENSTOCK_READ);
		req.path = "bounce";
		ret = penstock_transfer(&req, report);
		if (ret > 0) {
			assert_int_equal(ret, LEN);
			ret = 0;
		}
	}
	if (!ret && !strcmp(device, "host")) {
		fixture_fill(bytes, LEN, 1);
		assert_memory_equal(seg.buf, bytes, LEN);
	}
	penstock_close(st);
	penstock_free(dev, seg.buf);
	penstock_device_close(dev);
	return (int)ret;
}

static void failed_calls_of_a_pump_start(void **state)
{
	static const enum calls_kind kinds[] = {CALLS_EVENTFD, CALLS_THREAD, CALLS_SETUP,
						CALLS_REGISTER, CALLS_MADVISE};
	static const char *const devices[] = {"host", "cuda:0"};
	static const char *const engines[] = {"auto", "threads"};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	unsigned all = 0;

	(void)state;
	penstock_device_close(host); /* closes the device, so that the cases below open it anew */
	fixture_make_file(name, LEN, 1);
	for (unsigned d = 0; d < COUNT(devices); d++)
		for (unsigned e = 0; e < COUNT(engines); e++) {
			unsigned fds;

			assert_int_equal(open_use_close_device(devices[d], engines[e], &report), 0);
			fds = fixture_open_fds();
			for (unsigned k = 0; k < COUNT(kinds); k++) {
				const int code = kinds[k] == CALLS_THREAD ? EAGAIN : ENOMEM;
				unsigned hits = 1, nth = 0;

				while (hits && nth++ < TURNS_MAX) {
					int ret;

					fixture_set_cached(name, false);
					calls_arm(kinds[k], nth, code);
					ret = open_use_close_device(devices[d], engines[e],
								    &report);
					hits = calls_disarm();
					all += hits;
					if (ret < 0 && strlen(penstock_errmsg()) < 10)
						fail_msg("%s %u: %d without a sentence",
							 calls_name(kinds[k]), nth, ret);
					if (ret < 0)
						assert_true(hits);
					if (fixture_open_fds() != fds || fixture_open_rings())
						fail_msg("%s %u (%d): %u descriptors, %u were",
							 calls_name(kinds[k]), nth, ret,
							 fixture_open_fds() + fixture_open_rings(),
							 fds);
					if (hits) {
						ret = open_use_close_device(devices[d], engines[e],
									    &report);
						if (ret)
							fail_msg("%s %u: afterwards %d",
								 calls_name(kinds[k]), nth, ret);
					}
				}
				assert_in_range(nth, 1, TURNS_MAX);
			}
		}
	printf("# %u calls failed\n", all);
	assert_true(all >= 8);
	unlink(name);
	host = fixture_open_device("host", "auto", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failed_calls_of_an_open),
		cmocka_unit_test(interrupted_open_is_repeated),
		cmocka_unit_test(refused_cachestat),
		cmocka_unit_test(failed_calls_of_a_creation),
		cmocka_unit_test(failed_reservation_still_sets_the_length),
		cmocka_unit_test(append_descriptor_is_reopened_or_refused),
		cmocka_unit_test(failed_commit_can_be_repeated),
		cmocka_unit_test(renamed_directory_keeps_no_file),
		cmocka_unit_test(failed_write_leaves_exact_length),
		cmocka_unit_test(failed_calls_of_a_pump_start),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("open", tests, setup, teardown);
}
