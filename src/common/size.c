/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements size.h. The arithmetic uses integers only, so that a size with a fraction is exact.
 * The parser must never read beyond the end of the text.
 */
#include "common/size.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct unit {
	const char *name;
	uint64_t bytes;
};

#define KB 1000ull
#define KIB 1024ull

/* If one name begins with another, the longer name comes first, so that unit_find finds it. */
static const struct unit units[] = {
	{"bytes", 1},
	{"B", 1},
	{"KiB", KIB},
	{"MiB", KIB *KIB},
	{"GiB", KIB *KIB *KIB},
	{"TiB", KIB *KIB *KIB *KIB},
	{"kB", KB},
	{"KB", KB},
	{"MB", KB *KB},
	{"GB", KB *KB *KB},
	{"TB", KB *KB *KB *KB},
	{"k", KIB},
	{"K", KIB},
	{"M", KIB *KIB},
	{"G", KIB *KIB *KIB},
	{"T", KIB *KIB *KIB *KIB},
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Returns the unit at the start of `text`, or NULL if there is none. */
static const struct unit *unit_find(const char *text)
{
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strncmp(text, units[i].name, strlen(units[i].name)))
			return &units[i];
	return NULL;
}

/* Returns the part of a unit that the digits after the decimal point stand for, in bytes, rounded
 * down: for "25" a quarter of the unit. Begins with the last digit. Each division by 10 drops a
 * fraction of a byte. That never changes the result, because floor((n + floor(x)) / 10) equals
 * floor((n + x) / 10) for every integer n. */
static uint64_t fraction_of(uint64_t unit, const char *digits, const char *end)
{
	uint64_t sum = 0;

	while (end > digits)
		sum = ((uint64_t)(*--end - '0') * unit + sum) / 10;
	return sum;
}

const char *pst_size_parse(const char *text, uint64_t *out)
{
	const char *at = text, *fraction, *end;
	const struct unit *unit;
	uint64_t whole = 0, bytes;

	if (!is_digit(*at))
		return NULL;
	for (; is_digit(*at); at++)
		if (__builtin_mul_overflow(whole, 10, &whole) ||
		    __builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole))
			return NULL;
	fraction = end = at;
	if (at[0] == '.' && is_digit(at[1])) {
		fraction = end = at + 1;
		while (is_digit(*end))
			end++;
	}
	unit = unit_find(end + (*end == ' '));
	if (!unit && end != at)
		return NULL; /* a number without a unit may not have a fraction */
	bytes = unit ? unit->bytes : 1;
	if (__builtin_mul_overflow(whole, bytes, &whole) ||
	    __builtin_add_overflow(whole, fraction_of(bytes, fraction, end), &whole) ||
	    whole > INT64_MAX)
		return NULL;
	*out = whole;
	return unit ? end + (*end == ' ') + strlen(unit->name) : at;
}
