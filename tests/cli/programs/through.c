/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a library for another program. tests/cli/run compiles it into an object with the name
 * of Penstock's library. LD_AUDIT must not change the searches of such an object. */
#include <dlfcn.h>

void *open_through(const char *name);

void *open_through(const char *name)
{
	return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
