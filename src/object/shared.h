/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a tenant (another process) shares with a plane. The tenant allocates it. The plane
 * maps the descriptors that it receives, but only if the memory cannot become shorter. An access
 * behind the end would kill the plane.
 *
 * Host memory that the tenant frees lives on until the plane unmaps it. Memory of a GPU does not:
 * the GPU's driver would give it to others while the plane still copies. So such memory has a
 * lease, which is a pair of connected sockets. The plane sends a byte when it has given up the
 * memory. If the plane has ended instead, its pidfd tells when the driver has ended its work.
 */
#ifndef PST_OBJECT_SHARED_H
#define PST_OBJECT_SHARED_H

#include "core/base/err.h"

struct pst_shared {
	struct penstock_device *dev; /* device of the memory; NULL for host memory */
	unsigned char *ptr;
	size_t len; /* a multiple of PST_SHARED_ALIGN */
	/* two descriptors of host memory: `fd` for reading and writing, `read_fd` for reading
	 * only */
	int fd, read_fd;
	struct penstock_export exported; /* export of the memory of a GPU */
	int lease;			 /* this process's end of the lease; -1: none */
	int plane; /* in the tenant, pidfd of the plane; -1: the plane cannot be watched */
};
#define PST_SHARED_ALIGN (2u << 20)
#define PST_SHARED_INIT                                                                 \
	{                                                                               \
		.fd = -1, .read_fd = -1, .exported = PENSTOCK_EXPORT_INIT, .lease = -1, \
		.plane = -1                                                             \
	}

/* Allocates memory of at least `len` bytes, in a form that another process can map. */
int pst_shared_create(struct penstock_device *dev, size_t len, struct pst_shared *out,
		      struct pst_err *err);
/* Maps memory that another process allocated. The caller has set `dev`, `len`, the descriptors and
 * `exported`. The function takes over the descriptors of *out, and closes them after an error. */
int pst_shared_open(struct pst_shared *out, struct pst_err *err);
/* Replaces the pages of a range of host memory by private pages with the same contents. Then other
 * processes that map the memory cannot change it, because they keep the old pages. */
int pst_shared_cut(struct pst_shared *shared, uint64_t off, uint64_t len, struct pst_err *err);
/* Makes a lease of memory of a GPU. `plane` is a pidfd of the plane, or -1; the caller keeps it.
 * Stores in *out the end that the caller passes to the plane and then closes. */
int pst_shared_lease(struct pst_shared *shared, int plane, int *out, struct pst_err *err);
/* Called by the plane when it does not access a tenant's memory any more. Ends its lease. */
void pst_shared_release(struct pst_shared *shared);
/* Frees memory that this process allocated, and unmaps memory of another process. Then ends the
 * memory's lease, and closes the descriptors. */
void pst_shared_close(struct pst_shared *shared);
/* Frees memory without an answer of the plane. If the memory has a lease, waits until `until_ns`
 * (pst_now_ns) for its end. If it does not end, the memory stays allocated. */
void pst_shared_abandon(struct pst_shared *shared, uint64_t until_ns);

#endif
