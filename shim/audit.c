/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An audit library for the dynamic loader. `penstock run --audit` names it in LD_AUDIT, for
 * programs that open a libcufile by its absolute path or by an RPATH. It redirects every search
 * for a libcufile to the drop-in in its own folder. It does not redirect the searches of
 * Penstock itself, because path `vendor` needs NVIDIA's library. The loader puts the audit library
 * into a separate namespace, so it may use libc only and must never load anything.
 */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define AUDIT_API __attribute__((visibility("default")))
#define LIBRARY "libcufile.so"

/* path of the drop-in; "" if unknown: then no search is redirected */
static char dropin[PATH_MAX];

AUDIT_API unsigned la_version(unsigned version);
AUDIT_API unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie);
AUDIT_API char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Returns whether the last part of the name is libcufile.so, with or without a version such as
 * .so.0 or .so.1.15.1. libcufile_rdma.so is another library. */
static bool is_cufile(const char *name)
{
	name = base_name(name);
	if (strncmp(name, LIBRARY, sizeof(LIBRARY) - 1))
		return false;
	name += sizeof(LIBRARY) - 1;
	return !*name || (*name == '.' && !name[strspn(name, ".0123456789")]);
}

unsigned la_version(unsigned version)
{
	Dl_info info;
	int n;

	if (!dladdr((void *)(uintptr_t)&la_version, &info) || !strchr(info.dli_fname, '/'))
		return version;
	n = snprintf(dropin, sizeof(dropin), "%.*s%s.0",
		     (int)(base_name(info.dli_fname) - info.dli_fname), info.dli_fname, LIBRARY);
	if (n < 0 || n >= (int)sizeof(dropin))
		dropin[0] = '\0';
	return version < LAV_CURRENT ? version : LAV_CURRENT;
}

/* The loader calls this function for each loaded object. Sets the cookie of Penstock's own objects
 * to 0. la_objsearch does not redirect the searches of objects that have this cookie. */
unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)lmid;
	if (!strcmp(map->l_name, dropin) || !strncmp(base_name(map->l_name), "libpenstock.so", 14))
		*cookie = 0;
	/* Tells the loader to audit no symbol bindings, so that calls cost nothing extra. */
	return 0;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
	(void)flag;
	if (dropin[0] && *cookie && is_cufile(name))
		return dropin;
	return (char *)(uintptr_t)name;
}
