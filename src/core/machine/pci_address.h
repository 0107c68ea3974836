/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PCI addresses (domain:bus:device.function, short BDF) as text. Reads an address in any spelling,
 * writes it in the kernel's spelling, and finds addresses in paths of /sys. Used by the machine's
 * topology, by `penstock check`, and by the code that finds the drives below a file. It must never
 * accept a text if only a part of the text is an address.
 */
#ifndef PST_CORE_PCI_ADDRESS_H
#define PST_CORE_PCI_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_BDF_LEN 24 /* size of a buffer for "0000:04:00.0"; a domain may have 8 digits */

/* Parses an address such as "0000:04:00.0", "4:0.0" or "00000000:04:00.0", in upper or lower case.
 * Returns 0, or -EINVAL if `text` is anything else or NULL. */
int pst_bdf_parse(const char *text, uint32_t *domain, uint8_t *bus, uint8_t *dev, uint8_t *fn);
/* Parses an address and writes it to `out` in the kernel's spelling. Returns 0 or -EINVAL. */
int pst_bdf_normal(const char *text, char out[PST_BDF_LEN]);

/* Returns whether the `len` bytes at `part`, a component of a path, are a PCI address with its
 * domain. If so, writes the address to `out`. */
bool pst_part_bdf(const char *part, size_t len, char out[PST_BDF_LEN]);
/* Writes the last PCI address in a path of /sys to `out`. If the path contains none, returns false
 * and writes "". */
bool pst_path_bdf(const char *path, char out[PST_BDF_LEN]);

#endif
