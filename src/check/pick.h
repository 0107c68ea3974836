/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the devices, drives and NICs to check. */
#ifndef PST_CHECK_PICK_H
#define PST_CHECK_PICK_H

#include "facts.h"

/* Fills the lists of devices, drives and NICs according to --device. Returns 0, or -ENODEV with
 * a sentence in `why`. */
int pst_check_pick(struct pst_check_facts *f, char *why, size_t why_len);
/* Returns whether every device to check is a PCI function that this process can see. A sandbox
 * can hide PCI. */
bool pst_check_on_pci(const struct pst_check_facts *f);
/* Writes a text such as "3 x NVIDIA H100 80GB HBM3" if all `subjects` (devices, drives or NICs) are
 * of the same model, else a list of models. */
void pst_subjects_text(const struct pst_check_subject *subjects, unsigned count, char *out,
		       size_t len);

#endif
