/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements errors: see err.h. Contains the tables with the texts of all reasons, and each
 * thread's last error, which is the only thread-local state of the library. This file must never
 * print; log.c does that.
 */
#include "core/base/err.h"

#include <stdio.h>
#include <string.h>

#include "common/utf8.h"

static _Thread_local struct pst_err thread_err = {0, PENSTOCK_WHY_NONE, ""};

static const char *const why_names[] = {
#define NAME(code, name, text) name,
	PENSTOCK_WHY_LIST(NAME)
#undef NAME
};

static const char *const why_texts[] = {
#define TEXT(code, name, text) text,
	PENSTOCK_WHY_LIST(TEXT)
#undef TEXT
};

/* Returns the positive errno that belongs to a reason. pst_fail returns its negative value to the
 * callers. */
static int errno_of_why(enum penstock_why why)
{
	switch (why) {
	case PENSTOCK_WHY_BAD_ARGUMENT:
	case PENSTOCK_WHY_BAD_KIND:
	case PENSTOCK_WHY_UNALIGNED:
		return EINVAL;
	case PENSTOCK_WHY_NOT_FOUND:
		return ENOENT;
	case PENSTOCK_WHY_NO_PERMISSION:
	case PENSTOCK_WHY_RESIDENCY_EPERM:
		return EACCES;
	case PENSTOCK_WHY_NO_MEMORY:
	case PENSTOCK_WHY_MEMLOCK:
		return ENOMEM;
	case PENSTOCK_WHY_NO_DEVICE:
	case PENSTOCK_WHY_NO_DRIVER:
		return ENODEV;
	case PENSTOCK_WHY_READ_ONLY:
		return EROFS;
	case PENSTOCK_WHY_NO_FILES:
		return EMFILE;
	case PENSTOCK_WHY_FULL:
		return EAGAIN;
	case PENSTOCK_WHY_CANCELLED:
		return ECANCELED;
	case PENSTOCK_WHY_DEADLINE:
		return ETIME;
	case PENSTOCK_WHY_NO_SPACE:
		return ENOSPC;
	case PENSTOCK_WHY_SHRANK:
	case PENSTOCK_WHY_SHORT_IO:
		return ENODATA;
	case PENSTOCK_WHY_STALE:
		return ESTALE;
	case PENSTOCK_WHY_IO_ERROR:
	case PENSTOCK_WHY_DEVICE_ERROR:
	case PENSTOCK_WHY_CANARY:
	case PENSTOCK_WHY_INJECTED:
		return EIO;
	default:
		return EOPNOTSUPP;
	}
}

#define NAME_MAX_BYTES 250 /* maximum length of a file name in an error message */

const char *pst_path_tail(const char *name)
{
	size_t len = strlen(name);

	if (len > NAME_MAX_BYTES)
		name += len - NAME_MAX_BYTES;
	/* The message must be valid UTF-8, so skip the rest of a multi-byte character that the cut
	 * has split. */
	while (((unsigned char)*name & 0xc0) == 0x80)
		name++;
	return name;
}

static int err_fill(struct pst_err *err, int code, enum penstock_why why, const char *fmt,
		    va_list args)
{
	if (!err)
		err = &thread_err;
	err->code = code < 0 ? code : -code;
	err->why = why;
	if (vsnprintf(err->text, sizeof(err->text), fmt, args) >= (int)sizeof(err->text))
		pst_utf8_end(err->text, sizeof(err->text) - 1);
	return err->code;
}

int pst_fail(struct pst_err *err, enum penstock_why why, const char *fmt, ...)
{
	va_list args;
	int code;

	va_start(args, fmt);
	code = err_fill(err, errno_of_why(why), why, fmt, args);
	va_end(args);
	return code;
}

int pst_fail_errno(struct pst_err *err, int code, enum penstock_why why, const char *fmt, ...)
{
	va_list args;
	int ret;

	errno = code < 0 ? -code : code; /* %m in the format prints this errno */
	va_start(args, fmt);
	ret = err_fill(err, code, why, fmt, args);
	va_end(args);
	return ret;
}

int pst_fail_null(const char *what)
{
	return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "%s is NULL", what);
}

int penstock_fail(int code, enum penstock_why why, const char *fmt, ...)
{
	struct pst_err err;
	va_list args;

	errno = code < 0 ? -code : code; /* lets %m in the format print this errno */
	va_start(args, fmt);
	/* Format the message in `err` and copy it to thread_err afterwards, because an argument may
	 * point into the old text of thread_err. */
	err_fill(&err, code, why, fmt ? fmt : penstock_why_text(why), args);
	va_end(args);
	return pst_err_publish(&err);
}

int pst_err_publish(const struct pst_err *err)
{
	if (err != &thread_err)
		thread_err = *err;
	return err->code;
}

const char *penstock_why_name(unsigned why)
{
	return why < PST_WHY_COUNT ? why_names[why] : "unknown";
}

const char *penstock_why_text(unsigned why)
{
	return why < PST_WHY_COUNT ? why_texts[why] : "unknown";
}

const char *penstock_errmsg(void)
{
	return thread_err.text;
}

enum penstock_why penstock_errwhy(void)
{
	return thread_err.why;
}
