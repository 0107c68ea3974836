/* SPDX-License-Identifier: Apache-2.0 */
/* Implements model_json.h on top of the JSON parser of src/common/json. */
#include "model_json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "common/json.h"

#define DEPTH_MAX 16
#define PATH_MAX_BYTES 256
#define FILE_MAX_BYTES (16u << 20)

struct walk {
	struct pst_json in;
	char path[PATH_MAX_BYTES];
	size_t path_len;
	unsigned depth;
	char ends[DEPTH_MAX];	    /* closing bytes of the open objects and arrays */
	bool first[DEPTH_MAX];	    /* for each open object or array: it has no member yet */
	size_t lens[DEPTH_MAX + 1]; /* for each open object or array: length of its path */
	void (*value)(void *arg, const struct model_json_value *v);
	void *arg;
};

static void value_pass(struct walk *w, enum model_json_kind kind, double number, const char *text)
{
	struct model_json_value v = {kind, w->path, number, text};

	w->value(w->arg, &v);
}

/* Reads a member's key and appends it to the path. */
static bool key_read(struct walk *w)
{
	char *key;
	size_t len;

	if (!pst_json_string(&w->in, &key, &len) || !pst_json_take(&w->in, ':'))
		return false;
	if (w->path_len + len + 2 > sizeof(w->path))
		return pst_json_wrong(&w->in, "a key is too long");
	if (w->path_len)
		w->path[w->path_len++] = '.';
	memcpy(w->path + w->path_len, key, len + 1);
	w->path_len += len;
	return true;
}

static void path_cut(struct walk *w, size_t len)
{
	w->path_len = len;
	w->path[len] = '\0';
}

/* Reads a value that is neither an object nor an array. */
static bool plain_read(struct walk *w, int c)
{
	size_t start = w->in.at, len;
	char *text;

	if (c == '"') {
		if (!pst_json_string(&w->in, &text, &len))
			return false;
		value_pass(w, MODEL_JSON_TEXT, 0, text);
		return true;
	}
	if (!pst_json_skip(&w->in))
		return false;
	if (c == 't' || c == 'f')
		value_pass(w, MODEL_JSON_NUMBER, c == 't', NULL);
	else if (c == '-' || (c >= '0' && c <= '9'))
		value_pass(w, MODEL_JSON_NUMBER, strtod(w->in.text + start, NULL), NULL);
	return true;
}

/* Leaves each object or array whose closing byte comes next. Reports the end of an object to the
 * caller's function. */
static bool ends_read(struct walk *w)
{
	while (w->depth) {
		unsigned top = w->depth - 1;

		path_cut(w, w->lens[top]);
		if (pst_json_more(&w->in, w->ends[top], &w->first[top]))
			return true;
		if (w->in.what)
			return false;
		if (w->ends[top] == '}')
			value_pass(w, MODEL_JSON_END, 0, NULL);
		w->depth--;
	}
	return true;
}

/* Reads one value, with all values that it contains if it is an object or an array. */
static bool value_read(struct walk *w)
{
	do {
		int c = pst_json_peek(&w->in);

		if (w->depth && w->ends[w->depth - 1] == '}') {
			if (!key_read(w))
				return false;
			c = pst_json_peek(&w->in);
		}
		if (c == '{' || c == '[') {
			if (w->depth == DEPTH_MAX)
				return pst_json_wrong(&w->in, "nested too deeply");
			w->in.at++;
			w->ends[w->depth] = c == '{' ? '}' : ']';
			w->first[w->depth] = true;
			w->lens[w->depth++] = w->path_len;
		} else if (!plain_read(w, c)) {
			return false;
		}
		if (!ends_read(w))
			return false;
	} while (w->depth);
	return true;
}

const char *model_json_walk(char *text, size_t len,
			    void (*value)(void *arg, const struct model_json_value *v), void *arg,
			    unsigned *line)
{
	struct walk w = {.in = {.text = text, .len = len, .python_numbers = true},
			 .value = value,
			 .arg = arg};

	while (pst_json_peek(&w.in))
		if (!value_read(&w))
			break;
	if (!w.in.what)
		pst_json_end(&w.in);
	*line = w.in.lines + 1;
	return w.in.what;
}

char *model_file_read(const char *path, size_t *len)
{
	bool is_input = !strcmp(path, "-");
	FILE *f = is_input ? stdin : fopen(path, "re");
	char *text = f ? malloc(FILE_MAX_BYTES + 1) : NULL;

	*len = 0;
	if (text) {
		*len = fread(text, 1, FILE_MAX_BYTES + 1, f);
		if (!ferror(f) && *len <= FILE_MAX_BYTES) {
			text[*len] = '\0';
			if (!is_input)
				fclose(f);
			return text;
		}
	}
	if (*len > FILE_MAX_BYTES)
		fail(EXIT_FAILED, "%s is longer than 16 MiB: give the output of one program", path);
	else
		fail(EXIT_FAILED, "%s: %s%s", path, strerror(errno), advice_errno(errno));
	if (f && !is_input)
		fclose(f);
	free(text);
	return NULL;
}
