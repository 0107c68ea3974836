/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reason that an errno of a system call stands for. Called wherever the library reports a
 * failed call and knows no better reason; core and weights use this one table.
 */
#ifndef PST_COMMON_WHY_H
#define PST_COMMON_WHY_H

#include "penstock.h"

/* Returns the reason for an errno, positive or negative; PENSTOCK_WHY_IO_ERROR for any that the
 * table does not name. */
enum penstock_why pst_why_from_errno(int code);

#endif
