/* SPDX-License-Identifier: Apache-2.0 */
/* Implements digits.h. No parser reads beyond the NUL of a text that is too short. */
#include "common/digits.h"

#include <errno.h>
#include <string.h>

int pst_hex_value(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

void pst_hex(const void *bytes, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";
	const unsigned char *at = bytes;

	for (size_t i = 0; i < len; i++) {
		*out++ = digits[at[i] >> 4];
		*out++ = digits[at[i] & 15];
	}
	*out = '\0';
}

bool pst_hex_parse(const char *text, size_t len, void *out)
{
	unsigned char *to = out;

	for (size_t i = 0; i < len; i++, text += 2) {
		int high = pst_hex_value(text[0]);
		int low = high < 0 ? -1 : pst_hex_value(text[1]);

		if (low < 0)
			return false;
		to[i] = (unsigned char)(high << 4 | low);
	}
	return true;
}

bool pst_md5_parse(const char *text, unsigned char out[16])
{
	return strspn(text, "0123456789abcdef") == PST_MD5_DIGITS && pst_hex_parse(text, 16, out);
}

static const char base64_digits[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void pst_base64(const void *bytes, size_t len, char *out)
{
	const unsigned char *at = bytes;

	for (; len; at += 3) {
		size_t n = len < 3 ? len : 3;
		unsigned word =
			(unsigned)at[0] << 16 | (n > 1 ? at[1] << 8 : 0) | (n > 2 ? at[2] : 0);

		*out++ = base64_digits[word >> 18];
		*out++ = base64_digits[word >> 12 & 63];
		*out++ = n > 1 ? base64_digits[word >> 6 & 63] : '=';
		*out++ = n > 2 ? base64_digits[word & 63] : '=';
		len -= n;
	}
	*out = '\0';
}

/* Returns the value of a digit, or -1. */
static int base64_value(char digit)
{
	const char *at = digit ? strchr(base64_digits, digit) : NULL;

	return at ? (int)(at - base64_digits) : -1;
}

long pst_base64_parse(const char *text, size_t len, void *out, size_t max)
{
	unsigned char *to = out;
	size_t pad = 0, n = 0;

	while (pad < 2 && pad < len && text[len - 1 - pad] == '=')
		pad++;
	if (len % 4 || len / 4 * 3 - pad > max)
		return -EINVAL;
	for (size_t i = 0; i < len; i += 4) {
		size_t digits = i + 4 == len ? 4 - pad : 4;
		unsigned word = 0;

		for (size_t k = 0; k < 4; k++) {
			int value = k < digits ? base64_value(text[i + k]) : 0;

			if (value < 0)
				return -EINVAL;
			word = word << 6 | (unsigned)value;
		}
		/* Bits that the padding cuts off must be 0, so that only one base64 text is valid
		 * for the same bytes. */
		if (word & ((1u << 8 * (4 - digits)) - 1))
			return -EINVAL;
		for (size_t k = 0; k + 1 < digits; k++)
			to[n++] = (unsigned char)(word >> (16 - 8 * k));
	}
	return (long)n;
}
