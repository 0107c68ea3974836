/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of the drop-in's fails once, in turn: the call answers with a
 * code or does without, nothing is held afterwards, and the same call then works.
 * The allocator is this program's own; not built with a sanitizer, which has its.
 */
#include "shim_test.h"

#include <link.h>

#define LEN 65536

static uintptr_t text_start, text_end;
static _Thread_local long fail_in; /* this one fails; 0: none */
static _Thread_local bool failed;

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *ptr, size_t len);

static bool fails(void *caller)
{
	if (!fail_in || (uintptr_t)caller - text_start >= text_end - text_start || --fail_in)
		return false;
	failed = true;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t len)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(len);
}

void *calloc(size_t count, size_t len)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, len);
}

void *realloc(void *ptr, size_t len)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(ptr, len);
}

static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	if (!strstr(info->dlpi_name, "libcufile"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			text_start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			text_end = text_start + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

static int fd;
static char *dev;

static int setup(void **state)
{
	(void)state;
	if (!cu_load() || !dl_iterate_phdr(find_text, NULL))
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

/* Runs it with its first, second, ... allocation failing until none is left to fail. */
static void each(int (*run)(void), unsigned at_least)
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

/* Everything from nothing: the driver, a file, a first read. */
static int file(void)
{
	static int next = 100; /* each time a number beyond those that were seen */
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
	each(file, 1); /* the table's first page */
	fail_in = 1;   /* and what grows with the numbers */
	code = file();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(file(), 0);
}

/* A list that must grow; each time from a registration more than the last time. */
static int buffers(void)
{
	static int room = 60;
	int code = 0, i;

	room *= 2;
	for (i = 0; i < room && !code; i++)
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
	code = buffers();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(buffers(), 0);
	fail_in = 1;
	code = buffers();
	fail_in = 0;
	assert_int_equal(code, CUF_NOMEM_ERROR);
	assert_int_equal(buffers(), 0);
}

static void *open_fh;

static int batch(void)
{
	static struct cuf_io_params params[100];
	static struct cuf_io_event events[100];
	unsigned nr = 100;
	void *id;
	int code = cuFileBatchIOSetUp(&id, 100).err;

	if (code)
		return code;
	for (unsigned i = 0; i < 100; i++) {
		params[i] = (struct cuf_io_params){
			.mode = CUF_BATCH, .fh = open_fh, .opcode = CUF_READ};
		params[i].u.batch.base = dev + i * 600;
		params[i].u.batch.size = 600;
	}
	code = cuFileBatchIOSubmit(id, 100, params, 0).err;
	if (!code && (cuFileBatchIOGetStatus(id, 100, &nr, events, NULL).err || nr != 100))
		code = 1;
	cuFileBatchIODestroy(id);
	return code;
}

static int vector(void)
{
	struct cuf_iovec iov[100];
	ssize_t n;

	for (int i = 0; i < 100; i++)
		iov[i] = (struct cuf_iovec){dev + i * 100, 100};
	n = cuFileReadv(open_fh, iov, 100, 0, 0);
	return n == 10000 ? 0 : (int)-n;
}

/* The first of a process sets the queue up; so each attempt is a driver of its own. */
static int stream(void)
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
	each(stream, 1);
}

static void batches_and_vectors(void **state)
{
	(void)state;
	open_fh = st_register(fd, NULL);
	each(batch, 2);
	each(vector, 1);
	cuFileHandleDeregister(open_fh);
	assert_ok(cuFileDriverClose());
}

static int parameters(void)
{
	size_t value;

	return cuFileGetParameterSizeT(CUF_IO_BATCHSIZE, &value).err;
}

static void staged(void **state)
{
	(void)state;
	each(parameters, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(staged),
		cmocka_unit_test(files),
		cmocka_unit_test(streams),
		cmocka_unit_test(many_buffers),
		cmocka_unit_test(batches_and_vectors),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
