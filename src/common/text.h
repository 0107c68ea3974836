/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that grows: functions append bytes, numbers and JSON strings to it. The writers of
 * safetensors headers and of manifests use it. A failed allocation is recorded in the text, so that
 * a caller checks for it only once, when the text is complete.
 */
#ifndef PST_COMMON_TEXT_H
#define PST_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All members are 0 at first. The owner frees `at` with free(). */
struct pst_text {
	char *at; /* the text, with a NUL after its last byte; NULL if nothing was appended */
	size_t len, capacity;
	bool failed; /* whether an allocation failed; the text is then incomplete */
};

/* Appends `len` bytes. */
void pst_text_put(struct pst_text *t, const char *bytes, size_t len);
/* Appends a NUL-terminated string, without its NUL. */
void pst_text_put_str(struct pst_text *t, const char *text);
/* Appends what printf would print. Text of 1024 bytes or more counts as a failed allocation. */
__attribute__((format(printf, 2, 3))) void pst_text_printf(struct pst_text *t, const char *fmt,
							   ...);
/* Appends a number in decimal digits. */
void pst_text_put_number(struct pst_text *t, uint64_t n);
/* Appends a JSON string: quotes around `s`, and escapes for the bytes that JSON does not allow. */
void pst_text_put_json(struct pst_text *t, const char *s);

#endif
