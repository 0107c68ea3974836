/* SPDX-License-Identifier: Apache-2.0 */
/* Results of cuFile calls, made from the library's errors (-errno and reason). */
#ifndef SHIM_FAIL_H
#define SHIM_FAIL_H

#include "abi/cufile_abi.h"
#include "penstock.h"

static inline struct cuf_error shim_ok(void)
{
	return (struct cuf_error){CUF_SUCCESS, 0};
}

static inline struct cuf_error shim_err(int code)
{
	return (struct cuf_error){code, 0};
}

/* Returns the ABI code for an error (-errno and reason) that the library has just returned on
 * this thread. Returns 0 if no code fits. The error then comes from the file system, and its
 * errno describes it. */
int shim_code(int64_t ret, enum penstock_why why);
/* Returns the error in the form that cuFileRead returns: -1 with errno set, or a negated code. */
ssize_t shim_result(int64_t ret, enum penstock_why why);

#endif
