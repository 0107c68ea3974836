/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests opening the driver and registering files: the use count, kinds of descriptors, the cuFile
 * code of each refusal, and what happens to handles after a close and after a fork.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/socket.h>

static void open_and_close(void **state)
{
	int version = 0;

	(void)state;
	assert_int_equal(cuFileUseCount(), 0);
	assert_code(cuFileDriverClose_v2(), CUF_DRIVER_NOT_INITIALIZED);
	assert_ok(cuFileDriverOpen());
	assert_ok(cuFileDriverOpen());
	assert_int_equal(cuFileUseCount(), 2);
	assert_ok(cuFileDriverClose());
	assert_int_equal(cuFileUseCount(), 1);
	assert_ok(cuFileDriverClose_v2());
	assert_int_equal(cuFileUseCount(), 0);
	assert_ok(cuFileGetVersion(&version));
	assert_int_equal(version, 1150);
	assert_code(cuFileGetVersion(NULL), CUF_INVALID_VALUE);
	assert_memory_equal(penstock_cufile_marker, "penstock", 8);
}

static void implicit_open(void **state)
{
	char buf[64];
	int fd = st_make("implicit", 100, O_RDONLY);
	void *fh = st_register(fd, NULL);

	(void)state;
	assert_int_equal(cuFileUseCount(), 1);
	cuFileHandleDeregister(fh);
	assert_ok(cuFileDriverClose());
	assert_ok(cuFileBufRegister(buf, sizeof(buf), 0));
	assert_int_equal(cuFileUseCount(), 1);
	assert_ok(cuFileDriverClose());
	assert_int_equal(cuFileRead((void *)0x1234, buf, 10, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
	assert_int_equal(cuFileUseCount(), 1);
	assert_ok(cuFileDriverClose());
	close(fd);
	unlink(st_path);
}

/* With compat mode off, an empty file can be registered on every file system on which a file with
 * data can be registered. The first write to the empty file then decides whether a direct path
 * works. */
static void empty_file_direct(void **state)
{
	enum { LEN = 65536 };
	int fd = st_make("direct", LEN, O_RDWR), full, empty;
	unsigned char *buf = aligned_alloc(4096, LEN);
	void *fh;

	(void)state;
	assert_ok(cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, false));
	fh = st_register(fd, &full);
	if (!full)
		cuFileHandleDeregister(fh);
	assert_int_equal(ftruncate(fd, 0), 0);
	fh = st_register(fd, &empty);
	assert_int_equal(empty, full);
	if (!empty) {
		st_fill(buf, 0, LEN);
		assert_int_equal(cuFileWrite(fh, buf, LEN, 0, 0), LEN);
		memset(buf, 0, LEN);
		assert_int_equal(cuFileRead(fh, buf, LEN, 0, 0), LEN);
		for (unsigned i = 0; i < LEN; i++)
			assert_int_equal(buf[i], st_byte(i));
		cuFileHandleDeregister(fh);
	}
	assert_ok(cuFileDriverClose());
	assert_ok(cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, true));
	close(fd);
	unlink(st_path);
	free(buf);
}

static int register_code(int type, int fd)
{
	struct cuf_descr descr = {.type = type, .handle = {.fd = fd}};
	void *fh = (void *)0x77;
	int code = cuFileHandleRegister(&fh, &descr).err;

	if (code)
		assert_ptr_equal(fh, (void *)0x77);
	return code;
}

static void wrong_descriptors(void **state)
{
	struct cuf_descr descr = {.type = CUF_FD};
	int fds[2], fd, path_fd;
	void *fh;

	(void)state;
	assert_code(cuFileHandleRegister(NULL, &descr), CUF_INVALID_VALUE);
	assert_code(cuFileHandleRegister(&fh, NULL), CUF_INVALID_VALUE);
	assert_int_equal(register_code(CUF_FD, -1), CUF_INVALID_VALUE);
	assert_int_equal(register_code(0, 0), CUF_INVALID_VALUE);
	assert_int_equal(register_code(99, 0), CUF_INVALID_VALUE);
	assert_int_equal(register_code(CUF_USERSPACE_FS, 0), CUF_IO_NOT_SUPPORTED);
	assert_int_equal(register_code(CUF_WIN32, 0), CUF_IO_NOT_SUPPORTED);
	assert_int_equal(register_code(CUF_FD, 100000), CUF_INVALID_VALUE);
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(register_code(CUF_FD, fds[0]), CUF_INVALID_FILE_TYPE);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_int_equal(register_code(CUF_FD, fds[0]), CUF_INVALID_FILE_TYPE);
	/* The refusal left the descriptor open, so that the caller can still use it. */
	assert_int_equal(write(fds[0], "x", 1), 1);
	close(fds[0]);
	close(fds[1]);
	fd = open("/", O_RDONLY | O_DIRECTORY);
	assert_int_equal(register_code(CUF_FD, fd), CUF_INVALID_FILE_TYPE);
	assert_true(fcntl(fd, F_GETFD) >= 0);
	close(fd);
	fd = st_make("path", 10, O_RDONLY);
	path_fd = open(st_path, O_PATH);
	assert_int_equal(register_code(CUF_FD, path_fd), CUF_INVALID_FILE_OPEN_FLAG);
	close(path_fd);
	close(fd);
	unlink(st_path);
}

/* A second registration of the same descriptor is refused, and the first handle stays valid. If
 * the descriptor's number now belongs to another file, it can be registered again. A closed
 * handle is invalid. */
static void registered_twice(void **state)
{
	int fd = st_make("twice", 4096, O_RDONLY), code, other;
	void *fh = st_register(fd, NULL), *again;
	unsigned char buf[100], want[100];

	(void)state;
	st_register(fd, &code);
	assert_int_equal(code, CUF_HANDLE_ALREADY_REGISTERED);
	assert_int_equal(cuFileRead(fh, buf, 100, 7, 0), 100);
	st_fill(want, 7, 100);
	assert_memory_equal(buf, want, 100);
	other = dup(fd);
	again = st_register(other, NULL); /* allowed, because the descriptor has another number */
	cuFileHandleDeregister(again);
	close(other);
	cuFileHandleDeregister(fh);
	assert_int_equal(cuFileRead(fh, buf, 100, 7, 0), -CUF_HANDLE_NOT_REGISTERED);
	/* Closes the handle a second time, which only logs a message. */
	cuFileHandleDeregister(fh);
	again = st_register(fd, NULL);
	assert_ptr_not_equal(again, fh);
	assert_int_equal(cuFileRead(fh, buf, 100, 7, 0), -CUF_HANDLE_NOT_REGISTERED);
	assert_int_equal(cuFileRead(again, buf, 100, 7, 0), 100);
	/* Closes the registered descriptor, and lets another file get its number. */
	unlink(st_path);
	close(fd);
	other = st_make("twice-other", 4096, O_RDONLY);
	if (other == fd) {
		void *third = st_register(other, NULL);

		cuFileHandleDeregister(third);
	}
	assert_int_equal(cuFileRead(again, buf, 100, 7, 0), 100);
	cuFileHandleDeregister(again);
	close(other);
	unlink(st_path);
}

static void invalid_handles(void **state)
{
	static char memory[256];
	void *wrong[] = {NULL,
			 (void *)1,
			 memory,
			 (void *)-1,
			 (void *)0x1cf1e0000,
			 (void *)0x1cf1effff,
			 (void *)0x7fffffffcf1e0000};
	char buf[16];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(cuFileRead(wrong[i], buf, 16, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
		assert_int_equal(cuFileWrite(wrong[i], buf, 16, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
		cuFileHandleDeregister(wrong[i]);
	}
}

/* Registers 300 files at the same time and reads each file. The table of handles needs a second
 * page for so many files. Each read must deliver the bytes of its own file. */
static void many_files(void **state)
{
	enum { COUNT = 300 };
	static void *fh[COUNT];
	static int fds[COUNT];
	unsigned char c;

	(void)state;
	for (int i = 0; i < COUNT; i++) {
		fds[i] = st_make("many", 64, O_RDWR);
		c = (unsigned char)i;
		assert_int_equal(pwrite(fds[i], &c, 1, 3), 1);
		fh[i] = st_register(fds[i], NULL);
		unlink(st_path);
	}
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(cuFileRead(fh[i], &c, 1, 3, 0), 1);
		assert_int_equal(c, (unsigned char)i);
	}
	for (int i = 0; i < COUNT; i++) {
		cuFileHandleDeregister(fh[i]);
		close(fds[i]);
	}
}

/* Threads read files by handles that another thread closes and replaces. Each read must return
 * all bytes of the right file, or fail because its handle was closed. */
enum { SHARED = 4 };
static _Atomic(void *) shared[SHARED];
static _Atomic bool stop;

static void *read_shared(void *arg)
{
	unsigned long *wrong = arg;
	unsigned char buf[256];
	uint64_t seed = (uintptr_t)arg | 1;

	while (!atomic_load(&stop)) {
		unsigned i = (unsigned)(test_random(&seed) % SHARED);
		ssize_t n = cuFileRead(atomic_load(&shared[i]), buf, sizeof(buf), 0, 0);

		if (n == -CUF_HANDLE_NOT_REGISTERED)
			continue;
		for (size_t k = 0; k < sizeof(buf); k++)
			*wrong += n != sizeof(buf) || buf[k] != i;
	}
	return NULL;
}

static void close_during_reads(void **state)
{
	enum { READERS = 3, STEPS = 400 };
	pthread_t threads[READERS];
	static unsigned long wrong[READERS];
	unsigned char bytes[256];
	int fds[SHARED];
	uint64_t seed = test_seed(5);

	(void)state;
	for (int i = 0; i < SHARED; i++) {
		fds[i] = st_make("shared", 0, O_RDWR);
		memset(bytes, i, sizeof(bytes));
		assert_int_equal(write(fds[i], bytes, sizeof(bytes)), sizeof(bytes));
		atomic_store(&shared[i], st_register(fds[i], NULL));
		unlink(st_path);
	}
	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_shared, &wrong[i]), 0);
	for (int step = 0; step < STEPS; step++) {
		unsigned i = (unsigned)(test_random(&seed) % SHARED);

		cuFileHandleDeregister(atomic_load(&shared[i]));
		atomic_store(&shared[i], st_register(fds[i], NULL));
	}
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(wrong[i], 0);
	}
	for (int i = 0; i < SHARED; i++) {
		cuFileHandleDeregister(atomic_load(&shared[i]));
		close(fds[i]);
	}
}

static void handles_after_last_close(void **state)
{
	int fd = st_make("last", 4096, O_RDONLY);
	unsigned char buf[8];
	void *fh;

	(void)state;
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	fh = st_register(fd, NULL);
	assert_int_equal(cuFileRead(fh, buf, 8, 0, 0), 8);
	assert_ok(cuFileDriverClose());
	assert_int_equal(cuFileRead(fh, buf, 8, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
	fh = st_register(fd, NULL);
	assert_int_equal(cuFileRead(fh, buf, 8, 0, 0), 8);
	st_drop(fh, fd);
}

static unsigned char registered[4096];

static int in_child(int fd, void *fh, void *batch)
{
	struct cuf_stats_l1 stats;
	struct cuf_io_event event;
	unsigned char buf[8];
	unsigned nr = 1;
	int code;
	void *own;

	if (cuFileUseCount() != 0)
		return 2;
	/* The child may set parameters, like a process that has not opened the driver. */
	if (cuFileSetParameterSizeT(CUF_IO_BATCHSIZE, 64).err)
		return 6;
	if (cuFileRead(fh, buf, 8, 0, 0) != -CUF_HANDLE_NOT_REGISTERED)
		return 3;
	/* The read above opened the child's own driver, whose statistics start at 0. */
	if (cuFileGetStatsL1(&stats).err || stats.read_ops.ok || stats.read_bytes)
		return 7;
	cuFileHandleDeregister(fh);
	own = st_register(fd, &code);
	if (code || cuFileRead(own, buf, 8, 16, 0) != 8 || buf[0] != st_byte(16))
		return 4;
	cuFileHandleDeregister(own);
	/* The parent's batches and registered buffers do not exist in the child. */
	if (cuFileBatchIOGetStatus(batch, 0, &nr, &event, NULL).err != CUF_INVALID_VALUE ||
	    cuFileBufDeregister(registered).err != CUF_MEMORY_NOT_REGISTERED ||
	    cuFileBufRegister(registered, sizeof(registered), 0).err ||
	    cuFileBufDeregister(registered).err)
		return 8;
	cuFileBatchIODestroy(batch);
	return cuFileDriverClose().err ? 5 : 0;
}

static void after_fork(void **state)
{
	int fd = st_make("fork", 4096, O_RDONLY);
	void *fh = st_register(fd, NULL), *batch;
	unsigned char buf[8];
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	test_skip("the thread sanitizer follows no child that makes threads");
#endif
	assert_ok(cuFileSetStatsLevel(1));
	assert_ok(cuFileStatsStart());
	assert_int_equal(cuFileRead(fh, buf, 8, 0, 0), 8);
	assert_ok(cuFileBufRegister(registered, sizeof(registered), 0));
	assert_ok(cuFileBatchIOSetUp(&batch, 4));
	pid = fork();
	if (!pid)
		_exit(in_child(fd, fh, batch));
	assert_int_equal(st_wait(pid), 0);
	cuFileBatchIODestroy(batch);
	assert_ok(cuFileBufDeregister(registered));
	assert_int_equal(cuFileRead(fh, buf, 8, 0, 0), 8);
	st_drop(fh, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_and_close),
		cmocka_unit_test(implicit_open),
		cmocka_unit_test(empty_file_direct),
		cmocka_unit_test(wrong_descriptors),
		cmocka_unit_test(registered_twice),
		cmocka_unit_test(invalid_handles),
		cmocka_unit_test(many_files),
		cmocka_unit_test(close_during_reads),
		cmocka_unit_test(handles_after_last_close),
		cmocka_unit_test(after_fork),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
