/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests files in a root directory without /proc, as in a minimal container or a chroot. Without
 * /proc the library cannot reopen a registered descriptor, so it uses a duplicate of that
 * descriptor. The handle must still refer to its file when the program reuses the descriptor's
 * number. A write that the descriptor's flags forbid must be refused. All cases run in a chroot in
 * TMPDIR.
 */
#include "shim_test.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { LEN = 1 << 20 };

static unsigned char *host;
static void *device; /* device memory, NULL if the CUDA driver does not work without /proc */
static bool refused;

static void *register_new(const char *name, int flags, int *fd)
{
	close(st_make(name, LEN, O_RDONLY));
	*fd = open(st_path, O_RDWR | flags | O_CLOEXEC);
	unlink(st_path);
	if (*fd < 0 && flags & O_DIRECT)
		test_skip("no direct path to TMPDIR: %s", strerror(errno));
	assert_true(*fd >= 0);
	return st_register(*fd, NULL);
}

/* Reads a range into host memory and into device memory, and checks the bytes. */
static void check_reads(void *fh, off_t off, size_t len)
{
	unsigned char *want = malloc(len);

	st_fill(want, (uint64_t)off, len);
	memset(host, 0xee, LEN);
	assert_int_equal(cuFileRead(fh, host, len, off, 0), len);
	assert_memory_equal(host, want, len);
	if (device) {
		assert_int_equal(cuFileRead(fh, device, len, off, 0), len);
		st_check(device, (uint64_t)off, len);
	}
	free(want);
}

static int setup(void **state)
{
	(void)state;
	if (refused)
		test_skip("chroot is refused here");
	assert_int_equal(access("/proc", F_OK), -1);
	return 0;
}

/* The descriptor's number is reused for another file. The handle must still read and write its
 * own file. */
static void number_used_again(void **state)
{
	static const int flags[] = {0, O_DIRECT};
	int other = memfd_create("other", MFD_CLOEXEC);

	(void)state;
	assert_int_equal(ftruncate(other, LEN), 0);
	for (unsigned i = 0; i < 2; i++) {
		int fd;
		void *fh = register_new("again", flags[i], &fd);
		unsigned char got[100] = "";

		assert_int_equal(dup2(other, fd), fd);
		check_reads(fh, 0, LEN);
		check_reads(fh, 3, 70001);
		assert_int_equal(cuFileWrite(fh, host, 4096, 4096, 0), 4096);
		assert_int_equal(pread(other, got, sizeof(got), 4096), sizeof(got));
		for (unsigned b = 0; b < sizeof(got); b++)
			assert_int_equal(got[b], 0);
		/* The number can be registered again, now for the other file. */
		cuFileHandleDeregister(st_register(fd, NULL));
		cuFileHandleDeregister(fh);
		assert_true(fcntl(fd, F_GETFD) >= 0);
		close(fd);
	}
	close(other);
}

/* With a descriptor that has O_DIRECT, only writes of whole blocks succeed. */
static void writes_of_whole_blocks(void **state)
{
	struct stat before, after;
	int fd;
	void *fh = register_new("direct", O_DIRECT, &fd);

	(void)state;
	check_reads(fh, 0, LEN);
	check_reads(fh, 3, 70001);
	check_reads(fh, LEN - 7, 7);
	assert_int_equal(fstat(fd, &before), 0);
	memset(host, 0x77, LEN);
	assert_int_equal(cuFileWrite(fh, host, 70001, 3, 0), -CUF_IO_NOT_SUPPORTED);
	assert_int_equal(cuFileWrite(fh, host, 5, LEN, 0), -CUF_IO_NOT_SUPPORTED);
	assert_int_equal(fstat(fd, &after), 0);
	assert_int_equal(after.st_size, before.st_size);
	check_reads(fh, 0, LEN);
	assert_int_equal(cuFileWrite(fh, host, 8192, 4096, 4096), 8192);
	check_reads(fh, 0, LEN);
	assert_true(fcntl(fd, F_GETFL) & O_DIRECT);
	cuFileHandleDeregister(fh);
	close(fd);
}

/* With a descriptor that has O_APPEND, every write is refused, because the kernel would write to
 * the end of the file. Reads succeed. */
static void append_refused(void **state)
{
	struct stat stat;
	int fd;
	void *fh = register_new("append", O_APPEND, &fd);

	(void)state;
	check_reads(fh, 5, 5000);
	assert_int_equal(cuFileWrite(fh, host, 100, 50, 0), -CUF_IO_NOT_SUPPORTED);
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, LEN);
	check_reads(fh, 0, LEN);
	assert_true(fcntl(fd, F_GETFL) & O_APPEND);
	cuFileHandleDeregister(fh);
	close(fd);
}

/* Allocates device memory and makes a first transfer with it. Runs before the chroot, because the
 * simulated driver reads /proc when it pins memory. */
static void prepare_device(void)
{
	int fd = st_make("first", LEN, O_RDONLY), code;
	void *fh = st_register(fd, &code);

	device = cu_alloc(LEN);
	if (code || cuFileRead(fh, device, LEN, 0, 0) != LEN)
		device = NULL;
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(number_used_again, setup),
		cmocka_unit_test_setup(writes_of_whole_blocks, setup),
		cmocka_unit_test_setup(append_refused, setup),
	};
	const char *tmp = getenv("TMPDIR");
	int outside = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed;

	host = aligned_alloc(4096, LEN);
	/* CLONE_NEWUSER requires that this process has no other thread yet. */
	refused = geteuid() && unshare(CLONE_NEWUSER);
	if (!refused && cu_load() && !cuFileDriverOpen().err)
		prepare_device();
	refused = refused || chroot(tmp ? tmp : "/tmp") || chdir("/");
	setenv("TMPDIR", "/", 1);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	/* Leaves the chroot, because a sanitizer reads /proc at the exit to find leaks. */
	return !refused && (fchdir(outside) || chroot(".")) ? 1 : failed;
}
