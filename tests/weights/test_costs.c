/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how much device memory each way to receive a model needs, and how many bytes it reads.
 * Does not rely on the library's reports: each device has only as much memory as penstock_weights.h
 * promises to need, and the kernel counts the bytes read. Each case runs in a new process.
 */
#include "load.h"

#include <sys/wait.h>

#define MIB (1ull << 20) /* the stand-in allocates device memory in blocks of 2 MiB */

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

/* Returns true if the tests use the machine's own GPUs instead of the stand-in's. The tests cannot
 * choose the number and the memory of real GPUs. */
static bool real_gpus(void)
{
	const char *own = getenv("PENSTOCK_STANDIN");

	return own && !strcmp(own, "0");
}

/* ---- a process of its own ---- */

/* Returns how many bytes the kernel has read for the process (`who` is "self") or for the calling
 * thread ("thread-self"). */
static uint64_t read_by_kernel(const char *who)
{
	char name[32], text[512] = "", *at;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%s/io", who);
	f = fopen(name, "re");
	if (!f || !fread(text, 1, sizeof(text) - 1, f))
		return 0;
	fclose(f);
	at = strstr(text, "rchar: ");
	return at ? strtoull(at + 7, NULL, 10) : 0;
}

/* Runs `way` in a child process, on a GPU with `mib` MiB of memory. Returns the result of `way`.
 * If `way` failed after bytes were read, returns -1, which no case expects. */
static int run_on_gpu(int (*way)(void), unsigned mib)
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

static int use_load(void)
{
	struct penstock_loaded *loaded;
	int ret = penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded);

	if (!ret)
		check_tensor(gpu, penstock_loaded_ptr(loaded, 0, 11), list[11].name, MIB);
	return ret;
}

static int use_group(void)
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
		check_tensor(gpu, penstock_loaded_ptr(loaded, 0, 11), list[11].name, MIB);
	return ret;
}

static int use_load_into(void)
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
		check_tensor(gpu, mem + 11 * MIB, list[11].name, MIB);
	return ret;
}

static int iterate(uint64_t window)
{
	struct penstock_weights_iter *it;
	uint64_t tensor, last = UINT64_MAX;
	void *ptr;
	int ret;

	opts.window = window;
	ret = penstock_weights_iter_open(w, gpu, &opts, &it);
	if (ret)
		return ret; /* only the open may fail for lack of memory */
	while ((ret = penstock_weights_iter_next(it, &tensor, &ptr)) == 1) {
		check_tensor(gpu, ptr, list[tensor].name, MIB);
		/* Releases each tensor one step late, like a loop that still uses the previous
		 * tensor. */
		if (last != UINT64_MAX)
			penstock_weights_iter_release(it, last);
		last = tensor;
	}
	return !ret && last == 11 ? 0 : -1;
}

static int use_iterator(void)
{
	return iterate(4 * MIB);
}

static int use_iterator_long(void)
{
	return iterate(2 * MIB);
}

/* The model has 12 tensors of 1 MiB. A load needs 12 MiB and one page. A load into the caller's
 * memory needs no more than the model. An iterator with a window of 4 MiB needs only this window.
 * With a window of 2 MiB, each tensor is longer than a quarter of the window, and gets an
 * allocation of its own. Then the iterator needs a small window and memory for two tensors. A load
 * by a group also needs two windows of 1 MiB. */
static void test_device_memory(void **state)
{
	static const struct {
		int (*way)(void);
		unsigned mib;
	} rows[] = {
		{use_load, 14},		{use_load_into, 12}, {use_iterator, 4},
		{use_iterator_long, 6}, {use_group, 16},
	};

	(void)state;
	if (real_gpus())
		test_skip("no real GPU has so little memory");
	for (unsigned i = 0; i < COUNT(rows); i++) {
		assert_int_equal(run_on_gpu(rows[i].way, rows[i].mib), 0);
		assert_int_equal(run_on_gpu(rows[i].way, rows[i].mib - 2), -ENOMEM);
	}
}

/* ---- bytes read ---- */

/* Expected number of bytes read, in hundredths of a tensor's length. */
static uint64_t expected_read;

static int count_reads(void)
{
	struct penstock_device_opts threads = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_shard_opts how = PENSTOCK_SHARD_OPTS_INIT;
	struct penstock_device *devs[2] = {gpu, NULL};
	struct penstock_loaded *loaded;
	uint64_t before;
	int ret;

	/* The kernel does not count reads by io_uring for the process. So this test uses the I/O
	 * engine that reads in threads. */
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
	if (expected_read != 1200)
		opts.shard = &how;
	before = read_by_kernel("self");
	ret = penstock_weights_load(w, devs, 2, &opts, &report, &loaded);
	before = read_by_kernel("self") - before;
	if (ret)
		return ret;
	printf("# %llu bytes read, %llu reported, %llu wanted\n", (unsigned long long)before,
	       (unsigned long long)report.read, (unsigned long long)(expected_read * MIB / 100));
	if (before * 100 < expected_read * MIB || before * 100 > expected_read * MIB * 105 / 100 ||
	    report.read * 100 > expected_read * MIB * 105 / 100)
		return -2;
	return 0;
}

/* A load to two devices reads each byte once. A load of a rank's part of dimension 0 reads only
 * that part. */
static void test_bytes_read(void **state)
{
	int ret;

	(void)state;
	expected_read = 1200;
	ret = run_on_gpu(count_reads, 64);
	if (ret == -ENODEV && real_gpus())
		test_skip("two GPUs are wanted");
	assert_int_equal(ret, 0);
	expected_read = 150;
	assert_int_equal(run_on_gpu(count_reads, 64), 0);
}

/* The calling thread itself reads a short part of a file, because waking a worker thread would
 * take longer than the read. Worker threads read a part that is longer than one request, and rows
 * that are far apart. The first load also opens the file. */
static int count_own_reads(void)
{
	struct penstock_piece piece = {.size = sizeof(piece)};
	char *place = malloc(MIB);
	uint64_t own, all;
	int ret = 0;

	piece.dev = host;
	piece.ptr = place;
	for (unsigned i = 0; !ret && i < 6; i++) {
		piece.dim = i >= 4; /* 64 bytes of each of 1,024 rows */
		piece.count = i % 2 || i >= 4 ? 64 : 1024;
		piece.room = piece.count * 1024;
		opts.request_bytes = i % 2 ? 0 : 65536;
		own = read_by_kernel("thread-self");
		all = read_by_kernel("self");
		ret = penstock_weights_load_into(w, &piece, 1, &opts, &report);
		own = read_by_kernel("thread-self") - own;
		all = read_by_kernel("self") - all;
		printf("# %llu bytes: this thread read %llu, the process %llu\n",
		       (unsigned long long)piece.room, (unsigned long long)own,
		       (unsigned long long)all);
		if (i < 4)
			check_tensor(host, place, list[0].name, piece.room);
		if (!ret && (own >= piece.room) != (i % 2 && i < 4))
			ret = -2;
	}
	free(place);
	return ret;
}

static void test_short_reads(void **state)
{
	(void)state;
	assert_int_equal(run_on_gpu(count_own_reads, 64), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_memory),
		cmocka_unit_test(test_bytes_read),
		cmocka_unit_test(test_short_reads),
	};

	test_use_standin();
	make_model();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
