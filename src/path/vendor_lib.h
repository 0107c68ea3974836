/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's libcufile, loaded for path vendor only. One per process, opened at the
 * first route that could use it, with compat mode off where its API allows that, and
 * left open: its exit handlers outlive any owner that we could name.
 */
#ifndef PST_PATH_VENDOR_LIB_H
#define PST_PATH_VENDOR_LIB_H

#include "core/base/err.h"
#include "cufile_abi.h"

/* X(return type, name, parameters): what the path calls. */
#define PST_VENDOR_FUNCS(X)                                                                        \
	X(struct cuf_error, cuFileDriverOpen, (void))                                              \
	X(struct cuf_error, cuFileDriverGetProperties, (struct cuf_props * props))                 \
	X(struct cuf_error, cuFileHandleRegister, (void **fh, struct cuf_descr *descr))            \
	X(void, cuFileHandleDeregister, (void *fh))                                                \
	X(ssize_t, cuFileRead, (void *fh, void *base, size_t len, off_t file_off, off_t base_off)) \
	X(ssize_t, cuFileWrite,                                                                    \
	  (void *fh, const void *base, size_t len, off_t file_off, off_t base_off))
/* The same; NULL in a library before 1.14 or 1.15. */
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
	bool compat; /* it may fall back to plain reads without a word */
	int version; /* 1000 x major + 10 x minor, 0: not told */
};

/* What its own counters say that moved, since it was opened. */
struct pst_vendor_counts {
	uint64_t direct; /* reads by peer-to-peer DMA or nvidia-fs */
	uint64_t posix;	 /* reads by system calls and copies */
	uint64_t bytes;	 /* read */
};

/*
 * The library, loaded by the first call (which may take a second); NULL, and in *err why
 * not. Any thread. PENSTOCK_LIBCUFILE names the file by an absolute path; without it the
 * usual places are tried, where the module nvidia-fs is loaded.
 */
const struct pst_vendor *pst_vendor_get(struct pst_err *err);

/* -EOPNOTSUPP: this library counts nothing, or not by GPU. */
int pst_vendor_count(const struct pst_vendor *lib, struct pst_vendor_counts *out);

/* "DRIVER_NOT_INITIALIZED" and the like for a code of the library; static. */
const char *pst_vendor_name(int code);

#endif
