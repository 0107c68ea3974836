/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says which libcufile answers it, for tests/cli/run: "penstock" or "another", then
 * the file. Bound the way its first argument says: linked (built with LINKED), by
 * "name", or by the "path" in the second. Compiled by the suite, knows no header of
 * Penstock's, as the programs that it stands for.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef long use_count_fn(void);
#ifdef LINKED
long cuFileUseCount(void);
#endif
#ifdef THROUGH
void *open_through(const char *name); /* through.c: another object's dlopen */
#else
#define open_through(name) dlopen(name, RTLD_NOW | RTLD_LOCAL)
#endif

/* The marker counts only where it lies in the very object that the call went to. */
static int tell(void *lib, use_count_fn *call)
{
	Dl_info called, marked;
	void *mark = lib ? dlsym(lib, "penstock_cufile_marker") : NULL;
	void *at;

	memcpy(&at, &call, sizeof(at));
	if (!at || !dladdr(at, &called))
		return 4;
	if (mark && (!dladdr(mark, &marked) || marked.dli_fbase != called.dli_fbase))
		mark = NULL;
	call();
	printf("%s %s\n", mark ? "penstock" : "another", called.dli_fname);
	return 0;
}

int main(int argc, char **argv)
{
#ifdef LINKED
	(void)argc;
	(void)argv;
	return tell(dlopen(NULL, RTLD_NOW), cuFileUseCount);
#else
	const char *name = argc > 2 ? argv[2] : "libcufile.so.0";
	void *lib = open_through(name), *sym;
	use_count_fn *call;

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	sym = dlsym(lib, "cuFileUseCount");
	memcpy(&call, &sym, sizeof(call));
	return tell(lib, call);
#endif
}
