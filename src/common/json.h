/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pull parser of JSON: the caller states which token must come next. Called by the readers
 * of model files in src/job, and by the drop-in in shim/ for cufile.json. Strings are
 * unescaped in place, so the parser writes to the text, which the caller owns. It must never
 * read past the text, allocate or recurse.
 */
#ifndef PST_COMMON_JSON_H
#define PST_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pst_json {
	char *text;
	size_t len, at;
	const char *what;    /* the first error, NULL: none */
	bool python_numbers; /* accept NaN, Infinity and -Infinity, which Python writes, in skips */
	/*
	 * Accept what files such as cufile.json have beyond JSON: comments, a comma after the last
	 * member, leading zeros, "1.", and strings that are not UTF-8. An escaped NUL or half of
	 * a surrogate pair becomes a question mark.
	 */
	bool lenient;
	unsigned lines; /* number of line ends before `at` */
};

/* Records the first error and returns false, so that callers can return it. */
bool pst_json_wrong(struct pst_json *in, const char *what);

/* Returns the next byte after blanks and comments without consuming it, 0 at the end. */
int pst_json_peek(struct pst_json *in);
/* Consumes `c`, or records an error. */
bool pst_json_take(struct pst_json *in, char c);
/*
 * Steps to the next member inside {} or []. Returns true if there is one, after consuming the
 * comma. Returns false after consuming the closing byte `end`, or on an error. The caller sets
 * *first to true before the first member.
 */
bool pst_json_more(struct pst_json *in, char end, bool *first);
/* Reads a string. *out is terminated by NUL, contains no NUL, and is valid UTF-8 unless lenient. */
bool pst_json_string(struct pst_json *in, char **out, size_t *len);
/* Reads a whole number of at most 64 bits without sign, fraction or exponent. */
bool pst_json_number(struct pst_json *in, uint64_t *out);
/* Checks any value and skips it. */
bool pst_json_skip(struct pst_json *in);
/* Checks that only blanks and comments are left. */
bool pst_json_end(struct pst_json *in);

#endif
