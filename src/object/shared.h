/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a tenant shares with a plane. The tenant makes it; the plane maps the descriptors
 * that it gets, but only if the memory cannot become shorter: an access beyond its end would kill
 * the plane.
 */
#ifndef PST_OBJECT_SHARED_H
#define PST_OBJECT_SHARED_H

#include "core/base/err.h"

struct pst_shared {
	struct penstock_device *dev; /* NULL: host memory */
	unsigned char *ptr;
	size_t len;	 /* a multiple of PST_SHARED_ALIGN */
	int fd, read_fd; /* of host memory, for reading and writing, and for reading only */
	struct penstock_export exported; /* of memory of a GPU */
};
#define PST_SHARED_ALIGN (2u << 20)

/* Allocates memory of at least `len` bytes. */
int pst_shared_create(struct penstock_device *dev, size_t len, struct pst_shared *out,
		      struct pst_err *err);
/* Maps memory of another process. Takes the descriptors of *out, also after an error. The caller
 * has set `dev`, `len`, the descriptors and `exported`. */
int pst_shared_open(struct pst_shared *out, struct pst_err *err);
/* Replaces the pages of a range of host memory by private ones with the same contents: other
 * processes keep the old pages. */
int pst_shared_cut(struct pst_shared *shared, uint64_t off, uint64_t len, struct pst_err *err);
/* Frees memory, or ends its mapping, and closes its descriptors. */
void pst_shared_close(struct pst_shared *shared);

#endif
