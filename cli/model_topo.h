/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the tree of links of the model `contention` from the output of `penstock topo --json`. */
#ifndef PENSTOCK_CLI_MODEL_TOPO_H
#define PENSTOCK_CLI_MODEL_TOPO_H

#include <stddef.h>

#include "model.h"

struct model_topo;

/* Reads a file. Returns NULL after an error message; the caller frees the result. */
struct model_topo *model_topo_read(const char *path);
/* Parses a text, which must have a NUL after its `len` bytes. Returns NULL, or a text that says
 * what is wrong, with the number of the line in *line. */
const char *model_topo_parse(char *text, size_t len, struct model_topo *t, unsigned *line);
size_t model_topo_bytes(void);
unsigned model_topo_gpus(const struct model_topo *t);
/* Builds the tree of PCIe and memory links in `space`. The model's parameters `in` give the values
 * that the topology does not contain. Returns NULL, or a message if the tree cannot be built. */
const char *model_topo_build(const struct model_topo *t, const struct pst_model *m,
			     const double *in, struct pst_model_space *space);

#endif
