/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the tests of stream order: a GPU, its CUDA context, which is made current, and a file
 * of known bytes. The GPU is the first one of the simulated CUDA driver (the stand-in), or the
 * machine's own if PENSTOCK_STANDIN=0.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "penstock.h"
#include "request.h"

#define FILE_LEN (8u << 20)

static const struct pst_cuda *api;
static struct pst_cu_ctx *ctx;
static struct penstock_device *gpu;
static struct penstock_storage *st;
static unsigned char *bytes;
static char path[256];

static inline int setup(void **state)
{
	int fd;

	(void)state;
	api = pst_cuda_get(NULL);
	if (!api || penstock_device_open("cuda:0", NULL, &gpu) < 0)
		return -1;
	api->cuDevicePrimaryCtxRetain(&ctx, 0);
	api->cuCtxSetCurrent(ctx);
	test_file_name(path, sizeof(path), "stream");
	bytes = malloc(FILE_LEN);
	for (size_t i = 0; i < FILE_LEN; i++)
		bytes[i] = (unsigned char)(i * 2654435761u >> 13);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, FILE_LEN) != FILE_LEN)
		return -1;
	close(fd);
	return penstock_open(path, NULL, &st);
}

static inline int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	penstock_device_close(gpu);
	api->cuDevicePrimaryCtxRelease(0);
	unlink(path);
	free(bytes);
	return 0;
}

static inline struct penstock_req request(struct penstock_seg *seg, void *stream)
{
	struct penstock_req req = test_request(st, seg, 1, PENSTOCK_READ);

	req.stream = stream;
	return req;
}

/* Makes calls of the driver fail from now on, as pst_standin_fail describes, or none if `spec` is
 * NULL. Skips the test if the driver is the machine's own. */
static inline void driver_fail(const char *spec)
{
	int (*inject)(const char *spec);

	*(void **)&inject = test_standin_symbol("pst_standin_fail");
	if (!inject)
		test_skip("only the stand-in driver fails on demand");
	assert_int_equal(inject(spec), 0);
}

#endif
