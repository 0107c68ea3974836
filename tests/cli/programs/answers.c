/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints which libcufile the program got, "penstock" or "another", and then the library's file
 * name. If LINKED is defined, the program is linked to a libcufile. Otherwise it opens the
 * library libcufile by its name if the first argument is "name". If the first argument is
 * "path", it opens the library at the path in the second argument. The suite tests/cli/run
 * compiles and runs it. It must not include a header of Penstock, because the programs that it
 * stands for do not.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef long use_count_fn(void);
#ifdef LINKED
long cuFileUseCount(void);
#endif
#ifdef THROUGH
void *open_through(const char *name); /* defined in through.c, whose object calls dlopen */
#else
#define open_through(name) dlopen(name, RTLD_NOW | RTLD_LOCAL)
#endif

/* Prints which library contains the function `call`. Another libcufile may be loaded in addition
 * to Penstock's. So Penstock's marker counts only if it is in the same shared object as `call`. */
static int print_library(void *lib, use_count_fn *call)
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
	return print_library(dlopen(NULL, RTLD_NOW), cuFileUseCount);
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
	return print_library(lib, call);
#endif
}
