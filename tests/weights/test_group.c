/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes of one host that load one model together, over the host's memory and
 * over the stand-in's GPUs, each rank its own or all the same: every byte on every rank,
 * every byte of the file read by one of them only.
 */
#include "group.h"

/* ---- what is tried ---- */

static void replicates(unsigned gpus)
{
	struct job job = { .name = "replicate", .path = model_path(), .gpus = gpus,
			   .opts = { .window = 256 << 10, .windows = 3 } };

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
	struct job job = { .name = "apart", .path = model_path(), .ranks = 3, .gpus = 3,
			   .opts = { .window = 128 << 10, .windows = 3 }, .apart = true };

	(void)state;
	all_right(&job);
}

static void test_shards(void **state)
{
	struct job job = { .name = "shard", .path = model_path(), .gpus = 4, .shard = true,
			   .opts = { .window = 256 << 10, .windows = 2 } };

	(void)state;
	for (job.ranks = 2; job.ranks <= 4; job.ranks *= 2) {
		job.into = false;
		all_right(&job);
		job.into = true;
		all_right(&job);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),   cmocka_unit_test(test_one_gpu),
		cmocka_unit_test(test_gpus),   cmocka_unit_test(test_apart),
		cmocka_unit_test(test_shards),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
