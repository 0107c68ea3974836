/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. A function that fails returns a negative errno. It also stores this code, the reason and
 * a sentence in a struct pst_err. The first function that knows the cause calls pst_fail, and the
 * functions above it only return the code. A synchronous public function also copies the error to
 * the calling thread's error with pst_err_publish; penstock_errmsg() returns the sentence of that
 * copy.
 */
#ifndef PST_CORE_ERR_H
#define PST_CORE_ERR_H

#include <errno.h>
#include <stdarg.h>

#include "common/why.h"
#include "penstock.h"

#define PST_WHY_ONE(code, name, text) +1
#define PST_WHY_COUNT (0 PENSTOCK_WHY_LIST(PST_WHY_ONE))

struct pst_err {
	int code; /* negative errno; 0 if there is no error */
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Fills `err`, or the calling thread's error if `err` is NULL. Returns the negative errno that
 * belongs to the reason `why`. %m in the format prints the value of errno at the time of the
 * call.
 */
int pst_fail(struct pst_err *err, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Like pst_fail, but returns and stores the errno `code`, which the caller passes as a positive or
 * negative number. %m in the format prints this errno. */
int pst_fail_errno(struct pst_err *err, int code, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Stores in the calling thread's error that the argument `what`, for example "the queue", is NULL.
 * Returns -EINVAL. */
int pst_fail_null(const char *what);

/* Copies `err` to the calling thread's error and returns err->code. */
int pst_err_publish(const struct pst_err *err);

/* Returns the last part of a file name that is too long for a message buffer, or the whole name if
 * it is short enough. The end of a path identifies a file better than its beginning. */
const char *pst_path_tail(const char *name);

#endif
