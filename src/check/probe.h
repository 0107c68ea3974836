/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a scratch file over every path that the library can use, and compares the bytes that arrive
 * with the bytes that were written. */
#ifndef PST_CHECK_PROBE_H
#define PST_CHECK_PROBE_H

#include "facts.h"

/* Fills f->check with the measurements, or f->probe_error with the reason why nothing was measured.
 * Must not be called if the facts come from a capture (copied files of another machine). */
void pst_check_probe(struct pst_check_facts *f);

#endif
