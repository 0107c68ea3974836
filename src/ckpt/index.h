/* SPDX-License-Identifier: Apache-2.0 */
/* Reads which files an index of safetensors files names: {"weight_map": {"tensor": "file", ...}}.
 * Does no I/O. */
#ifndef PST_CKPT_INDEX_H
#define PST_CKPT_INDEX_H

#include <stdbool.h>
#include <stddef.h>

/* Called for the file of each tensor. If it returns false, the reading ends. */
typedef bool pst_index_fn(void *user, const char *file);

/* Calls `fn` for each file that the index names, once for each tensor. Changes `text`, which has
 * `len` bytes. Returns NULL, or what is wrong with the index. */
const char *pst_index_files(char *text, size_t len, pst_index_fn *fn, void *user);

#endif
