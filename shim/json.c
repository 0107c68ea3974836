/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader: see json.h. Bounded in depth, path and text; it looks at each byte
 * once and never past the end.
 */
#include "json.h"

#include <string.h>

struct reader {
	const char *at, *end;
	int line, depth;
	shim_json_fn *fn;
	void *arg;
	const char *what;
	char path[SHIM_JSON_PATH];
	char text[SHIM_JSON_TEXT];
};

static bool wrong(struct reader *r, const char *what)
{
	if (!r->what)
		r->what = what;
	return false;
}

static bool peek(const struct reader *r, char c)
{
	return r->at < r->end && *r->at == c;
}

static void step(struct reader *r)
{
	r->line += *r->at == '\n';
	r->at++;
}

/* Blanks and the comments of C and C++. */
static bool skip(struct reader *r)
{
	for (;;) {
		while (r->at < r->end &&
		       (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
			step(r);
		if (r->end - r->at < 2 || r->at[0] != '/')
			return true;
		if (r->at[1] == '/') {
			while (r->at < r->end && *r->at != '\n')
				r->at++;
		} else if (r->at[1] == '*') {
			r->at += 2;
			while (r->end - r->at >= 2 && !(r->at[0] == '*' && r->at[1] == '/'))
				step(r);
			if (r->end - r->at < 2)
				return wrong(r, "the end of a comment");
			r->at += 2;
		} else {
			return true;
		}
	}
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \uXXXX, as bytes of UTF-8; a half of a pair becomes a question mark. */
static bool escape_u(struct reader *r, unsigned *out)
{
	unsigned code = 0;

	if (r->end - r->at < 4)
		return wrong(r, "four digits after \\u");
	for (int i = 0; i < 4; i++) {
		int digit = hex(*r->at++);

		if (digit < 0)
			return wrong(r, "four digits after \\u");
		code = code << 4 | (unsigned)digit;
	}
	*out = code >= 0xd800 && code < 0xe000 ? '?' : code;
	return true;
}

static void put(char *to, size_t size, size_t *len, unsigned code)
{
	char bytes[3];
	size_t count = 0;

	if (code < 0x80) {
		bytes[count++] = (char)(code ? code : '?');
	} else if (code < 0x800) {
		bytes[count++] = (char)(0xc0 | code >> 6);
		bytes[count++] = (char)(0x80 | (code & 63));
	} else {
		bytes[count++] = (char)(0xe0 | code >> 12);
		bytes[count++] = (char)(0x80 | (code >> 6 & 63));
		bytes[count++] = (char)(0x80 | (code & 63));
	}
	for (size_t i = 0; i < count && *len + 1 < size; i++)
		to[(*len)++] = bytes[i];
}

/* A string into `to`; what does not fit is cut. The quote is next. */
static bool string(struct reader *r, char *to, size_t size)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	size_t len = 0;

	r->at++;
	while (r->at < r->end && *r->at != '"') {
		unsigned code = (unsigned char)*r->at++;
		const char *known;

		if (code < ' ')
			return wrong(r, "the end of a string");
		if (code != '\\') {
			if (len + 1 < size)
				to[len++] = (char)code;
			continue;
		}
		if (r->at == r->end)
			return wrong(r, "the end of a string");
		code = (unsigned char)*r->at++;
		known = code ? memchr(from, (int)code, sizeof(from) - 1) : NULL;
		if (code == 'u') {
			if (!escape_u(r, &code))
				return false;
		} else if (known) {
			code = (unsigned char)into[known - from];
		} else {
			return wrong(r, "a letter that may stand after \\");
		}
		put(to, size, &len, code);
	}
	if (r->at == r->end)
		return wrong(r, "the end of a string");
	r->at++;
	to[len] = '\0';
	return true;
}

static bool call(struct reader *r, struct shim_json_value *value, int index)
{
	value->path = r->path;
	value->index = index;
	value->line = r->line;
	return !r->fn || r->fn(r->arg, value);
}

static bool word(struct reader *r, const char *text, struct shim_json_value value, int index)
{
	size_t len = strlen(text);

	if ((size_t)(r->end - r->at) < len || memcmp(r->at, text, len) != 0)
		return wrong(r, "a value");
	r->at += len;
	call(r, &value, index);
	return true;
}

static bool is_digit(const struct reader *r)
{
	return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static bool number(struct reader *r, int index)
{
	struct shim_json_value value = {.type = SHIM_JSON_NUMBER, .whole = true};

	if (peek(r, '-')) {
		value.whole = false;
		r->at++;
	}
	if (!is_digit(r))
		return wrong(r, "a value");
	while (is_digit(r)) {
		unsigned digit = (unsigned)(*r->at++ - '0');

		if (__builtin_mul_overflow(value.number, 10, &value.number) ||
		    __builtin_add_overflow(value.number, digit, &value.number))
			value.whole = false;
	}
	if (peek(r, '.')) {
		value.whole = false;
		for (r->at++; is_digit(r);)
			r->at++;
	}
	if (peek(r, 'e') || peek(r, 'E')) {
		value.whole = false;
		r->at++;
		if (peek(r, '+') || peek(r, '-'))
			r->at++;
		if (!is_digit(r))
			return wrong(r, "digits after e");
		while (is_digit(r))
			r->at++;
	}
	call(r, &value, index);
	return true;
}

static bool value(struct reader *r, int index);

static bool member(struct reader *r)
{
	size_t old = strlen(r->path), at = old;

	if (!peek(r, '"'))
		return wrong(r, "a name in quotes");
	if (at && at + 1 < sizeof(r->path))
		r->path[at++] = '.';
	if (!string(r, r->path + at, sizeof(r->path) - at) || !skip(r))
		return false;
	for (char *dot = r->path + at; (dot = strchr(dot, '.'));)
		*dot = '?'; /* "properties.io_batchsize" is one name, of nothing */
	if (!peek(r, ':'))
		return wrong(r, "a colon");
	r->at++;
	if (!value(r, -1))
		return false;
	r->path[old] = '\0';
	return true;
}

/* Both kinds of lists: values between brackets, a comma after the last is allowed. */
static bool list(struct reader *r, int index)
{
	bool object = *r->at == '{';
	char close = object ? '}' : ']';
	struct shim_json_value begin = {.type = object ? SHIM_JSON_OBJECT : SHIM_JSON_ARRAY};
	shim_json_fn *fn = r->fn;
	int count = 0;

	if (++r->depth > SHIM_JSON_DEPTH)
		return wrong(r, "fewer brackets in each other");
	r->at++;
	if (!call(r, &begin, index))
		r->fn = NULL;
	for (;;) {
		if (!skip(r))
			return false;
		if (peek(r, close))
			break;
		if (!(object ? member(r) : value(r, count++)) || !skip(r))
			return false;
		if (peek(r, ','))
			r->at++;
		else if (!peek(r, close))
			return wrong(r, object ? "a comma or }" : "a comma or ]");
	}
	r->at++;
	r->fn = fn;
	r->depth--;
	return true;
}

static bool value(struct reader *r, int index)
{
	if (!skip(r))
		return false;
	if (r->at == r->end)
		return wrong(r, "a value");
	switch (*r->at) {
	case '{':
	case '[':
		return list(r, index);
	case '"':
		if (!string(r, r->text, sizeof(r->text)))
			return false;
		call(r, &(struct shim_json_value){.type = SHIM_JSON_TEXT_VALUE, .text = r->text},
		     index);
		return true;
	case 't':
		return word(r, "true",
			    (struct shim_json_value){.type = SHIM_JSON_BOOL, .flag = true}, index);
	case 'f':
		return word(r, "false", (struct shim_json_value){.type = SHIM_JSON_BOOL}, index);
	case 'n':
		return word(r, "null", (struct shim_json_value){.type = SHIM_JSON_NULL}, index);
	default:
		return number(r, index);
	}
}

int shim_json_read(const char *text, size_t len, shim_json_fn *fn, void *arg, const char **what)
{
	static const char mark[] = "\xef\xbb\xbf"; /* editors put it in front of UTF-8 */
	struct reader r = {.at = text, .end = text + len, .line = 1, .fn = fn, .arg = arg};

	if (len >= sizeof(mark) - 1 && !memcmp(text, mark, sizeof(mark) - 1))
		r.at += sizeof(mark) - 1;
	*what = "";
	if (!value(&r, -1) || !skip(&r)) {
		*what = r.what;
		return r.line;
	}
	if (r.at != r.end) {
		*what = "nothing after the last bracket";
		return r.line;
	}
	return 0;
}
