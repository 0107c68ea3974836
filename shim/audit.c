/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that name a libcufile by its absolute path, or find one by an RPATH:
 * an object for the loader's LD_AUDIT (penstock run --audit) that answers every such
 * search with the drop-in beside this file. Searches that Penstock itself makes are
 * left alone: its path `vendor` wants the original. Lives in a namespace of its own,
 * so it may use libc alone, and must never load anything.
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

static char ours[PATH_MAX]; /* "": found nowhere, nothing is answered */

AUDIT_API unsigned la_version(unsigned version);
AUDIT_API unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie);
AUDIT_API char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* libcufile.so, .so.0, .so.1.15.1; libcufile_rdma.so is another library. */
static bool is_cufile(const char *name)
{
	name = base_of(name);
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
	n = snprintf(ours, sizeof(ours), "%.*s%s.0",
		     (int)(base_of(info.dli_fname) - info.dli_fname), info.dli_fname, LIBRARY);
	if (n < 0 || n >= (int)sizeof(ours))
		ours[0] = '\0';
	return version < LAV_CURRENT ? version : LAV_CURRENT;
}

/* A cookie of 0 is one of ours. */
unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)lmid;
	if (!strcmp(map->l_name, ours) || !strncmp(base_of(map->l_name), "libpenstock.so", 14))
		*cookie = 0;
	return 0; /* no bindings are watched: calls cost what they cost */
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
	(void)flag;
	if (ours[0] && *cookie && is_cufile(name))
		return ours;
	return (char *)(uintptr_t)name;
}
