/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a NIC's counters of priority flow control (PFC). */
#ifndef PST_CHECK_PFC_H
#define PST_CHECK_PFC_H

#include "facts.h"

/* Counters of one NIC, summed over all priorities. */
struct pst_pfc {
	bool known;			   /* whether the driver counts pause frames */
	unsigned long long received, sent; /* number of pause frames received and sent */
	unsigned long long discarded;	   /* number of packets discarded */
};

void pst_check_pfc(const struct pst_check_facts *f, const char *interface, struct pst_pfc *out);

#endif
