/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests whole processes that use the drop-in (Penstock's libcufile). A process may load CUDA later
 * than the drop-in. cuFileDriverOpen must not call CUDA. The environment can enable statistics and
 * the log. A process may exit while everything is open. Each case runs this program again in a
 * separate process. tests/shim/preload tests which library a program gets.
 */
#include "shim_test.h"

static char cuda[PATH_MAX]; /* path of the CUDA driver */

/* ---- the children; each returns 0 on success ---- */

/* The program loads libcuda only after it has read files into host memory. */
static int child_cuda_later(void)
{
	unsigned char host[4096], want[4096];
	int fd = st_make("later", 65536, O_RDONLY), code;
	void *fh, *dev;
	pst_cu_ptr ptr;

	unsetenv("PENSTOCK_LIBCUDA");
	fh = st_register(fd, &code);
	unlink(st_path);
	st_fill(want, 9, sizeof(want));
	for (int i = 0; i < 3; i++)
		if (code || cuFileRead(fh, host, 4096, 9, 0) != 4096 || memcmp(host, want, 4096))
			return 2;
	setenv("PENSTOCK_LIBCUDA", cuda, 1);
	if (!cu_load() || cu.cuMemAlloc(&ptr, 65536) != PST_CU_OK)
		return 3;
	unsetenv("PENSTOCK_LIBCUDA");
	dev = (void *)(uintptr_t)ptr;
	if (cuFileRead(fh, dev, 4096, 9, 0) != 4096)
		return 4;
	if (!st_holds(dev, 9, 4096))
		return 5;
	return 0;
}

static int child_open_without_cuda(void)
{
	unsigned long (*calls)(const char *);
	int fd = st_make("asks", 65536, O_RDONLY), code;
	struct cuf_props props;

	if (!dlopen(cuda, RTLD_NOW) || !cu_standin("pst_standin_calls", &calls))
		return 2;
	if (cuFileDriverOpen().err || cuFileDriverGetProperties(&props).err)
		return 3;
	cuFileHandleDeregister(st_register(fd, &code));
	unlink(st_path);
	if (code || cuFileDriverClose().err)
		return 4;
	return calls("*") ? 5 : 0;
}

/* The process exits while a file and a buffer are registered and a batch is in flight. */
static int child_exit_with_all_open(void)
{
	struct cuf_io_params param;
	int fd = st_make("ends", 1 << 20, O_RDONLY), code;
	void *fh, *batch;
	pst_cu_ptr ptr;

	if (!cu_load() || cu.cuMemAlloc(&ptr, 1 << 20) != PST_CU_OK)
		return 2;
	fh = st_register(fd, &code);
	unlink(st_path);
	if (code || cuFileSetStatsLevel(3).err || cuFileStatsStart().err ||
	    cuFileBufRegister((void *)(uintptr_t)ptr, 1 << 20, 0).err ||
	    cuFileRead(fh, (void *)(uintptr_t)ptr, 1 << 20, 0, 0) != 1 << 20)
		return 3;
	param = st_op(fh, CUF_READ, (void *)(uintptr_t)ptr, 1 << 20, 0, 0, 0);
	if (cuFileBatchIOSetUp(&batch, 1).err || cuFileBatchIOSubmit(batch, 1, &param, 0).err)
		return 4;
	exit(0);
}

/* If the environment enables statistics, they include the first calls of the process. */
static int child_stats_from_start(void)
{
	struct cuf_stats_l1 stats;
	unsigned char host[100];
	int fd, code, level = 0;

	setenv("CUFILE_STATS_LEVEL", "1", 1);
	fd = st_make("collects", 65536, O_RDONLY);
	unlink(st_path);
	if (cuFileRead(st_register(fd, &code), host, 100, 0, 0) != 100)
		return 2;
	if (cuFileGetStatsLevel(&level).err || level != 1 || cuFileGetStatsL1(&stats).err)
		return 3;
	return stats.hdl_register_ops.ok == 1 && stats.read_ops.ok == 1 ? 0 : 4;
}

/* The log has no line of a level that is disabled. The log's length is limited, so that a program
 * that fails in a loop does not fill a disk. */
static int child_log_limit(void)
{
	char name[PATH_MAX], line[4096];
	unsigned lines = 0, unwanted = 0;
	FILE *f;

	close(st_make("log", 0, O_RDWR));
	snprintf(name, sizeof(name), "%s", st_path);
	setenv("CUFILE_LOGFILE_PATH", name, 1);
	setenv("CUFILE_NVTX", "true", 1); /* causes a line at level INFO, which is disabled */
	if (cuFileDriverOpen().err)
		return 2;
	for (int i = 0; i < 10100; i++)
		cuFileHandleDeregister(NULL);
	f = fopen(name, "r");
	unlink(name);
	while (f && fgets(line, sizeof(line), f)) {
		lines++;
		unwanted += strstr(line, " INFO: ") || strstr(line, " WARN: ");
	}
	return lines > 1000 && lines < 10010 && !unwanted ? 0 : 3;
}

/* ---- the cases ---- */

static void cuda_later(void **state)
{
	(void)state;
	assert_int_equal(st_run_self("later", NULL), 0);
}

static void open_without_cuda(void **state)
{
	(void)state;
	assert_int_equal(st_run_self("asks", NULL), 0);
}

static void stats_from_start(void **state)
{
	(void)state;
	assert_int_equal(st_run_self("collects", NULL), 0);
}

static void log_limit(void **state)
{
	(void)state;
	assert_int_equal(st_run_self("log", NULL), 0);
}

static void exit_with_all_open(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(st_run_self("ends", NULL), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuda_later),	      cmocka_unit_test(open_without_cuda),
		cmocka_unit_test(stats_from_start),   cmocka_unit_test(log_limit),
		cmocka_unit_test(exit_with_all_open),
	};

	if (!getenv("PENSTOCK_LIBCUDA") || !realpath(getenv("PENSTOCK_LIBCUDA"), cuda))
		return 1;
	if (argc < 2)
		return cmocka_run_group_tests(tests, NULL, NULL);
	if (!strcmp(argv[1], "later"))
		return child_cuda_later();
	if (!strcmp(argv[1], "asks"))
		return child_open_without_cuda();
	if (!strcmp(argv[1], "collects"))
		return child_stats_from_start();
	if (!strcmp(argv[1], "log"))
		return child_log_limit();
	return child_exit_with_all_open();
}
