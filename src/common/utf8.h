/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is UTF-8 (RFC 3629), for who reads or writes text: the parser of models' headers, the
 * printers of JSON in the library and in the command, and who cuts a sentence to fit.
 */
#ifndef PST_COMMON_UTF8_H
#define PST_COMMON_UTF8_H

#include <stddef.h>

/* Length of the valid sequence at `text`, 0 if it is none or longer than `left` (at least 1).
 * Text that a NUL ends is as long as it wants: no sequence goes over one. */
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
	/* Overlong, a surrogate, or beyond U+10FFFF. */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

/* Ends text that was cut to fit where its last whole letter does. */
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
