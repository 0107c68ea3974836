/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests path "vendor" with fake vendor libraries (fake.c) and the stand-in driver: which reads
 * count as direct, which do not, and which libraries are refused. A process cannot unload a vendor
 * library, so each case runs in a child process. This program exports a cuFileUseCount, as a
 * preloaded drop-in does. A vendor library that was loaded without RTLD_DEEPBIND would call this
 * function instead of its own.
 */
#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "core/ops.h"
#include "device/cuda_api.h"

#define LEN (3u << 20)

long cuFileUseCount(void);
__attribute__((visibility("default"))) long cuFileUseCount(void)
{
	return -1;
}

static char name[256];
static unsigned char *bytes, *back;

/* The result that a child process reports. */
struct found {
	struct penstock_explain_path row;
	struct penstock_report report;
	int64_t n;
	int same;
};

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t seed = 3;
	int fd;

	(void)state;
	test_use_standin();
	bytes = malloc(LEN);
	back = malloc(LEN);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	snprintf(name, sizeof(name), "%s/penstock-vendor-%d", tmp ? tmp : "/tmp", (int)getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, LEN) != LEN || fsync(fd))
		return -1;
	return close(fd);
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

static void copy_all(struct penstock_device *to, void *dst, struct penstock_device *from, void *src)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = to,
					  .dst = dst,
					  .src_dev = from,
					  .src = src,
					  .row_len = LEN,
					  .rows = 1};

	if (penstock_copy(&args, 1))
		_exit(4);
}

/* An application's stream that waits for a request of the library. The request waits for a
 * semaphore (a gate) that the test sets. */
struct held {
	struct penstock_seg seg;
	struct penstock_storage *mem;
	struct penstock_queue *q;
	uint64_t *gate;
};

static void stream_hold(struct held *h, struct penstock_device *gpu)
{
	const struct pst_cuda *api = pst_cuda_get(NULL);
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct pst_cu_stream *stream;
	struct pst_cu_ctx *ctx;
	pst_cu_ptr gate;

	h->seg = (struct penstock_seg){.row_len = 4096, .rows = 1, .dev = gpu};
	if (!api || api->cuDevicePrimaryCtxRetain(&ctx, 0) || api->cuCtxSetCurrent(ctx) ||
	    api->cuMemHostAlloc((void **)&h->gate, 4096, 2) ||
	    api->cuMemHostGetDevicePointer(&gate, h->gate, 0) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) ||
	    penstock_alloc(gpu, 4096, &h->seg.buf) || penstock_open("mem:4096", NULL, &h->mem) ||
	    penstock_queue_open(NULL, &h->q))
		_exit(7);
	*h->gate = 0;
	req.storage = h->mem;
	req.segs = &h->seg;
	req.seg_count = 1;
	req.stream = stream;
	if (api->cuStreamWaitValue64(stream, gate, 1, PST_CU_WAIT_GEQ) ||
	    penstock_submit(h->q, &req, 1, NULL) != 1)
		_exit(8);
}

static void stream_release(struct held *h)
{
	struct penstock_done done;

	__atomic_store_n(h->gate, 1, __ATOMIC_RELEASE);
	if (penstock_wait(h->q, &done, 1, 1, 20000000000) != 1 || done.result != 4096)
		_exit(9);
	penstock_queue_close(h->q);
	penstock_close(h->mem);
	penstock_free(h->seg.dev, h->seg.buf);
}

static bool beside_a_stream; /* whether the child runs while a stream waits for a request */

static void child(enum penstock_op op, enum penstock_class require, const char *path,
		  struct found *out)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_seg seg = {.row_len = LEN, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_device *gpu, *host;
	struct penstock_storage *st;
	struct held held;

	opts.flags = op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0;
	if (penstock_open(name, &opts, &st) || penstock_device_open("cuda:0", NULL, &gpu) < 0 ||
	    penstock_device_open("host", NULL, &host) < 0 || penstock_alloc(gpu, LEN, &seg.buf))
		_exit(3);
	memset(back, 0x11, LEN);
	copy_all(gpu, seg.buf, host, op == PENSTOCK_WRITE ? bytes : back);
	seg.dev = gpu;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = op;
	if (beside_a_stream)
		stream_hold(&held, gpu);
	if (penstock_explain(&req, &e))
		_exit(5);
	for (unsigned i = 0; i < e.path_count; i++)
		if (!strcmp(e.paths[i].name, "vendor"))
			out->row = e.paths[i];
	req.path = path;
	req.require = require;
	out->report.size = sizeof(out->report);
	out->n = penstock_transfer(&req, &out->report);
	out->report.text[0] = out->n < 0 ? out->report.text[0] : 0;
	if (beside_a_stream)
		stream_release(&held);
	copy_all(host, back, gpu, seg.buf);
	out->same = !memcmp(back, bytes, LEN);
	penstock_close(st);
	penstock_free(gpu, seg.buf);
	penstock_device_close(gpu);
	penstock_device_close(host);
}

/* Runs a child process with a fake library, named by its behaviour or by a path. Returns the
 * child's result. */
static struct found run_child(const char *fake, enum penstock_op op, enum penstock_class require,
			      const char *path)
{
	struct found found = {.n = -1};
	int pipe_fd[2], status;
	char exe[400], file[500];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	pid_t pid;

	assert_true(len > 0);
	exe[len] = 0;
	*strrchr(exe, '/') = 0;
	snprintf(file, sizeof(file), strchr(fake, '/') || !*fake ? "%s" : "%s/libfake-%s.so",
		 strchr(fake, '/') || !*fake ? fake : exe, fake);
	assert_int_equal(pipe(pipe_fd), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		setenv("PENSTOCK_LIBCUFILE", file, 1);
		child(op, require, path, &found);
		_exit(write(pipe_fd[1], &found, sizeof(found)) == sizeof(found) ? 0 : 6);
	}
	close(pipe_fd[1]);
	len = read(pipe_fd[0], &found, sizeof(found));
	close(pipe_fd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(len, sizeof(found));
	return found;
}

/* Path "vendor" is direct if the library counts its reads, has compat mode off and passes the
 * canary read (a test read whose bytes are compared). */
static void good_library_direct(void **state)
{
	struct found f = run_child("good", PENSTOCK_READ, PENSTOCK_DIRECT, NULL);

	(void)state;
	assert_true(f.row.usable);
	assert_int_equal(f.row.meets, PENSTOCK_DIRECT);
	assert_int_equal(f.row.proven, 1);
	assert_int_equal(f.n, LEN);
	assert_true(f.same);
	assert_int_equal(f.report.cpu_copied, 0);
	f = run_child("good", PENSTOCK_WRITE, PENSTOCK_DIRECT, NULL);
	assert_int_equal(f.n, LEN);
}

/* The memory of the canary read is not freed while a stream waits for a request. Otherwise the
 * CUDA driver would wait for that stream and block every copy. */
static void canary_beside_a_stream(void **state)
{
	struct found f;

	(void)state;
	beside_a_stream = true;
	f = run_child("good", PENSTOCK_READ, PENSTOCK_DIRECT, NULL);
	beside_a_stream = false;
	assert_int_equal(f.row.proven, 1);
	assert_int_equal(f.n, LEN);
	assert_true(f.same);
}

/* Returns the number of handles that the fake library has registered, -1 if it is not loaded. */
static int handle_count(void)
{
	void *lib = dlopen(getenv("PENSTOCK_LIBCUFILE"), RTLD_NOW | RTLD_NOLOAD);
	int (*count)(void) = NULL;

	if (lib)
		*(void **)&count = dlsym(lib, "fake_handles");
	return count ? count() : -1;
}

/* A file on three drives has no data on its last drive until it has grown. Until then, each canary
 * read fails. The next canary read then replaces the file's route and its registered handle. */
static void child_unproven(void)
{
	static const uint64_t more[] = {0, 100, 65536};
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_storage *st;
	int fd = open(name, O_RDWR);

	if (penstock_open(name, NULL, &st) || penstock_device_open("cuda:0", NULL, &seg.dev) < 0)
		_exit(3);
	st->facts.drive_count = 3;
	st->facts.stripe_len = LEN / 2;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	for (unsigned i = 0; i < 3; i++) {
		if (pwrite(fd, bytes, more[i], LEN) != (ssize_t)more[i] || fsync(fd) ||
		    penstock_explain(&req, &e))
			_exit(4);
		if (strcmp(e.paths[2].name, "vendor") || e.paths[2].usable != (i == 2))
			_exit(5);
		if (handle_count() != 1)
			_exit(20 + handle_count());
	}
	penstock_close(st);
	penstock_device_close(seg.dev);
	_exit(handle_count() ? 6 : 0);
}

static void canary_repeated(void **state)
{
	char exe[400], file[500];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int status;
	pid_t pid;

	(void)state;
	assert_true(len > 0);
	exe[len] = 0;
	*strrchr(exe, '/') = 0;
	snprintf(file, sizeof(file), "%s/libfake-good.so", exe);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		setenv("PENSTOCK_LIBCUFILE", file, 1);
		child_unproven();
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(truncate(name, LEN), 0);
}

/* If NVIDIA's library may have fallen back to posix reads, path "vendor" has no class. A request
 * then uses path "vendor" only if it names that path. */
static void fallback_meets_no_class(void **state)
{
	static const char *const fakes[] = {"silent", "compat", "both", "few", "none"};

	(void)state;
	for (size_t i = 0; i < sizeof(fakes) / sizeof(fakes[0]); i++) {
		struct found f = run_child(fakes[i], PENSTOCK_READ, PENSTOCK_DIRECT, NULL);

		assert_int_equal(f.row.meets, PENSTOCK_ANY);
		assert_int_equal(f.n, -EOPNOTSUPP);
		f = run_child(fakes[i], PENSTOCK_READ, PENSTOCK_ANY, NULL);
		assert_int_equal(f.n, LEN);
		assert_true(f.same);
		for (unsigned p = 0; p < f.report.path_count; p++)
			assert_true(p != 2 || !f.report.paths[p].bytes);
		f = run_child(fakes[i], PENSTOCK_READ, PENSTOCK_ANY, "vendor");
		assert_int_equal(f.n, LEN);
		assert_true(f.same);
		/* It is unknown whether the CPU has copied the bytes, so the report says that the
		 * CPU has copied all bytes. */
		assert_int_equal(f.report.cpu_copied, LEN);
	}
}

/* The canary read fails if the library moves no bytes. */
static void liar_detected(void **state)
{
	struct found f = run_child("liar", PENSTOCK_READ, PENSTOCK_DIRECT, NULL);

	(void)state;
	assert_false(f.row.usable);
	assert_int_equal(f.row.why, PENSTOCK_WHY_CANARY);
	assert_int_equal(f.n, -EOPNOTSUPP);
}

static void unusable_libraries(void **state)
{
	struct found f = run_child("shut", PENSTOCK_READ, PENSTOCK_ANY, NULL);

	(void)state;
	assert_false(f.row.usable);
	assert_non_null(strstr(f.row.text, "HANDLE_NOT_REGISTERED (5027)"));
	assert_int_equal(f.n, LEN); /* a path other than vendor moved the bytes */
	f = run_child("marked", PENSTOCK_READ, PENSTOCK_ANY, NULL);
	assert_int_equal(f.row.why, PENSTOCK_WHY_BAD_KIND);
	assert_non_null(strstr(f.row.text, "Penstock's own"));
	f = run_child("/nowhere/libcufile.so.0", PENSTOCK_READ, PENSTOCK_ANY, NULL);
	assert_int_equal(f.row.why, PENSTOCK_WHY_NO_DRIVER);
	f = run_child("./libcufile.so.0", PENSTOCK_READ, PENSTOCK_ANY, NULL);
	assert_int_equal(f.row.why, PENSTOCK_WHY_BAD_ARGUMENT);
	f = run_child("", PENSTOCK_READ, PENSTOCK_ANY, NULL);
	assert_int_equal(f.row.why, PENSTOCK_WHY_NO_DRIVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_library_direct), cmocka_unit_test(canary_beside_a_stream),
		cmocka_unit_test(canary_repeated),     cmocka_unit_test(fallback_meets_no_class),
		cmocka_unit_test(liar_detected),       cmocka_unit_test(unusable_libraries),
	};

	return cmocka_run_group_tests_name("vendor", tests, setup, teardown);
}
