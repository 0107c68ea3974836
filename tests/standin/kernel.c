/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's modules and kernel launches for the library's kernels: pst_stream_copy
 * and pst_stream_count of src/device/stream_copy.cu, pst_crc32c of src/device/crc32c.cu, and
 * pst_crc64nvme of src/device/crc64nvme.cu. The stand-in cannot execute PTX. It does in C what a
 * kernel does when the stream reaches the launch: pst_stream_copy copies rectangles,
 * pst_stream_count stores words, and the other two compute checksums.
 * tests/unit/test_cuda_stream.c, test_standin_graphs.c and test_cuda_sum.c compare the results with
 * those of the real kernels on a machine with a GPU. The stand-in must refuse memory that a GPU
 * could not access.
 */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Layouts of the structs in pinned memory that the kernel pst_stream_copy reads. */
struct kernel_round {
	uint64_t first, count;
};
struct kernel_copy {
	uint64_t dst, src, dst_pitch, src_pitch, row_len, rows;
};

/* A piece of memory for the kernels of checksums, which set `raw` to the raw CRC of the piece
 * followed by `after` zero bytes. */
struct kernel_piece {
	uint64_t begin, len, after, raw;
};

#define FATBIN 0xba55ed50u /* first word of an image of machine code */

struct pst_cu_module {
	int loaded;
};
struct pst_cu_function {
	const char *name;
	unsigned int arg_count;
	/* Called in the stream's thread with the lock held. */
	enum pst_cu_result (*run)(struct op *op);
};
static enum pst_cu_result stream_copy_run(struct op *op);
static enum pst_cu_result stream_count_run(struct op *op);
static enum pst_cu_result crc32c_run(struct op *op);
static enum pst_cu_result crc64nvme_run(struct op *op);
static struct pst_cu_function kernels[] = {
	{"pst_stream_copy", 2, stream_copy_run},
	{"pst_stream_count", 3, stream_count_run},
	{"pst_crc32c", 1, crc32c_run},
	{"pst_crc64nvme", 1, crc64nvme_run},
};
#define KERNELS (sizeof(kernels) / sizeof(kernels[0]))

static bool image_has_kernel(const void *image)
{
	char entry[64];

	if (*(const uint32_t *)image == FATBIN)
		return true; /* the stand-in does not examine machine code */
	for (unsigned i = 0; i < KERNELS; i++) {
		snprintf(entry, sizeof(entry), ".visible .entry %s(", kernels[i].name);
		if (strstr(image, entry))
			return true;
	}
	return false;
}

EXPORT enum pst_cu_result cuModuleLoadData(struct pst_cu_module **out, const void *image)
{
	ENTER(cuModuleLoadData, NEED_CTX | NEED_TURN);
	if (!out || !image || !image_has_kernel(image))
		return standin_refuse(PST_CU_INVALID_VALUE, "a module without a known kernel");
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return PST_CU_OUT_OF_MEMORY;
	if (standin.load_ms)
		usleep(standin.load_ms * 1000);
	lock();
	if (standin.load_ms)
		ctx_idle_exclusive(ctx);
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
	for (unsigned i = 0; out && module && name && i < KERNELS; i++)
		if (!strcmp(name, kernels[i].name)) {
			*out = &kernels[i];
			return PST_CU_OK;
		}
	return standin_refuse(PST_CU_NOT_FOUND, "no kernel %s", name ? name : "NULL");
}

/* ---- memory ---- */

/* Copies `len` bytes out of memory that the device can access. Returns false if the device cannot
 * access all of them. */
static bool kernel_load(void *dst, pst_cu_ptr src, size_t len)
{
	size_t avail;
	const char *at = bytes_at(src, false, &avail);

	if (!at || avail < len)
		return false;
	memcpy(dst, at, len);
	return true;
}

/* Copies a round (the kernel's next list of copies) out of pinned memory. A thread of the library
 * may set the round's count to 0 at the same time. */
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

/* ---- pst_stream_copy ---- */

static enum pst_cu_result stream_copy_run(struct op *op)
{
	pst_cu_ptr copies = op->kernel.args[1];
	struct kernel_round round;

	if (!round_load(&round, op->kernel.args[0]))
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

/* ---- pst_stream_count ---- */

/* Returns the address at which the CPU can access a word of memory that the device can access, or
 * NULL. */
static uint64_t *kernel_word(pst_cu_ptr ptr)
{
	struct where at = resolve(ptr, sizeof(uint64_t));
	size_t avail;

	if (!at.writable || (at.place != PLACE_DEVICE && at.place != PLACE_HOST))
		return NULL;
	return (uint64_t *)(void *)bytes_at(ptr, true, &avail);
}

static enum pst_cu_result stream_count_run(struct op *op)
{
	const pst_cu_ptr *args = op->kernel.args;
	uint64_t *word = kernel_word(args[0]);
	uint64_t *zeros[] = {args[1] ? kernel_word(args[1]) : NULL,
			     args[2] ? kernel_word(args[2]) : NULL};

	if (!word || (args[1] && !zeros[0]) || (args[2] && !zeros[1]))
		return standin_refuse(PST_CU_ILLEGAL_ADDRESS, "a word that is not pinned");
	for (unsigned i = 0; i < 2; i++)
		if (zeros[i])
			__atomic_store_n(zeros[i], 0, __ATOMIC_RELEASE);
	__atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
	return PST_CU_OK;
}

/* ---- pst_crc32c and pst_crc64nvme: polynomials whose bit n is the coefficient of x^n ---- */

struct crc {
	uint64_t poly; /* without the term x^degree */
	unsigned degree;
	uint64_t sums[256]; /* CRCs of single bytes; made when the first is needed */
};
static struct crc crcs[] = {{.poly = 0x1edc6f41u, .degree = 32},
			    {.poly = 0xad93d23594c93659u, .degree = 64}};

static uint64_t times_x(const struct crc *crc, uint64_t a)
{
	const uint64_t top = (uint64_t)1 << (crc->degree - 1);

	return (a & ~top) << 1 ^ (a & top ? crc->poly : 0);
}

static uint64_t times(const struct crc *crc, uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (; b; b >>= 1, a = times_x(crc, a))
		if (b & 1)
			product ^= a;
	return product;
}

static uint64_t bits_add(const struct crc *crc, uint64_t raw, unsigned char byte)
{
	for (unsigned bit = 0; bit < 8; bit++)
		raw = times_x(crc, raw ^ (uint64_t)(byte >> bit & 1) << (crc->degree - 1));
	return raw;
}

/* Adds bytes to the CRC, with a table of the CRCs of single bytes. A byte enters the CRC with its
 * lowest bit first, so the CRC's highest 8 bits are reversed before they are combined with the
 * byte. Called with the lock held. */
static uint64_t crc_add(struct crc *crc, uint64_t raw, const unsigned char *at, size_t len)
{
	static unsigned char reversed[256];
	const uint64_t all = UINT64_MAX >> (64 - crc->degree);

	for (unsigned byte = 0; !crc->sums[255] && byte < 256; byte++) {
		crc->sums[byte] = bits_add(crc, 0, (unsigned char)byte);
		reversed[byte] = 0;
		for (unsigned bit = 0; bit < 8; bit++)
			reversed[byte] |= (byte >> bit & 1) << (7 - bit);
	}
	for (size_t i = 0; i < len; i++)
		raw = (raw << 8 & all) ^
		      crc->sums[at[i] ^ reversed[raw >> (crc->degree - 8) & 0xff]];
	return raw;
}

/* Sets piece->raw. Returns false if the GPU cannot access all bytes of the piece. */
static bool piece_sum(struct crc *crc, struct kernel_piece *piece)
{
	uint64_t raw = 0, zeros = 1u << 8, reversed = 0;

	for (uint64_t done = 0; done < piece->len;) {
		size_t avail;
		const char *at = bytes_at(piece->begin + done, false, &avail);

		if (!at || !avail)
			return false;
		if (avail > piece->len - done)
			avail = piece->len - done;
		raw = crc_add(crc, raw, (const unsigned char *)at, avail);
		done += avail;
	}
	for (uint64_t after = piece->after; after; after >>= 1, zeros = times(crc, zeros, zeros))
		if (after & 1)
			raw = times(crc, raw, zeros);
	for (unsigned bit = 0; bit < crc->degree; bit++)
		reversed |= (raw >> bit & 1) << (crc->degree - 1 - bit);
	piece->raw = reversed;
	return true;
}

static enum pst_cu_result pieces_run(struct crc *crc, struct op *op)
{
	for (unsigned i = 0; i < op->kernel.blocks; i++) {
		pst_cu_ptr at = op->kernel.args[0] + i * sizeof(struct kernel_piece);
		struct kernel_piece piece;
		size_t avail;
		char *out = bytes_at(at, true, &avail);

		if (!out || !kernel_load(&piece, at, sizeof(piece)))
			return standin_refuse(PST_CU_ILLEGAL_ADDRESS,
					      "a piece that is not in pinned memory");
		if (!piece_sum(crc, &piece))
			return standin_refuse(
				PST_CU_ILLEGAL_ADDRESS, "a checksum of %llu bytes at %llx",
				(unsigned long long)piece.len, (unsigned long long)piece.begin);
		memcpy(out, &piece, sizeof(piece));
	}
	return PST_CU_OK;
}

static enum pst_cu_result crc32c_run(struct op *op)
{
	return pieces_run(&crcs[0], op);
}

static enum pst_cu_result crc64nvme_run(struct op *op)
{
	return pieces_run(&crcs[1], op);
}

/* ---- launches ---- */

/* Called in the stream's thread with the lock held. */
enum pst_cu_result kernel_run(struct op *op)
{
	return op->kernel.function->run(op);
}

/* Creates the stream operation for a launch of this kernel. */
static struct op *kernel_op(const struct pst_cu_function *function, unsigned int blocks,
			    void **args)
{
	struct op *op = op_new(OP_KERNEL, FN_cuLaunchKernel);

	if (!op)
		return NULL;
	op->kernel.function = function;
	op->kernel.blocks = blocks;
	for (unsigned i = 0; i < function->arg_count; i++)
		op->kernel.args[i] = *(const pst_cu_ptr *)args[i];
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
	if (!function || !args || extra || shared_bytes || !grid_x || grid_y != 1 || grid_z != 1 ||
	    !block_x || block_x > 1024 || block_y != 1 || block_z != 1)
		return standin_refuse(PST_CU_INVALID_VALUE, "a launch that nothing implements");
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->ctx->broken)
		rc = s->ctx->broken;
	if (s && !rc) {
		op = kernel_op(function, grid_x, args);
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
