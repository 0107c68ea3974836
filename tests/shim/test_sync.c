/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests cuFileRead, cuFileWrite and their vector forms with unaligned sizes and offsets, host and
 * device memory, and all kinds of descriptors. The bytes are compared with those of a plain read.
 * Also tests the cuFile error code for each wrong argument, calls by several threads, and a context
 * that has failed.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "pst_standin.h"

#define LEN ((size_t)3 << 20)

static void *dev;

static int setup(void **state)
{
	(void)state;
	if (!cu_load())
		return -1;
	dev = cu_alloc(LEN + 8192);
	return 0;
}

/* Creates and registers a file. Returns NULL if the file system does not support O_DIRECT. */
static void *file_create(int flags, int *fd)
{
	*fd = st_make("sync", LEN, flags);
	if (*fd < 0)
		return NULL;
	return st_register(*fd, NULL);
}

static void sizes_and_offsets(void **state)
{
	static const size_t lens[] = {1, 511, 512, 4095, 4096, 4097, 65536, 1000003, LEN};
	static const off_t offs[] = {0, 1, 511, 4096, 70001};
	static const int kinds[] = {O_RDONLY, O_RDWR, O_RDONLY | O_DIRECT};
	unsigned char *host = malloc(LEN), *want = malloc(LEN);

	(void)state;
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		int fd;
		void *fh = file_create(kinds[k], &fd);

		for (size_t i = 0; fh && i < sizeof(lens) / sizeof(lens[0]); i++)
			for (size_t o = 0; o < sizeof(offs) / sizeof(offs[0]); o++) {
				size_t have = LEN - (size_t)offs[o];
				ssize_t n = (ssize_t)(lens[i] < have ? lens[i] : have);

				assert_int_equal(cuFileRead(fh, dev, lens[i], offs[o], 123), n);
				st_check((char *)dev + 123, (uint64_t)offs[o], (size_t)n);
				st_fill(want, (uint64_t)offs[o], (size_t)n);
				assert_int_equal(cuFileRead(fh, host, lens[i], offs[o], 0), n);
				assert_memory_equal(host, want, n);
			}
		if (fh)
			st_drop(fh, fd);
		else
			unlink(st_path);
	}
	free(host);
	free(want);
}

static void writes(void **state)
{
	int fd;
	void *fh = file_create(O_RDWR, &fd);
	unsigned char *bytes = malloc(LEN), *got = malloc(LEN);

	(void)state;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)(i * 31 >> 3);
	cu_put(dev, bytes, LEN);
	assert_int_equal(cuFileWrite(fh, dev, 1000001, 4097, 5), 1000001);
	assert_int_equal(pread(fd, got, 1000001, 4097), 1000001);
	assert_memory_equal(got, bytes + 5, 1000001);
	/* The bytes before the written range are unchanged. */
	assert_int_equal(pread(fd, got, 4097, 0), 4097);
	for (size_t i = 0; i < 4097; i++)
		assert_int_equal(got[i], st_byte(i));
	/* A write past the end makes the file longer. */
	assert_int_equal(cuFileWrite(fh, bytes, 777, (off_t)LEN, 0), 777);
	assert_int_equal(lseek(fd, 0, SEEK_END), LEN + 777);
	assert_int_equal(pread(fd, got, 777, (off_t)LEN), 777);
	assert_memory_equal(got, bytes, 777);
	/* The handle that wrote the bytes can also read them. */
	assert_int_equal(cuFileRead(fh, dev, 4096, (off_t)LEN, 0), 777);
	cu_get(got, dev, 777);
	assert_memory_equal(got, bytes, 777);
	free(bytes);
	free(got);
	st_drop(fh, fd);
}

/* With O_APPEND, cuFileWrite writes at the given offset, not at the end of the file. */
static void append_flag_ignored(void **state)
{
	int fd = st_make("append", 8192, O_RDWR | O_APPEND);
	void *fh = st_register(fd, NULL);
	unsigned char got[100], want[100];

	(void)state;
	memset(want, 0x77, sizeof(want));
	assert_int_equal(cuFileWrite(fh, want, 100, 50, 0), 100);
	assert_int_equal(lseek(fd, 0, SEEK_END), 8192);
	assert_int_equal(pread(fd, got, 100, 50), 100);
	assert_memory_equal(got, want, 100);
	assert_true(fcntl(fd, F_GETFL) & O_APPEND);
	st_drop(fh, fd);
}

/* Returns whether `flags` are set on every descriptor of this process by which the file can be
 * written. */
static bool writers_have_flags(int fd, int flags)
{
	struct stat file, is;
	unsigned count = 0;

	assert_int_equal(fstat(fd, &file), 0);
	for (int i = 0; i < 1024; i++) {
		int has = fstat(i, &is) || is.st_dev != file.st_dev || is.st_ino != file.st_ino
				  ? O_RDONLY
				  : fcntl(i, F_GETFL);

		if ((has & O_ACCMODE) == O_RDONLY)
			continue;
		count++;
		if ((has & O_SYNC) != flags)
			return false;
	}
	assert_true(count > 1); /* checks that the library has a descriptor besides the caller's */
	return true;
}

/* The library reopens a file with the flag O_SYNC or O_DSYNC that the caller's descriptor has. */
static void sync_flags_kept(void **state)
{
	static const int kinds[] = {O_SYNC, O_DSYNC, O_DSYNC | O_DIRECT, 0};

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		int fd;
		void *fh = file_create(O_RDWR | kinds[i], &fd);

		if (fh) {
			assert_int_equal(cuFileWrite(fh, dev, 1000001, 4097, 5), 1000001);
			assert_true(writers_have_flags(fd, kinds[i] & O_SYNC));
			st_drop(fh, fd);
		} else {
			unlink(st_path);
		}
	}
}

static void wrong_arguments(void **state)
{
	int fd, ro;
	void *fh = file_create(O_RDWR, &fd), *readonly;
	char buf[64];

	(void)state;
	assert_int_equal(cuFileRead(fh, NULL, 10, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, 10, -1, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, 10, 0, -1), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, (size_t)SSIZE_MAX + 1, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, SIZE_MAX, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, 10, INT64_MAX - 5, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, (void *)-8, 10, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileWrite(fh, NULL, 10, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileRead(fh, buf, 0, 0, 0), 0);
	/* This read starts past the end of the file, so it returns 0 bytes. */
	assert_int_equal(cuFileRead(fh, buf, 10, LEN + 5, 0), 0);
	ro = open(st_path, O_RDONLY);
	readonly = st_register(ro, NULL);
	errno = 0;
	assert_int_equal(cuFileWrite(readonly, buf, 10, 0, 0), -1);
	assert_int_equal(errno, EBADF);
	cuFileHandleDeregister(readonly);
	close(ro);
	ro = open(st_path, O_WRONLY);
	readonly = st_register(ro, NULL);
	errno = 0;
	assert_int_equal(cuFileRead(readonly, buf, 10, 0, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(cuFileWrite(readonly, buf, 10, 0, 0), 10);
	cuFileHandleDeregister(readonly);
	close(ro);
	st_drop(fh, fd);
}

/* A transfer to an unmapped or protected address, or to device memory that was freed, fails with
 * EFAULT and raises no signal. */
static void bad_addresses(void **state)
{
	enum { SIZE = 1 << 20 };
	static const size_t lens[] = {1, 4096, 5001, 300000};
	static const int kinds[] = {O_RDWR, O_RDWR | O_DIRECT};
	char *readonly = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *none = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *half = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *freed = cu_alloc(SIZE);
	char *const addresses[] = {(char *)0x1000,	   (char *)0x10001, none,
				   half + SIZE / 2 - 1000, freed,	    readonly};

	(void)state;
	assert_int_equal(mprotect(half + SIZE / 2, SIZE / 2, PROT_NONE), 0);
	cu_free(freed);
	for (unsigned round = 0; round < 4; round++) {
		int fd;
		void *fh = file_create(kinds[round % 2], &fd);

		for (unsigned i = 0; fh && i < 6 * 4; i++) {
			char *at = addresses[i / 4];
			size_t len = lens[i % 4];
			off_t off = i % 2 ? 0 : 777;

			if (round & 2)
				posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
			if (len == 1 && at == addresses[3])
				/* The first byte at this address is mapped, so a transfer of 1
				 * byte succeeds. */
				continue;
			errno = 0;
			assert_int_equal(cuFileRead(fh, at, len, off, 0), -1);
			assert_int_equal(errno, EFAULT);
			if (at == readonly)
				continue;
			errno = 0;
			assert_int_equal(cuFileWrite(fh, at, len, off, 0), -1);
			assert_int_equal(errno, EFAULT);
		}
		if (fh)
			st_drop(fh, fd);
		else
			unlink(st_path);
	}
	munmap(readonly, SIZE);
	munmap(none, SIZE);
	munmap(half, SIZE);
}

static void vectors(void **state)
{
	static const size_t lens[] = {1, 4096, 0, 70001, 13, 1 << 20};
	struct cuf_iovec iov[100], bad[2];
	size_t at = 0, count = 0;
	int fd;
	void *fh = file_create(O_RDWR, &fd);
	unsigned char *host = malloc(LEN), *want = malloc(LEN);

	(void)state;
	for (; count < 6; count++) {
		iov[count] = (struct cuf_iovec){(char *)dev + at + count * 64, lens[count]};
		at += lens[count];
	}
	assert_int_equal(cuFileReadv(fh, iov, count, 1001, 0), at);
	at = 0;
	for (size_t i = 0; i < count; i++) {
		if (lens[i])
			st_check(iov[i].base, 1001 + at, lens[i]);
		at += lens[i];
	}
	/* Writes a vector at another offset. It has more elements than the drop-in libcufile
	 * stores on the stack. */
	for (count = 0; count < 100; count++)
		iov[count] = (struct cuf_iovec){(char *)dev + 64 + 100 * count, 100};
	cu_get(host, dev, 65536);
	assert_int_equal(cuFileWritev(fh, iov, count, 500001, 0), 10000);
	assert_int_equal(pread(fd, want, 10000, 500001), 10000);
	assert_memory_equal(want, host + 64, 10000);
	assert_int_equal(cuFileReadv(fh, NULL, 0, 0, 0), 0);
	assert_int_equal(cuFileReadv(fh, NULL, 1, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileReadv(fh, iov, 2, -1, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileReadv(fh, iov, 2, 0, 1), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileReadv(fh, iov, 100000, 0, 0), -CUF_INVALID_VALUE);
	bad[0] = iov[0];
	bad[1] = (struct cuf_iovec){NULL, 5};
	assert_int_equal(cuFileReadv(fh, bad, 2, 0, 0), -CUF_INVALID_VALUE);
	bad[1] = (struct cuf_iovec){host, SSIZE_MAX};
	assert_int_equal(cuFileReadv(fh, bad, 2, 0, 0), -CUF_INVALID_VALUE);
	assert_int_equal(cuFileReadv((void *)5, iov, 2, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
	/* A read that extends past the end of the file returns the bytes before the end. */
	bad[0] = (struct cuf_iovec){dev, 600};
	bad[1] = (struct cuf_iovec){(char *)dev + 4096, 600};
	assert_int_equal(cuFileReadv(fh, bad, 2, (off_t)LEN - 1000, 0), 1000);
	st_check(dev, LEN - 1000, 600);
	st_check((char *)dev + 4096, LEN - 400, 400);
	free(host);
	free(want);
	st_drop(fh, fd);
}

static void memory_file(void **state)
{
	int fd = memfd_create("shim", MFD_CLOEXEC);
	void *fh;
	unsigned char bytes[5000];

	(void)state;
	st_fill(bytes, 0, sizeof(bytes));
	assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	fh = st_register(fd, NULL);
	assert_int_equal(cuFileRead(fh, dev, 4999, 1, 0), 4999);
	st_check(dev, 1, 4999);
	cuFileHandleDeregister(fh);
	close(fd);
}

struct worker {
	pthread_t thread;
	void *fh;
	char *at;
	uint64_t seed;
	unsigned long wrong;
};

static void *read_random(void *arg)
{
	struct worker *w = arg;
	unsigned char got[8192], want[8192];

	if (cu.cuCtxSetCurrent(cu_ctx) != PST_CU_OK)
		w->wrong++;
	for (int i = 0; i < 200; i++) {
		size_t len = 1 + (size_t)(test_random(&w->seed) % sizeof(got));
		off_t off = (off_t)(test_random(&w->seed) % (LEN - len));
		void *to = i & 1 ? (void *)got : (void *)w->at;

		if (cuFileRead(w->fh, to, len, off, 0) != (ssize_t)len) {
			w->wrong++;
			continue;
		}
		if (!(i & 1))
			cu_get(got, w->at, len);
		st_fill(want, (uint64_t)off, len);
		w->wrong += memcmp(got, want, len) != 0;
	}
	return NULL;
}

static void threads(void **state)
{
	enum { COUNT = 8 };
	struct worker w[COUNT];
	uint64_t seed = test_seed(7);
	int fd;
	void *fh = file_create(O_RDONLY, &fd);

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		w[i] = (struct worker){.fh = fh, .at = (char *)dev + i * 16384, .seed = seed + i};
		assert_int_equal(pthread_create(&w[i].thread, NULL, read_random, &w[i]), 0);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		pthread_join(w[i].thread, NULL);
		assert_int_equal(w[i].wrong, 0);
	}
	st_drop(fh, fd);
}

/* A thread without a current CUDA context can read into device memory. */
static void *read_without_context(void *arg)
{
	if (cuFileRead(arg, dev, 5000, 3, 0) != 5000 ||
	    cuFileRead(arg, (char *)dev + LEN, 1, 0, 1 << 30) != -CUF_CUDA_POINTER_RANGE_ERROR)
		return arg;
	return NULL;
}

static void without_context(void **state)
{
	pthread_t thread;
	void *wrong;
	int fd;
	void *fh = file_create(O_RDONLY, &fd);

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, read_without_context, fh), 0);
	pthread_join(thread, &wrong);
	assert_null(wrong);
	st_check(dev, 3, 5000);
	st_drop(fh, fd);
}

/* The CUDA context fails. This must be the last case, because the context stays unusable. */
static void context_fails(void **state)
{
	int (*context_break)(int, enum pst_cu_result), fd;
	void *fh = file_create(O_RDONLY, &fd);
	ssize_t n;

	(void)state;
	if (!cu_standin("pst_standin_break", &context_break))
		test_skip("only the stand-in's context can be made to fail");
	assert_int_equal(cuFileRead(fh, dev, 100, 0, 0), 100);
	context_break(0, PST_CU_ILLEGAL_ADDRESS);
	n = cuFileRead(fh, dev, 100, 0, 0);
	assert_true(n == -CUF_INVALID_CONTEXT_ERROR || n == -CUF_CUDA_DRIVER_ERROR);
	st_drop(fh, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_and_offsets),
		cmocka_unit_test(writes),
		cmocka_unit_test(append_flag_ignored),
		cmocka_unit_test(sync_flags_kept),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(bad_addresses),
		cmocka_unit_test(vectors),
		cmocka_unit_test(memory_file),
		cmocka_unit_test(threads),
		cmocka_unit_test(without_context),
		cmocka_unit_test(context_fails),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
