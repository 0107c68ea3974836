/* SPDX-License-Identifier: Apache-2.0 */
/*
 * That a read which succeeds allocates nothing, takes no lock of the drop-in's and
 * writes no line: the functions that would do so are this program's own, and count
 * on the thread that reads. Not built with a sanitizer, which has its own.
 */
#include "shim_test.h"

#include <link.h>
#include <pthread.h>

static _Thread_local bool counting;
static _Thread_local unsigned long allocated, locked, written;

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *ptr, size_t len);

void *malloc(size_t len)
{
	allocated += counting;
	return __libc_malloc(len);
}

void *calloc(size_t count, size_t len)
{
	allocated += counting;
	return __libc_calloc(count, len);
}

void *realloc(void *ptr, size_t len)
{
	allocated += counting;
	return __libc_realloc(ptr, len);
}

/* The drop-in's own; the core's thread engine, which stands in for io_uring where that is
 * refused, hands over under a lock. */
static uintptr_t text_start, text_end;

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

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	static int (*own)(pthread_mutex_t *);

	if (!own) {
		void *sym = dlsym(RTLD_NEXT, "pthread_mutex_lock");

		memcpy(&own, &sym, sizeof(sym));
	}
	locked += counting &&
		  (uintptr_t)__builtin_return_address(0) - text_start < text_end - text_start;
	return own(mutex);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	static ssize_t (*own)(int, const void *, size_t);

	if (!own) {
		void *sym = dlsym(RTLD_NEXT, "write");

		memcpy(&own, &sym, sizeof(sym));
	}
	written += counting;
	return own(fd, buf, len);
}

static void reads(void **state)
{
	enum { LEN = 65536, TIMES = 500 };
	static unsigned char buf[LEN], want[LEN];
	int fd = st_make("quiet", LEN, O_RDWR);
	void *fh = st_register(fd, NULL);

	(void)state;
	assert_int_equal(dl_iterate_phdr(find_text, NULL), 1);
	assert_ok(cuFileBufRegister(buf, LEN, 0));
	/* What is set up once, and said once. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cuFileRead(fh, buf, LEN, 0, 0), LEN);
		assert_int_equal(cuFileWrite(fh, buf, 4096, 0, 0), 4096);
	}
	counting = true;
	for (int i = 0; i < TIMES; i++)
		if (cuFileRead(fh, buf, 4096, 4096, 0) != 4096 ||
		    cuFileRead(fh, buf, 777, i, 100) != 777 ||
		    cuFileRead(fh, want, LEN, 0, 0) != LEN ||
		    cuFileWrite(fh, want, 4096, 0, 0) != 4096)
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(locked, 0);
	assert_int_equal(written, 0);
	/* The counters count: a failure says so, with a line. */
	counting = true;
	assert_int_equal(cuFileWrite(fh, buf, 10, INT64_MAX - 20, 0), -1);
	counting = false;
	assert_true(written > 0);
	counting = true;
	assert_int_equal(cuFileUseCount(), 1);
	counting = false;
	assert_true(locked > 0);
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
