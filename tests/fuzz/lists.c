/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the small parsers of topo: PCI addresses, CPU lists, numbers, and path components.
 * libFuzzer runs this target, or replay.c does with its corpus. A failure is a read beyond the
 * text, or an address that is accepted but changes when it is printed and parsed again.
 */
#include <stdlib.h>
#include <string.h>

#include "core/machine/cpus.h"
#include "core/machine/pci_address.h"
#include "core/machine/sysfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1);
	char first[PST_BDF_LEN], again[PST_BDF_LEN];
	struct pst_cpus cpus;
	int64_t number;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	if (pst_bdf_normal(text, first) >= 0 &&
	    (pst_bdf_normal(first, again) < 0 || strcmp(first, again)))
		abort();
	if (pst_cpus_parse(text, &cpus) >= 0 && pst_cpus_count(&cpus) > PST_CPUS_MAX)
		abort();
	(void)pst_number_parse(text, &number);
	if (pst_path_bdf(text, first) && pst_bdf_normal(first, again) < 0)
		abort();
	(void)pst_path_find(text, "host", true);
	free(text);
	return 0;
}
