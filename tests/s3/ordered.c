/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for tests/s3/device_windows: `ordered URL FILE`. It writes a file's bytes out of memory
 * of the stand-in GPU to an object. Every other piece of 4 MiB is written first, so that each part
 * has a window in the memory of the GPU. The other pieces are written by requests in stream order.
 * While they wait for their stream, another thread frees memory. Its call of the driver returns
 * only when the stream is idle, and stops most calls of other threads until then. So a request in
 * stream order that needed a call of the driver, or a part that needs one, would never complete.
 *
 * It prints "ok" and the numbers of the parts of penstock_storage_info.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda_api.h"
#include "penstock.h"

#define PIECE (4u << 20)
#define PIECES_MAX 64
#define SECONDS 20

static const struct pst_cuda *api;
static struct pst_cu_ctx *ctx;
static struct penstock_storage *st;
static struct penstock_device *gpu;
static char *mem;
static uint64_t len;

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, penstock_errmsg());
	exit(2);
}

static uint64_t piece_len(uint64_t n)
{
	return len - n * PIECE < PIECE ? len - n * PIECE : PIECE;
}

static void *free_memory(void *ptr)
{
	api->cuCtxSetCurrent(ctx);
	return api->cuMemFree((pst_cu_ptr)(uintptr_t)ptr) == PST_CU_OK ? NULL : ptr;
}

/* Returns how often the stand-in's cuMemFree has been called. */
static unsigned long free_calls(void)
{
	static unsigned long (*calls)(const char *symbol);
	void *lib = calls ? NULL : dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);

	if (!calls && lib)
		*(void **)&calls = dlsym(lib, "pst_standin_calls");
	return calls ? calls("cuMemFree_v2") : 0;
}

/* Submits the odd pieces on the stream. Returns their number. */
static unsigned pieces_submit(struct penstock_queue *q, struct pst_cu_stream *stream)
{
	unsigned count = 0;

	for (uint64_t n = 1; n * PIECE < len; n += 2, count++) {
		struct penstock_seg seg = {.dev = gpu,
					   .buf = mem + n * PIECE,
					   .off = n * PIECE,
					   .row_len = piece_len(n),
					   .rows = 1};
		struct penstock_req req = PENSTOCK_REQ_INIT;

		req.storage = st;
		req.op = PENSTOCK_WRITE;
		req.segs = &seg;
		req.seg_count = 1;
		req.stream = stream;
		if (penstock_submit(q, &req, 1, NULL) != 1)
			failed("submit");
	}
	return count;
}

static void pieces_harvest(struct penstock_queue *q, unsigned count)
{
	struct penstock_done done[PIECES_MAX];

	while (count) {
		int n = penstock_wait(q, done, 1, PIECES_MAX, SECONDS * 1000000000ll);

		if (n <= 0)
			failed("the requests in stream order do not complete");
		for (int i = 0; i < n; i++)
			if (done[i].result < 0)
				failed(done[i].report->text);
		count -= (unsigned)n;
	}
}

/* Writes the odd pieces while another thread waits in the driver. */
static void write_in_order(void)
{
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	uint64_t *gate;
	pst_cu_ptr gate_dev, freed;
	unsigned long before;
	pthread_t thread;
	unsigned count;
	void *wrong;

	if (api->cuMemHostAlloc((void **)&gate, 4096, PST_CU_HOST_MAPPED) ||
	    api->cuMemHostGetDevicePointer(&gate_dev, gate, 0) || api->cuMemAlloc(&freed, 4096) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) ||
	    penstock_queue_open(NULL, &q))
		failed("preparing");
	*gate = 0;
	if (api->cuStreamWaitValue64(stream, gate_dev, 1, PST_CU_WAIT_GEQ))
		failed("waiting for the gate");
	count = pieces_submit(q, stream);
	before = free_calls();
	if (pthread_create(&thread, NULL, free_memory, (void *)(uintptr_t)freed))
		failed("a thread");
	while (free_calls() == before)
		;
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	pieces_harvest(q, count);
	pthread_join(thread, &wrong);
	if (wrong || api->cuStreamSynchronize(stream))
		failed("the stream");
	penstock_queue_close(q);
	api->cuStreamDestroy(stream);
	api->cuMemFreeHost(gate);
}

int main(int argc, char **argv)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage_info info = {.size = sizeof(info)};
	struct penstock_storage *file;
	void *all;

	if (argc != 3)
		return 2;
	api = pst_cuda_get(NULL);
	if (!api || penstock_open(argv[2], NULL, &file) ||
	    penstock_device_open("cuda:0", NULL, &gpu) < 0)
		failed("opening");
	len = (uint64_t)penstock_storage_length(file);
	if (api->cuDevicePrimaryCtxRetain(&ctx, 0) || api->cuCtxSetCurrent(ctx) ||
	    penstock_alloc(gpu, len, &all) ||
	    penstock_read(file, gpu, all, len, 0) != (int64_t)len)
		failed("reading the file");
	mem = all;
	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = len;
	if (penstock_open(argv[1], &opts, &st))
		failed("opening the object");
	for (uint64_t n = 0; n * PIECE < len; n += 2)
		if (penstock_write(st, gpu, mem + n * PIECE, piece_len(n), n * PIECE) < 0)
			failed("writing a piece");
	write_in_order();
	if (penstock_commit(st, 1))
		failed("committing");
	penstock_storage_get_info(st, &info);
	printf("ok parts %u device %u http %u\n", info.parts_rdma, info.parts_device,
	       info.parts_http);
	penstock_close(st);
	penstock_close(file);
	penstock_free(gpu, all);
	penstock_device_close(gpu);
	api->cuDevicePrimaryCtxRelease(0);
	return 0;
}
