/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies versioned structs, whose first member is `size_t size`, between a caller and the
 * library. A caller may have been compiled with an older header, whose struct is shorter, or
 * with a newer one, whose struct is longer. The public functions of src/core and src/weights call
 * pst_struct_read and pst_struct_write. If these two fail, they return an error code and write no
 * error message: their callers write it.
 */
#ifndef PST_COMMON_STRUCT_COPY_H
#define PST_COMMON_STRUCT_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Largest accepted value of `size`. No struct of the API is nearly as long, so a larger value is
 * garbage, and the caller's readable memory may end earlier. */
#define PST_STRUCT_SIZE_MAX 4096u

/*
 * Copies the caller's struct `from` into `to`, which has `len` bytes. Members that the caller's
 * struct lacks become zero. If `from` is NULL, all members become zero. Returns 0 on success. On
 * an error it sets all of `to` to zero. It returns -EINVAL if `size` is less than sizeof(size_t)
 * or greater than PST_STRUCT_SIZE_MAX. It returns -E2BIG if the caller's struct has a byte beyond
 * `len` that is not zero: the caller has set a member unknown to this library.
 */
int pst_struct_read(void *to, size_t len, const void *from);

/*
 * Copies `from`, which has `len` bytes, into the caller's struct `to`, but no more bytes than
 * the `size` of that struct. The member `size` keeps its value. Returns 0, or -EINVAL if `size`
 * is less than sizeof(size_t).
 */
int pst_struct_write(void *to, const void *from, size_t len);

/*
 * Returns the address of element `i` of a caller's array of structs. The `size` of element 0 is the
 * distance between two elements. Returns NULL if element `i` has another `size`: a longer element
 * would reach into the next one, and shorter elements would lie closer together. Element 0
 * is always returned, even if its `size` is wrong. So a caller passes element 0 to pst_struct_read
 * before it calls this function for another element.
 */
const void *pst_struct_element(const void *array, uint64_t i);

#endif
