/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drop-in in a process: it starts without CUDA and notices it later, opening it
 * asks CUDA nothing, statistics and the log are as the environment says, and the process
 * ends well with everything still open. Cases that
 * need a process of their own run this program again. Which library a program gets is
 * tests/shim/preload's.
 */
#include "shim_test.h"

#include <sys/wait.h>

static char self[PATH_MAX], cuda[PATH_MAX];

/* Runs this program for one case; its exit status. */
static int run(const char *what)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		execl(self, self, what, (char *)NULL);
		_exit(99);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status))
		return -WTERMSIG(status);
	return WEXITSTATUS(status);
}

/* ---- in processes of their own; 0: good ---- */

/* No libcuda in sight, then one is loaded by the program itself. */
static int cuda_comes_later(void)
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
	memset(host, 0, sizeof(host));
	if (cu.cuMemcpyDtoHAsync(host, ptr, 4096, NULL) != PST_CU_OK ||
	    cu.cuStreamSynchronize(NULL) != PST_CU_OK || memcmp(host, want, 4096))
		return 5;
	return 0;
}

static int opening_asks_nothing(void)
{
	unsigned long (*calls)(const char *);
	void *sym = dlopen(cuda, RTLD_NOW) ? cu_standin("pst_standin_calls") : NULL;
	int fd = st_make("asks", 65536, O_RDONLY), code;
	struct cuf_props props;

	if (!sym)
		return 2;
	memcpy(&calls, &sym, sizeof(sym));
	if (cuFileDriverOpen().err || cuFileDriverGetProperties(&props).err)
		return 3;
	cuFileHandleDeregister(st_register(fd, &code));
	unlink(st_path);
	if (code || cuFileDriverClose().err)
		return 4;
	return calls("*") ? 5 : 0;
}

/* Files, buffers, a batch that is out, a stream that waits: all left as they are. */
static int ends_with_all_open(void)
{
	struct cuf_io_params param = {.mode = CUF_BATCH, .opcode = CUF_READ};
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
	param.fh = fh;
	param.u.batch.base = (void *)(uintptr_t)ptr;
	param.u.batch.size = 1 << 20;
	if (cuFileBatchIOSetUp(&batch, 1).err || cuFileBatchIOSubmit(batch, 1, &param, 0).err)
		return 4;
	exit(0);
}

/* Statistics that the environment asks for are collected from the start. */
static int collects_at_once(void)
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

/* What is below the level is not in the log, and who fails in a loop fills no disk. */
static int log_has_an_end(void)
{
	char name[PATH_MAX], line[4096];
	unsigned lines = 0, below = 0;
	FILE *f;

	close(st_make("log", 0, O_RDWR));
	snprintf(name, sizeof(name), "%s", st_path);
	setenv("CUFILE_LOGFILE_PATH", name, 1);
	setenv("CUFILE_NVTX", "true", 1); /* noted at level INFO */
	if (cuFileDriverOpen().err)
		return 2;
	for (int i = 0; i < 10100; i++)
		cuFileHandleDeregister(NULL);
	f = fopen(name, "r");
	unlink(name);
	while (f && fgets(line, sizeof(line), f)) {
		lines++;
		below += strstr(line, " INFO: ") || strstr(line, " WARN: ");
	}
	return lines > 1000 && lines < 10010 && !below ? 0 : 3;
}

/* ---- the cases ---- */

static void later(void **state)
{
	(void)state;
	assert_int_equal(run("later"), 0);
}

static void asks_nothing(void **state)
{
	(void)state;
	assert_int_equal(run("asks"), 0);
}

static void collects(void **state)
{
	(void)state;
	assert_int_equal(run("collects"), 0);
}

static void log_ends(void **state)
{
	(void)state;
	assert_int_equal(run("log"), 0);
}

static void ends(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(run("ends"), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(later),    cmocka_unit_test(asks_nothing),
		cmocka_unit_test(collects), cmocka_unit_test(log_ends),
		cmocka_unit_test(ends),
	};

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0 || !getenv("PENSTOCK_LIBCUDA") ||
	    !realpath(getenv("PENSTOCK_LIBCUDA"), cuda))
		return 1;
	if (argc < 2)
		return cmocka_run_group_tests(tests, NULL, NULL);
	if (!strcmp(argv[1], "later"))
		return cuda_comes_later();
	if (!strcmp(argv[1], "asks"))
		return opening_asks_nothing();
	if (!strcmp(argv[1], "collects"))
		return collects_at_once();
	if (!strcmp(argv[1], "log"))
		return log_has_an_end();
	return ends_with_all_open();
}
