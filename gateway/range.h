/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the headers Range and x-amz-copy-source-range (RFC 9110, section 14). Called by
 * op_object.c and op_copy.c.
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

/* Finds the range that the header's value `text` requests of an object of `size` bytes. NULL: there
 * is no header. */
enum gw_range gw_range_parse(const char *text, uint64_t size, uint64_t *at, uint64_t *len);

#endif
