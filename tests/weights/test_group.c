/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests loads by several processes of one host, through host memory and on the stand-in's GPUs,
 * with one GPU for each rank or one GPU for all. Every rank must get every byte, and only one rank
 * may read each byte of the file. This must hold even if a rank sees the file with other device and
 * inode numbers than rank 0.
 */
#include "group.h"

/* ---- the cases ---- */

static void check_replicas(unsigned gpus)
{
	struct job job = {.name = "replicate",
			  .path = model_path(),
			  .gpus = gpus,
			  .opts = {.window = 256 << 10, .windows = 3}};

	for (job.ranks = 1; job.ranks <= RANKS_MAX; job.ranks *= 2)
		run_and_check(&job);
}

static void test_host(void **state)
{
	(void)state;
	check_replicas(0);
}

static void test_one_gpu(void **state)
{
	(void)state;
	check_replicas(1);
}

static void test_gpus(void **state)
{
	(void)state;
	check_replicas(RANKS_MAX);
}

/* If the GPUs cannot share memory, the windows, through which ranks pass bytes to each other, must
 * be in host memory. Every rank must get its bytes. */
static void test_no_peer_access(void **state)
{
	struct job job = {.name = "apart",
			  .path = model_path(),
			  .ranks = 3,
			  .gpus = 3,
			  .opts = {.window = 128 << 10, .windows = 3},
			  .no_peer = true};

	(void)state;
	run_and_check(&job);
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
		run_and_check(&job);
		job.into = true;
		run_and_check(&job);
	}
}

/* One process with several GPUs is a group of one rank. It reads the model once and copies all of
 * it to each GPU. */
static int load_four_gpus(struct outcome *o)
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
			compare_tensor(o, devs[d], penstock_loaded_ptr(loaded, d, t), &s, &what);
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
		_exit(load_four_gpus(outcomes) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_string_equal(outcomes->text, "");
	assert_string_equal(outcomes->mismatch, "");
	assert_int_equal(status, 0);
	assert_int_equal(outcomes->bytes, 4 * sum);
	assert_true(outcomes->read * 100 <= file_length(path) * 105);
}

/* Copies a file with its bytes and times. The copy has another inode number. A rank that sees a
 * file through another mount may also see another inode number. */
static const char *copy_as_other_mount(const char *path)
{
	const char *other = made_path("mounted.safetensors");
	struct stat st;

	made_file(other, model, COUNT(model), 5);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(
		utimensat(AT_FDCWD, other, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0), 0);
	return other;
}

/* Files with different inode numbers count as the same file if their headers, their times and a
 * sample of each tensor are equal. The test changes one byte of a sample, and then one byte of the
 * header. */
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
	job.other_path = copy_as_other_mount(job.path);
	job_run(&job);
	check_job_loaded(&job);
	/* Changes a byte of the last tensor, lm_head.weight. */
	assert_int_equal(stat(job.other_path, &st), 0);
	fd = open(job.other_path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &byte, 1, st.st_size - (off_t)made_bytes(&model[6]) / 2), 1);
	close(fd);
	utimensat(AT_FDCWD, job.other_path, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0);
	job_run(&job);
	check_others_failed(&job, -ESTALE,
			    "rank 2 has another file than rank 0 (size, time of change or "
			    "content differ)");
	job.other_path = copy_as_other_mount(job.path);
	fd = open(job.other_path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, 30), 1);
	assert_int_equal(pwrite(fd, byte == 'p' ? "q" : "p", 1, 30),
			 1); /* this byte is in the header's metadata */
	close(fd);
	utimensat(AT_FDCWD, job.other_path, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0);
	job_run(&job);
	check_others_failed(&job, -ESTALE, "rank 2 has another file than rank 0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),	    cmocka_unit_test(test_one_gpu),
		cmocka_unit_test(test_gpus),	    cmocka_unit_test(test_no_peer_access),
		cmocka_unit_test(test_shards),	    cmocka_unit_test(test_one_process),
		cmocka_unit_test(test_other_mount),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
