/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pull parser for JSON: its caller states which token must come next. Called by the readers of
 * model files in src/weights, and by the cuFile drop-in (shim/), which reads cufile.json. The
 * parser unescapes strings in place, so it writes to the text, which the caller owns. It must
 * never read past the end of the text, allocate memory or recurse.
 */
#ifndef PST_COMMON_JSON_H
#define PST_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pst_json {
	char *text;
	size_t len, at;
	const char *what; /* message of the first error; NULL if there was none */
	/* Whether pst_json_skip accepts NaN, Infinity and -Infinity, which Python writes. */
	bool python_numbers;
	/*
	 * Whether the parser also accepts texts that are not strictly JSON, such as cufile.json:
	 * with comments, a comma after the last member, leading zeros, numbers such as "1.", and
	 * strings that are not UTF-8. It then writes a question mark for an escaped NUL and for
	 * half of a surrogate pair.
	 */
	bool lenient;
	unsigned lines; /* number of line ends in the text before offset `at` */
};

/* Records the error `what`, unless an earlier error is recorded. Always returns false, so that a
 * caller can return the result. */
bool pst_json_wrong(struct pst_json *in, const char *what);

/* Skips white space, and also comments if the parser is lenient. Returns the next byte without
 * consuming it, or 0 at the end of the text. */
int pst_json_peek(struct pst_json *in);
/* Consumes the byte `c` if it comes next after white space, else records an error. Returns whether
 * it consumed `c`. */
bool pst_json_take(struct pst_json *in, char c);
/*
 * Moves to the next member of an object or array. If there is one, consumes the comma before it
 * and returns true. If there is none, consumes the closing byte `end` and returns false. Also
 * returns false on an error. The caller sets *first to true before the first call for an object
 * or array.
 */
bool pst_json_more(struct pst_json *in, char end, bool *first);
/* Reads a string. *out ends with a NUL and contains no other NUL. It is valid UTF-8 unless the
 * parser is lenient. */
bool pst_json_string(struct pst_json *in, char **out, size_t *len);
/* Reads a whole number of at most 64 bits without sign, fraction or exponent. */
bool pst_json_number(struct pst_json *in, uint64_t *out);
/* Skips the next value, of any type, and checks its syntax. */
bool pst_json_skip(struct pst_json *in);
/* Checks that the rest of the text has only white space, and comments if the parser is lenient. */
bool pst_json_end(struct pst_json *in);

#endif
