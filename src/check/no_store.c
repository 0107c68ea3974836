/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces store.c in a build without libssl: reports which packages and build options are
 * missing. */
#include "store.h"

#include <errno.h>
#include <stdio.h>

void pst_check_store_try(const char *target, struct pst_check_store *out)
{
	(void)target;
	*out = (struct pst_check_store){.failed = PST_STORE_URL, .code = -EOPNOTSUPP};
	snprintf(out->text, sizeof(out->text),
		 "this build has no objects: build it with libssl (on Debian and Ubuntu: apt-get "
		 "install libssl-dev) and meson setup -Dobjects=enabled");
}
