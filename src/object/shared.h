/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a tenant (another process) shares with a plane. The tenant allocates it. The plane
 * maps the descriptors that it receives, but only if the memory cannot become shorter. An access
 * behind the end would kill the plane.
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
};
#define PST_SHARED_ALIGN (2u << 20)

/* Allocates memory of at least `len` bytes, in a form that another process can map. */
int pst_shared_create(struct penstock_device *dev, size_t len, struct pst_shared *out,
		      struct pst_err *err);
/* Maps memory that another process allocated. The caller has set `dev`, `len`, the descriptors and
 * `exported`. The function takes over the descriptors of *out, and closes them after an error. */
int pst_shared_open(struct pst_shared *out, struct pst_err *err);
/* Replaces the pages of a range of host memory by private pages with the same contents. Then other
 * processes that map the memory cannot change it, because they keep the old pages. */
int pst_shared_cut(struct pst_shared *shared, uint64_t off, uint64_t len, struct pst_err *err);
/* Frees the memory, or ends the mapping of another process's memory. Closes the descriptors. */
void pst_shared_close(struct pst_shared *shared);

#endif
