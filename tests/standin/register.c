/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the registration of host memory. It refuses what the kernel would not pin: memory that
 * is not mapped, not writable or beyond the end of its file, and files whose pages the kernel does
 * not pin for writing. Pinned pages keep their content when the file is truncated. To imitate this,
 * the stand-in copies a file when the file is registered read-only. A caller that keeps a
 * registration too long then gets old bytes.
 */
#include "standin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS 0x01021994
#define HUGETLBFS 0x958458f6

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

struct mapping {
	uintptr_t start, end;
	char perms[5];
	unsigned long inode;
	char path[512];
};

static bool file_may_be_pinned(const char *path)
{
	static const char *const in_memory[] = {"/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"};
	struct statfs fs;

	for (size_t i = 0; i < sizeof(in_memory) / sizeof(in_memory[0]); i++)
		if (!strncmp(path, in_memory[i], strlen(in_memory[i])))
			return true;
	return !statfs(path, &fs) && (fs.f_type == TMPFS || fs.f_type == HUGETLBFS);
}

static bool mapping_allows(const struct mapping *m, bool read_only, bool *is_file)
{
	bool file = m->inode && strncmp(m->path, "/dev/zero", 9);

	*is_file = *is_file || file;
	if (m->perms[0] != 'r' || (!read_only && m->perms[1] != 'w'))
		return false;
	if (!file)
		return true;
	if (m->perms[3] == 'p') {
		/* The real driver was seen to hang forever when a private mapping of a file was
		 * registered. */
		fprintf(stderr, "stand-in libcuda: a private mapping of %s was registered\n",
			m->path);
		abort();
	}
	return read_only || file_may_be_pinned(m->path);
}

/* Returns whether the kernel would pin [start, start + len). Sets *is_file if the range contains
 * pages of a file. */
static bool range_allows(uintptr_t start, size_t len, bool read_only, bool *is_file)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t at = start, end = start + len;
	bool allowed = maps;
	char line[1024];

	*is_file = false;
	while (allowed && at < end && fgets(line, sizeof(line), maps)) {
		struct mapping m = {.path = ""};

		if (sscanf(line, "%lx-%lx %4s %*x %*s %lu %511[^\n]", &m.start, &m.end, m.perms,
			   &m.inode, m.path) < 4 ||
		    m.end <= at)
			continue;
		allowed = m.start <= at && mapping_allows(&m, read_only, is_file);
		at = m.end;
	}
	if (maps)
		fclose(maps);
	return allowed && at >= end;
}

/* Loads all pages of the range, as pinning does. Returns false if a page cannot be loaded. */
static bool pages_populate(uintptr_t start, size_t len, bool read_only)
{
	int how = read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;

	/* Kernels before 5.14 do not implement this advice and return EINVAL. */
	return !madvise((void *)start, len, how) || errno == EINVAL;
}

/* Copies the bytes at `start` to a new mapping. Returns NULL if some bytes are beyond the end of
 * the file. It copies with write(2), which returns EFAULT for such a page, whereas a load would
 * raise SIGBUS. */
static char *snapshot_make(uintptr_t start, size_t len)
{
	int fd = memfd_create("penstock stand-in pin", MFD_CLOEXEC);
	char *at = MAP_FAILED;
	size_t done = 0;

	while (fd >= 0 && done < len) {
		ssize_t n = write(fd, (const char *)start + done, len - done);

		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (fd >= 0 && done == len)
		at = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return at == MAP_FAILED ? NULL : at;
}

static enum pst_cu_result registration_add(uintptr_t host, size_t len, bool read_only,
					   char *snapshot, struct pst_cu_ctx *ctx)
{
	uintptr_t map_start = host & ~(PAGE - 1);
	struct range *r = range_overlap(host, len);

	if (r)
		return standin_refuse(r->kind == RANGE_REGISTERED ? PST_CU_HOST_ALREADY_REGISTERED
								  : PST_CU_INVALID_VALUE,
				      "%zu bytes at %lx are already known", len,
				      (unsigned long)host);
	r = range_add(RANGE_REGISTERED, host, len);
	if (!r)
		return PST_CU_OUT_OF_MEMORY;
	r->ctx = ctx;
	r->dev = ctx->dev;
	r->access = read_only ? 1 : 3;
	r->map_start = map_start;
	r->map_len = ((host + len + PAGE - 1) & ~(PAGE - 1)) - map_start;
	r->snapshot = snapshot;
	r->alias = snapshot ? snapshot + (host - map_start) : (char *)host;
	r->block_id = ++standin.block_id;
	standin.live.registrations++;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuMemHostRegister_v2(void *host, size_t len, unsigned int flags)
{
	const unsigned int all = PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED | PST_CU_HOST_IOMEMORY |
				 PST_CU_HOST_READ_ONLY;
	bool read_only = flags & PST_CU_HOST_READ_ONLY, is_file;
	uintptr_t at = (uintptr_t)host, start = at & ~(PAGE - 1);
	size_t pin_len;
	char *snapshot = NULL;
	enum pst_cu_result rc;

	ENTER(cuMemHostRegister_v2, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	if (!host || !len || (flags & ~all) || at + len < at || in_arena(at))
		return standin_refuse(PST_CU_INVALID_VALUE, "registration of %zu bytes at %p", len,
				      host);
	if (read_only && !standin.read_only)
		return standin_refuse(PST_CU_NOT_SUPPORTED, "read-only registration");
	if (flags & PST_CU_HOST_IOMEMORY)
		return standin_refuse(PST_CU_NOT_PERMITTED, "registration of device memory");
	pin_len = ((at + len + PAGE - 1) & ~(PAGE - 1)) - start;
	if (!range_allows(start, pin_len, read_only, &is_file) ||
	    !pages_populate(start, pin_len, read_only))
		return standin_refuse(PST_CU_INVALID_VALUE, "%zu bytes at %p cannot be pinned", len,
				      host);
	if (read_only && is_file) {
		snapshot = snapshot_make(start, pin_len);
		if (!snapshot)
			return standin_refuse(PST_CU_INVALID_VALUE, "beyond the end of the file");
	}
	lock();
	rc = registration_add(at, len, read_only, snapshot, ctx);
	unlock();
	if (rc && snapshot)
		munmap(snapshot, pin_len);
	return rc;
}

EXPORT enum pst_cu_result cuMemHostUnregister(void *host)
{
	enum pst_cu_result rc = PST_CU_OK;
	struct range *r;

	ENTER(cuMemHostUnregister, NEED_INIT | NEED_EVEN_BROKEN | NEED_TURN | NEED_UNCAPTURED);
	lock();
	r = range_find((uintptr_t)host);
	if (!r)
		rc = standin_refuse(PST_CU_HOST_NOT_REGISTERED, "%p is not registered", host);
	else if (r->kind != RANGE_REGISTERED || r->start != (uintptr_t)host)
		rc = standin_refuse(PST_CU_INVALID_VALUE, "%p is not the start of a registration",
				    host);
	if (!rc) {
		ctx_idle_exclusive(r->ctx);
		r = range_find((uintptr_t)host);
		if (r && r->kind == RANGE_REGISTERED) {
			range_drop(r);
			standin.live.registrations--;
		}
	}
	unlock();
	return rc ? rc : standin_leave(ctx);
}
