/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's libcufile, loaded only for the path "vendor", once in each process. The first route (a
 * storage with a device) that could use libcufile loads it, and turns its compat mode off if its
 * version can do that. It is never closed, because its exit handlers run later than any code that
 * could close it.
 */
#ifndef PST_PATH_VENDOR_LIB_H
#define PST_PATH_VENDOR_LIB_H

#include "core/base/err.h"
#include "abi/cufile_abi.h"

/* X(return type, name, parameters) for each libcufile function that the path "vendor" needs. */
#define PST_VENDOR_FUNCS(X)                                                                        \
	X(struct cuf_error, cuFileDriverOpen, (void))                                              \
	X(struct cuf_error, cuFileDriverGetProperties, (struct cuf_props * props))                 \
	X(struct cuf_error, cuFileHandleRegister, (void **fh, struct cuf_descr *descr))            \
	X(void, cuFileHandleDeregister, (void *fh))                                                \
	X(ssize_t, cuFileRead, (void *fh, void *base, size_t len, off_t file_off, off_t base_off)) \
	X(ssize_t, cuFileWrite,                                                                    \
	  (void *fh, const void *base, size_t len, off_t file_off, off_t base_off))
/* Functions that libcufile has only since version 1.14 or 1.15. Their pointers are NULL with
 * older versions. */
#define PST_VENDOR_OPTIONAL(X)                                               \
	X(struct cuf_error, cuFileGetVersion, (int *version))                \
	X(struct cuf_error, cuFileSetParameterBool, (int param, bool value)) \
	X(struct cuf_error, cuFileSetStatsLevel, (int level))                \
	X(struct cuf_error, cuFileStatsStart, (void))                        \
	X(struct cuf_error, cuFileGetStatsL3, (void *stats))

struct pst_vendor {
#define PST_VENDOR_MEMBER(type, name, params) type(*name) params;
	PST_VENDOR_FUNCS(PST_VENDOR_MEMBER)
	PST_VENDOR_OPTIONAL(PST_VENDOR_MEMBER)
#undef PST_VENDOR_MEMBER
	bool compat; /* True if libcufile may fall back to plain reads without reporting it. */
	int version; /* Version: 1000 x major + 10 x minor; 0 if it is unknown. */
};

/* The values of libcufile's own counters, which start at 0 when libcufile is opened. */
struct pst_vendor_counts {
	uint64_t direct; /* Number of reads by peer-to-peer DMA or nvidia-fs. */
	uint64_t posix;	 /* Number of reads by system calls and CPU copies. */
	uint64_t bytes;	 /* Number of bytes read. */
};

/*
 * Returns libcufile's functions, or NULL with the reason in *err. The first call loads libcufile,
 * which may take a second. Any thread may call it. The environment variable PENSTOCK_LIBCUFILE
 * names libcufile's file by an absolute path. If it is not set, the usual places are searched, but
 * only if the module nvidia-fs is loaded.
 */
const struct pst_vendor *pst_vendor_get(struct pst_err *err);

/* Reads libcufile's counters. Returns -EOPNOTSUPP if libcufile has no counters, or does not count
 * each GPU separately. */
int pst_vendor_count(const struct pst_vendor *lib, struct pst_vendor_counts *out);

/* Returns the name of a result code of libcufile, such as "DRIVER_NOT_INITIALIZED", in static
 * storage. */
const char *pst_vendor_name(int code);

#endif
