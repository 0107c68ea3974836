/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the tests that run each scenario in a child process: shared memory for the
 * outcome, a file name, and the file's bytes. Only test_cuda_calls.c and test_malloc.c include
 * it. They define SCENARIO_LEN (the length of the file), SCENARIO_NAME, and struct outcome,
 * whose member `end` is a struct child_result.
 */
#ifndef PENSTOCK_FAULT_SCENARIO_H
#define PENSTOCK_FAULT_SCENARIO_H

#include "child.h"

static struct outcome *out; /* shared between parent and child */
static unsigned char *bytes, *back;
static char name[256];

#define scenario_fail(...) child_fail(&out->end, __VA_ARGS__)

static int setup(void **state)
{
	(void)state;
	bytes = malloc(SCENARIO_LEN);
	back = malloc(SCENARIO_LEN);
	out = child_shared_memory(sizeof(*out));
	snprintf(name, sizeof(name), "%s", fixture_name(SCENARIO_NAME, false));
	fixture_fill(bytes, SCENARIO_LEN, 1);
	return !bytes || !back || !out;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

#endif
