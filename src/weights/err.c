/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements err.h. The message goes to penstock_fail; the file, tensor and offset go to a
 * thread-local struct, which penstock_weights_get_place copies.
 */
#include "weights/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/struct_copy.h"
#include "common/utf8.h"
#include "common/why.h"

/* Largest number of bytes of a file's path that a message quotes. */
#define SENTENCE_FILE_MAX 220u
#define SENTENCE_TENSOR_SIZE 61u

static _Thread_local struct penstock_weights_place last_place = {.off = PST_NO_OFF};
/* The message that this file passed to penstock_fail when it filled last_place. */
static _Thread_local char last_message[PENSTOCK_TEXT_MAX];

/* Returns the last `most` bytes of `text`, or all of a shorter text. Messages quote the end of a
 * long path because it says more than the beginning. Never splits a UTF-8 sequence. */
static const char *text_end(const char *text, size_t most)
{
	size_t len = strlen(text);

	if (len <= most)
		return text;
	text += len - most;
	while (((unsigned char)*text & 0xc0) == 0x80)
		text++;
	return text;
}

static void copy_cut(char *to, size_t room, const char *text)
{
	if (snprintf(to, room, "%s", text) >= (int)room)
		pst_utf8_end(to, room - 1);
}

/* Returns the position of `tail` in `text` if `text`, a message of the core library, already
 * contains the name of the file; else NULL. `tail` is the last part of that name. If `cut` is true,
 * the name is longer than `tail`. */
static const char *find_name(const char *text, const char *tail, bool cut)
{
	const char *at = strstr(text, tail);
	bool found = at && at > text && (cut || strchr(" '", at[-1])) &&
		     strchr(" :,'", at[strlen(tail)]);

	return found ? at : NULL;
}

/* Fills last_place.text with the complete message. last_place.file and last_place.tensor are
 * already filled. `where` is the end of the message, which names the offset. If `text` contains the
 * last bytes of the file's name, `named` is the position of `tail` in `text`, else NULL. */
static void place_write_text(const char *text, const char *named, const char *tail,
			     const char *where)
{
	const char *file = last_place.file, *tensor = last_place.tensor;
	const char *from = file + strlen(file) - strlen(tail), *begin = named;
	const char *before = *tensor ? "tensor '" : "", *after = *tensor ? "': " : "";

	if (!named) {
		snprintf(last_place.text, sizeof(last_place.text), "%s%s%s%s%s%s%s", file,
			 *file ? ": " : "", before, tensor, after, text, where);
		return;
	}
	/* `text` may contain more of the name than `tail`. */
	for (; begin > text && from > file && begin[-1] == from[-1]; begin--)
		from--;
	snprintf(last_place.text, sizeof(last_place.text), "%s%s%s%.*s%s%s%s", before, tensor,
		 after, (int)(begin - text), text, file, named + strlen(tail), where);
}

__attribute__((format(printf, 6, 0))) static int vfail(int code, enum penstock_why why,
						       const char *file, const char *tensor,
						       uint64_t off, const char *fmt, va_list args)
{
	char text[PENSTOCK_TEXT_MAX], where[32] = "", t[SENTENCE_TENSOR_SIZE];
	char shown[sizeof(last_place.file)];
	const char *name, *named;
	int ret;

	if (file && strstr(file, "://")) {
		/* The query of a presigned URL is a secret. */
		snprintf(shown, sizeof(shown), "%.*s", (int)strcspn(file, "?"), file);
		file = shown;
	}
	name = text_end(file ? file : "", SENTENCE_FILE_MAX);

	errno = code < 0 ? -code : code; /* For %m. */
	vsnprintf(text, sizeof(text), fmt, args);
	if (off != PST_NO_OFF)
		snprintf(where, sizeof(where), " (at byte %llu)", (unsigned long long)off);
	copy_cut(last_place.file, sizeof(last_place.file),
		 text_end(file ? file : "", sizeof(last_place.file) - 1));
	copy_cut(last_place.tensor, sizeof(last_place.tensor), tensor ? tensor : "");
	copy_cut(t, sizeof(t), last_place.tensor);
	last_place.off = off;
	named = find_name(text, name, file && name != file);
	place_write_text(text, named, name, where);
	if (named)
		/* `text` already names the file, so the name is left out: a message has no room
		 * to repeat it. */
		name = "";
	ret = penstock_fail(code, why, "%s%s%s%s%s%s%s", name, *name ? ": " : "",
			    *t ? "tensor '" : "", t, *t ? "': " : "", text, where);
	snprintf(last_message, sizeof(last_message), "%s", penstock_errmsg());
	return ret;
}

int pst_weights_fail(int code, enum penstock_why why, const char *file, const char *tensor,
		     uint64_t off, const char *fmt, ...)
{
	va_list args;
	int ret;

	va_start(args, fmt);
	ret = vfail(code, why, file, tensor, off, fmt, args);
	va_end(args);
	return ret;
}

int pst_weights_fail_errno(int code, const char *file, const char *tensor, uint64_t off,
			   const char *fmt, ...)
{
	va_list args;
	int ret;

	va_start(args, fmt);
	ret = vfail(code, pst_why_from_errno(code), file, tensor, off, fmt, args);
	va_end(args);
	return ret;
}

int pst_weights_fail_lib(int code, const char *file, const char *tensor, uint64_t off)
{
	return pst_weights_fail(code, penstock_errwhy(), file, tensor, off, "%s",
				penstock_errmsg());
}

void pst_weights_error_save(struct pst_weights_error *told)
{
	told->why = penstock_errwhy();
	snprintf(told->text, sizeof(told->text), "%s", penstock_errmsg());
	told->place = last_place;
}

int pst_weights_error_restore(int code, const struct pst_weights_error *told)
{
	last_place = told->place;
	snprintf(last_message, sizeof(last_message), "%s", told->text);
	return penstock_fail(code, told->why, "%s", told->text);
}

int pst_weights_fail_null(const char *what)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"%s is NULL", what);
}

int pst_weights_no_memory(const char *what)
{
	return pst_weights_fail(ENOMEM, PENSTOCK_WHY_NO_MEMORY, NULL, NULL, PST_NO_OFF,
				"no memory for %s", what);
}

void penstock_weights_get_place(struct penstock_weights_place *out)
{
	if (!out)
		return;
	/* The core library may have failed after last_place was filled. Its error has no file and
	 * no tensor. */
	if (strcmp(last_message, penstock_errmsg()) != 0)
		snprintf(last_place.text, sizeof(last_place.text), "%s", penstock_errmsg());
	pst_weights_struct_out(out, &last_place, sizeof(last_place));
}

int pst_weights_struct_in(void *to, size_t len, const void *from, const char *name)
{
	int ret = pst_struct_read(to, len, from);
	size_t size;

	if (!ret)
		return 0;
	memcpy(&size, from, sizeof(size));
	if (ret == -E2BIG)
		return pst_weights_fail(ret, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"%s has fields that this library does not know", name);
	return pst_weights_fail(
		ret, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
		"%s: size is %zu; set it by the _INIT macro or to sizeof the struct", name, size);
}

int pst_weights_struct_at(void *to, size_t len, const void *array, uint64_t i, const char *name)
{
	const void *from = pst_struct_element(array, i);

	if (from)
		return pst_weights_struct_in(to, len, from, name);
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"%s: the size of element %llu differs from that of element 0", name,
				(unsigned long long)i);
}

void pst_weights_struct_out(void *to, const void *from, size_t len)
{
	const size_t head = sizeof(size_t);

	/* If the caller left `size` at 0, pst_struct_write copies nothing. This function then
	 * assumes that the caller's struct has the length in this library's header. */
	if (pst_struct_write(to, from, len))
		memcpy((char *)to + head, (const char *)from + head, len - head);
}
