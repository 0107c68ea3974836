/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The things of one tenant, by numbers. A number has random bits, so a tenant's number means
 * nothing in the table of another one, and a number is not used again.
 */
#ifndef PLANE_TABLE_H
#define PLANE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct pl_entry {
	uint64_t id; /* 0: the entry is free */
	void *thing;
};

struct pl_table {
	struct pl_entry *entries;
	unsigned max, count;
};

/* Returns 0 or -ENOMEM. */
int pl_table_open(struct pl_table *table, unsigned max);
void pl_table_close(struct pl_table *table);
/* Adds a thing, and returns its number. Returns 0 if the table is full, or the kernel gives no
 * random bytes. */
uint64_t pl_table_add(struct pl_table *table, void *thing);
/* Returns a thing, or NULL. */
void *pl_table_find(const struct pl_table *table, uint64_t id);
void pl_table_remove(struct pl_table *table, uint64_t id);
/* Removes any thing, and returns it; NULL: the table is empty. */
void *pl_table_pop(struct pl_table *table);

#endif
