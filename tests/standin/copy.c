/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's copies and memsets. Each call checks both addresses against the known
 * ranges. The stream's thread reads the source and moves the bytes later. So tests detect a caller
 * that reuses a buffer too early. As in the real driver, a pageable operand is copied to a
 * temporary buffer, or makes the call wait. This file must never dereference a device address.
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

/* Limits in bytes, measured with the real driver (README.md). A copy to the device of up to
 * SMALL_MAX bytes uses a compute queue. For a pageable source of up to STAGE_MAX bytes, the call
 * copies the source to a temporary buffer and returns. */
#define SMALL_MAX ((size_t)24576)
#define STAGE_MAX ((size_t)2 << 20)

/* Kinds of memory that a call accepts as an operand. KNOWN means any memory but pageable memory. */
enum side { ANY, KNOWN };

/* Computes the number of bytes from the start of the first row to the end of the last row.
 * Returns false if the number overflows. */
static bool rows_extent(size_t pitch, size_t width, size_t rows, size_t *len)
{
	return !__builtin_mul_overflow(pitch, rows - 1, len) &&
	       !__builtin_add_overflow(*len, width, len);
}

static enum queue_kind queue_for(const struct piece *p, enum place dst, enum place src)
{
	if (dst == PLACE_DEVICE && src != PLACE_DEVICE)
		return p->rows > 1 || p->width > SMALL_MAX ? QUEUE_TO_DEVICE : QUEUE_COMPUTE;
	if (src == PLACE_DEVICE && dst != PLACE_DEVICE)
		return QUEUE_TO_HOST;
	return QUEUE_COMPUTE;
}

static void piece_stage(struct piece *p)
{
	p->staged = malloc(p->width * p->rows);
	for (size_t row = 0; p->staged && row < p->rows; row++)
		memcpy(p->staged + row * p->width,
		       (const char *)(uintptr_t)(p->src + row * p->src_pitch), p->width);
}

static enum pst_cu_result copy_check(const struct piece *p, enum side dst_side, enum side src_side,
				     struct where *dst, struct where *src)
{
	size_t dst_len, src_len;

	if (!rows_extent(p->dst_pitch, p->width, p->rows, &dst_len) ||
	    !rows_extent(p->src_pitch, p->width, p->rows, &src_len))
		return standin_refuse(PST_CU_INVALID_VALUE,
				      "the length of the copy overflows an address");
	*dst = resolve(p->dst, dst_len);
	*src = resolve(p->src, src_len);
	if (dst->place == PLACE_BAD || (dst->place == PLACE_PAGEABLE && dst_side == KNOWN))
		return standin_refuse(PST_CU_INVALID_VALUE,
				      "the destination %llx of %zu bytes is not within one live "
				      "allocation or registration",
				      p->dst, dst_len);
	if (src->place == PLACE_BAD || (src->place == PLACE_PAGEABLE && src_side == KNOWN))
		return standin_refuse(PST_CU_INVALID_VALUE,
				      "the source %llx of %zu bytes is not within one live "
				      "allocation or registration",
				      p->src, src_len);
	if (!dst->writable)
		return standin_refuse(PST_CU_INVALID_VALUE, "the destination %llx is read-only",
				      p->dst);
	return PST_CU_OK;
}

static enum pst_cu_result copy_submit(enum func func, struct piece piece, enum side dst_side,
				      enum side src_side, struct pst_cu_stream *handle,
				      struct pst_cu_ctx *ctx, bool wait)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct where dst = {0}, src = {0};
	struct op *op = NULL;

	lock();
	s = stream_of(handle, ctx, &rc);
	if (!s || !piece.width || !piece.rows)
		goto out;
	rc = s->ctx->broken;
	if (!rc && s->capturing && wait)
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "the stream is capturing");
	if (!rc)
		rc = copy_check(&piece, dst_side, src_side, &dst, &src);
	if (rc)
		goto out;
	if (!s->capturing && src.place == PLACE_PAGEABLE && dst.place == PLACE_DEVICE &&
	    piece.width * piece.rows <= STAGE_MAX)
		piece_stage(&piece);
	wait = wait || dst.place == PLACE_PAGEABLE ||
	       (src.place == PLACE_PAGEABLE && !piece.staged);
	op = op_new(OP_COPY, func);
	if (!op) {
		free(piece.staged);
		rc = PST_CU_OUT_OF_MEMORY;
		goto out;
	}
	op->copy = piece;
	/* each launch of the graph reads the source again, even if the source is pageable */
	if (s->capturing) {
		rc = capture_op(s, op, queue_for(&piece, dst.place, src.place));
		goto out;
	}
	op_submit(op, s, queue_for(&piece, dst.place, src.place));
	if (wait) {
		struct pst_cu_ctx *owner = s->ctx;

		op_wait(op);
		op = NULL;
		rc = owner->broken;
	}
out:
	op_put(op);
	unlock();
	return rc;
}

static enum pst_cu_result copy_submit_plain(enum func func, pst_cu_ptr dst, enum side dst_side,
					    pst_cu_ptr src, enum side src_side, size_t len,
					    struct pst_cu_stream *stream, struct pst_cu_ctx *ctx,
					    bool wait)
{
	struct piece piece = {.dst = dst, .src = src, .width = len, .rows = 1};

	return copy_submit(func, piece, dst_side, src_side, stream, ctx, wait);
}

/* --- run in the stream's thread --- */

/* Returns the address at which the CPU can access `ptr`. Stores the number of contiguous bytes at
 * that address in *avail. An address outside all ranges and arenas is pageable memory, and is its
 * own CPU address. */
static char *operand_bytes(pst_cu_ptr ptr, bool write, size_t *avail)
{
	char *at = bytes_at(ptr, write, avail);

	if (at || in_arena(ptr) || range_find(ptr))
		return at;
	*avail = SIZE_MAX;
	return (char *)(uintptr_t)ptr;
}

enum pst_cu_result copy_run(struct op *op)
{
	const struct piece *p = &op->copy;

	for (size_t row = 0; row < p->rows; row++) {
		size_t at = 0;

		while (at < p->width) {
			size_t dst_avail, src_avail, len = p->width - at;
			char *dst =
				operand_bytes(p->dst + row * p->dst_pitch + at, true, &dst_avail);
			char *src = p->staged;

			if (src) {
				src += row * p->width + at;
				src_avail = len;
			} else {
				src = operand_bytes(p->src + row * p->src_pitch + at, false,
						    &src_avail);
			}
			if (!dst || !src)
				return standin_refuse(PST_CU_ILLEGAL_ADDRESS,
						      "%s ran after its memory was gone",
						      standin_symbol(op->func));
			len = len < dst_avail ? len : dst_avail;
			len = len < src_avail ? len : src_avail;
			unlock();
			memmove(dst, src, len);
			lock();
			at += len;
		}
	}
	return PST_CU_OK;
}

enum pst_cu_result set_run(struct op *op)
{
	size_t at = 0;

	while (at < op->set.len) {
		size_t avail, len = op->set.len - at;
		char *dst = bytes_at(op->set.addr + at, true, &avail);

		if (!dst)
			return standin_refuse(PST_CU_ILLEGAL_ADDRESS,
					      "memset ran after its memory was gone");
		len = len < avail ? len : avail;
		unlock();
		memset(dst, op->set.byte, len);
		lock();
		at += len;
	}
	return PST_CU_OK;
}

/* --- the driver's functions --- */

EXPORT enum pst_cu_result cuMemcpyAsync(pst_cu_ptr dst, pst_cu_ptr src, size_t len,
					struct pst_cu_stream *stream)
{
	ENTER(cuMemcpyAsync, NEED_OBJECT | NEED_TURN);
	return copy_submit_plain(FN_cuMemcpyAsync, dst, ANY, src, ANY, len, stream, ctx, false);
}

EXPORT enum pst_cu_result cuMemcpyHtoDAsync_v2(pst_cu_ptr dst, const void *src, size_t len,
					       struct pst_cu_stream *stream)
{
	ENTER(cuMemcpyHtoDAsync_v2, NEED_OBJECT | NEED_TURN);
	return copy_submit_plain(FN_cuMemcpyHtoDAsync_v2, dst, KNOWN, (uintptr_t)src, ANY, len,
				 stream, ctx, false);
}

EXPORT enum pst_cu_result cuMemcpyDtoHAsync_v2(void *dst, pst_cu_ptr src, size_t len,
					       struct pst_cu_stream *stream)
{
	ENTER(cuMemcpyDtoHAsync_v2, NEED_OBJECT | NEED_TURN);
	return copy_submit_plain(FN_cuMemcpyDtoHAsync_v2, (uintptr_t)dst, ANY, src, KNOWN, len,
				 stream, ctx, false);
}

EXPORT enum pst_cu_result cuMemcpyDtoDAsync_v2(pst_cu_ptr dst, pst_cu_ptr src, size_t len,
					       struct pst_cu_stream *stream)
{
	ENTER(cuMemcpyDtoDAsync_v2, NEED_OBJECT | NEED_TURN);
	return copy_submit_plain(FN_cuMemcpyDtoDAsync_v2, dst, KNOWN, src, KNOWN, len, stream, ctx,
				 false);
}

EXPORT enum pst_cu_result cuMemcpyPeerAsync(pst_cu_ptr dst, struct pst_cu_ctx *dst_ctx,
					    pst_cu_ptr src, struct pst_cu_ctx *src_ctx, size_t len,
					    struct pst_cu_stream *stream)
{
	ENTER(cuMemcpyPeerAsync, NEED_OBJECT | NEED_TURN);
	/* The real driver ignores the two contexts and uses only the addresses. */
	(void)dst_ctx;
	(void)src_ctx;
	return copy_submit_plain(FN_cuMemcpyPeerAsync, dst, KNOWN, src, KNOWN, len, stream, ctx,
				 false);
}

EXPORT enum pst_cu_result cuMemcpyHtoD_v2(pst_cu_ptr dst, const void *src, size_t len)
{
	ENTER(cuMemcpyHtoD_v2, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	return copy_submit_plain(FN_cuMemcpyHtoD_v2, dst, KNOWN, (uintptr_t)src, ANY, len, NULL,
				 ctx, true);
}

EXPORT enum pst_cu_result cuMemcpyDtoH_v2(void *dst, pst_cu_ptr src, size_t len)
{
	ENTER(cuMemcpyDtoH_v2, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	return copy_submit_plain(FN_cuMemcpyDtoH_v2, (uintptr_t)dst, ANY, src, KNOWN, len, NULL,
				 ctx, true);
}

EXPORT enum pst_cu_result cuMemcpyDtoD_v2(pst_cu_ptr dst, pst_cu_ptr src, size_t len)
{
	ENTER(cuMemcpyDtoD_v2, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	return copy_submit_plain(FN_cuMemcpyDtoD_v2, dst, KNOWN, src, KNOWN, len, NULL, ctx, true);
}

struct operand { /* The source or the destination of a pitched copy. */
	pst_cu_ptr ptr;
	enum side side;
};

static bool operand(enum pst_cu_memtype type, const void *host, pst_cu_ptr dev, size_t x, size_t y,
		    size_t pitch, const struct pst_cu_memcpy2d *c, struct operand *out)
{
	if (type == PST_CU_MEMTYPE_HOST)
		out->ptr = (uintptr_t)host;
	else if (type == PST_CU_MEMTYPE_DEVICE || type == PST_CU_MEMTYPE_UNIFIED)
		out->ptr = dev;
	else
		return false;
	out->side = type == PST_CU_MEMTYPE_DEVICE ? KNOWN : ANY;
	out->ptr += y * pitch + x;
	return (!pitch && c->height <= 1) || (x <= pitch && c->width_bytes <= pitch - x);
}

EXPORT enum pst_cu_result cuMemcpy2DAsync_v2(const struct pst_cu_memcpy2d *c,
					     struct pst_cu_stream *stream)
{
	struct operand dst, src;
	struct piece piece;

	ENTER(cuMemcpy2DAsync_v2, NEED_OBJECT | NEED_TURN);
	if (!c)
		return PST_CU_INVALID_VALUE;
	if (!operand(c->dst_type, c->dst_host, c->dst_dev, c->dst_x_bytes, c->dst_y, c->dst_pitch,
		     c, &dst) ||
	    !operand(c->src_type, c->src_host, c->src_dev, c->src_x_bytes, c->src_y, c->src_pitch,
		     c, &src))
		return standin_refuse(PST_CU_INVALID_VALUE, "a row is longer than its pitch");
	piece = (struct piece){.dst = dst.ptr,
			       .src = src.ptr,
			       .dst_pitch = c->dst_pitch,
			       .src_pitch = c->src_pitch,
			       .width = c->width_bytes,
			       .rows = c->height};
	return copy_submit(FN_cuMemcpy2DAsync_v2, piece, dst.side, src.side, stream, ctx, false);
}

/* Checks all copies of the batch before it queues the first one. Then queues each copy in the
 * hardware queue that it would use outside of a batch. */
EXPORT enum pst_cu_result cuMemcpyBatchAsync_v2(pst_cu_ptr *dsts, pst_cu_ptr *srcs, size_t *lens,
						size_t count, struct pst_cu_copy_attr *attrs,
						size_t *firsts, size_t attr_count,
						struct pst_cu_stream *stream)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuMemcpyBatchAsync_v2, NEED_OBJECT | NEED_TURN);
	if (!count || attr_count != 1 || firsts[0] || !stream ||
	    attrs->source_order != PST_CU_SOURCE_IN_STREAM)
		return standin_refuse(
			PST_CU_INVALID_VALUE,
			"a batch with attributes that the stand-in does not implement");
	for (size_t i = 0; i < count && !rc; i++) {
		struct piece piece = {.dst = dsts[i], .src = srcs[i], .width = lens[i], .rows = 1};
		struct where dst, src;

		lock();
		rc = copy_check(&piece, ANY, ANY, &dst, &src);
		unlock();
		if (!rc && !lens[i])
			rc = standin_refuse(PST_CU_INVALID_VALUE, "copy %zu has length 0", i);
	}
	for (size_t i = 0; i < count && !rc; i++) {
		struct piece piece = {.dst = dsts[i], .src = srcs[i], .width = lens[i], .rows = 1};

		rc = copy_submit(FN_cuMemcpyBatchAsync_v2, piece, ANY, ANY, stream, ctx, false);
	}
	return rc;
}

/* Converts one copy of a pitched batch to a `struct piece`. Returns false if NVIDIA's documentation
 * forbids the copy, or if it is of a kind that the stand-in does not implement. */
static bool piece_of_copy3d(const struct pst_cu_copy3d *c, struct piece *out)
{
	*out = (struct piece){.dst = c->dst.ptr,
			      .src = c->src.ptr,
			      .dst_pitch = c->dst.row_len ? c->dst.row_len : c->width_bytes,
			      .src_pitch = c->src.row_len ? c->src.row_len : c->width_bytes,
			      .width = c->width_bytes,
			      .rows = c->rows};
	return c->src.type == PST_CU_OPERAND_POINTER && c->dst.type == PST_CU_OPERAND_POINTER &&
	       c->layers == 1 && c->rows >= 2 && c->width_bytes &&
	       c->source_order == PST_CU_SOURCE_IN_STREAM && !c->flags &&
	       out->dst_pitch >= c->width_bytes && out->src_pitch >= c->width_bytes &&
	       (!c->src.layer_rows || c->src.layer_rows >= c->rows) &&
	       (!c->dst.layer_rows || c->dst.layer_rows >= c->rows);
}

/* Checks all copies of the batch before it queues the first one. A batch with a copy of one row is
 * refused, because the driver uses two hardware queues for it. */
EXPORT enum pst_cu_result cuMemcpy3DBatchAsync_v2(size_t count, struct pst_cu_copy3d *copies,
						  unsigned long long flags,
						  struct pst_cu_stream *stream)
{
	enum pst_cu_result rc = PST_CU_OK;
	struct piece piece;

	ENTER(cuMemcpy3DBatchAsync_v2, NEED_OBJECT | NEED_TURN);
	if (!count || !copies || flags || !stream)
		return standin_refuse(PST_CU_INVALID_VALUE, "a batch without copies or stream");
	for (size_t i = 0; i < count && !rc; i++) {
		struct where dst, src;

		if (!piece_of_copy3d(&copies[i], &piece))
			return standin_refuse(
				PST_CU_INVALID_VALUE,
				"copy %zu of the batch is of a kind that the stand-in refuses", i);
		lock();
		rc = copy_check(&piece, ANY, ANY, &dst, &src);
		unlock();
	}
	for (size_t i = 0; i < count && !rc; i++) {
		piece_of_copy3d(&copies[i], &piece);
		rc = copy_submit(FN_cuMemcpy3DBatchAsync_v2, piece, ANY, ANY, stream, ctx, false);
	}
	return rc;
}

EXPORT enum pst_cu_result cuMemsetD8Async(pst_cu_ptr dst, unsigned char byte, size_t len,
					  struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct where at;
	struct op *op;

	ENTER(cuMemsetD8Async, NEED_OBJECT | NEED_TURN);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (!s || !len)
		goto out;
	at = resolve(dst, len);
	if (s->ctx->broken)
		rc = s->ctx->broken;
	else if (at.place == PLACE_BAD || at.place == PLACE_PAGEABLE || !at.writable)
		rc = standin_refuse(PST_CU_INVALID_VALUE, "memset of %zu bytes at %llx", len, dst);
	else if (at.place == PLACE_DEVICE && !ctx_reaches(s->ctx, at.range->dev))
		rc = standin_refuse(PST_CU_INVALID_VALUE,
				    "the memory of another device without peer access");
	if (rc)
		goto out;
	op = op_new(OP_SET, FN_cuMemsetD8Async);
	if (!op) {
		rc = PST_CU_OUT_OF_MEMORY;
		goto out;
	}
	op->set.addr = dst;
	op->set.len = len;
	op->set.byte = byte;
	if (s->capturing)
		rc = capture_op(s, op, QUEUE_COMPUTE);
	else
		op_submit(op, s, QUEUE_COMPUTE);
	op_put(op);
out:
	unlock();
	return rc;
}
