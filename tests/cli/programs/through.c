/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a library for somebody else: tests/cli/run makes an object with the name of
 * Penstock's own of it, whose searches LD_AUDIT must leave alone. */
#include <dlfcn.h>

void *open_through(const char *name);

void *open_through(const char *name)
{
	return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
