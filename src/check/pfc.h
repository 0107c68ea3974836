/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a NIC's counters of priority flow control (PFC). */
#ifndef PST_CHECK_PFC_H
#define PST_CHECK_PFC_H

#include "facts.h"

/* Counters of one NIC, summed over all priorities. */
struct pst_pfc {
	bool known;			   /* the driver counts pause frames */
	unsigned long long received, sent; /* pause frames */
	unsigned long long discarded;	   /* packets */
};

void pst_check_pfc(const struct pst_check_facts *f, const char *interface, struct pst_pfc *out);

#endif
