/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: a negative errno travels, code and sentence stay on the object that
 * failed. The first function that knows why calls pst_fail; its callers only
 * propagate. Synchronous public calls leave a copy with pst_err_publish, which
 * penstock_errmsg() reads.
 */
#ifndef PST_CORE_ERR_H
#define PST_CORE_ERR_H

#include <errno.h>
#include <stdarg.h>

#include "penstock.h"

#define PST_WHY_ONE(code, name, text) +1
#define PST_WHY_COUNT (0 PENSTOCK_WHY_LIST(PST_WHY_ONE))

struct pst_err {
	int code; /* negative errno, 0: none */
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Fills `err` (NULL: this thread's message) and returns the negative errno that
 * belongs to `why`. %m in the format is the errno at the time of the call.
 */
int pst_fail(struct pst_err *err, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with an errno of the caller's choice; `code` may have either sign. */
int pst_fail_errno(struct pst_err *err, int code, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Copies `err` to this thread's message and returns its code. */
int pst_err_publish(const struct pst_err *err);

/* The end of a long name, which says more than its beginning and leaves the sentence room. */
const char *pst_path_tail(const char *name);

/* The reason that fits an errno which a system call on a storage gave. */
enum penstock_why pst_why_of_errno(int code);

#endif
