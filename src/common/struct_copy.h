/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies versioned structs, whose first member is `size_t size`, between a caller and the
 * library. A caller may have been compiled with an older header (a shorter struct) or a newer
 * one (a longer struct). Called by the entry points of core and weights. It never words an
 * error: each caller does that from the returned code.
 */
#ifndef PST_COMMON_STRUCT_COPY_H
#define PST_COMMON_STRUCT_COPY_H

#include <stddef.h>

/* Largest `size` that is accepted. No struct of the API comes near, so that a larger one is
 * garbage, and its bytes need not be readable. */
#define PST_STRUCT_SIZE_MAX 4096u

/*
 * Copies the caller's struct `from` into `to`, which has `len` bytes. Members that the caller's
 * struct lacks become zero; `from` may be NULL, which makes all of them zero.
 * Returns 0, or a code with `to` zeroed:
 * -EINVAL: `size` is shorter than a size_t or longer than PST_STRUCT_SIZE_MAX.
 * -E2BIG: a byte beyond `len` is not zero: the caller sets a member that this library lacks.
 */
int pst_struct_read(void *to, size_t len, const void *from);

/*
 * Copies `from`, which has `len` bytes, into the caller's struct `to`, as far as its `size`
 * reaches; `size` itself stays. Returns 0, or -EINVAL if `size` is shorter than a size_t.
 */
int pst_struct_write(void *to, const void *from, size_t len);

#endif
