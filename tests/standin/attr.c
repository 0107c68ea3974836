/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's pointer attributes. For an unknown address, a query of several
 * attributes succeeds, but a query of one attribute fails. The real driver was measured to behave
 * the same way (README.md). This file must never access the bytes at an address.
 */
#include "standin.h"

#include <string.h>

struct answer {
	unsigned char bytes[8];
	size_t len; /* Length of the answer in bytes; 0 if the attribute must not be written. */
};

static struct answer answer(const void *value, size_t len)
{
	struct answer a = {.len = len};

	memcpy(a.bytes, value, len);
	return a;
}

static struct answer answer_int(int value)
{
	return answer(&value, sizeof(value));
}

static struct answer answer_long(unsigned long long value)
{
	return answer(&value, sizeof(value));
}

/* Returns an attribute of an address that belongs to no known range. `span` is the reservation
 * that contains the address, or NULL. */
static struct answer unknown_attr(enum pst_cu_ptr_attr attr, pst_cu_ptr ptr,
				  const struct span *span)
{
	switch ((int)attr) {
	case PST_CU_PTR_CONTEXT:
	case PST_CU_PTR_DEVICE_POINTER:
	case PST_CU_PTR_BUFFER_ID:
	case PST_CU_PTR_HANDLE_TYPES:
	case PST_CU_PTR_MEMPOOL:
	case PST_CU_PTR_MAPPING_SIZE:
	case PST_CU_PTR_MAPPING_START:
	case PST_CU_PTR_BLOCK_ID:
		return answer_long(0);
	case PST_CU_PTR_HOST_POINTER:
		return answer_long(ptr);
	case PST_CU_PTR_DEVICE_ORDINAL:
		return answer_int(-2);
	case PST_CU_PTR_RANGE_START:
		return span ? answer_long(span->start) : (struct answer){.len = 0};
	case PST_CU_PTR_RANGE_SIZE:
		return span ? answer_long(span->len) : (struct answer){.len = 0};
	default:
		return answer_int(0);
	}
}

static struct answer known_attr(enum pst_cu_ptr_attr attr, pst_cu_ptr ptr, const struct range *r,
				const struct span *span, const struct pst_cu_ctx *ctx)
{
	bool host = r->kind & RANGE_ON_HOST;
	bool reach = ctx && r->access && (host || ctx_reaches(ctx, r->dev));
	struct pst_cu_ctx *owner = r->ctx;

	switch ((int)attr) {
	case PST_CU_PTR_CONTEXT:
		return answer(&owner, sizeof(owner));
	case PST_CU_PTR_MEMORY_TYPE:
		return answer_int(host ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE);
	case PST_CU_PTR_DEVICE_POINTER:
		return answer_long(reach ? ptr : 0);
	case PST_CU_PTR_HOST_POINTER:
		return answer_long(host || r->kind == RANGE_MANAGED ? ptr : 0);
	case PST_CU_PTR_SYNC_MEMOPS:
	case PST_CU_PTR_IS_MANAGED:
		return answer_int(r->kind == RANGE_MANAGED);
	case PST_CU_PTR_BUFFER_ID:
		return answer_long(r->id);
	case PST_CU_PTR_DEVICE_ORDINAL:
		return answer_int(r->dev);
	case PST_CU_PTR_IS_IPC_CAPABLE:
		return answer_int(r->kind == RANGE_DEVICE);
	case PST_CU_PTR_RANGE_START:
		return answer_long(span ? span->start : r->start);
	case PST_CU_PTR_RANGE_SIZE:
		return answer_long(span ? span->len : r->len);
	case PST_CU_PTR_MAPPED:
		return answer_int(1);
	case PST_CU_PTR_HANDLE_TYPES:
		return answer_long(r->kind == RANGE_VMM ? PST_CU_HANDLE_FD : 0);
	case PST_CU_PTR_IS_RDMA_CAPABLE:
		return answer_int(0);
	case PST_CU_PTR_ACCESS_FLAGS:
		return answer_int(r->access);
	case PST_CU_PTR_MAPPING_SIZE:
		return answer_long(r->map_len);
	case PST_CU_PTR_MAPPING_START:
		return answer_long(r->map_start);
	case PST_CU_PTR_BLOCK_ID:
		return answer_long(r->block_id);
	/* The only other attribute is the handle of a memory pool. It is 0, because the device has
	 * only its default pool, which has no handle. */
	default:
		return answer_long(0);
	}
}

static bool is_attr(enum pst_cu_ptr_attr attr)
{
	return attr >= PST_CU_PTR_CONTEXT && attr <= PST_CU_PTR_BLOCK_ID && (int)attr != 5;
}

static struct answer attr_value(enum pst_cu_ptr_attr attr, pst_cu_ptr ptr,
				const struct pst_cu_ctx *ctx, bool *is_known)
{
	const struct range *r = range_find(ptr);
	const struct span *span = NULL;

	for (int i = 0; i < standin.device_count && !span; i++)
		span = span_find(i, ptr);
	if (span && !span->reserved)
		span = NULL;
	*is_known = r;
	return r ? known_attr(attr, ptr, r, span, ctx) : unknown_attr(attr, ptr, span);
}

EXPORT enum pst_cu_result cuPointerGetAttributes(unsigned int count, enum pst_cu_ptr_attr *attrs,
						 void **data, pst_cu_ptr ptr)
{
	bool is_known;

	ENTER(cuPointerGetAttributes, NEED_INIT);
	if (!count || !attrs || !data)
		return PST_CU_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++)
		if (!is_attr(attrs[i]))
			return standin_refuse(PST_CU_INVALID_VALUE, "attribute %d", (int)attrs[i]);
	lock();
	for (unsigned int i = 0; i < count; i++) {
		struct answer a = attr_value(attrs[i], ptr, ctx, &is_known);

		memcpy(data[i], a.bytes, a.len);
	}
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuPointerGetAttribute(void *data, enum pst_cu_ptr_attr attr,
						pst_cu_ptr ptr)
{
	struct answer a;
	bool is_known;

	ENTER(cuPointerGetAttribute, NEED_INIT);
	if (!data || !is_attr(attr))
		return standin_refuse(PST_CU_INVALID_VALUE, "attribute %d", (int)attr);
	lock();
	a = attr_value(attr, ptr, ctx, &is_known);
	unlock();
	if (!is_known)
		return standin_refuse(PST_CU_INVALID_VALUE, "%llx is unknown", ptr);
	if (attr == PST_CU_PTR_DEVICE_POINTER && !ctx)
		return standin_refuse(PST_CU_INVALID_CONTEXT,
				      "a device pointer without a current context");
	if ((attr == PST_CU_PTR_DEVICE_POINTER || attr == PST_CU_PTR_HOST_POINTER) &&
	    !memcmp(a.bytes, "\0\0\0\0\0\0\0", 8))
		return standin_refuse(PST_CU_INVALID_VALUE, "%llx has no such address", ptr);
	memcpy(data, a.bytes, a.len);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuPointerSetAttribute(const void *value, enum pst_cu_ptr_attr attr,
						pst_cu_ptr ptr)
{
	const struct range *r;

	ENTER(cuPointerSetAttribute, NEED_INIT);
	lock();
	r = range_find(ptr);
	unlock();
	if (!value || attr != PST_CU_PTR_SYNC_MEMOPS || !r || r->kind != RANGE_DEVICE)
		return standin_refuse(PST_CU_INVALID_VALUE, "set attribute %d", (int)attr);
	return PST_CU_OK;
}
