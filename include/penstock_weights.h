/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_weights.h - a model's tensors from safetensors files into device memory.
 * It stands on penstock.h and keeps its conventions: errors, units, ownership,
 * threads, structs that begin with `size`.
 *
 *	struct penstock_weights *model;
 *	struct penstock_loaded *loaded;
 *
 *	penstock_weights_open("/models/llama", NULL, &model);
 *	penstock_weights_load(model, NULL, gpu, NULL, &loaded);
 *	ptr = penstock_loaded_ptr(loaded, penstock_weights_find(model, "lm_head.weight"));
 */
#ifndef PENSTOCK_WEIGHTS_H
#define PENSTOCK_WEIGHTS_H

#include "penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Dimensions of a tensor, upper bound. */
#define PENSTOCK_RANK_MAX 64

/*
 * The kinds of elements, as the format names them, and their bits. A tensor of
 * elements smaller than a byte holds whole bytes. The list grows at its end.
 *
 *   X(code, "name", bits)
 */
#define PENSTOCK_DTYPE_LIST(X)                                                       \
	X(BOOL, "BOOL", 8)                                                           \
	X(U8, "U8", 8)                                                               \
	X(I8, "I8", 8)                                                               \
	X(U16, "U16", 16)                                                            \
	X(I16, "I16", 16)                                                            \
	X(F16, "F16", 16)                                                            \
	X(BF16, "BF16", 16)                                                          \
	X(U32, "U32", 32)                                                            \
	X(I32, "I32", 32)                                                            \
	X(F32, "F32", 32)                                                            \
	X(U64, "U64", 64)                                                            \
	X(I64, "I64", 64)                                                            \
	X(F64, "F64", 64)                                                            \
	X(C64, "C64", 64)                                                            \
	X(F8_E4M3, "F8_E4M3", 8)                                                     \
	X(F8_E5M2, "F8_E5M2", 8)                                                     \
	X(F8_E8M0, "F8_E8M0", 8)                                                     \
	X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                             \
	X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                             \
	X(F6_E2M3, "F6_E2M3", 6)                                                     \
	X(F6_E3M2, "F6_E3M2", 6)                                                     \
	X(F4, "F4", 4)

enum penstock_dtype {
	PENSTOCK_DTYPE_NONE, /* in a question: whichever */
#define PENSTOCK_DTYPE_ENUM(code, name, bits) PENSTOCK_DTYPE_##code,
	PENSTOCK_DTYPE_LIST(PENSTOCK_DTYPE_ENUM)
#undef PENSTOCK_DTYPE_ENUM
	PENSTOCK_DTYPES
};

/* "BF16" and 16. Static; "none" and 0 for what is none. */
PENSTOCK_API const char *penstock_dtype_name(unsigned dtype);
PENSTOCK_API unsigned penstock_dtype_bits(unsigned dtype);

#ifdef __cplusplus
}
#endif
#endif
