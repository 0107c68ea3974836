/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that a registered stream, a registered buffer and a first stream-ordered call prepare their
 * GPU. Afterwards no kernel is loaded while a stream waits for the program. Such a load would wait
 * for the stream, and the program would hang. A registration must not prepare the GPU while the
 * stream that it queries has unfinished work. A capture must survive a registration. meson.build
 * makes the stand-in (simulated) driver load slowly and wait, as NVIDIA's driver does.
 */
#include "../graphs.h"
#include "shim_test.h"

#include <pthread.h>

#include "pst_standin.h"

enum { LEN = 1 << 20, SIZE = 5000, ROUNDS = 10 };

static char *dev, *second_dev;
static int fd;
static void *fh;
static struct pst_cu_stream *stream;
static struct pst_cu_ctx *second; /* context of the second GPU, or NULL */

/* Returns how often the program has called a function of the stand-in. NULL if the driver is
 * real. */
static unsigned long (*calls)(const char *symbol);
/* Numbers of loaded modules and of launched kernels before the calls under test */
static unsigned long loads_before, launches_before;

static unsigned long loads(void)
{
	return calls ? calls("cuModuleLoadData") : 0;
}

static void counts_reset(void)
{
	loads_before = loads();
	launches_before = calls ? calls("cuLaunchKernel") : 0;
}

static int setup(void **state)
{
	struct pst_cu_ctx *old;
	int count = 0;

	(void)state;
	if (!cu_load() || graphs_load() || cu.cuDeviceGetCount(&count) != PST_CU_OK)
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("prepared", LEN, O_RDONLY);
	unlink(st_path);
	stream = cu_stream();
	st_gate_shut();
	cu_standin("pst_standin_calls", &calls);
	if (count < 2)
		return 0;
	assert_cu(cu.cuDevicePrimaryCtxRetain(&second, 1));
	assert_cu(cu.cuCtxPushCurrent(second));
	second_dev = cu_alloc(LEN);
	assert_cu(cu.cuCtxPopCurrent(&old));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	assert_cu(cu.cuStreamDestroy(stream));
	cu_free(dev);
	close(fd);
	return 0;
}

/* Closes the cuFile driver, which stops the library's threads and unloads the kernels, and opens it
 * again. So no GPU is prepared. */
static void driver_reopen(void)
{
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	fh = st_register(fd, NULL);
	counts_reset();
}

/* When a GPU is prepared, both of its kernels have been launched once. */
static void check_prepared(void)
{
	assert_true(!calls || loads() > loads_before);
	assert_true(!calls || calls("cuLaunchKernel") >= launches_before + 2);
}

static void check_not_prepared(void)
{
	assert_int_equal(loads(), loads_before);
}

/* Makes a read on a stream that waits for the gate (a word in memory). Until the read has
 * completed, no module may be loaded. */
static void read_behind_gate(void)
{
	unsigned long before = loads();
	size_t len = SIZE;
	off_t off = 9, zero = 0;
	ssize_t bytes = -7;

	st_gate_shut();
	st_gate_wait(stream);
	assert_ok(cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, stream));
	assert_int_equal(loads(), before);
	st_gate_open();
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, SIZE);
	st_check(dev, 9, SIZE);
	assert_int_equal(loads(), before);
}

static void registered_stream(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		driver_reopen();
		assert_ok(cuFileStreamRegister(stream, 0));
		check_prepared();
		read_behind_gate();
		assert_ok(cuFileStreamDeregister(stream));
	}
}

static void registered_buffer(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		driver_reopen();
		assert_ok(cuFileBufRegister(dev, LEN, 0));
		check_prepared();
		read_behind_gate();
		assert_ok(cuFileBufDeregister(dev));
	}
}

/* When the first stream-ordered call has returned, the GPU is prepared, because the stream was
 * idle at the call. */
static void first_call(void **state)
{
	size_t len = 1;
	off_t zero = 0;
	ssize_t bytes;

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		driver_reopen();
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
		check_prepared();
		read_behind_gate();
	}
}

/* A buffer in host memory is no reason to start the threads of a GPU. */
static void host_buffer(void **state)
{
	static char host[SIZE];

	(void)state;
	driver_reopen();
	assert_ok(cuFileBufRegister(host, SIZE, 0));
	check_not_prepared();
	assert_ok(cuFileBufDeregister(host));
}

/* While the stream, or the default stream for a buffer, waits for the program, a registration must
 * return without a load. A later registration prepares the GPU. */
static void waiting_streams(void **state)
{
	(void)state;
	driver_reopen();
	st_gate_shut();
	st_gate_wait(stream);
	assert_ok(cuFileStreamRegister(stream, 0));
	check_not_prepared();
	st_gate_open();
	assert_cu(cu.cuStreamSynchronize(stream));
	st_gate_shut();
	st_gate_wait(NULL);
	assert_ok(cuFileBufRegister(dev, LEN, 0));
	check_not_prepared();
	st_gate_open();
	assert_cu(cu.cuStreamSynchronize(NULL));
	assert_ok(cuFileStreamRegister(stream, 0));
	check_prepared();
	read_behind_gate();
	assert_ok(cuFileStreamDeregister(stream));
}

/* Registrations during a capture in the global mode do not invalidate it. The stream that is being
 * captured must not be queried, so its registration does not prepare the GPU. */
static void captures(void **state)
{
	struct pst_cu_graph *graph = NULL;

	(void)state;
	driver_reopen();
	assert_cu(graphs.begin(stream, PST_CU_CAPTURE_GLOBAL));
	assert_ok(cuFileStreamRegister(stream, 0));
	check_not_prepared();
	assert_ok(cuFileBufRegister(dev, LEN, 0));
	check_prepared();
	assert_cu(graphs.end(stream, &graph));
	assert_non_null(graph);
	assert_cu(graphs.destroy(graph));
	read_behind_gate();
}

/* Each GPU is prepared by its own streams and buffers, whatever context is current. */
static void two_gpus(void **state)
{
	struct pst_cu_stream *other;
	struct pst_cu_ctx *current;

	(void)state;
	if (!second)
		test_skip("this machine has one GPU");
	assert_cu(cu.cuCtxPushCurrent(second));
	other = cu_stream();
	assert_cu(cu.cuCtxPopCurrent(&current));
	driver_reopen();
	assert_ok(cuFileStreamRegister(other, 0));
	check_prepared();
	counts_reset();
	assert_ok(cuFileBufRegister(second_dev, LEN, 0));
	check_not_prepared();
	assert_ok(cuFileBufRegister(dev, LEN, 0));
	check_prepared();
	assert_cu(cu.cuCtxGetCurrent(&current));
	assert_ptr_equal(current, cu_ctx);
	read_behind_gate();
	assert_ok(cuFileStreamDeregister(other));
	assert_cu(cu.cuStreamDestroy(other));
}

/* The stream belongs to a context that is not the GPU's primary context. */
static void other_context(void **state)
{
	enum pst_cu_result (*make)(struct pst_cu_ctx **, unsigned, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	struct pst_cu_ctx *made;
	struct pst_cu_stream *other;

	(void)state;
	if (!cu_standin("cuCtxCreate_v2", &make) || !cu_standin("cuCtxDestroy_v2", &destroy))
		test_skip("this test uses functions of the stand-in");
	driver_reopen();
	assert_cu(make(&made, 0, 0));
	assert_cu(cu.cuCtxSetCurrent(made));
	other = cu_stream();
	assert_cu(cu.cuCtxSetCurrent(cu_ctx));
	assert_ok(cuFileStreamRegister(other, 0));
	check_prepared();
	assert_ok(cuFileStreamDeregister(other));
	assert_cu(cu.cuCtxSetCurrent(made));
	assert_cu(cu.cuStreamDestroy(other));
	assert_cu(cu.cuCtxSetCurrent(cu_ctx));
	assert_cu(destroy(made));
	read_behind_gate();
}

/* Returns the number of lines of the log file that contain `text`. */
static unsigned log_lines(const char *name, const char *text)
{
	char line[4096];
	unsigned lines = 0;
	FILE *f = fopen(name, "r");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		lines += strstr(line, text) != NULL;
	fclose(f);
	return lines;
}

/* If the library's threads cannot be started, the registrations succeed, and one line of the log
 * has the reason. */
static void failure(void **state)
{
	int (*inject)(const char *spec);
	char log[PATH_MAX];

	(void)state;
	if (!cu_standin("pst_standin_fail", &inject))
		test_skip("only the stand-in's calls can be made to fail");
	close(st_make("prepared-log", 0, O_RDWR));
	snprintf(log, sizeof(log), "%s", st_path);
	setenv("CUFILE_LOGFILE_PATH", log, 1);
	driver_reopen();
	assert_int_equal(inject("cuStreamCreateWithPriority:1+:2"), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(cuFileStreamRegister(stream, 0));
		assert_ok(cuFileBufRegister(dev, LEN, 0));
		assert_ok(cuFileBufDeregister(dev));
	}
	assert_int_equal(inject(NULL), 0);
	assert_int_equal(log_lines(log, "cannot prepare cuda:0 for transfers: "), 1);
	assert_int_equal(cuFileRead(fh, dev, SIZE, 0, 0), SIZE);
	unsetenv("CUFILE_LOGFILE_PATH");
	driver_reopen();
	unlink(log);
}

static void *register_repeatedly(void *arg)
{
	if (cu.cuCtxSetCurrent(cu_ctx) != PST_CU_OK)
		return NULL;
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (cuFileBufRegister(arg, SIZE, 0).err || cuFileStreamRegister(stream, 0).err)
			return NULL;
		cuFileBufDeregister(arg); /* fails if another thread has closed the driver */
	}
	return arg;
}

/* Threads register buffers and a stream while another thread closes the driver. The thread and
 * address sanitizers detect errors in this case. */
static void beside_a_close(void **state)
{
	pthread_t threads[2];
	void *good;

	(void)state;
	driver_reopen();
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, register_repeatedly,
						dev + i * SIZE),
				 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (cuFileUseCount())
			cuFileDriverClose(); /* fails if the driver is closed meanwhile */
		usleep(1000);
	}
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], &good), 0);
		assert_ptr_equal(good, dev + i * SIZE);
	}
	driver_reopen();
	assert_ok(cuFileBufRegister(dev, LEN, 0));
	check_prepared();
	read_behind_gate();
}

/* A child process does not use the threads of its parent, and a registration in the child does not
 * wait for them. */
static void after_fork(void **state)
{
	static char host[SIZE];
	pid_t pid;

	(void)state;
	driver_reopen();
	assert_ok(cuFileBufRegister(dev, LEN, 0));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		alarm(30);
		if (cuFileDriverOpen().err || cuFileBufRegister(host, SIZE, 0).err)
			_exit(1);
		/* The CUDA driver does not work in a child process. The stand-in refuses this call,
		 * NVIDIA's driver accepts it. It must return before the alarm. */
		_exit(cuFileStreamRegister(stream, 0).err || !calls ? 0 : 2);
	}
	assert_int_equal(st_wait(pid), 0);
	read_behind_gate();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(registered_stream),
		cmocka_unit_test(registered_buffer),
		cmocka_unit_test(first_call),
		cmocka_unit_test(host_buffer),
		cmocka_unit_test(waiting_streams),
		cmocka_unit_test(captures),
		cmocka_unit_test(two_gpus),
		cmocka_unit_test(other_context),
		cmocka_unit_test(failure),
		cmocka_unit_test(beside_a_close),
		cmocka_unit_test(after_fork),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
