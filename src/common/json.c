/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the pull parser that json.h declares. This file is compiled into the library and
 * into the cuFile drop-in (shim/), so it includes no project header from outside its own folder.
 * The parser must never read past the end of the text, allocate memory or recurse.
 */
#include "json.h"

#include <string.h>

#include "utf8.h"

#define DEPTH_MAX 64

bool pst_json_wrong(struct pst_json *in, const char *what)
{
	if (!in->what)
		in->what = what;
	return false;
}

/* Consumes one byte of white space or of a comment, and counts line ends. Only white space and
 * comments can contain line ends. */
static void step(struct pst_json *in)
{
	in->lines += in->text[in->at++] == '\n';
}

/* Skips one C or C++ comment. Returns false if no comment starts at the current position, or if the
 * comment has no end. */
static bool skip_comment(struct pst_json *in)
{
	const char *text = in->text;

	if (in->len - in->at < 2 || text[in->at] != '/' ||
	    (text[in->at + 1] != '/' && text[in->at + 1] != '*'))
		return false;
	if (text[in->at + 1] == '/') {
		while (in->at < in->len && text[in->at] != '\n')
			in->at++;
		return true;
	}
	for (in->at += 2; in->len - in->at >= 2; step(in))
		if (text[in->at] == '*' && text[in->at + 1] == '/') {
			in->at += 2;
			return true;
		}
	in->at = in->len;
	return pst_json_wrong(in, "the end of a comment is missing");
}

int pst_json_peek(struct pst_json *in)
{
	do
		while (in->at < in->len && (in->text[in->at] == ' ' || in->text[in->at] == '\n' ||
					    in->text[in->at] == '\t' || in->text[in->at] == '\r'))
			step(in);
	while (in->lenient && skip_comment(in));
	return in->at < in->len ? (unsigned char)in->text[in->at] : 0;
}

bool pst_json_take(struct pst_json *in, char c)
{
	static const char *const wanted[] = {"'{' is missing", "'[' is missing",
					     "':' is missing", "'}' is missing",
					     "']' is missing", "a string is missing"};
	const char *which;

	if (pst_json_peek(in) == c && in->at < in->len) {
		in->at++;
		return true;
	}
	which = strchr("{[:}]\"", c);
	return pst_json_wrong(in, wanted[which - "{[:}]\""]);
}

bool pst_json_more(struct pst_json *in, char end, bool *first)
{
	int c = pst_json_peek(in);

	if (in->what)
		return false;
	if (c == end) {
		in->at++;
		return false;
	}
	if (!*first) {
		if (c != ',')
			return pst_json_wrong(in, end == '}'
							  ? "a comma is missing, or the closing }"
							  : "a comma is missing, or the closing ]");
		in->at++;
		if (pst_json_peek(in) == end) {
			if (!in->lenient)
				return pst_json_wrong(in, "a comma too many");
			in->at++;
			return false;
		}
	}
	*first = false;
	return !in->what;
}

/* ---- strings ---- */

/* Returns the value of the four hexadecimal digits at offset `at`, or -1 if there are no four
 * digits. */
static int hex4(const struct pst_json *in, size_t at)
{
	int value = 0;

	if (at > in->len || in->len - at < 4)
		return -1;
	for (unsigned i = 0; i < 4; i++) {
		unsigned char c = (unsigned char)in->text[at + i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return -1;
		value = value << 4 | digit;
	}
	return value;
}

/* Writes a code point to `out` as UTF-8, and returns the number of bytes written. */
static size_t put_utf8(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* Handles an escape that a C string cannot represent: a lenient parser writes a question mark
 * instead, a strict one records the error `what`. Returns the number of bytes written, 0 on an
 * error. */
static size_t unescape_odd(struct pst_json *in, char *out, const char *what)
{
	if (!in->lenient)
		return pst_json_wrong(in, what);
	*out = '?';
	return 1;
}

/* Decodes the four digits after "\u", and the next escape if the two form a surrogate pair. Returns
 * the number of bytes written, or 0 on an error. The decoded text is never longer than the escape,
 * so it can overwrite the escape. */
static size_t unescape_u(struct pst_json *in, char *out)
{
	int high = hex4(in, in->at), low;
	uint32_t c;

	if (high < 0)
		return pst_json_wrong(in, "\\u wants four hexadecimal digits");
	in->at += 4;
	c = (uint32_t)high;
	if (c >= 0xd800 && c < 0xdc00) {
		low = in->len - in->at >= 6 && in->text[in->at] == '\\' &&
				      in->text[in->at + 1] == 'u'
			      ? hex4(in, in->at + 2)
			      : -1;
		if (low < 0xdc00 || low > 0xdfff)
			return unescape_odd(in, out, "half of a surrogate pair");
		in->at += 6;
		c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
	} else if (c >= 0xdc00 && c < 0xe000) {
		return unescape_odd(in, out, "half of a surrogate pair");
	}
	if (!c)
		return unescape_odd(in, out, "a NUL in a string");
	return put_utf8(out, c);
}

/* Decodes the escape whose backslash the caller has consumed. Returns the number of bytes written,
 * or 0 on an error. */
static size_t unescape(struct pst_json *in, char *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *which;
	char c;

	if (in->at >= in->len)
		return pst_json_wrong(in, "a string without end");
	c = in->text[in->at++];
	if (c == 'u')
		return unescape_u(in, out);
	which = c ? strchr(from, c) : NULL;
	if (!which)
		return pst_json_wrong(in, "an unknown escape in a string");
	*out = to[which - from];
	return 1;
}

bool pst_json_string(struct pst_json *in, char **out, size_t *len)
{
	char *start, *put;

	if (!pst_json_take(in, '"'))
		return false;
	start = put = in->text + in->at;
	while (in->at < in->len && in->text[in->at] != '"') {
		size_t n;

		if (in->text[in->at] == '\\') {
			in->at++;
			n = unescape(in, put);
			if (!n)
				return false;
			put += n;
			continue;
		}
		if ((unsigned char)in->text[in->at] < 0x20)
			return pst_json_wrong(in, "a control character in a string");
		n = pst_utf8_length(in->text + in->at, in->len - in->at);
		if (!n && !in->lenient)
			return pst_json_wrong(in, "bytes that are not UTF-8");
		n += !n;
		memmove(put, in->text + in->at, n);
		put += n;
		in->at += n;
	}
	if (in->at >= in->len)
		return pst_json_wrong(in, "a string without end");
	in->at++;
	/* `put` does not lie beyond the closing quote, so the NUL is written inside the text */
	*put = '\0';
	*out = start;
	*len = (size_t)(put - start);
	return true;
}

/* ---- numbers and skipped values ---- */

bool pst_json_number(struct pst_json *in, uint64_t *out)
{
	uint64_t value = 0;
	size_t start;
	int c = pst_json_peek(in);

	if (c < '0' || c > '9')
		return pst_json_wrong(in, "a whole number from 0 on is missing");
	for (start = in->at; in->at < in->len; in->at++) {
		c = (unsigned char)in->text[in->at];
		if (c < '0' || c > '9')
			break;
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(c - '0'), &value))
			return pst_json_wrong(in, "a number of more than 64 bits");
	}
	if (in->at - start > 1 && in->text[start] == '0' && !in->lenient)
		return pst_json_wrong(in, "a number that begins with 0");
	if (in->at < in->len && (c == '.' || c == 'e' || c == 'E'))
		return pst_json_wrong(in, "a number that is not whole");
	*out = value;
	return true;
}

static bool is_digit(const struct pst_json *in)
{
	return in->at < in->len && in->text[in->at] >= '0' && in->text[in->at] <= '9';
}

static bool skip_digits(struct pst_json *in)
{
	if (!is_digit(in))
		return pst_json_wrong(in, "a digit is missing");
	while (is_digit(in))
		in->at++;
	return true;
}

static bool skip_number(struct pst_json *in)
{
	if (in->text[in->at] == '-')
		in->at++;
	if (!in->lenient && in->at < in->len && in->text[in->at] == '0')
		in->at++;
	else if (!skip_digits(in))
		return false;
	if (in->at < in->len && in->text[in->at] == '.') {
		in->at++;
		if ((is_digit(in) || !in->lenient) && !skip_digits(in))
			return false;
	}
	if (in->at < in->len && (in->text[in->at] | 0x20) == 'e') {
		in->at++;
		if (in->at < in->len && (in->text[in->at] == '+' || in->text[in->at] == '-'))
			in->at++;
		return skip_digits(in);
	}
	return true;
}

/* Skips a value that is neither an object nor an array: a string, a number, or a word such as
 * `true`. `c` is the first byte of the value. */
static bool skip_plain(struct pst_json *in, int c)
{
	static const char *const words[] = {"true", "false",	"null",
					    "NaN",  "Infinity", "-Infinity"};
	const unsigned count = in->python_numbers ? 6 : 3;
	char *text;
	size_t len;

	if (c == '"')
		return pst_json_string(in, &text, &len);
	for (unsigned i = 0; i < count; i++) {
		len = strlen(words[i]);
		if (in->len - in->at >= len && !memcmp(in->text + in->at, words[i], len)) {
			in->at += len;
			return true;
		}
	}
	if (c == '-' || (c >= '0' && c <= '9'))
		return skip_number(in);
	return pst_json_wrong(in, "a value is missing");
}

bool pst_json_skip(struct pst_json *in)
{
	char ends[DEPTH_MAX];
	bool first[DEPTH_MAX];
	unsigned depth = 0;

	do {
		int c = pst_json_peek(in);

		if (c == '{' || c == '[') {
			if (depth == DEPTH_MAX)
				return pst_json_wrong(in, "nested too deeply");
			in->at++;
			ends[depth] = c == '{' ? '}' : ']';
			first[depth++] = true;
		} else if (!skip_plain(in, c)) {
			return false;
		}
		while (depth && !pst_json_more(in, ends[depth - 1], &first[depth - 1])) {
			if (in->what)
				return false;
			depth--;
		}
		if (depth && ends[depth - 1] == '}') {
			char *key;
			size_t len;

			if (!pst_json_string(in, &key, &len) || !pst_json_take(in, ':'))
				return false;
		}
	} while (depth);
	return true;
}

bool pst_json_end(struct pst_json *in)
{
	pst_json_peek(in);
	if (in->at < in->len)
		return pst_json_wrong(in, "something behind the end");
	return !in->what; /* false if a comment has no end */
}
