/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of one tenant's objects of one kind, such as its windows. Messages refer to an object by
 * its number. A number contains random bits. So a number of one tenant does not exist in the table
 * of another one, and a number is not used twice.
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

/* Allocates a table for up to `max` objects. Returns 0 or -ENOMEM. */
int pl_table_open(struct pl_table *table, unsigned max);
void pl_table_close(struct pl_table *table);
/* Adds an object and returns its number. Returns 0 if the table is full, or if the kernel returns
 * no random bytes. */
uint64_t pl_table_add(struct pl_table *table, void *thing);
/* Returns the object with this number, or NULL if there is none. */
void *pl_table_find(const struct pl_table *table, uint64_t id);
void pl_table_remove(struct pl_table *table, uint64_t id);
/* Removes some object and returns it. Returns NULL if the table is empty. */
void *pl_table_pop(struct pl_table *table);

#endif
