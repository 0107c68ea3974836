/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared fixture of the tests of the public header penstock.h: a file of zeros, the host device,
 * and a GPU of the stand-in driver. Included by test_api.c, test_apart.c,
 * test_copy.c and test_one_call.c only.
 */
#ifndef API_H
#define API_H

#include "test.h"

#include <errno.h>
#include <stdbool.h>

#include "penstock.h"

#define LEN 100000u
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char file_name[4096];
static struct penstock_device *host, *gpu;

static inline int setup(void **state)
{
	const char *dir = getenv("TMPDIR");
	int fd;

	(void)state;
	snprintf(file_name, sizeof(file_name), "%s/api-XXXXXX", dir ? dir : "/tmp");
	fd = mkstemp(file_name);
	if (fd < 0 || ftruncate(fd, LEN))
		return -1;
	close(fd);
	return penstock_device_open("host", NULL, &host) < 0 ||
	       penstock_device_open("cuda:0", NULL, &gpu) < 0;
}

static inline int teardown(void **state)
{
	(void)state;
	penstock_device_close(gpu);
	penstock_device_close(host);
	return unlink(file_name);
}

static inline struct penstock_storage *test_file_open(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = NULL;

	opts.flags = flags;
	assert_int_equal(penstock_open(file_name, &opts, &st), 0);
	return st;
}

#endif
