/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests failed allocations. Each allocation of the drop-in (Penstock's libcufile) fails once. The
 * call must return an error code or work without the memory, and must leak nothing. The same call
 * must succeed afterwards. This program replaces malloc. It is not built with a sanitizer, which
 * replaces malloc too.
 */
#include "shim_test.h"

#define LEN 65536

/* Which of the following allocations fails: 1 for the next one, 2 for the one after it; 0 if none
 * fails. */
static _Thread_local long fail_in;
static _Thread_local bool failed;

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *ptr, size_t len);

static bool must_fail(void *caller)
{
	if (!fail_in || !st_in_shim(caller) || --fail_in)
		return false;
	failed = true;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t len)
{
	return must_fail(__builtin_return_address(0)) ? NULL : __libc_malloc(len);
}

void *calloc(size_t count, size_t len)
{
	return must_fail(__builtin_return_address(0)) ? NULL : __libc_calloc(count, len);
}

void *realloc(void *ptr, size_t len)
{
	return must_fail(__builtin_return_address(0)) ? NULL : __libc_realloc(ptr, len);
}

static int fd;
static char *dev;

static int setup(void **state)
{
	(void)state;
	/* Without this, the drop-in libcufile would allocate memory for the machine's
	 * /etc/cufile.json. */
	setenv("CUFILE_ENV_PATH_JSON", "/dev/null", 1);
	if (!cu_load() || !st_find_text())
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("nomem", LEN, O_RDWR);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	close(fd);
	unlink(st_path);
	return 0;
}

/* Runs a function once for each of its allocations. In the n-th run, the n-th allocation fails. */
static void fail_each(int (*run)(void), unsigned at_least)
{
	unsigned count = 0;

	for (;; count++) {
		int code;

		failed = false;
		fail_in = count + 1;
		code = run();
		fail_in = 0;
		if (!failed) {
			assert_int_equal(code, 0);
			break;
		}
		assert_true(!code || code == CUF_NOMEM_ERROR ||
			    code == CUF_INTERNAL_BATCH_SETUP_ERROR || code == CUF_GETNEWFD_FAILED);
		assert_int_equal(run(), 0);
	}
	printf("# %u allocations\n", count);
	assert_true(count >= at_least);
}

/* Opens the driver, registers a file and reads once. */
static int use_file(void)
{
	static int next = 100; /* a descriptor number that no earlier descriptor had */
	struct cuf_descr descr = {.type = CUF_FD, .handle = {.fd = fcntl(fd, F_DUPFD, next)}};
	void *fh = NULL;
	int code = cuFileHandleRegister(&fh, &descr).err;

	if (!code && cuFileRead(fh, dev, 1000, 1, 0) != 1000)
		code = 1;
	if (!code)
		cuFileHandleDeregister(fh);
	close(descr.handle.fd);
	next += 80;
	if (cuFileDriverClose().err)
		return 2;
	return code;
}

static void files(void **state)
{
	int code;

	(void)state;
	/* Here fail_each() makes use_file() allocate the first page of the drop-in's file table,
	 * which stays allocated. So the first allocation of the call after that extends the array
	 * `by_fd` of shim/handle.c. */
	fail_each(use_file, 1);
	fail_in = 1;
	code = use_file();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(use_file(), 0);
}

/* Registers twice as many buffers as in the previous run, so that the list of buffers must grow. */
static int use_buffers(void)
{
	static int count = 60;
	int code = 0, i;

	count *= 2;
	for (i = 0; i < count && !code; i++)
		code = cuFileBufRegister(dev + i * 8, 8, 0).err;
	for (i -= code != 0; i-- > 0;)
		if (cuFileBufDeregister(dev + i * 8).err)
			return 1;
	return code;
}

static void many_buffers(void **state)
{
	int code;

	(void)state;
	fail_in = 1;
	code = use_buffers();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(use_buffers(), 0);
	fail_in = 1;
	code = use_buffers();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(use_buffers(), 0);
}

static void *open_fh;

static int use_batch(void)
{
	static struct cuf_io_params params[100];
	static struct cuf_io_event events[100];
	unsigned nr = 100;
	void *id;
	int code = cuFileBatchIOSetUp(&id, 100).err;

	if (code)
		return code;
	for (unsigned i = 0; i < 100; i++)
		params[i] = st_op(open_fh, CUF_READ, dev + i * 600, 600, 0, 0, i);
	code = cuFileBatchIOSubmit(id, 100, params, 0).err;
	if (!code && (cuFileBatchIOGetStatus(id, 100, &nr, events, NULL).err || nr != 100))
		code = 1;
	cuFileBatchIODestroy(id);
	return code;
}

static int use_vector(void)
{
	struct cuf_iovec iov[100];
	ssize_t n;

	for (int i = 0; i < 100; i++)
		iov[i] = (struct cuf_iovec){dev + i * 100, 100};
	n = cuFileReadv(open_fh, iov, 100, 0, 0);
	return n == 10000 ? 0 : (int)-n;
}

/* Makes a stream-ordered read. Closes the driver afterwards, because only the first
 * stream-ordered call after an open allocates the queue. */
static int use_stream(void)
{
	size_t len = 1000;
	off_t zero = 0;
	ssize_t bytes = -7;
	void *own = st_register(fd, NULL);
	int code = cuFileStreamRegister((void *)1, 0).err;

	if (!code)
		code = cuFileReadAsync(own, dev, &len, &zero, &zero, &bytes, (void *)1).err;
	if (!code && (cu.cuStreamSynchronize((void *)1) != PST_CU_OK || bytes != 1000))
		code = 1;
	cuFileStreamDeregister((void *)1);
	cuFileHandleDeregister(own);
	if (cuFileDriverClose().err)
		return 2;
	return code;
}

static void streams(void **state)
{
	(void)state;
	fail_each(use_stream, 1);
}

static void batches_and_vectors(void **state)
{
	(void)state;
	open_fh = st_register(fd, NULL);
	fail_each(use_batch, 2);
	fail_each(use_vector, 1);
	cuFileHandleDeregister(open_fh);
	assert_ok(cuFileDriverClose());
}

static int use_parameter(void)
{
	size_t value;

	return cuFileGetParameterSizeT(CUF_IO_BATCHSIZE, &value).err;
}

static void parameters(void **state)
{
	(void)state;
	fail_each(use_parameter, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parameters),
		cmocka_unit_test(files),
		cmocka_unit_test(streams),
		cmocka_unit_test(many_buffers),
		cmocka_unit_test(batches_and_vectors),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
