/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's libcufile, loaded for path vendor only, once for each process. The first route that
 * could use it opens it, with compat mode off where its API allows that. It is never closed:
 * its exit handlers run after any owner that could close it.
 */
#ifndef PST_PATH_VENDOR_LIB_H
#define PST_PATH_VENDOR_LIB_H

#include "core/base/err.h"
#include "abi/cufile_abi.h"

/* X(return type, name, parameters): the functions that the path calls. */
#define PST_VENDOR_FUNCS(X)                                                                        \
	X(struct cuf_error, cuFileDriverOpen, (void))                                              \
	X(struct cuf_error, cuFileDriverGetProperties, (struct cuf_props * props))                 \
	X(struct cuf_error, cuFileHandleRegister, (void **fh, struct cuf_descr *descr))            \
	X(void, cuFileHandleDeregister, (void *fh))                                                \
	X(ssize_t, cuFileRead, (void *fh, void *base, size_t len, off_t file_off, off_t base_off)) \
	X(ssize_t, cuFileWrite,                                                                    \
	  (void *fh, const void *base, size_t len, off_t file_off, off_t base_off))
/* Functions that a library before version 1.14 or 1.15 lacks; NULL there. */
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
	bool compat; /* The library may fall back to plain reads silently. */
	int version; /* 1000 x major + 10 x minor; 0: unknown. */
};

/* The library's own counters of moved data, since it was opened. */
struct pst_vendor_counts {
	uint64_t direct; /* Reads by peer-to-peer DMA or nvidia-fs. */
	uint64_t posix;	 /* Reads by system calls and copies. */
	uint64_t bytes;	 /* Bytes read. */
};

/*
 * Returns the library, or NULL with the reason in *err. The first call loads it, which may take
 * a second. Any thread. PENSTOCK_LIBCUFILE names the file by an absolute path. Without it, and
 * if the module nvidia-fs is loaded, the usual places are searched.
 */
const struct pst_vendor *pst_vendor_get(struct pst_err *err);

/* Reads the counters. Returns -EOPNOTSUPP if the library keeps none, or not for each GPU. */
int pst_vendor_count(const struct pst_vendor *lib, struct pst_vendor_counts *out);

/* Returns the name of a library code, such as "DRIVER_NOT_INITIALIZED". Static storage. */
const char *pst_vendor_name(int code);

#endif
