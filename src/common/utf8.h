/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognises valid UTF-8 (RFC 3629). Used by the parser of model headers, by the JSON printers
 * of the library and of the `penstock` command, and by code that cuts a message to fit its
 * buffer.
 */
#ifndef PST_COMMON_UTF8_H
#define PST_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the length of the UTF-8 sequence at `text`, or 0 if the sequence is not valid or is
 * longer than `left` bytes. `left` must be at least 1. For NUL-terminated text `left` may be
 * SIZE_MAX, because no sequence contains a NUL. */
static inline unsigned pst_utf8_length(const char *text, size_t left)
{
	const unsigned char *s = (const unsigned char *)text;
	unsigned n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
		return 0;
	for (unsigned i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* Refuse overlong encodings, surrogates, and code points beyond U+10FFFF. */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

/* Returns whether all of the NUL-terminated text is valid UTF-8. */
static inline bool pst_utf8_valid(const char *text)
{
	for (unsigned n; *text; text += n) {
		n = pst_utf8_length(text, SIZE_MAX);
		if (!n)
			return false;
	}
	return true;
}

/* Removes an incomplete UTF-8 sequence from the end of `text`, which was cut to fit its buffer and
 * is `len` bytes long. */
static inline void pst_utf8_end(char *text, size_t len)
{
	size_t at = len;

	while (at && len - at < 3 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
		at--;
	if (at && (unsigned char)text[at - 1] >= 0xc0 &&
	    !pst_utf8_length(text + at - 1, len - at + 1))
		text[at - 1] = '\0';
}

#endif
