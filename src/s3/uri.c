/* SPDX-License-Identifier: Apache-2.0 */
/* Implements uri.h. The input comes from the network. */
#include "s3/uri.h"

#include <errno.h>
#include <string.h>

#include "common/digits.h"

static bool is_unreserved(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '.' || c == '_' || c == '~';
}

void pst_uri_put(struct pst_text *out, const char *bytes, size_t len, bool keep_slash)
{
	static const char digits[] = "0123456789ABCDEF";

	while (len) {
		size_t n = 0;

		while (n < len && (is_unreserved(bytes[n]) || (keep_slash && bytes[n] == '/')))
			n++;
		pst_text_put(out, bytes, n);
		if (n < len) {
			unsigned char byte = (unsigned char)bytes[n++];
			const char escape[3] = {'%', digits[byte >> 4], digits[byte & 15]};

			pst_text_put(out, escape, sizeof(escape));
		}
		bytes += n;
		len -= n;
	}
}

long pst_uri_parse(const char *text, size_t len, bool plus, char *out)
{
	char *to = out;

	for (size_t i = 0; i < len; i++) {
		char c = plus && text[i] == '+' ? ' ' : text[i];

		if (c == '%') {
			int high = len - i > 2 ? pst_hex_value(text[i + 1]) : -1;
			int low = len - i > 2 ? pst_hex_value(text[i + 2]) : -1;

			if (high < 0 || low < 0)
				return -EINVAL;
			c = (char)(high << 4 | low);
			i += 2;
		}
		*to++ = c;
	}
	*to = '\0';
	return to - out;
}

bool pst_uri_next(const char **query, const char **name, size_t *name_len, const char **value,
		  size_t *value_len)
{
	const char *at = *query + strspn(*query, "&"), *equals;
	size_t len = strcspn(at, "&");

	*query = at + len;
	if (!len)
		return false;
	equals = memchr(at, '=', len);
	*name = at;
	*name_len = equals ? (size_t)(equals - at) : len;
	*value = equals ? equals + 1 : at + len;
	*value_len = equals ? len - *name_len - 1 : 0;
	return true;
}
