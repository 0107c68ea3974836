/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes of one host that load one model together, over the host's memory and
 * over the stand-in's GPUs, each rank its own or all the same: every byte on every rank,
 * every byte of the file read by one of them only, also where it has another number.
 */
#include "group.h"

/* ---- what is tried ---- */

static void replicates(unsigned gpus)
{
	struct job job = {.name = "replicate",
			  .path = model_path(),
			  .gpus = gpus,
			  .opts = {.window = 256 << 10, .windows = 3}};

	for (job.ranks = 1; job.ranks <= RANKS_MAX; job.ranks *= 2)
		all_right(&job);
}

static void test_host(void **state)
{
	(void)state;
	replicates(0);
}

static void test_one_gpu(void **state)
{
	(void)state;
	replicates(1);
}

static void test_gpus(void **state)
{
	(void)state;
	replicates(RANKS_MAX);
}

/* Where device memory cannot be shared the host's is. */
static void test_apart(void **state)
{
	struct job job = {.name = "apart",
			  .path = model_path(),
			  .ranks = 3,
			  .gpus = 3,
			  .opts = {.window = 128 << 10, .windows = 3},
			  .apart = true};

	(void)state;
	all_right(&job);
}

static void test_shards(void **state)
{
	struct job job = {.name = "shard",
			  .path = model_path(),
			  .gpus = 4,
			  .shard = true,
			  .opts = {.window = 256 << 10, .windows = 2}};

	(void)state;
	for (job.ranks = 2; job.ranks <= 4; job.ranks *= 2) {
		job.into = false;
		all_right(&job);
		job.into = true;
		all_right(&job);
	}
}

/* One process with several GPUs is a group of one: read once, all of it on each. */
static int four_gpus(struct outcome *o)
{
	struct penstock_shard_opts so = PENSTOCK_SHARD_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct penstock_device *devs[4];
	struct penstock_loaded *loaded;
	struct penstock_weights *m;
	struct penstock_group *g;
	int ret = penstock_device_open("host", NULL, &host) < 0;

	for (unsigned i = 0; i < 4 && !ret; i++) {
		char name[16];

		snprintf(name, sizeof(name), "cuda:%u", i);
		ret = penstock_device_open(name, NULL, &devs[i]) < 0;
	}
	if (!ret)
		ret = penstock_weights_open(made_path("group.safetensors"), NULL, &m);
	if (!ret)
		ret = penstock_group_open("alone", 0, 1, NULL, &g);
	if (!ret)
		ret = penstock_group_load(g, m, devs, 4, NULL, &r, &loaded);
	for (unsigned d = 0; d < 4 && !ret; d++) {
		for (uint64_t t = 0; t < COUNT(model); t++) {
			struct penstock_shard s = {.size = sizeof(s)};
			struct penstock_tensor what = {.size = sizeof(what)};

			penstock_weights_get(m, t, &what);
			penstock_weights_shard(m, t, &so, &s);
			compare(o, devs[d], penstock_loaded_ptr(loaded, d, t), &s, &what);
		}
	}
	o->read = r.read;
	o->bytes = r.bytes;
	snprintf(o->text, sizeof(o->text), "%s", ret ? penstock_errmsg() : "");
	return ret;
}

static void test_one_process(void **state)
{
	const char *path = model_path();
	uint64_t sum = 0;
	int status = 0;
	pid_t pid;

	(void)state;
	for (unsigned i = 0; i < COUNT(model); i++)
		sum += made_bytes(&model[i]);
	memset(outcomes, 0, sizeof(*outcomes));
	setenv("PENSTOCK_STANDIN_DEVICES", "4", 1);
	pid = fork();
	if (!pid)
		_exit(four_gpus(outcomes) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_string_equal(outcomes->text, "");
	assert_string_equal(outcomes->wrong, "");
	assert_int_equal(status, 0);
	assert_int_equal(outcomes->bytes, 4 * sum);
	assert_true(outcomes->read * 100 <= length_of(path) * 105);
}

/* The same bytes and times, under another number, as another mount would have it. */
static const char *copy_of(const char *path)
{
	const char *other = made_path("mounted.safetensors");
	struct stat st;

	made_file(other, model, COUNT(model), 5);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(
		utimensat(AT_FDCWD, other, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0), 0);
	return other;
}

/* What ranks see under other numbers is the same file if all of it is alike that they look at:
 * a byte in the middle of a tensor, the header, the time. */
static void test_other_mount(void **state)
{
	struct job job = {.name = "mount",
			  .path = model_path(),
			  .ranks = 3,
			  .gpus = 3,
			  .opts = {.window = 256 << 10, .windows = 2}};
	struct stat st;
	char byte = 1;
	int fd;

	(void)state;
	job.other_path = copy_of(job.path);
	go(&job);
	right(&job);
	/* lm_head.weight is the last. */
	assert_int_equal(stat(job.other_path, &st), 0);
	fd = open(job.other_path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &byte, 1, st.st_size - (off_t)made_bytes(&model[6]) / 2), 1);
	close(fd);
	utimensat(AT_FDCWD, job.other_path, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0);
	go(&job);
	others_say(&job, -ESTALE,
		   "rank 2 has another file than rank 0 (size, time of change or "
		   "content differ)");
	job.other_path = copy_of(job.path);
	fd = open(job.other_path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, 30), 1);
	assert_int_equal(pwrite(fd, byte == 'p' ? "q" : "p", 1, 30), 1); /* of the metadata */
	close(fd);
	utimensat(AT_FDCWD, job.other_path, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0);
	go(&job);
	others_say(&job, -ESTALE, "rank 2 has another file than rank 0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),	    cmocka_unit_test(test_one_gpu),
		cmocka_unit_test(test_gpus),	    cmocka_unit_test(test_apart),
		cmocka_unit_test(test_shards),	    cmocka_unit_test(test_one_process),
		cmocka_unit_test(test_other_mount),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
