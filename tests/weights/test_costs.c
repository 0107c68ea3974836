/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the three ways to receive a model cost, by counts that are not the library's own:
 * device memory on devices that have as much as the header promises and no more, and
 * bytes read as the kernel counts them. Each case runs in a process of its own.
 */
#include "load.h"

#include <sys/wait.h>

#define MIB (1ull << 20) /* devices are as large as their blocks of 2 MiB say */

static const char *path;
static struct made list[12];

static void make_model(void)
{
	static char names[COUNT(list)][24];

	for (unsigned i = 0; i < COUNT(list); i++) {
		snprintf(names[i], sizeof(names[i]), "l.%02u.q_proj.weight", i);
		list[i] = (struct made){names[i], "U8", 8, 2, {1024, 1024}};
	}
	path = made_path("costs.safetensors");
	made_file(path, list, COUNT(list), 3);
}

/* The machine's GPUs and not the stand-in's, which are as many and as large as asked. */
static bool real_gpus(void)
{
	const char *own = getenv("PENSTOCK_STANDIN");

	return own && !strcmp(own, "0");
}

/* ---- a process of its own ---- */

static uint64_t read_by_kernel(void)
{
	char text[512] = "", *at;
	FILE *f = fopen("/proc/self/io", "re");

	if (!f || !fread(text, 1, sizeof(text) - 1, f))
		return 0;
	fclose(f);
	at = strstr(text, "rchar: ");
	return at ? strtoull(at + 7, NULL, 10) : 0;
}

/* On a GPU of so many MiB: what `way` returns, and that nothing was read if not 0. */
static int on_gpu(int (*way)(void), unsigned mib)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		char size[16];
		int ret = 1;

		snprintf(size, sizeof(size), "%uMiB", mib);
		setenv("PENSTOCK_STANDIN_MEM", size, 1);
		setenv("PENSTOCK_STANDIN_DEVICES", "2", 1);
		setup(NULL);
		if (!setup_all(NULL) && !penstock_weights_open(path, NULL, &w)) {
			ret = -way();
			if (ret)
				printf("# %u MiB: %s\n", mib, penstock_errmsg());
			if (ret && report.read)
				ret = 1;
		}
		_exit(ret);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return -WEXITSTATUS(status);
}

/* ---- device memory ---- */

static int all_at_once(void)
{
	struct penstock_loaded *loaded;
	int ret = penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded);

	if (!ret)
		check(gpu, penstock_loaded_ptr(loaded, 0, 11), list[11].name, MIB);
	return ret;
}

static int in_a_group(void)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_loaded *loaded;
	struct penstock_group *g;
	int ret;

	go.window = MIB;
	go.windows = 2;
	ret = penstock_group_open("costs", 0, 1, &go, &g);
	if (!ret)
		ret = penstock_group_load(g, w, &gpu, 1, &opts, &report, &loaded);
	if (!ret)
		check(gpu, penstock_loaded_ptr(loaded, 0, 11), list[11].name, MIB);
	return ret;
}

static int into_place(void)
{
	struct penstock_piece p[COUNT(list)];
	char *mem;
	int ret = penstock_alloc(gpu, sizeof(list) / sizeof(list[0]) * MIB, (void **)&mem);

	for (unsigned i = 0; i < COUNT(list) && !ret; i++)
		p[i] = (struct penstock_piece){
			.size = sizeof(p[0]), .tensor = i, .ptr = mem + i * MIB, .room = MIB};
	if (!ret)
		ret = penstock_weights_load_into(w, p, COUNT(list), &opts, &report);
	if (!ret)
		check(gpu, mem + 11 * MIB, list[11].name, MIB);
	return ret;
}

static int walk(uint64_t window)
{
	struct penstock_weights_iter *it;
	uint64_t tensor, last = UINT64_MAX;
	void *ptr;
	int ret;

	opts.window = window;
	ret = penstock_weights_iter_open(w, gpu, &opts, &it);
	if (ret)
		return ret; /* from here on nothing is missing */
	while ((ret = penstock_weights_iter_next(it, &tensor, &ptr)) == 1) {
		check(gpu, ptr, list[tensor].name, MIB);
		if (last != UINT64_MAX) /* as a loop that still holds the one before */
			penstock_weights_iter_release(it, last);
		last = tensor;
	}
	return !ret && last == 11 ? 0 : -1;
}

static int one_by_one(void)
{
	return walk(4 * MIB);
}

static int long_ones(void)
{
	return walk(2 * MIB);
}

/* 12 MiB of tensors: with a page more, nothing more, a window of 4 alone, a small
 * one and two tensors of their own, and two windows of 1 besides. */
static void test_memory(void **state)
{
	static const struct {
		int (*way)(void);
		unsigned mib;
	} rows[] = {
		{all_at_once, 14}, {into_place, 12}, {one_by_one, 4},
		{long_ones, 6},	   {in_a_group, 16},
	};

	(void)state;
	if (real_gpus())
		test_skip("no real GPU has so little memory");
	for (unsigned i = 0; i < COUNT(rows); i++) {
		assert_int_equal(on_gpu(rows[i].way, rows[i].mib), 0);
		assert_int_equal(on_gpu(rows[i].way, rows[i].mib - 2), -ENOMEM);
	}
}

/* ---- bytes read ---- */

static uint64_t wanted; /* in hundredths of a tensor */

static int count_reads(void)
{
	struct penstock_device_opts threads = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_shard_opts how = PENSTOCK_SHARD_OPTS_INIT;
	struct penstock_device *devs[2] = {gpu, NULL};
	struct penstock_loaded *loaded;
	uint64_t before;
	int ret;

	/* Reads through io_uring are in no process' count. */
	threads.engine = "threads";
	penstock_device_close(gpu);
	for (unsigned i = 0; i < 2; i++) {
		ret = penstock_device_open(i ? "cuda:1" : "cuda:0", &threads, &devs[i]);
		if (ret < 0)
			return ret;
	}
	opts.path = "bounce";
	how.ranks = 8;
	how.rank = 5;
	if (wanted != 1200)
		opts.shard = &how;
	before = read_by_kernel();
	ret = penstock_weights_load(w, devs, 2, &opts, &report, &loaded);
	before = read_by_kernel() - before;
	if (ret)
		return ret;
	printf("# %llu bytes read, %llu reported, %llu wanted\n", (unsigned long long)before,
	       (unsigned long long)report.read, (unsigned long long)(wanted * MIB / 100));
	if (before * 100 < wanted * MIB || before * 100 > wanted * MIB * 105 / 100 ||
	    report.read * 100 > wanted * MIB * 105 / 100)
		return -2;
	return 0;
}

/* Each byte once for two devices, and of dimension 0 a rank's part. */
static void test_reads(void **state)
{
	int ret;

	(void)state;
	wanted = 1200;
	ret = on_gpu(count_reads, 64);
	if (ret == -ENODEV && real_gpus())
		test_skip("two GPUs are wanted");
	assert_int_equal(ret, 0);
	wanted = 150;
	assert_int_equal(on_gpu(count_reads, 64), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_reads),
	};

	test_use_standin();
	make_model();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
