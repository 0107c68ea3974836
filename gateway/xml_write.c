/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the writer of XML, see xml_write.h. */
#include "xml_write.h"

#include <stdio.h>
#include <string.h>

/* Returns the length of the valid UTF-8 sequence at `s`, or 0. */
static size_t sequence_len(const unsigned char *s, size_t len)
{
	size_t want = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : 4;
	uint32_t c;

	if (want == 1)
		return 1;
	if (want > len || (want == 4 && s[0] >> 3 != 30))
		return 0;
	c = s[0] & (0xffu >> (want + 1));
	for (size_t i = 1; i < want; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3fu);
	}
	/* Refuse overlong forms, surrogates, and the characters that XML 1.0 forbids. */
	if (c < (want == 2   ? 0x80u
		 : want == 3 ? 0x800u
			     : 0x10000u) ||
	    c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || c == 0xfffe || c == 0xffff)
		return 0;
	return want;
}

void gw_xml_text(struct pst_text *out, const char *text, size_t len)
{
	while (len) {
		size_t n = sequence_len((const unsigned char *)text, len);
		const char *as = NULL;
		char buf[8];

		switch (n ? text[0] : '\x01') {
		case '&':
			as = "&amp;";
			break;
		case '<':
			as = "&lt;";
			break;
		case '>':
			as = "&gt;";
			break;
		case '"':
			as = "&quot;";
			break;
		case '\r':
			as = "&#13;";
			break;
		default:
			if (!n || (n == 1 && (unsigned char)text[0] < 0x20 && text[0] != '\n' &&
				   text[0] != '\t'))
				as = "\xef\xbf\xbd";
			else
				snprintf(buf, sizeof(buf), "%.*s", (int)n, text);
		}
		pst_text_put_str(out, as ? as : buf);
		text += n ? n : 1;
		len -= n ? n : 1;
	}
}

void gw_xml_element(struct pst_text *out, const char *name, const char *text)
{
	pst_text_put_str(out, "<");
	pst_text_put_str(out, name);
	pst_text_put_str(out, ">");
	gw_xml_text(out, text, strlen(text));
	pst_text_put_str(out, "</");
	pst_text_put_str(out, name);
	pst_text_put_str(out, ">");
}

void gw_xml_number(struct pst_text *out, const char *name, uint64_t number)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
	gw_xml_element(out, name, digits);
}
