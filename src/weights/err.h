/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error reporting of src/weights and src/group. Each failure leaves a message for
 * penstock_errmsg, and the file, tensor and offset for penstock_weights_get_place. Also copies
 * the versioned structs of callers, because such a copy can fail with a message. Never prints.
 */
#ifndef PST_WEIGHTS_ERR_H
#define PST_WEIGHTS_ERR_H

#include <stddef.h>
#include <stdint.h>

#include "penstock_weights.h"

/* The value of an offset that is not known. */
#define PST_NO_OFF UINT64_MAX

/*
 * Sets this thread's message and place (file, tensor, offset), and returns -|code|. `file` and
 * `tensor` may be NULL, `off` may be PST_NO_OFF. The format may use %m, because errno is set to
 * |code| first.
 */
int pst_weights_fail(int code, enum penstock_why why, const char *file, const char *tensor,
		     uint64_t off, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Does the same as pst_weights_fail for a failed system call, and derives the penstock_why from
 * the errno value `code`. */
int pst_weights_fail_errno(int code, const char *file, const char *tensor, uint64_t off,
			   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Sets the message that the argument `what`, for example "the model", is NULL. Returns -EINVAL. */
int pst_weights_fail_null(const char *what);
/* Sets the message for a failed allocation and returns -ENOMEM. `what` names the purpose of the
 * memory. */
int pst_weights_no_memory(const char *what);
/* Keeps the message and the penstock_why that a failed penstock_* function has just set, adds the
 * place (file, tensor, offset) to them, and returns -|code|. */
int pst_weights_fail_lib(int code, const char *file, const char *tensor, uint64_t off);

/* A copy of one thread's error: its message and its place (file, tensor, offset), so that another
 * thread can report them. */
struct pst_weights_error {
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
	struct penstock_weights_place place;
};
/* Copies this thread's message and place (file, tensor, offset) into `error`. */
void pst_weights_error_save(struct pst_weights_error *error);
/* Makes `error` this thread's message and place, and returns -|code|. */
int pst_weights_error_restore(int code, const struct pst_weights_error *error);

/* Copies a caller's versioned struct into `to`, which has `len` bytes, by the rules of
 * pst_struct_read. A message about a failure contains `name`, the name of the struct. */
int pst_weights_struct_in(void *to, size_t len, const void *from, const char *name);
/* Copies element `i` of a caller's array of versioned structs to `to`, see pst_struct_element. */
int pst_weights_struct_at(void *to, size_t len, const void *array, uint64_t i, const char *name);
/* Copies `from` into a caller's versioned struct, by the rules of pst_struct_write. If the
 * caller left `size` at 0, all `len` bytes are copied. */
void pst_weights_struct_out(void *to, const void *from, size_t len);

#endif
