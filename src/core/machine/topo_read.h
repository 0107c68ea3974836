/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the topology of the machine from /sys. Called when a device's worker threads start and by
 * the `penstock` command, never per request. The caller chooses the root folder, which may contain
 * files that were captured on another machine. These functions change nothing on the machine.
 */
#ifndef PST_CORE_TOPO_READ_H
#define PST_CORE_TOPO_READ_H

#include <stddef.h>

#include "core/machine/topo.h"

/*
 * Reads the topology from the files beneath `root`; "" or NULL stands for this machine. Returns
 * 0 and a topology that the caller must close. On an error returns -errno, and writes a sentence
 * to `why` unless that is NULL. It is no error if the tree is empty or garbled; then the
 * topology contains little. The call takes some milliseconds.
 */
int pst_topo_open(const char *root, struct pst_topo **out, char *why, size_t why_len);

/*
 * Like pst_topo_open, but reads only the PCI device at `bdf`. On a machine with one NUMA node it
 * reads no device, because all memory is equally near. It takes at most a tenth of the time of
 * pst_topo_open.
 */
int pst_topo_open_near(const char *root, const char *bdf, struct pst_topo **out, char *why,
		       size_t why_len);

#endif
