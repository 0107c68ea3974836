/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check one file: its file system, mount, block stack and the result of the
 * test transfer. */
#ifndef PST_CHECK_GATES_FILE_H
#define PST_CHECK_GATES_FILE_H

#include "gate.h"

extern const struct pst_check_gate pst_check_file_gates[];

#endif
