/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the errno of a failed system call to a reason, which is an enum penstock_why. Called
 * wherever the library reports a failed system call for which it knows no more specific reason.
 * src/core and src/weights share this table.
 */
#ifndef PST_COMMON_WHY_H
#define PST_COMMON_WHY_H

#include "penstock.h"

/* Returns the reason for an errno, which may be positive or negative. Returns PENSTOCK_WHY_IO_ERROR
 * for an errno that the table does not contain. */
enum penstock_why pst_why_from_errno(int code);

#endif
