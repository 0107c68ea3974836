/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's modules and kernel launches for the two kernels of
 * src/device/stream_copy.cu. The stand-in cannot execute PTX. It does in C what the kernels do:
 * the stream's thread reads the round and its copies when the launch runs, and copies the
 * rectangles, or it stores the words. tests/unit/test_cuda_stream.c and test_standin_graphs.c
 * compare the results with those of the real kernels on a machine with a GPU. It must refuse memory
 * that a GPU could not access.
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
#define COUNTER "pst_stream_count"
#define FATBIN 0xba55ed50u /* first word of an image of machine code */

struct pst_cu_module {
	int loaded;
};
struct pst_cu_function {
	int unused;
};
static struct pst_cu_function stream_copy, stream_count;

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
	if (!out || !module || !name || (strcmp(name, KERNEL) && strcmp(name, COUNTER)))
		return standin_refuse(PST_CU_NOT_FOUND, "no kernel %s", name ? name : "NULL");
	*out = strcmp(name, KERNEL) ? &stream_count : &stream_copy;
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

/* Loads a round. A lane may set its count to 0 at the same time. */
static bool round_load(struct kernel_round *round, pst_cu_ptr src)
{
	size_t avail;
	const struct kernel_round *at = (const void *)bytes_at(src, false, &avail);

	if (!at || avail < sizeof(*at))
		return false;
	round->first = __atomic_load_n(&at->first, __ATOMIC_ACQUIRE);
	round->count = __atomic_load_n(&at->count, __ATOMIC_ACQUIRE);
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

	if (!round_load(&round, op->kernel.round))
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

/* Returns where the CPU can access a word that the device can access. */
static uint64_t *kernel_word(pst_cu_ptr ptr)
{
	struct where at = resolve(ptr, sizeof(uint64_t));
	size_t avail;

	if (!at.writable || (at.place != PLACE_DEVICE && at.place != PLACE_HOST))
		return NULL;
	return (uint64_t *)(void *)bytes_at(ptr, true, &avail);
}

/* Called in the stream's thread with the lock held. */
enum pst_cu_result count_run(struct op *op)
{
	uint64_t *word = kernel_word(op->count.word);
	uint64_t *zeros[] = {op->count.zero ? kernel_word(op->count.zero) : NULL,
			     op->count.zero_too ? kernel_word(op->count.zero_too) : NULL};

	if (!word || (op->count.zero && !zeros[0]) || (op->count.zero_too && !zeros[1]))
		return standin_refuse(PST_CU_ILLEGAL_ADDRESS, "a word that is not pinned");
	for (unsigned i = 0; i < 2; i++)
		if (zeros[i])
			__atomic_store_n(zeros[i], 0, __ATOMIC_RELEASE);
	__atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
	return PST_CU_OK;
}

/* Makes the operation of a launch. */
static struct op *kernel_op(const struct pst_cu_function *function, void **args)
{
	struct op *op = op_new(function == &stream_copy ? OP_KERNEL : OP_COUNT, FN_cuLaunchKernel);

	if (op && function == &stream_copy) {
		op->kernel.round = *(const pst_cu_ptr *)args[0];
		op->kernel.copies = *(const pst_cu_ptr *)args[1];
	} else if (op) {
		op->count.word = *(const pst_cu_ptr *)args[0];
		op->count.zero = *(const pst_cu_ptr *)args[1];
		op->count.zero_too = *(const pst_cu_ptr *)args[2];
	}
	return op;
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
	if ((function != &stream_copy && function != &stream_count) || !args || extra ||
	    shared_bytes || !grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_x > 1024 ||
	    block_y != 1 || block_z != 1)
		return standin_refuse(PST_CU_INVALID_VALUE, "a launch that nothing implements");
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->ctx->broken)
		rc = s->ctx->broken;
	if (s && !rc) {
		op = kernel_op(function, args);
		if (!op)
			rc = PST_CU_OUT_OF_MEMORY;
		else if (s->capturing)
			rc = capture_op(s, op, QUEUE_COMPUTE);
		else
			op_submit(op, s, QUEUE_COMPUTE);
		op_put(op);
	}
	unlock();
	return rc;
}
