/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of files that a model consists of, found from the path or name that the caller
 * gave; files.c says how. Used by open.c and config.c.
 */
#ifndef PST_WEIGHTS_FILES_H
#define PST_WEIGHTS_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "penstock_weights.h"

/* A row of an index: the tensor, and the file that holds it. */
struct pst_index_row {
	const char *tensor, *file; /* Strings inside the index's text. */
	unsigned at;		   /* The file's position in pst_file_list.paths. */
};

struct pst_file_list {
	char *home; /* Directory of the first model's index or files; NULL: a single file. */
	char **paths;
	unsigned count, capacity;
	char **texts; /* Texts of the indices, into which the rows point. */
	unsigned text_count;
	struct pst_index_row *rows; /* Sorted by tensor name; NULL: there is no index. */
	size_t row_count, row_capacity;
};

/* Adds the files of the model that `path` names, and the rows of its index. May block. */
int pst_file_list_find(struct pst_file_list *files, const char *path,
		       const struct penstock_weights_opts *opts);
/* Frees everything in the list, not the struct itself. */
void pst_file_list_free(struct pst_file_list *files);

/* True if `text` ends with `tail` and is longer than it. */
bool pst_ends_with(const char *text, const char *tail);

/* Reads a file of at most 100 MB into *out, which is malloc'd, and adds a NUL that *len does not
 * count. May block. */
int pst_read_whole_file(const char *path, char **out, size_t *len);

#endif
