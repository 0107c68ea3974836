/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error reporting of src/weights and src/group: each failure leaves a sentence for
 * penstock_errmsg, and the file, tensor and offset for penstock_weights_get_place. Also the
 * copies of versioned structs, which fail with such a sentence. Never prints.
 */
#ifndef PST_WEIGHTS_ERR_H
#define PST_WEIGHTS_ERR_H

#include <stddef.h>
#include <stdint.h>

#include "penstock_weights.h"

/* Stands for "no offset" where an error has none. */
#define PST_NO_OFF UINT64_MAX

/*
 * Sets this thread's message and place, and returns -|code|. `file` and `tensor` may be NULL,
 * `off` may be PST_NO_OFF. The format may use %m, for which errno is set to |code|.
 */
int pst_weights_fail(int code, enum penstock_why why, const char *file, const char *tensor,
		     uint64_t off, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Does the same for a failed system call: the reason follows from the errno `code`. */
int pst_weights_fail_errno(int code, const char *file, const char *tensor, uint64_t off,
			   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Fails with -ENOMEM; `what` names what the memory was for. */
int pst_weights_no_memory(const char *what);
/* Fails with the message and the reason that a penstock_* function has just left, adding the
 * place. */
int pst_weights_fail_lib(int code, const char *file, const char *tensor, uint64_t off);

/* A copy of one thread's message and place, which another thread reports as its own. */
struct pst_weights_error {
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
	struct penstock_weights_place place;
};
/* Copies this thread's message and place into `error`. */
void pst_weights_error_save(struct pst_weights_error *error);
/* Makes `error` this thread's message and place, and returns -|code|. */
int pst_weights_error_restore(int code, const struct pst_weights_error *error);

/* Copies a caller's versioned struct into `to`, which has `len` bytes, as pst_struct_read
 * does. `name` is the struct's, for the message of a failure. */
int pst_weights_struct_in(void *to, size_t len, const void *from, const char *name);
/* Copies `from` into a caller's versioned struct, as pst_struct_write does. A caller that
 * left `size` at 0 gets all `len` bytes. */
void pst_weights_struct_out(void *to, const void *from, size_t len);

#endif
