/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements sort_names.h: a radix sort that uses eight bytes of the names at a time. It copies
 * each name's next eight bytes into the struct that has the name's pointer, and compares them as
 * one number. Names may be anywhere in memory, so reading them is slow. This sort reads every eight
 * bytes of a name only once, instead of at each comparison. It then sorts names whose eight bytes
 * are equal by their following eight bytes.
 */
#include "weights/sort_names.h"

#include <stdbool.h>
#include <stdlib.h>

/* Returns the first eight bytes of `name` as a number that orders in the same way as strcmp.
 * Zeros stand for the bytes after the end of a shorter name. */
static uint64_t name_head(const char *name)
{
	uint64_t head = 0;
	unsigned i = 0;

	for (; i < 8 && name[i]; i++)
		head = head << 8 | (unsigned char)name[i];
	return i ? head << 8 * (8 - i) : 0;
}

static int compare_heads(const void *a, const void *b)
{
	uint64_t x = ((const struct pst_named *)a)->head, y = ((const struct pst_named *)b)->head;

	return x < y ? -1 : x > y;
}

struct name_run {
	struct pst_named *list;
	size_t count;
};

/* Finds the next run of at least two names that have the same `head` and do not end within these
 * eight bytes. Returns false if there is no further run. */
static bool next_name_run(struct pst_named *list, size_t count, size_t *at, struct name_run *run)
{
	for (size_t i = *at, n; i < count; i += n) {
		for (n = 1; i + n < count && list[i + n].head == list[i].head; n++)
			;
		if (n == 1 || !(list[i].head & 0xff))
			continue;
		*run = (struct name_run){list + i, n};
		*at = i + n;
		return true;
	}
	return false;
}

static void sort_from(struct pst_named *list, size_t count, size_t depth)
{
	/* Recursive calls sort all runs except the longest. The next iteration of this loop
	 * sorts the longest run. So a recursive call has at most half of the names. */
	while (count > 1) {
		struct name_run longest = {NULL, 0}, run, less;
		size_t at = 0;

		for (size_t i = 0; i < count; i++)
			list[i].head = name_head(list[i].name + depth);
		qsort(list, count, sizeof(*list), compare_heads);
		depth += 8;
		while (next_name_run(list, count, &at, &run)) {
			less = run;
			if (run.count > longest.count) {
				less = longest;
				longest = run;
			}
			sort_from(less.list, less.count, depth);
		}
		list = longest.list;
		count = longest.count;
	}
}

void pst_sort_names(struct pst_named *list, size_t count)
{
	sort_from(list, count, 0);
}
