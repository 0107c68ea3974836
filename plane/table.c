/* SPDX-License-Identifier: Apache-2.0 */
/* Implements table.h. The low 16 bits of a number are the index of its entry, so a lookup takes one
 * step. */
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#define PLACES 65536u

int pl_table_open(struct pl_table *table, unsigned max)
{
	table->max = max < PLACES ? max : PLACES;
	table->count = 0;
	table->entries = calloc(table->max, sizeof(*table->entries));
	return table->entries ? 0 : -ENOMEM;
}

void pl_table_close(struct pl_table *table)
{
	free(table->entries);
	table->entries = NULL;
}

uint64_t pl_table_add(struct pl_table *table, void *thing)
{
	uint64_t random;

	if (table->count == table->max)
		return 0;
	/* getrandom(2) never returns only a part of so few bytes, so any other result is an
	 * error. */
	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return 0;
	for (unsigned i = 0; i < table->max; i++) {
		struct pl_entry *entry = &table->entries[i];

		if (entry->id)
			continue;
		/* sets the highest bit, so that the number is never 0 */
		entry->id = (random & ~(uint64_t)(PLACES - 1)) | i | (UINT64_C(1) << 63);
		entry->thing = thing;
		table->count++;
		return entry->id;
	}
	return 0;
}

static struct pl_entry *entry_of(const struct pl_table *table, uint64_t id)
{
	struct pl_entry *entry = &table->entries[id % PLACES % table->max];

	return id && entry->id == id ? entry : NULL;
}

void *pl_table_find(const struct pl_table *table, uint64_t id)
{
	const struct pl_entry *entry = entry_of(table, id);

	return entry ? entry->thing : NULL;
}

void pl_table_remove(struct pl_table *table, uint64_t id)
{
	struct pl_entry *entry = entry_of(table, id);

	if (!entry)
		return;
	entry->id = 0;
	table->count--;
}

void *pl_table_pop(struct pl_table *table)
{
	for (unsigned i = 0; i < table->max && table->count; i++)
		if (table->entries[i].id) {
			table->entries[i].id = 0;
			table->count--;
			return table->entries[i].thing;
		}
	return NULL;
}
