/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements memory.h. Host memory of a buffer is a memfd that cannot shrink. So a server can map
 * it without the risk that an access behind its end kills the server. client.c calls these
 * functions without holding its lock.
 */
#include "wire/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/holders.h"

/* Maps a new memfd at an address that is a multiple of PST_WIRE_ALIGN. */
static int memory_map(struct pst_wire_buffer *b, struct pst_err *err)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	unsigned char *space = mmap(NULL, b->mapped + PST_WIRE_ALIGN, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t at = (uintptr_t)space;
	char name[40];

	if (space == MAP_FAILED)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no address space: %m");
	at = (at + PST_WIRE_ALIGN - 1) & ~(uintptr_t)(PST_WIRE_ALIGN - 1);
	b->fd = memfd_create("penstock-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* The seal F_SEAL_SHRINK guarantees that the memory does not shrink. Otherwise an access
	 * behind its end would kill a server. The mode 0600 keeps a server of another user from
	 * opening the descriptor again for writing. */
	if (b->fd < 0 || fchmod(b->fd, S_IRUSR | S_IWUSR) || ftruncate(b->fd, (off_t)b->mapped) ||
	    fcntl(b->fd, F_ADD_SEALS, seals) ||
	    mmap((void *)at, b->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, b->fd, 0) ==
		    MAP_FAILED) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes of shared memory: %m", b->mapped);
		munmap(space, b->mapped + PST_WIRE_ALIGN);
		return -ENOMEM;
	}
	b->ptr = (unsigned char *)at;
	/* Unmaps the address space before and after the memory. */
	if (b->ptr > space)
		munmap(space, (size_t)(b->ptr - space));
	munmap(b->ptr + b->mapped, (size_t)(space + PST_WIRE_ALIGN - b->ptr));
	/* Without MADV_HUGEPAGE the memory is only slower, so its error is ignored. An error of
	 * MADV_DONTFORK is returned, because a forked child must not be able to write to the
	 * window. */
	madvise(b->ptr, b->mapped, MADV_HUGEPAGE);
	if (madvise(b->ptr, b->mapped, MADV_DONTFORK)) {
		munmap(b->ptr, b->mapped);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "madvise: %m");
	}
	/* Opens a second descriptor, read-only, for servers that may only read the memory. */
	snprintf(name, sizeof(name), "/proc/self/fd/%d", b->fd);
	b->read_fd = open(name, O_RDONLY | O_CLOEXEC);
	b->shared = b->read_fd >= 0;
	return 0;
}

int pst_wire_memory_alloc(struct pst_wire_buffer *b, struct pst_err *err)
{
	const struct pst_wire_devices *devices = b->client->devices;
	void *ptr;
	int ret;

	if (b->len > SIZE_MAX - 2 * (size_t)PST_WIRE_ALIGN)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes are too many", b->len);
	b->mapped = (b->len + PST_WIRE_ALIGN - 1) & ~(size_t)(PST_WIRE_ALIGN - 1);
	if (!b->dev)
		return memory_map(b, err);
	ret = devices->alloc(b->dev, b->mapped, &ptr);
	if (ret)
		return pst_fail_errno(err, -ret, PENSTOCK_WHY_NO_MEMORY, "%s", penstock_errmsg());
	b->ptr = ptr;
	/* If the driver cannot share the memory with other processes, only transport shm1 cannot
	 * use the memory. */
	b->shared = !devices->export_memory(b->dev, ptr, b->mapped, &b->exported);
	return 0;
}

void pst_wire_memory_free(struct pst_wire_buffer *b)
{
	/* A server whose access was not ended may still copy to or from the GPU's memory, even
	 * after its connection has ended. Freed memory might be allocated for something else, so
	 * this memory is never freed. */
	if (b->mapped && b->ptr && b->dev && !b->stuck &&
	    (!b->holder_count || pst_wire_holders_gone(b)))
		b->client->devices->free(b->dev, b->ptr);
	else if (b->mapped && b->ptr && !b->dev)
		munmap(b->ptr, b->mapped);
	if (b->fd >= 0)
		close(b->fd);
	if (b->read_fd >= 0)
		close(b->read_fd);
	if (b->exported.fd >= 0)
		close(b->exported.fd);
	pst_wire_holders_close(b);
	free(b);
}
