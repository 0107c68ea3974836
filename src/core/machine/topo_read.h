/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the topology of the machine from /sys. Called when a pump starts and by the command,
 * never per request. The caller chooses the root folder, so that a captured machine is read
 * like the real one. Nothing on the machine is changed.
 */
#ifndef PST_CORE_TOPO_READ_H
#define PST_CORE_TOPO_READ_H

#include <stddef.h>

#include "core/machine/topo.h"

/*
 * Reads the machine beneath `root` ("" or NULL: this machine). Returns 0 and a topology that
 * the caller closes, or -errno and a sentence in `why` (NULL: no sentence). An empty or garbled
 * tree is no error: its topology contains little. Blocks for milliseconds.
 */
int pst_topo_open(const char *root, struct pst_topo **out, char *why, size_t why_len);

/*
 * Like pst_topo_open, but reads only one device, at `bdf`, and no device on a machine with one
 * NUMA node, where all memory is equally near. Takes at most a tenth of the time.
 */
int pst_topo_open_near(const char *root, const char *bdf, struct pst_topo **out, char *why,
		       size_t why_len);

#endif
