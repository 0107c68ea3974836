/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the header Range and x-amz-copy-source-range (RFC 9110, section 14). Called by op_object.c
 * and op_copy.c.
 */
#ifndef GW_RANGE_H
#define GW_RANGE_H

#include <stdint.h>

enum gw_range {
	/* the header has no range, or one that is ignored: several ranges, or a unit other than
	 * bytes */
	GW_RANGE_NONE,
	GW_RANGE_OK,
	GW_RANGE_BEYOND, /* the range begins after the last byte of the object */
};

/* Finds the range of `size` bytes that a header asks for; NULL is no range. */
enum gw_range gw_range_parse(const char *text, uint64_t size, uint64_t *at, uint64_t *len);

#endif
