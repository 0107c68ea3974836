/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict pull reader of JSON for headers and indices: the caller says what must
 * come next. Strings are unescaped in place, so the text is written to and owned by
 * the caller. It never reads past the text, never allocates and never recurses.
 */
#ifndef PST_JOB_JSON_PULL_H
#define PST_JOB_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pst_json {
	char *text;
	size_t len, at;
	const char *what;    /* the first thing that was wrong, NULL: nothing */
	bool python_numbers; /* what is skipped may be NaN, Infinity, -Infinity, as Python writes */
};

/* Remembers the first complaint; false, so that callers can return it. */
bool pst_json_wrong(struct pst_json *in, const char *what);

/* The next byte behind blanks, 0 at the end. */
int pst_json_peek(struct pst_json *in);
/* Takes `c`, or complains. */
bool pst_json_take(struct pst_json *in, char c);
/*
 * Inside {} or []: true if another member follows, having taken the comma; false at
 * the closing `end`, which is taken, or when something is wrong. *first starts true.
 */
bool pst_json_more(struct pst_json *in, char end, bool *first);
/* A string, ended by NUL, in valid UTF-8 without a NUL in it. */
bool pst_json_string(struct pst_json *in, char **out, size_t *len);
/* A whole number that fits, without sign, fraction or exponent. */
bool pst_json_number(struct pst_json *in, uint64_t *out);
/* Any value, left unread. */
bool pst_json_skip(struct pst_json *in);
/* Nothing but blanks is left. */
bool pst_json_end(struct pst_json *in);

#endif
