/* SPDX-License-Identifier: Apache-2.0 */
/* Calls dlopen for another program. tests/cli/run compiles it into an object that has the name of
 * Penstock's library. If an object with this name opens a library, Penstock's LD_AUDIT module must
 * not redirect the call to Penstock's library. */
#include <dlfcn.h>

void *open_through(const char *name);

void *open_through(const char *name)
{
	return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
