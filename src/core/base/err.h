/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. A function that fails returns a negative errno; the code, the reason and a sentence
 * stay on the object that failed. The first function that knows the cause calls pst_fail, and
 * its callers only return the code. A synchronous public call also copies the error to its
 * thread with pst_err_publish, and penstock_errmsg() returns that copy.
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
	int code; /* negative errno; 0: no error */
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Fills `err` (NULL: the calling thread's error) and returns the negative errno that belongs to
 * `why`. %m in the format stands for the errno at the time of the call.
 */
int pst_fail(struct pst_err *err, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Like pst_fail, with an errno that the caller chooses: `code`, of either sign. %m stands for
 * this errno. */
int pst_fail_errno(struct pst_err *err, int code, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Copies `err` to the calling thread's error and returns its code. */
int pst_err_publish(const struct pst_err *err);

/* Returns the end of a long name, so that the rest of a message fits its buffer. The end of a
 * path identifies a file better than its beginning. */
const char *pst_path_tail(const char *name);

#endif
