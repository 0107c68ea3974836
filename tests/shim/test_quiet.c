/* SPDX-License-Identifier: Apache-2.0 */
/*
 * That a transfer which succeeds allocates nothing, takes no lock of the drop-in's and
 * writes no line, and what it costs over the core's: the functions that would do so are
 * this program's own, and count on the thread that reads, and so is the core's transfer.
 * Not built with a sanitizer, which has its own.
 */
#include "shim_test.h"

#include <link.h>
#include <pthread.h>

#include "penstock.h"

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

ssize_t write(int to, const void *from, size_t len)
{
	static ssize_t (*own)(int, const void *, size_t);

	if (!own) {
		void *sym = dlsym(RTLD_NEXT, "write");

		memcpy(&own, &sym, sizeof(sym));
	}
	written += counting && to == STDERR_FILENO; /* the core wakes lanes by writing */
	return own(to, from, len);
}

/* What the drop-in calls of the core; `stubbed`, nothing moves and nothing is waited for. */
static bool stubbed;

int64_t penstock_transfer(const struct penstock_req *req, struct penstock_report *report)
{
	static int64_t (*own)(const struct penstock_req *, struct penstock_report *);

	if (stubbed)
		return (int64_t)req->segs[0].row_len;
	if (!own) {
		void *sym = dlsym(RTLD_NEXT, "penstock_transfer");

		memcpy(&own, &sym, sizeof(sym));
	}
	return own(req, report);
}

enum { LEN = 65536, TIMES = 500 };

static unsigned char buf[LEN], want[LEN];
static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	fd = st_make("quiet", LEN, O_RDWR);
	fh = st_register(fd, NULL);
	return dl_iterate_phdr(find_text, NULL) != 1 || cuFileBufRegister(buf, LEN, 0).err;
}

static int teardown(void **state)
{
	(void)state;
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
	return 0;
}

static void reset(void)
{
	allocated = locked = written = 0;
}

static void reads(void **state)
{
	(void)state;
	/* What is set up once, and said once. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cuFileRead(fh, buf, LEN, 0, 0), LEN);
		assert_int_equal(cuFileWrite(fh, buf, 4096, 0, 0), 4096);
	}
	reset();
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
}

static void vectors(void **state)
{
	struct cuf_iovec iov[64];

	(void)state;
	for (size_t i = 0; i < 64; i++)
		iov[i] = (struct cuf_iovec){buf + i * 1000, 700};
	assert_int_equal(cuFileReadv(fh, iov, 64, 0, 0), 64 * 700);
	assert_int_equal(cuFileWritev(fh, iov, 64, 0, 0), 64 * 700);
	reset();
	counting = true;
	for (int i = 0; i < TIMES; i++)
		if (cuFileReadv(fh, iov, 64, 0, 0) != 64 * 700 ||
		    cuFileWritev(fh, iov, 64, 0, 0) != 64 * 700)
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(locked, 0);
	assert_int_equal(written, 0);
}

static int one_batch(void *batch)
{
	static struct cuf_io_params params[128];
	static struct cuf_io_event events[128];
	unsigned nr = 128;

	for (unsigned i = 0; i < nr; i++) {
		params[i] = (struct cuf_io_params){.mode = CUF_BATCH, .fh = fh, .opcode = CUF_READ};
		params[i].u.batch.base = buf;
		params[i].u.batch.base_offset = (off_t)i * 512;
		params[i].u.batch.size = 512;
	}
	return cuFileBatchIOSubmit(batch, nr, params, 0).err ||
	       cuFileBatchIOGetStatus(batch, nr, &nr, events, NULL).err || nr != 128;
}

/* A batch has locks of its own: several threads may use it at once. */
static void batches(void **state)
{
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, 128));
	assert_int_equal(one_batch(batch), 0);
	reset();
	counting = true;
	for (int i = 0; i < 50; i++)
		if (one_batch(batch))
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(written, 0);
	cuFileBatchIODestroy(batch);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* What a call costs over the core's: this thread's CPU time with nothing behind it. The
 * best of many rounds, and a limit that only a lock, a system call or a search breaks. */
static void overhead(void **state)
{
	enum { ROUNDS = 100, CALLS = 1000, MOST_NS = 1000 };
	uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
	ssize_t sum = 0;

	(void)state;
	assert_int_equal(cuFileRead(fh, buf, 4096, 0, 0), 4096);
	stubbed = true;
	for (unsigned i = 0; i < 2 * ROUNDS; i++) {
		void *to = i & 1 ? want : buf; /* which is registered */
		uint64_t start = cpu_ns(), ns;

		for (unsigned k = 0; k < CALLS; k++)
			sum += cuFileRead(fh, to, 4096, 0, 0);
		ns = (cpu_ns() - start) / CALLS;
		best[i & 1] = ns < best[i & 1] ? ns : best[i & 1];
	}
	stubbed = false;
	assert_int_equal(sum, 2 * ROUNDS * CALLS * (ssize_t)4096);
	printf("# over the core: %llu ns a call, %llu for a buffer that is not registered\n",
	       (unsigned long long)best[0], (unsigned long long)best[1]);
	assert_true(best[0] < MOST_NS && best[1] < 5 * MOST_NS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads),
		cmocka_unit_test(vectors),
		cmocka_unit_test(batches),
		cmocka_unit_test(overhead),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
