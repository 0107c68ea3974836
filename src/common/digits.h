/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as text: hex digits and base64. The texts that are parsed come from the network. Called by
 * all code for S3. Needs no library, so a build without libcrypto has it.
 */
#ifndef PST_DIGITS_H
#define PST_DIGITS_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the value of a hex digit, in lower or upper case, or -1. */
int pst_hex_value(char digit);
/* Writes bytes as lower-case hex digits. `out` needs 2 * len + 1 bytes. */
void pst_hex(const void *bytes, size_t len, char *out);
/* Parses 2 * len hex digits, in lower or upper case. Returns false if there are fewer. Text after
 * them is allowed. */
bool pst_hex_parse(const char *text, size_t len, void *out);

#define PST_MD5_DIGITS 32 /* length of an MD5 digest as hex digits */

/* Parses an MD5 digest as it is in an ETag. Returns false if the text does not begin with exactly
 * PST_MD5_DIGITS hex digits in lower case. Other text after them is allowed. */
bool pst_md5_parse(const char *text, unsigned char out[16]);

/* Encodes bytes in base64 with padding. `out` needs (len + 2) / 3 * 4 + 1 bytes. */
void pst_base64(const void *bytes, size_t len, char *out);
/* Decodes base64 with padding. Returns the number of bytes, at most `max`, or -EINVAL. */
long pst_base64_parse(const char *text, size_t len, void *out, size_t max);

#endif
