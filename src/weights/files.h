/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of files that a model consists of, made from the path or name that the caller gave.
 * files.c describes the search. Used by open.c and config.c.
 */
#ifndef PST_WEIGHTS_FILES_H
#define PST_WEIGHTS_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "penstock_weights.h"

/* A row of an index: the name of a tensor, and the file that holds the tensor. */
struct pst_index_row {
	const char *tensor, *file; /* `tensor` and `file` point into the text of the index. */
	unsigned at;		   /* Index of the row's file in pst_file_list.paths. */
};

struct pst_file_list {
	/* Directory of the index or of the files of the first model; NULL if the caller named that
	 * model as a single file. */
	char *home;
	char **paths;
	unsigned count, capacity;
	char **texts; /* Texts of the index files; the rows point into them. */
	unsigned text_count;
	struct pst_index_row *rows; /* Sorted by tensor name; NULL if the model has no index. */
	size_t row_count, row_capacity;
};

/* Finds the model that `name` names, which is a path or a URL. Adds its files and the rows of its
 * index to the list. May block. */
int pst_file_list_find(struct pst_file_list *files, const char *name,
		       const struct penstock_weights_opts *opts);
/* Frees everything that the list holds, but not the struct itself. */
void pst_file_list_free(struct pst_file_list *files);

/* Returns true if `text` ends with `tail` and is longer than `tail`. */
bool pst_ends_with(const char *text, const char *tail);

/* Reads a file of at most 100 MB. *out becomes a malloc'd buffer with the content and a
 * terminating NUL, which *len does not count. May block. */
int pst_read_whole_file(const char *path, char **out, size_t *len);

#endif
