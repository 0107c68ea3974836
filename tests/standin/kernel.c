/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's modules and kernel launches for one kernel, pst_stream_copy of
 * src/device/stream_copy.cu. The stand-in cannot execute PTX. It does in C what the kernel does:
 * the stream's thread reads the round and its copies when the launch runs, and copies the
 * rectangles. tests/unit/test_cuda_stream.c compares its results with those of the real kernel on
 * a machine with a GPU. It must refuse memory that a GPU could not access.
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

/* The layouts that the kernel expects. */
struct kernel_round {
	uint64_t first, count;
};
struct kernel_copy {
	uint64_t dst, src, dst_pitch, src_pitch, row_len, rows;
};

#define KERNEL "pst_stream_copy"
#define FATBIN 0xba55ed50u /* first word of an image of machine code */

struct pst_cu_module {
	int loaded;
};
struct pst_cu_function {
	int unused;
};
static struct pst_cu_function stream_copy;

EXPORT enum pst_cu_result cuModuleLoadData(struct pst_cu_module **out, const void *image)
{
	ENTER(cuModuleLoadData, NEED_CTX | NEED_TURN);
	/* Machine code is not looked into. */
	if (!out || !image ||
	    (*(const uint32_t *)image != FATBIN && !strstr(image, ".visible .entry " KERNEL "(")))
		return standin_refuse(PST_CU_INVALID_VALUE, "a module without kernel " KERNEL);
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return PST_CU_OUT_OF_MEMORY;
	lock();
	standin.live.modules++;
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuModuleUnload(struct pst_cu_module *module)
{
	ENTER(cuModuleUnload, NEED_CTX | NEED_EVEN_BROKEN);
	lock();
	standin.live.modules--;
	unlock();
	free(module);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuModuleGetFunction(struct pst_cu_function **out,
					      struct pst_cu_module *module, const char *name)
{
	ENTER(cuModuleGetFunction, NEED_CTX);
	if (!out || !module || !name || strcmp(name, KERNEL))
		return standin_refuse(PST_CU_NOT_FOUND, "no kernel %s", name ? name : "NULL");
	*out = &stream_copy;
	return PST_CU_OK;
}

/* Copies `len` bytes out of memory that the device can access. Returns false if there is none. */
static bool kernel_load(void *dst, pst_cu_ptr src, size_t len)
{
	size_t avail;
	const char *at = bytes_at(src, false, &avail);

	if (!at || avail < len)
		return false;
	memcpy(dst, at, len);
	return true;
}

static bool kernel_may_copy(const struct kernel_copy *c)
{
	struct where dst = resolve(c->dst, (c->rows - 1) * c->dst_pitch + c->row_len);
	struct where src = resolve(c->src, (c->rows - 1) * c->src_pitch + c->row_len);

	return dst.writable && (dst.place == PLACE_DEVICE || dst.place == PLACE_HOST) &&
	       (src.place == PLACE_DEVICE || src.place == PLACE_HOST);
}

/* Called in the stream's thread with the lock held. */
enum pst_cu_result kernel_run(struct op *op)
{
	pst_cu_ptr copies = op->kernel.copies;
	struct kernel_round round;

	if (!kernel_load(&round, op->kernel.round, sizeof(round)))
		return standin_refuse(PST_CU_ILLEGAL_ADDRESS, "a round that is not pinned");
	for (uint64_t i = round.first; i < round.first + round.count; i++) {
		struct kernel_copy c = {0};
		struct op copy = {.kind = OP_COPY, .func = op->func};
		enum pst_cu_result rc;

		if (!kernel_load(&c, copies + i * sizeof(c), sizeof(c)) ||
		    (c.rows && c.row_len && !kernel_may_copy(&c)))
			return standin_refuse(PST_CU_ILLEGAL_ADDRESS,
					      "copy %llu of a kernel: %llx to %llx",
					      (unsigned long long)i, (unsigned long long)c.src,
					      (unsigned long long)c.dst);
		copy.copy = (struct piece){.dst = c.dst,
					   .src = c.src,
					   .dst_pitch = c.dst_pitch,
					   .src_pitch = c.src_pitch,
					   .width = c.row_len,
					   .rows = c.rows};
		rc = copy_run(&copy);
		if (rc)
			return rc;
	}
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuLaunchKernel(struct pst_cu_function *function, unsigned int grid_x,
					 unsigned int grid_y, unsigned int grid_z,
					 unsigned int block_x, unsigned int block_y,
					 unsigned int block_z, unsigned int shared_bytes,
					 struct pst_cu_stream *stream, void **args, void **extra)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct op *op;

	ENTER(cuLaunchKernel, NEED_OBJECT | NEED_TURN);
	if (function != &stream_copy || !args || extra || shared_bytes || !grid_x || grid_y != 1 ||
	    grid_z != 1 || !block_x || block_x > 1024 || block_y != 1 || block_z != 1)
		return standin_refuse(PST_CU_INVALID_VALUE, "a launch that nothing implements");
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->ctx->broken)
		rc = s->ctx->broken;
	else if (s && s->capturing)
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "the stream is capturing");
	if (s && !rc) {
		op = op_new(OP_KERNEL, FN_cuLaunchKernel);
		if (op) {
			op->kernel.round = *(const pst_cu_ptr *)args[0];
			op->kernel.copies = *(const pst_cu_ptr *)args[1];
			op_submit(op, s, QUEUE_COMPUTE);
		}
		rc = op ? PST_CU_OK : PST_CU_OUT_OF_MEMORY;
		op_put(op);
	}
	unlock();
	return rc;
}
