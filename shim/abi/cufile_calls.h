/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the functions of the cuFile ABI that the drop-in (Penstock's libcufile) exports, with
 * the types of cufile_abi.h. The files that define the functions include this header, and so do the
 * tests. No file may include both this header and NVIDIA's. A handle, a batch and a stream have the
 * type void *.
 */
#ifndef CUFILE_CALLS_H
#define CUFILE_CALLS_H

#include "cufile_abi.h"

#define CUF_API __attribute__((visibility("default")))

CUF_API struct cuf_error cuFileDriverOpen(void);
CUF_API struct cuf_error cuFileDriverClose(void);
CUF_API struct cuf_error cuFileDriverClose_v2(void);
CUF_API long cuFileUseCount(void);
CUF_API struct cuf_error cuFileDriverGetProperties(struct cuf_props *props);
CUF_API struct cuf_error cuFileDriverSetPollMode(bool poll, size_t threshold_kb);
CUF_API struct cuf_error cuFileDriverSetMaxDirectIOSize(size_t kb);
CUF_API struct cuf_error cuFileDriverSetMaxCacheSize(size_t kb);
CUF_API struct cuf_error cuFileDriverSetMaxPinnedMemSize(size_t kb);
CUF_API struct cuf_error cuFileGetVersion(int *version);

CUF_API struct cuf_error cuFileHandleRegister(void **fh, struct cuf_descr *descr);
CUF_API void cuFileHandleDeregister(void *fh);
CUF_API struct cuf_error cuFileBufRegister(const void *base, size_t len, int flags);
CUF_API struct cuf_error cuFileBufDeregister(const void *base);

CUF_API ssize_t cuFileRead(void *fh, void *base, size_t len, off_t file_off, off_t base_off);
CUF_API ssize_t cuFileWrite(void *fh, const void *base, size_t len, off_t file_off, off_t base_off);
CUF_API ssize_t cuFileReadv(void *fh, const struct cuf_iovec *iov, size_t count, off_t file_off,
			    unsigned flags);
CUF_API ssize_t cuFileWritev(void *fh, const struct cuf_iovec *iov, size_t count, off_t file_off,
			     unsigned flags);

CUF_API struct cuf_error cuFileBatchIOSetUp(void **batch, unsigned nr);
CUF_API struct cuf_error cuFileBatchIOSubmit(void *batch, unsigned nr, struct cuf_io_params *params,
					     unsigned flags);
CUF_API struct cuf_error cuFileBatchIOGetStatus(void *batch, unsigned min_nr, unsigned *nr,
						struct cuf_io_event *events,
						struct timespec *timeout);
CUF_API struct cuf_error cuFileBatchIOCancel(void *batch);
CUF_API void cuFileBatchIODestroy(void *batch);

CUF_API struct cuf_error cuFileReadAsync(void *fh, void *base, size_t *len, off_t *file_off,
					 off_t *base_off, ssize_t *bytes, void *stream);
CUF_API struct cuf_error cuFileWriteAsync(void *fh, void *base, size_t *len, off_t *file_off,
					  off_t *base_off, ssize_t *bytes, void *stream);
CUF_API struct cuf_error cuFileStreamRegister(void *stream, unsigned flags);
CUF_API struct cuf_error cuFileStreamDeregister(void *stream);

CUF_API struct cuf_error cuFileGetParameterSizeT(int param, size_t *value);
CUF_API struct cuf_error cuFileGetParameterBool(int param, bool *value);
CUF_API struct cuf_error cuFileGetParameterString(int param, char *text, int len);
CUF_API struct cuf_error cuFileSetParameterSizeT(int param, size_t value);
CUF_API struct cuf_error cuFileSetParameterBool(int param, bool value);
CUF_API struct cuf_error cuFileSetParameterString(int param, const char *text);
CUF_API struct cuf_error cuFileGetParameterMinMaxValue(int param, size_t *min, size_t *max);
CUF_API struct cuf_error cuFileSetParameterPosixPoolSlabArray(const size_t *sizes,
							      const size_t *counts, int len);
CUF_API struct cuf_error cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts,
							      int len);
CUF_API struct cuf_error cuFileSetParameterGpuBounceBufferSlabArray(const size_t *sizes,
								    const size_t *counts, int len);
CUF_API struct cuf_error cuFileGetParameterGpuBounceBufferSlabArray(size_t *sizes, size_t *counts,
								    int len);

CUF_API struct cuf_error cuFileSetStatsLevel(int level);
CUF_API struct cuf_error cuFileGetStatsLevel(int *level);
CUF_API struct cuf_error cuFileStatsStart(void);
CUF_API struct cuf_error cuFileStatsStop(void);
CUF_API struct cuf_error cuFileStatsReset(void);
CUF_API struct cuf_error cuFileGetStatsL1(void *stats);
CUF_API struct cuf_error cuFileGetStatsL2(void *stats);
CUF_API struct cuf_error cuFileGetStatsL3(void *stats);
CUF_API struct cuf_error cuFileGetBARSizeInKB(int gpu, size_t *kb);

CUF_API struct cuf_error cuFileDriverSetP2PFlags(int target, int flags);
CUF_API struct cuf_error cuFileDriverGetP2PFlags(int target, int *flags);
CUF_API struct cuf_error cuFileExportPCIeTopology(const char *name);

/* Marks the library as Penstock's drop-in. Path `vendor` needs NVIDIA's library, so it refuses to
 * load a library that has this symbol. */
CUF_API extern const char penstock_cufile_marker[];

#endif
