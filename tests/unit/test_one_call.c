/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the functions of include/penstock.h that make a whole request in one call, and the files
 * written with these functions: deadlines, the end of a storage, and the content of a file after an
 * abort or a commit. The CUDA driver is the stand-in.
 */
#include "api.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* A one-call request fails with -ETIME if its deadline has passed before it starts. */
static void past_deadline_fails(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned char byte = 1;
	struct penstock_seg seg = {.buf = &byte, .dev = host, .row_len = 1};

	(void)state;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	/* In the first round, the call starts the device's worker threads; in the second round,
	 * they already run. */
	for (unsigned i = 0; i < 2; i++) {
		req.deadline_ns = 1;
		assert_int_equal(penstock_transfer(&req, &report), -ETIME);
		assert_int_equal(report.why, PENSTOCK_WHY_DEADLINE);
		assert_int_equal(report.bytes, 0);
		assert_int_equal(byte, 1);
		req.deadline_ns = INT64_MAX;
		assert_int_equal(penstock_transfer(&req, &report), 1);
		assert_int_equal(byte, 0);
		byte = 1;
	}
	penstock_close(st);
}

/* Reads one range into two destinations. The library reads the range into its own pinned buffer,
 * and the CPU copies the bytes to each destination. If the second destination is inaccessible
 * memory, the request fails with -EFAULT and the process receives no signal. */
static void unmapped_destination_fails(void **state)
{
	char *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct penstock_storage *st = test_file_open(0);
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	char here[4096];
	struct penstock_seg segs[2] = {{.buf = here, .dev = host, .row_len = 4096, .rows = 1}};

	(void)state;
	req.storage = st;
	req.segs = segs;
	req.seg_count = 2;
	segs[1] = segs[0];
	/* By default the library does not check a buffer before it uses the buffer. In the first
	 * round the flag PENSTOCK_R_UNSURE requests this check, and in the second round a segment
	 * that names no device does. */
	for (unsigned i = 0; i < 2; i++) {
		req.flags = i ? 0 : PENSTOCK_R_UNSURE;
		segs[1].dev = i ? NULL : host;
		segs[1].buf = none;
		assert_int_equal(penstock_transfer(&req, &report), -EFAULT);
		segs[1].buf = here;
		assert_int_equal(penstock_transfer(&req, &report), 2 * 4096);
	}
	req.flags = 0x20;
	assert_int_equal(penstock_transfer(&req, &report), -EINVAL);
	munmap(none, 4096);
	penstock_close(st);
}

/* penstock_prepare creates the CUDA streams, so that the first read creates none. */
static void prepare_creates_the_streams(void **state)
{
	unsigned long (*calls)(const char *);
	void *mem;
	struct penstock_storage *st = test_file_open(0);
	unsigned long before;

	(void)state;
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	assert_int_equal(penstock_alloc(gpu, 4096, &mem), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	before = calls("cuStreamCreateWithPriority");
	assert_true(before > 0);
	assert_int_equal(penstock_read(st, gpu, mem, 1, 0), 1);
	assert_int_equal(calls("cuStreamCreateWithPriority"), before);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* Writes a file that penstock_open created, then aborts. Without a commit, the abort removes the
 * file, and a later commit fails. After a commit, the abort keeps the file. */
static void write_then_abort(unsigned flags, bool commit)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	unsigned char byte = 1;
	struct penstock_storage *st;

	unlink(file_name);
	opts.flags = flags;
	assert_int_equal(penstock_open(file_name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	if (commit)
		assert_int_equal(penstock_commit(st, 0), 0);
	assert_int_equal(penstock_abort(st), 0);
	assert_int_equal(access(file_name, F_OK), commit ? 0 : -1);
	assert_int_equal(penstock_commit(st, 1), commit ? 0 : -ESTALE);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	assert_int_equal(access(file_name, F_OK), commit ? 0 : -1);
}

static void abort_removes_created_file(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		write_then_abort(PENSTOCK_O_CREATE, i);
		write_then_abort(PENSTOCK_O_REPLACE, i);
	}
}

/* An abort does not remove a file that existed before penstock_open. A later commit succeeds. */
static void abort_keeps_existing_file(void **state)
{
	struct penstock_storage *st = test_file_open(PENSTOCK_O_WRITE | PENSTOCK_O_CREATE);
	unsigned char byte = 1;

	(void)state;
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	assert_int_equal(penstock_abort(st), 0);
	assert_int_equal(penstock_commit(st, 0), 0);
	assert_int_equal(penstock_read(st, host, &byte, 1, 0), 1);
	assert_int_equal(byte, 1);
	penstock_close(st);
	assert_int_equal(access(file_name, F_OK), 0);
}

/* An abort does not remove another file that has taken the name of the created file. */
static void abort_keeps_a_file_that_took_the_name(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char made[sizeof(file_name) + 8], other[sizeof(made) + 8];
	struct penstock_storage *st;

	(void)state;
	snprintf(made, sizeof(made), "%s.made", file_name);
	snprintf(other, sizeof(other), "%s.other", made);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(made, &opts, &st), 0);
	close(open(other, O_RDWR | O_CREAT, 0600));
	assert_int_equal(rename(other, made), 0);
	/* the abort succeeds although the created file no longer exists */
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	assert_int_equal(unlink(made), 0);
}

/* An abort fails if it cannot remove the file that penstock_open created. */
static void abort_reports_failed_removal(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char dir[sizeof(file_name) + 8], moved[sizeof(dir) + 8];
	struct penstock_storage *st;

	(void)state;
	/* Renames the created file, and creates a directory under its name. */
	snprintf(dir, sizeof(dir), "%s.d", file_name);
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(dir, &opts, &st), 0);
	assert_int_equal(rename(dir, moved), 0);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(penstock_abort(st), -ESTALE);
	assert_non_null(strstr(penstock_errmsg(), dir));
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	unlink(moved);
}

/* Two storages write one half each of the same file. When the first storage is closed, the bytes
 * that the second storage wrote must remain. This must hold even for bytes beyond the file length
 * that the first storage has committed. */
static void two_writers_of_one_file(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *first, *second;
	const int64_t half = 5000, whole = 10000;
	unsigned char bytes[10000];
	struct stat stat_buf;

	(void)state;
	memset(bytes, 7, sizeof(bytes));
	for (unsigned i = 0; i < 6; i++) {
		const bool commit = i & 1;

		opts.flags = i / 2 == 1 ? PENSTOCK_O_REPLACE : PENSTOCK_O_CREATE;
		opts.length = i / 2 == 2 ? (uint64_t)half : 0;
		unlink(file_name);
		assert_int_equal(penstock_open(file_name, &opts, &first), 0);
		assert_int_equal(penstock_write(first, host, bytes, half, 0), half);
		/* Without this commit, the file would not have its name yet, and the second
		 * penstock_open would not find it. */
		if (opts.length || opts.flags == PENSTOCK_O_REPLACE)
			assert_int_equal(penstock_commit(first, 0), 0);
		opts.flags = PENSTOCK_O_CREATE;
		assert_int_equal(penstock_open(file_name, &opts, &second), 0);
		assert_int_equal(penstock_write(second, host, bytes + half, half, (uint64_t)half),
				 half);
		if (commit)
			assert_int_equal(penstock_commit(first, 1), 0);
		penstock_close(first);
		assert_int_equal(stat(file_name, &stat_buf), 0);
		assert_int_equal(stat_buf.st_size, whole);
		assert_int_equal(penstock_commit(second, 1), 0);
		penstock_close(second);
		assert_int_equal(stat(file_name, &stat_buf), 0);
		assert_int_equal(stat_buf.st_size, whole);
	}
}

/* Replaces a file and checks the permissions and the owner of the result. `old_mode` is the
 * mode of the replaced file, -1 if no file existed before. */
static void replace_and_check_mode(int old_mode, unsigned asked, unsigned wanted, uid_t owner)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	unsigned char byte = 1;
	struct stat stat_buf;

	unlink(file_name);
	if (old_mode >= 0) {
		int fd = open(file_name, O_CREAT | O_WRONLY, 0600);

		assert_true(fd >= 0);
		assert_int_equal(fchmod(fd, (mode_t)old_mode), 0);
		assert_int_equal(fchown(fd, owner, (gid_t)-1), 0);
		close(fd);
	}
	opts.flags = PENSTOCK_O_REPLACE;
	opts.mode = asked;
	assert_int_equal(penstock_open(file_name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	assert_int_equal(penstock_commit(st, 0), 0);
	penstock_close(st);
	assert_int_equal(stat(file_name, &stat_buf), 0);
	assert_int_equal(stat_buf.st_mode & 07777, wanted);
	assert_int_equal(stat_buf.st_uid, asked || old_mode < 0 ? geteuid() : owner);
}

static void replacement_permissions(void **state)
{
	mode_t mask = umask(027);
	uid_t other = geteuid() ? geteuid() : 65534;

	(void)state;
	replace_and_check_mode(-1, 0, 0640, 0);
	replace_and_check_mode(-1, 0664, 0640, 0);
	/* the requested mode 0444 forbids writing, and the file is written nevertheless */
	replace_and_check_mode(-1, 0444, 0440, 0);
	replace_and_check_mode(0600, 0, 0600, other);
	replace_and_check_mode(0444, 0, 0444, other);
	/* the new file gets the mode of the replaced file; the umask is not applied */
	replace_and_check_mode(0666, 0, 0666, other);
	/* the new file does not get the set-user-ID bit of the replaced file */
	replace_and_check_mode(04755, 0, 0755, other);
	replace_and_check_mode(0600, 0644, 0640, geteuid());
	umask(mask);
}

/* Returns 'l' if `name` is a symbolic link, 'f' if it is another file, 0 if it does not exist. */
static char link_kind(const char *name)
{
	struct stat stat_buf;

	if (lstat(name, &stat_buf))
		return 0;
	return S_ISLNK(stat_buf.st_mode) ? 'l' : 'f';
}

/* Replacing a symbolic link puts the new file in its place and leaves the link's target unchanged.
 * With PENSTOCK_O_NOFOLLOW penstock_open fails for a link, whatever the other flags are. */
static void replacement_of_links(void **state)
{
	static const unsigned open_flags[] = {0, PENSTOCK_O_WRITE, PENSTOCK_O_CREATE,
					      PENSTOCK_O_REPLACE};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char link_name[sizeof(file_name) + 8];
	struct penstock_storage *st;
	struct stat stat_buf;
	unsigned char byte = 1;

	(void)state;
	snprintf(link_name, sizeof(link_name), "%s.link", file_name);
	assert_int_equal(truncate(file_name, 7), 0);
	assert_int_equal(symlink(file_name, link_name), 0);
	for (unsigned i = 0; i < COUNT(open_flags); i++) {
		opts.flags = open_flags[i] | PENSTOCK_O_NOFOLLOW;
		assert_int_equal(penstock_open(link_name, &opts, &st), -ELOOP);
		assert_int_equal(link_kind(link_name), 'l');
	}
	opts.flags = PENSTOCK_O_REPLACE;
	assert_int_equal(penstock_open(link_name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	assert_int_equal(penstock_commit(st, 0), 0);
	penstock_close(st);
	assert_int_equal(link_kind(link_name), 'f');
	assert_int_equal(stat(file_name, &stat_buf), 0);
	assert_int_equal(stat_buf.st_size, 7);
	unlink(link_name);
}

/* penstock_open with PENSTOCK_O_REPLACE fails for a link to anything but a regular file. */
static void links_to_other_kinds_are_refused(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char link_name[sizeof(file_name) + 8], open_file[32];
	const char *const others[] = {"/dev/null", "/", open_file};
	int fd = open(file_name, O_RDWR), ret;
	struct penstock_storage *st;

	(void)state;
	snprintf(link_name, sizeof(link_name), "%s.link", file_name);
	/* Like /dev/stdout, the link leads to a name in /proc/self/fd. */
	snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd);
	opts.flags = PENSTOCK_O_REPLACE;
	for (unsigned i = 0; i < COUNT(others); i++) {
		assert_int_equal(symlink(others[i], link_name), 0);
		ret = penstock_open(link_name, &opts, &st);
		if (ret != (i == 1 ? -EISDIR : -EINVAL))
			fail_msg("opening a link to %s returned %d", others[i], ret);
		assert_int_equal(link_kind(link_name), 'l');
		unlink(link_name);
	}
	assert_int_equal(symlink("/nowhere/at/all", link_name), 0);
	assert_int_equal(penstock_open(link_name, &opts, &st), 0);
	assert_int_equal(penstock_commit(st, 0), 0);
	penstock_close(st);
	assert_int_equal(link_kind(link_name), 'f');
	unlink(link_name);
	close(fd);
}

/* PENSTOCK_O_REPLACE does not replace a block device: penstock_open opens the device itself, also
 * through a link. The device node of this test has no driver. */
static void linked_block_device(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char node[sizeof(file_name) + 8], link_name[sizeof(node) + 8];
	struct penstock_storage *st;

	(void)state;
	snprintf(node, sizeof(node), "%s.node", file_name);
	snprintf(link_name, sizeof(link_name), "%s.link", node);
	if (mknod(node, S_IFBLK | 0600, makedev(259, 1048575)))
		test_skip("no device node can be made here");
	assert_int_equal(symlink(node, link_name), 0);
	opts.flags = PENSTOCK_O_REPLACE;
	for (unsigned i = 0; i < 2; i++) {
		int ret = penstock_open(i ? link_name : node, &opts, &st);

		if (!ret)
			penstock_close(st);
		/* These errors show that penstock_open reached the device node. */
		if (ret != -ENXIO && ret != -EACCES)
			fail_msg("opening %s returned %d", i ? "a link to a device" : "a device",
				 ret);
		assert_int_equal(link_kind(link_name), 'l');
	}
	unlink(link_name);
	unlink(node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unmapped_destination_fails),
		cmocka_unit_test(prepare_creates_the_streams),
		cmocka_unit_test(past_deadline_fails),
		cmocka_unit_test(abort_keeps_existing_file),
		cmocka_unit_test(abort_removes_created_file),
		cmocka_unit_test(replacement_permissions),
		cmocka_unit_test(two_writers_of_one_file),
		cmocka_unit_test(replacement_of_links),
		cmocka_unit_test(links_to_other_kinds_are_refused),
		cmocka_unit_test(linked_block_device),
		cmocka_unit_test(abort_keeps_a_file_that_took_the_name),
		cmocka_unit_test(abort_reports_failed_removal),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
