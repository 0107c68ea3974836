/* SPDX-License-Identifier: Apache-2.0 */
/* Implements shared.h: memory that a plane (a separate process) shares with its clients and
 * servers. Both sides call these functions. */
#include "object/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/ops.h"

#define PAGE 4096u

static void descriptors_close(struct pst_shared *s)
{
	int *const fds[] = {&s->fd, &s->read_fd, &s->exported.fd, &s->lease, &s->plane};

	for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* Maps the memory at a multiple of PST_SHARED_ALIGN, so that it can have huge pages. */
static int host_map(struct pst_shared *s, struct pst_err *err)
{
	unsigned char *space = mmap(NULL, s->len + PST_SHARED_ALIGN, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t at =
		((uintptr_t)space + PST_SHARED_ALIGN - 1) & ~(uintptr_t)(PST_SHARED_ALIGN - 1);

	if (space == MAP_FAILED)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no address space: %m");
	if (mmap((void *)at, s->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->fd, 0) ==
	    MAP_FAILED) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes of shared memory: %m", s->len);
		munmap(space, s->len + PST_SHARED_ALIGN);
		return err->code;
	}
	s->ptr = (unsigned char *)at;
	if (s->ptr > space)
		munmap(space, (size_t)(s->ptr - space));
	munmap(s->ptr + s->len, (size_t)(space + PST_SHARED_ALIGN - s->ptr));
	/* An error of this madvise is ignored. Without huge pages, accesses are only slower. */
	madvise(s->ptr, s->len, MADV_HUGEPAGE);
	/* A forked child must not get the memory, because other processes write to it. */
	if (madvise(s->ptr, s->len, MADV_DONTFORK))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "madvise: %m");
	return 0;
}

static int host_create(struct pst_shared *s, struct pst_err *err)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	char name[40];

	s->fd = memfd_create("penstock-plane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd < 0 || fchmod(s->fd, S_IRUSR | S_IWUSR) || ftruncate(s->fd, (off_t)s->len) ||
	    fcntl(s->fd, F_ADD_SEALS, seals))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes of shared memory: %m",
				s->len);
	/* Opens a second descriptor, read-only, for object servers that may only read the
	 * memory. */
	snprintf(name, sizeof(name), "/proc/self/fd/%d", s->fd);
	s->read_fd = open(name, O_RDONLY | O_CLOEXEC);
	if (s->read_fd < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "%s: %m", name);
	return host_map(s, err);
}

int pst_shared_create(struct penstock_device *dev, size_t len, struct pst_shared *out,
		      struct pst_err *err)
{
	void *ptr;
	int ret;

	*out = (struct pst_shared)PST_SHARED_INIT;
	out->dev = dev;
	if (!len || len > SIZE_MAX - 2 * (size_t)PST_SHARED_ALIGN)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%zu bytes are not possible", len);
	out->len = (len + PST_SHARED_ALIGN - 1) & ~(size_t)(PST_SHARED_ALIGN - 1);
	if (!dev) {
		ret = host_create(out, err);
	} else {
		ret = penstock_alloc(dev, out->len, &ptr);
		out->ptr = ret ? NULL : ptr;
		if (!ret)
			ret = penstock_export_memory(dev, ptr, out->len, &out->exported);
		if (ret)
			pst_fail_errno(err, -ret, penstock_errwhy(), "%s", penstock_errmsg());
	}
	if (ret)
		pst_shared_close(out);
	return ret;
}

/* Returns whether the file of `fd` can never become shorter than `len`, and `fd` has the access
 * mode `access`. Refuses files of hugetlbfs: if no huge page is free when a process accesses the
 * memory, the kernel kills that process. */
static bool keeps_length(int fd, size_t len, int access)
{
	const int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	return seals >= 0 && (seals & F_SEAL_SHRINK) && flags >= 0 &&
	       (flags & O_ACCMODE) == access && !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	       !fstatfs(fd, &fs) && fs.f_type == TMPFS_MAGIC && (uint64_t)st.st_size >= len;
}

static int host_open(struct pst_shared *s, struct pst_err *err)
{
	struct stat both[2];

	/* Object servers that may only read get read_fd. It must be the same file as fd, or they
	 * would read other memory. */
	if (!keeps_length(s->fd, s->len, O_RDWR) || !keeps_length(s->read_fd, s->len, O_RDONLY) ||
	    fstat(s->fd, &both[0]) || fstat(s->read_fd, &both[1]) ||
	    both[0].st_ino != both[1].st_ino || both[0].st_dev != both[1].st_dev)
		return pst_fail_errno(err, EINVAL, PENSTOCK_WHY_MALFORMED,
				      "the tenant passed no memory that keeps its length: use a "
				      "memfd with F_SEAL_SHRINK");
	return host_map(s, err);
}

static int device_open(struct pst_shared *s, struct pst_err *err)
{
	uint64_t exported_len;
	void *ptr;
	int ret = penstock_import_memory(s->dev, &s->exported, &ptr);

	if (ret)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the GPU's memory cannot be imported: %.150s",
				      penstock_errmsg());
	s->ptr = ptr;
	exported_len = s->dev->ops->export_len(&s->exported);
	/* Refuses a length above that of the tenant's export, because a server could then access
	 * GPU memory that is not the tenant's. */
	if (s->len > exported_len)
		return pst_fail(err, PENSTOCK_WHY_MALFORMED,
				"the tenant passed memory of %llu bytes as %zu bytes",
				(unsigned long long)exported_len, s->len);
	return 0;
}

int pst_shared_open(struct pst_shared *s, struct pst_err *err)
{
	int ret;

	s->ptr = NULL;
	if (!s->len || s->len % PST_SHARED_ALIGN || s->len > SIZE_MAX - PST_SHARED_ALIGN)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			       "%zu bytes of memory: not a multiple of 2 MiB", s->len);
	else
		ret = s->dev ? device_open(s, err) : host_open(s, err);
	if (ret)
		pst_shared_close(s);
	return ret;
}

int pst_shared_cut(struct pst_shared *s, uint64_t off, uint64_t len, struct pst_err *err)
{
	uint64_t start = off & ~(uint64_t)(PAGE - 1);
	size_t size = (size_t)((off + len + PAGE - 1 - start) & ~(uint64_t)(PAGE - 1));
	unsigned char *fresh;

	if (s->dev)
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
				      "a server may still access the memory of the GPU");
	fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fresh == MAP_FAILED)
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_NO_MEMORY, "%zu fresh bytes: %m",
				      size);
	memcpy(fresh, s->ptr + start, size);
	/* Replaces all pages with one call, because another thread may access them meanwhile, and
	 * must never find a page that is not mapped. */
	if (mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, s->ptr + start) ==
	    MAP_FAILED) {
		pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_NO_MEMORY, "mremap: %m");
		munmap(fresh, size);
		return err->code;
	}
	return 0;
}

/* ---- the end ---- */

int pst_shared_lease(struct pst_shared *s, int plane, int *out, struct pst_err *err)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "socketpair: %m");
	s->lease = ends[0];
	*out = ends[1];
	s->plane = plane < 0 ? -1 : fcntl(plane, F_DUPFD_CLOEXEC, 3);
	return 0;
}

void pst_shared_release(struct pst_shared *s)
{
	if (s->lease < 0)
		return;
	/* In the plane, the tenant has chosen this descriptor. send(2) fails if it is not a socket,
	 * and never waits with MSG_DONTWAIT. Otherwise an error means that the tenant has ended. */
	(void)send(s->lease, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(s->lease);
	s->lease = -1;
}

void pst_shared_close(struct pst_shared *s)
{
	if (s->ptr && s->dev)
		penstock_free(s->dev, s->ptr);
	else if (s->ptr)
		munmap(s->ptr, s->len);
	s->ptr = NULL;
	pst_shared_release(s);
	descriptors_close(s);
}

/* Waits until a descriptor is readable, up to `until_ns`. */
static bool readable_wait(int fd, uint64_t until_ns)
{
	struct pollfd wait = {fd, POLLIN, 0};
	int n;

	do {
		uint64_t now = pst_now_ns();

		/* Rounds up, so that the last wait does not end before its time. */
		n = poll(&wait, 1, until_ns > now ? (int)((until_ns - now) / 1000000 + 1) : 0);
	} while (n < 0 && errno == EINTR);
	return n > 0;
}

void pst_shared_abandon(struct pst_shared *s, uint64_t until_ns)
{
	char byte;
	bool released = s->lease < 0;

	if (!released && readable_wait(s->lease, until_ns))
		/* If no byte has arrived, the plane has ended. Its pidfd is then awaited, too: the
		 * kernel may close the lease earlier than the plane's descriptors of the GPU. */
		released = recv(s->lease, &byte, 1, MSG_DONTWAIT) == 1 ||
			   (s->plane >= 0 && readable_wait(s->plane, until_ns));
	if (!released) {
		pst_log(PST_LOG_WARN, "plane",
			"%zu bytes of a GPU's memory stay allocated: the plane has not released "
			"them",
			s->len);
		s->ptr = NULL;
	}
	pst_shared_close(s);
}
