/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a check is asked about: a path or a URL. It must never be opened for writing.
 */
#include <errno.h>

#include "gate.h"

int pst_check_target(struct facts *f, char *why, size_t why_len)
{
	snprintf(why, why_len, "%s: files are not looked at", f->opts->target);
	return -EOPNOTSUPP;
}
