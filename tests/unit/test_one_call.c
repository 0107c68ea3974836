/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What include/penstock.h says of the one-call forms and of what is written with
 * them: deadlines, the end of a storage, and what is left of a file that is given up or
 * committed. The CUDA driver is the stand-in.
 */
#include "api.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* A one-call form ends, too, when its time is over before it began. */
static void deadlines(void **state)
{
	struct penstock_storage *st = open_it(0);
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned char byte = 1;
	struct penstock_seg seg = {.buf = &byte, .dev = host, .row_len = 1};

	(void)state;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	for (unsigned i = 0; i < 2; i++) { /* with its lanes awake, or not yet made */
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

/* One range with two destinations goes through the ring, out of which the CPU copies: where
 * the second is no memory, that is an error and no signal. */
static void memory_that_may_not_be_there(void **state)
{
	char *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct penstock_storage *st = open_it(0);
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	char here[4096];
	struct penstock_seg segs[2] = {{.buf = here, .dev = host, .row_len = 4096, .rows = 1}};

	(void)state;
	req.storage = st;
	req.segs = segs;
	req.seg_count = 2;
	segs[1] = segs[0];
	for (unsigned i = 0; i < 2; i++) { /* said so, or the device was not named */
		req.flags = i ? 0 : PENSTOCK_R_UNSURE;
		segs[1].dev = i ? NULL : host;
		segs[1].buf = none;
		assert_int_equal(penstock_transfer(&req, &report), -EFAULT);
		segs[1].buf = here;
		assert_int_equal(penstock_transfer(&req, &report), 2 * 4096);
	}
	req.flags = 0x10;
	assert_int_equal(penstock_transfer(&req, &report), -EINVAL);
	munmap(none, 4096);
	penstock_close(st);
}

/* After penstock_prepare a first call makes nothing any more. */
static void prepared(void **state)
{
	unsigned long (*calls)(const char *);
	void *lib = dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW), *mem;
	struct penstock_storage *st = open_it(0);
	unsigned long before;

	(void)state;
	*(void **)&calls = dlsym(lib, "pst_standin_calls");
	assert_int_equal(penstock_alloc(gpu, 4096, &mem), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	before = calls("cuStreamCreateWithPriority");
	assert_true(before > 0);
	assert_int_equal(penstock_read(st, gpu, mem, 1, 0), 1);
	assert_int_equal(calls("cuStreamCreateWithPriority"), before);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* What an open created: given up it is gone, and cannot be committed; committed it stays,
 * whatever is given up after that. */
static void ends_of_writing(unsigned flags, bool commit)
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

static void given_up(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		ends_of_writing(PENSTOCK_O_CREATE, i);
		ends_of_writing(PENSTOCK_O_REPLACE, i);
	}
}

/* What was there before is no open's to remove, and can be committed after that. */
static void given_up_in_place(void **state)
{
	struct penstock_storage *st = open_it(PENSTOCK_O_WRITE | PENSTOCK_O_CREATE);
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

/* What has taken the place of what an open created is another's. */
static void given_up_elsewhere(void **state)
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
	assert_int_equal(penstock_abort(st), 0); /* nothing is left of it */
	penstock_close(st);
	assert_int_equal(unlink(made), 0);
}

/* What cannot be removed is told of. */
static void given_up_in_vain(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char dir[sizeof(file_name) + 8], moved[sizeof(dir) + 8];
	struct penstock_storage *st;

	(void)state;
	/* It stands elsewhere, and a folder in its place. */
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

/* What others write to a file stays, whoever created it and closes it first; and what they
 * write behind its end once it is committed. */
static void written_by_several(void **state)
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
		if (opts.length || opts.flags == PENSTOCK_O_REPLACE) /* it is there for others */
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

/* What a replacement may be read by, with the file that was there or without. */
static void replaced(int old_mode, unsigned asked, unsigned wanted, uid_t owner)
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

static void permissions(void **state)
{
	mode_t mask = umask(027);
	uid_t other = geteuid() ? geteuid() : 65534;

	(void)state;
	replaced(-1, 0, 0640, 0);
	replaced(-1, 0664, 0640, 0);
	replaced(-1, 0444, 0440, 0); /* and can be written until then */
	replaced(0600, 0, 0600, other);
	replaced(0444, 0, 0444, other);
	replaced(0666, 0, 0666, other);	 /* as it was: no umask */
	replaced(04755, 0, 0755, other); /* but no right to be another user */
	replaced(0600, 0644, 0640, geteuid());
	umask(mask);
}

/* What stands in the place of a link: 'l' itself, 'f' a file, 0: nothing. */
static char stands(const char *name)
{
	struct stat stat_buf;

	if (lstat(name, &stat_buf))
		return 0;
	return S_ISLNK(stat_buf.st_mode) ? 'l' : 'f';
}

/* A replacement takes a link's place, and leaves alone what that led to. Who asks that links
 * are refused gets no file either way. */
static void links(void **state)
{
	static const unsigned ways[] = {0, PENSTOCK_O_WRITE, PENSTOCK_O_CREATE, PENSTOCK_O_REPLACE};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char link_name[sizeof(file_name) + 8];
	struct penstock_storage *st;
	struct stat stat_buf;
	unsigned char byte = 1;

	(void)state;
	snprintf(link_name, sizeof(link_name), "%s.link", file_name);
	assert_int_equal(truncate(file_name, 7), 0);
	assert_int_equal(symlink(file_name, link_name), 0);
	for (unsigned i = 0; i < COUNT(ways); i++) {
		opts.flags = ways[i] | PENSTOCK_O_NOFOLLOW;
		assert_int_equal(penstock_open(link_name, &opts, &st), -ELOOP);
		assert_int_equal(stands(link_name), 'l');
	}
	opts.flags = PENSTOCK_O_REPLACE;
	assert_int_equal(penstock_open(link_name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	assert_int_equal(penstock_commit(st, 0), 0);
	penstock_close(st);
	assert_int_equal(stands(link_name), 'f');
	assert_int_equal(stat(file_name, &stat_buf), 0);
	assert_int_equal(stat_buf.st_size, 7);
	unlink(link_name);
}

/* A link by which something else than a file is known is not replaced by one. */
static void links_to_others(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char link_name[sizeof(file_name) + 8], open_file[32];
	const char *const others[] = {"/dev/null", "/", open_file};
	int fd = open(file_name, O_RDWR), ret;
	struct penstock_storage *st;

	(void)state;
	snprintf(link_name, sizeof(link_name), "%s.link", file_name);
	snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd); /* as /dev/stdout is */
	opts.flags = PENSTOCK_O_REPLACE;
	for (unsigned i = 0; i < COUNT(others); i++) {
		assert_int_equal(symlink(others[i], link_name), 0);
		ret = penstock_open(link_name, &opts, &st);
		if (ret != (i == 1 ? -EISDIR : -EINVAL))
			fail_msg("a link to %s: %d", others[i], ret);
		assert_int_equal(stands(link_name), 'l');
		unlink(link_name);
	}
	assert_int_equal(symlink("/nowhere/at/all", link_name), 0);
	assert_int_equal(penstock_open(link_name, &opts, &st), 0);
	assert_int_equal(penstock_commit(st, 0), 0);
	penstock_close(st);
	assert_int_equal(stands(link_name), 'f');
	unlink(link_name);
	close(fd);
}

/* A block device is written where it is, also by a link. This one has no driver. */
static void linked_devices(void **state)
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
		if (ret != -ENXIO && ret != -EACCES) /* it was opened: there is none */
			fail_msg("%s: %d", i ? "a link to a device" : "a device", ret);
		assert_int_equal(stands(link_name), 'l');
	}
	unlink(link_name);
	unlink(node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_that_may_not_be_there),
		cmocka_unit_test(prepared),
		cmocka_unit_test(deadlines),
		cmocka_unit_test(given_up_in_place),
		cmocka_unit_test(given_up),
		cmocka_unit_test(permissions),
		cmocka_unit_test(written_by_several),
		cmocka_unit_test(links),
		cmocka_unit_test(links_to_others),
		cmocka_unit_test(linked_devices),
		cmocka_unit_test(given_up_elsewhere),
		cmocka_unit_test(given_up_in_vain),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
