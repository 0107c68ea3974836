/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests storages that are opened with a caller's descriptor. The library opens the descriptor's
 * file again and uses the new descriptor if it belongs to the same file. Otherwise it uses a
 * duplicate of the descriptor and reports why. The flags and the offset of the caller's
 * descriptor must not change. The last case counts the syncs of a durable commit: of the file,
 * and of the folder that contains its name.
 */
#include "fixture.h"
#include "request.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "core/ops.h"

#define LEN 100000u

static struct penstock_device *host;
static const char *name;

static int setup(void **state)
{
	(void)state;
	host = fixture_open_device("host", "auto", 0);
	name = fixture_name("fd", false);
	fixture_make_file(name, LEN, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	calls_disarm();
	unlink(name);
	penstock_device_close(host);
	return 0;
}

static void read_right(struct penstock_storage *st)
{
	unsigned char *back = malloc(LEN), *want = malloc(LEN);

	fixture_fill(want, LEN, 1);
	assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
	assert_memory_equal(back, want, LEN);
	free(back);
	free(want);
}

/* Opens a storage with a caller's descriptor while one system call of the library has the given
 * outcome. Checks whether the library reports that it uses a duplicate. */
static void open_fd_with_fault(int flags, enum calls_kind kind, unsigned nth, int how,
			       bool duplicated)
{
	const char *text = penstock_why_text(PENSTOCK_WHY_REOPEN);
	struct penstock_storage_info info = {.size = sizeof(info)};
	struct penstock_storage *st;
	int fd = open(name, flags), was;

	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 77, SEEK_SET), 77);
	was = fcntl(fd, F_GETFL);
	calls_arm(kind, nth, how);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(calls_disarm(), nth ? 1 : 0);
	assert_int_equal(penstock_storage_get_info(st, &info), 0);
	if (duplicated != !!strstr(info.text, text))
		fail_msg("flags %o: '%s'", (unsigned)flags, info.text);
	read_right(st);
	assert_int_equal(fcntl(fd, F_GETFL), was);
	penstock_close(st);
	assert_int_equal(fcntl(fd, F_GETFL), was); /* the caller's descriptor must still be open */
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 77);
	close(fd);
}

static void reopened_or_duplicated(void **state)
{
	static const int flags[] = {O_RDONLY, O_RDWR, O_RDWR | O_APPEND, O_RDWR | O_NONBLOCK};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		open_fd_with_fault(flags[i], CALLS_OPEN, 0, 0, false);
		open_fd_with_fault(flags[i], CALLS_OPEN, 1, EACCES, true);
		open_fd_with_fault(flags[i], CALLS_OPEN, 1, ENXIO, true);
		/* The first fstat is on the caller's descriptor, the second on the file that was
		 * opened again. */
		open_fd_with_fault(flags[i], CALLS_STAT, 2, CALLS_OTHER, true);
		open_fd_with_fault(flags[i], CALLS_STAT, 2, EIO, true);
	}
}

/* The storage keeps the file open. The caller may close its own descriptor, and the number of
 * this descriptor may then belong to another file. */
static void storage_outlives_the_callers_descriptor(void **state)
{
	struct penstock_storage *st;

	(void)state;
	for (unsigned again = 0; again < 2; again++) {
		int fd = open(name, O_RDONLY), other = memfd_create("other", MFD_CLOEXEC);

		assert_int_equal(ftruncate(other, LEN), 0);
		calls_arm(CALLS_OPEN, again ? 0 : 1, EACCES);
		assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
		calls_disarm();
		assert_int_equal(dup2(other, fd), fd);
		read_right(st);
		penstock_close(st);
		/* The descriptor's number belongs to another file of the caller, so penstock_close
		 * must not close it. */
		assert_true(fcntl(fd, F_GETFD) >= 0);
		close(fd);
		close(other);
	}
}

/* If the process has no free descriptor for a duplicate of the caller's descriptor, opening the
 * storage fails with -EMFILE. */
static void no_descriptor_for_a_duplicate(void **state)
{
	struct penstock_storage *st;
	struct rlimit limit;
	int fd = open(name, O_RDONLY), lowest = dup(fd), ret;

	(void)state;
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	calls_arm(CALLS_OPEN, 1, EACCES);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, limit.rlim_max});
	ret = penstock_open_fd(fd, NULL, &st);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	calls_disarm();
	assert_int_equal(ret, -EMFILE);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NO_FILES);
	close(fd);
}

static int64_t transfer(struct penstock_storage *st, enum penstock_op op, void *buf, uint64_t len,
			uint64_t off, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = buf, .dev = host, .off = off, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, op);
	return penstock_transfer(&req, report);
}

/* The storage uses a duplicate of the caller's descriptor, which has O_DIRECT. A read fetches the
 * whole blocks around its range. A write that does not consist of whole blocks is refused before
 * any byte moves. */
static void direct_duplicate_moves_whole_blocks(void **state)
{
	static const uint64_t at[][2] = {{0, LEN}, {3, 70001}, {4096, 8192}, {LEN - 5, 5}};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	unsigned char *back = malloc(LEN), *want = malloc(LEN);
	struct penstock_storage *st;
	int fd = open(name, O_RDWR | O_DIRECT);

	(void)state;
	if (fd < 0)
		test_skip("no direct path to TMPDIR: %s", strerror(errno));
	calls_arm(CALLS_OPEN, 1, EACCES);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(calls_disarm(), 1);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	fixture_fill(want, LEN, 1);
	for (unsigned warm = 0; warm < 2; warm++) {
		fixture_set_cached(name, warm);
		for (unsigned i = 0; i < 4; i++) {
			memset(back, 0, LEN);
			assert_int_equal(
				transfer(st, PENSTOCK_READ, back, at[i][1], at[i][0], &report),
				at[i][1]);
			assert_memory_equal(back, want + at[i][0], at[i][1]);
			assert_int_equal(report.retries, 0);
		}
	}
	memset(back, 0xee, LEN);
	for (unsigned i = 1; i < 4; i += 2) {
		calls_arm(CALLS_DRAIN, 0, 0);
		assert_int_equal(transfer(st, PENSTOCK_WRITE, back, at[i][1], at[i][0], NULL),
				 -EOPNOTSUPP);
		calls_disarm();
		assert_int_equal(calls_counted(), 0);
		if (!strstr(penstock_errmsg(), "whole blocks"))
			fail_msg("%s", penstock_errmsg());
	}
	read_right(st);
	assert_int_equal(transfer(st, PENSTOCK_WRITE, want + 4096, 8192, 4096, &report), 8192);
	read_right(st);
	penstock_close(st);
	close(fd);
	free(back);
	free(want);
}

/* A duplicate of a descriptor with O_APPEND cannot write at an offset. So if the storage uses such
 * a duplicate, every write is refused, with the reason. */
static void append_duplicate_refuses_writes(void **state)
{
	struct penstock_storage *st;
	struct stat stat;
	int fd = open(name, O_RDWR | O_APPEND);

	(void)state;
	calls_arm(CALLS_OPEN, 1, EACCES);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(calls_disarm(), 1);
	assert_int_equal(penstock_write(st, host, "x", 1, 0), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REOPEN);
	assert_non_null(strstr(penstock_errmsg(), "O_APPEND"));
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, LEN);
	read_right(st);
	penstock_close(st);
	close(fd);
}

/* Opens the file in a child process whose root is TMPDIR, so that /proc is missing. Returns the
 * exit status: 0 if all was right, 77 if chroot is refused. If `other` is true, the file's name
 * belongs to another file when the library checks the name. The library must not open this other
 * file for O_DIRECT. */
static int open_without_proc(bool other)
{
	char *dir = strdup(name), *slash = strrchr(dir, '/');
	struct penstock_storage *st;
	struct penstock_device *dev;
	unsigned char *back = malloc(LEN), *want = malloc(LEN);
	int flags;

	*slash = '\0';
	if ((geteuid() && unshare(CLONE_NEWUSER)) || chroot(dir) || chdir("/"))
		return 77;
	calls_arm(CALLS_STAT, other ? 3 : 0, CALLS_OTHER);
	if (penstock_open(slash + 1, NULL, &st))
		return 2;
	if (calls_disarm() != other || (st->facts.fd_direct >= 0) == other)
		return 3;
	flags = other ? O_DIRECT : fcntl(st->facts.fd_direct, F_GETFL);
	if ((flags & (O_DIRECT | O_NONBLOCK)) != O_DIRECT)
		return 4;
	fixture_fill(want, LEN, 1);
	if (penstock_device_open("host", NULL, &dev) < 0 ||
	    penstock_read(st, dev, back, LEN, 0) != LEN || memcmp(back, want, LEN))
		return 5;
	penstock_close(st);
	penstock_device_close(dev);
	return 0;
}

/* Without /proc the library opens the file by its name to get an O_DIRECT descriptor, provided
 * that the name still belongs to the same file. */
static void direct_descriptor_by_name_without_proc(void **state)
{
	struct penstock_storage *st;
	bool direct;

	(void)state;
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	direct = st->facts.fd_direct >= 0;
	penstock_close(st);
	if (!direct)
		test_skip("no direct path to TMPDIR");
	for (unsigned other = 0; other < 2; other++) {
		int status;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			_exit(open_without_proc(other));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status == 77 << 8)
			test_skip("chroot is refused here");
		assert_int_equal(status, 0);
	}
}

/* Returns how many fsyncs one commit makes: of the file, and of the folder that contains its
 * name. */
static unsigned count_commit_fsyncs(unsigned flags, int durable, bool relative)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	char there[300], here[4096];
	const char *made = there;

	snprintf(there, sizeof(there), "%s.made", name);
	assert_non_null(getcwd(here, sizeof(here)));
	if (relative) {
		*strrchr(there, '/') = '\0';
		assert_int_equal(chdir(there), 0);
		made = there + strlen(there) + 1;
	}
	opts.flags = flags;
	assert_int_equal(penstock_open(made, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, "x", 1, 0), 1);
	/* If either fsync fails, the commit must fail. */
	for (unsigned nth = 2; durable && nth; nth--) {
		calls_arm(CALLS_FSYNC, nth, EIO);
		assert_int_equal(penstock_commit(st, 1), -EIO);
		assert_int_equal(calls_disarm(), 1);
		penstock_close(st);
		assert_int_equal(penstock_open(made, &opts, &st), 0);
		assert_int_equal(penstock_write(st, host, "x", 1, 0), 1);
	}
	calls_arm(CALLS_FSYNC, 0, 0);
	assert_int_equal(penstock_commit(st, durable), 0);
	calls_disarm();
	penstock_close(st);
	assert_int_equal(unlink(made), 0);
	assert_int_equal(chdir(here), 0);
	return calls_counted();
}

static void durable_commit_syncs_file_and_folder(void **state)
{
	(void)state;
	for (unsigned relative = 0; relative < 2; relative++) {
		assert_int_equal(count_commit_fsyncs(PENSTOCK_O_REPLACE, 1, relative), 2);
		assert_int_equal(count_commit_fsyncs(PENSTOCK_O_REPLACE, 0, relative), 0);
	}
	assert_int_equal(count_commit_fsyncs(PENSTOCK_O_CREATE, 0, false), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reopened_or_duplicated),
		cmocka_unit_test(storage_outlives_the_callers_descriptor),
		cmocka_unit_test(no_descriptor_for_a_duplicate),
		cmocka_unit_test(direct_duplicate_moves_whole_blocks),
		cmocka_unit_test(append_duplicate_refuses_writes),
		cmocka_unit_test(direct_descriptor_by_name_without_proc),
		cmocka_unit_test(durable_commit_syncs_file_and_folder),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("descriptors", tests, setup, teardown);
}
