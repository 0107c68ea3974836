/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests: lists of the parts (data files) of a checkpoint and of their items (named ranges),
 * with checksums. The public functions are in penstock_ckpt.h. A manifest in memory has the parts
 * of all manifest files of one folder, sorted by name.
 */
#ifndef PST_CKPT_MANIFEST_H
#define PST_CKPT_MANIFEST_H

#include <stdbool.h>

#include "ckpt/dir.h"
#include "penstock_ckpt.h"

/* Maximum length in bytes of a manifest to write. A manifest of this length has about 5 million
 * items. */
#define PST_MANIFEST_WRITE_MAX (512ull << 20)
/* Maximum number of bytes of all manifests of a folder. They are in memory at the same time. While
 * a save replaces a checkpoint, the folder has the manifests of the old and of the new
 * checkpoint. */
#define PST_MANIFEST_READ_MAX (2 * PST_MANIFEST_WRITE_MAX)
/* The end of the name of each manifest. */
#define PST_MANIFEST_END "penstock.manifest"

struct pst_manifest_part {
	const char *name;
	uint64_t bytes;
	uint64_t first, count; /* index of the first item, and number of items */
};

struct penstock_manifest {
	char **texts; /* the texts of the files; names point into them */
	unsigned text_count;
	unsigned ranks; /* number of ranks that wrote the checkpoint */
	struct pst_manifest_part *parts;
	uint64_t part_count, part_capacity;
	struct penstock_item *items; /* the items of all parts, sorted by offset in each part */
	uint64_t item_count, item_capacity;
};

/* Returns whether a file of this name can be a part (a data file of a checkpoint): the name is
 * valid UTF-8, not empty, not "." or "..", and has no slash. */
bool pst_manifest_names_part(const char *name);

/* Reads all manifests of a checkpoint. Fails as penstock_manifest_open does. */
int pst_manifest_open_at(const struct pst_ckpt_dir *dir, struct penstock_manifest **out);

/* Adds the parts of the manifest text to `m`, which owns `text` afterwards even if the call fails.
 * The text has `len` bytes and is changed. `path` is the name of the file for messages. Fails with
 * -EBADMSG. */
int pst_manifest_add(struct penstock_manifest *m, const char *path, char *text, size_t len);
/* Sorts the parts when all texts have been added. Fails with -EBADMSG if a part occurs twice. */
int pst_manifest_sort(struct penstock_manifest *m, const char *dir);

/* Reads a file of a checkpoint. *out becomes a malloc'd buffer of *len bytes. Fails with -EBADMSG
 * if it is no regular file, and with -EFBIG if it has more than `max` bytes. */
int pst_manifest_read_file(const struct pst_ckpt_dir *dir, const char *name, uint64_t max,
			   char **out, size_t *len);

/* Returns the part with this name, or NULL. */
const struct pst_manifest_part *pst_manifest_part(const struct penstock_manifest *m,
						  const char *name);

#endif
