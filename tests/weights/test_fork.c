/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a model that stays open across fork, as in programs that first open their files and
 * then start their workers.
 */
#include "load.h"

#include <sys/wait.h>

/* Loads the model in a child process. Returns 0, or the number of the step that failed, counted
 * from 1. */
static int load_in_child(unsigned count, uint64_t len)
{
	struct penstock_loaded *loaded = NULL;
	struct penstock_device *mine = NULL;
	struct penstock_tensor t = {.size = sizeof(t)};
	const unsigned char *at;

	if (penstock_device_open("host", NULL, &mine) < 0 ||
	    penstock_weights_load(w, &mine, 1, NULL, NULL, &loaded)) {
		printf("# %s\n", penstock_errmsg());
		return 1;
	}
	for (unsigned i = 0; i < count; i++) {
		penstock_weights_get(w, i, &t);
		at = penstock_loaded_ptr(loaded, 0, i);
		for (uint64_t k = 0; k < len; k++)
			if (at[k] != made_byte(t.name, k))
				return 2;
	}
	penstock_loaded_free(loaded);
	penstock_weights_close(w);
	penstock_device_close(mine);
	return 0;
}

static void check_child(unsigned count, uint64_t len)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		status = load_in_child(count, len);
		fflush(stdout);
		_exit(status);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* A child process reads a model that its parent has opened, even if the file has been removed.
 * The child does so before and after the parent has read the model. Afterwards the parent can
 * still read it. */
static void test_child_reads_parents_model(void **state)
{
	static const struct made m = {"m", "U8", 8, 1, {1 << 16}};
	struct penstock_loaded *loaded;
	const char *path = made_path("forked.safetensors"), *dir = made_path("forked");

	(void)state;
	made_file(path, &m, 1, 0);
	open_model(path);
	check_child(1, 1 << 16);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
		check_tensor(host, penstock_loaded_ptr(loaded, 0, 0), "m", 1 << 16);
		penstock_loaded_free(loaded);
		unlink(path);
		check_child(1, 1 << 16);
	}
	made_many(dir);
	open_model(dir);
	check_child(MADE_MANY, 5);
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	penstock_loaded_free(loaded);
	check_child(MADE_MANY, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {CASE(test_child_reads_parents_model)};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
