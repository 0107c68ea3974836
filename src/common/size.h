/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a number of bytes such as "4KiB" or "1.5 GB". Used for the URLs of memory storage
 * ("mem:SIZE") and for the options of the command.
 */
#ifndef PST_COMMON_SIZE_H
#define PST_COMMON_SIZE_H

#include <stdint.h>

/*
 * Parses the size at the start of `text`: a decimal number, and a unit. K, M, G, T (or KiB, MiB,
 * GiB, TiB) stand for powers of 1024, and kB, MB, GB, TB for powers of 1000. One space may precede
 * the unit. A number with a unit may have a fraction; the result is rounded down. Returns the
 * address of the first character after the size. Returns NULL if `text` does not start with a
 * digit or the size exceeds INT64_MAX.
 */
const char *pst_size_parse(const char *text, uint64_t *out);

#endif
