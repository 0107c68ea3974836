/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the cuFile interface for C and C++ programs that are built on machines without NVIDIA's
 * cufile.h. Such a program is compiled with -IPREFIX/include/penstock and linked with
 * -LLIBDIR/penstock -lcufile. It then runs with this library or with NVIDIA's.
 *
 * Names, numbers and layouts are those of version 1.15, so the functions that later versions added
 * are missing. NVIDIA's documentation of cuFile describes the functions, and penstock-cufile(7)
 * the differences. This header needs cuda.h of the CUDA toolkit for CUresult and CUstream. No file
 * of Penstock's library may include it. The test "harness/cufile" compares it with shim/abi.
 */
#ifndef PENSTOCK_CUFILE_H
#define PENSTOCK_CUFILE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- results ---- */

#define CUFILEOP_BASE_ERR 5000

/* X(name, number): all error codes. The text of a code is its name. */
#define PENSTOCK_CUFILE_ERRORS(X)               \
	X(DRIVER_NOT_INITIALIZED, 5001)         \
	X(DRIVER_INVALID_PROPS, 5002)           \
	X(DRIVER_UNSUPPORTED_LIMIT, 5003)       \
	X(DRIVER_VERSION_MISMATCH, 5004)        \
	X(DRIVER_VERSION_READ_ERROR, 5005)      \
	X(DRIVER_CLOSING, 5006)                 \
	X(PLATFORM_NOT_SUPPORTED, 5007)         \
	X(IO_NOT_SUPPORTED, 5008)               \
	X(DEVICE_NOT_SUPPORTED, 5009)           \
	X(NVFS_DRIVER_ERROR, 5010)              \
	X(CUDA_DRIVER_ERROR, 5011)              \
	X(CUDA_POINTER_INVALID, 5012)           \
	X(CUDA_MEMORY_TYPE_INVALID, 5013)       \
	X(CUDA_POINTER_RANGE_ERROR, 5014)       \
	X(CUDA_CONTEXT_MISMATCH, 5015)          \
	X(INVALID_MAPPING_SIZE, 5016)           \
	X(INVALID_MAPPING_RANGE, 5017)          \
	X(INVALID_FILE_TYPE, 5018)              \
	X(INVALID_FILE_OPEN_FLAG, 5019)         \
	X(DIO_NOT_SET, 5020)                    \
	X(INVALID_VALUE, 5022)                  \
	X(MEMORY_ALREADY_REGISTERED, 5023)      \
	X(MEMORY_NOT_REGISTERED, 5024)          \
	X(PERMISSION_DENIED, 5025)              \
	X(DRIVER_ALREADY_OPEN, 5026)            \
	X(HANDLE_NOT_REGISTERED, 5027)          \
	X(HANDLE_ALREADY_REGISTERED, 5028)      \
	X(DEVICE_NOT_FOUND, 5029)               \
	X(INTERNAL_ERROR, 5030)                 \
	X(GETNEWFD_FAILED, 5031)                \
	X(NVFS_SETUP_ERROR, 5033)               \
	X(IO_DISABLED, 5034)                    \
	X(BATCH_SUBMIT_FAILED, 5035)            \
	X(GPU_MEMORY_PINNING_FAILED, 5036)      \
	X(BATCH_FULL, 5037)                     \
	X(ASYNC_NOT_SUPPORTED, 5038)            \
	X(INTERNAL_BATCH_SETUP_ERROR, 5039)     \
	X(INTERNAL_BATCH_SUBMIT_ERROR, 5040)    \
	X(INTERNAL_BATCH_GETSTATUS_ERROR, 5041) \
	X(INTERNAL_BATCH_CANCEL_ERROR, 5042)    \
	X(NOMEM_ERROR, 5043)                    \
	X(IO_ERROR, 5044)                       \
	X(INTERNAL_BUF_REGISTER_ERROR, 5045)    \
	X(HASH_OPR_ERROR, 5046)                 \
	X(INVALID_CONTEXT_ERROR, 5047)          \
	X(NVFS_INTERNAL_DRIVER_ERROR, 5048)     \
	X(BATCH_NOCOMPAT_ERROR, 5049)           \
	X(IO_MAX_ERROR, 5050)

typedef enum CUfileOpError {
	CU_FILE_SUCCESS = 0,
#define PENSTOCK_CUFILE_ENUM(name, number) CU_FILE_##name = (number),
	PENSTOCK_CUFILE_ERRORS(PENSTOCK_CUFILE_ENUM)
#undef PENSTOCK_CUFILE_ENUM
} CUfileOpError;

static inline const char *cufileop_status_error(CUfileOpError status)
{
	switch (status) {
	case CU_FILE_SUCCESS:
		return "success";
#define PENSTOCK_CUFILE_TEXT(name, number) \
	case CU_FILE_##name:               \
		return "CU_FILE_" #name;
		PENSTOCK_CUFILE_ERRORS(PENSTOCK_CUFILE_TEXT)
#undef PENSTOCK_CUFILE_TEXT
	default:
		return "unknown cuFile error";
	}
}

/* If err is CU_FILE_CUDA_DRIVER_ERROR, cu_err is the CUDA driver's error. */
typedef struct CUfileError {
	CUfileOpError err;
	CUresult cu_err;
} CUfileError_t;

/* Calls that return a number of bytes return a negated code of CUfileOpError on failure, or -1
 * with an error in errno. */
#define IS_CUFILE_ERR(err) (llabs((long long)(err)) > CUFILEOP_BASE_ERR)
#define CUFILE_ERRSTR(err) cufileop_status_error((CUfileOpError)llabs((long long)(err)))
#define IS_CUDA_ERR(status) ((status).err == CU_FILE_CUDA_DRIVER_ERROR)
#define CU_FILE_CUDA_ERR(status) ((status).cu_err)

/* ---- the driver ---- */

/* Numbers of the bits in nvfs.dstatusflags. */
typedef enum CUfileDriverStatusFlags {
	CU_FILE_LUSTRE_SUPPORTED = 0,
	CU_FILE_WEKAFS_SUPPORTED = 1,
	CU_FILE_NFS_SUPPORTED = 2,
	CU_FILE_GPFS_SUPPORTED = 3,
	CU_FILE_NVME_SUPPORTED = 4,
	CU_FILE_NVMEOF_SUPPORTED = 5,
	CU_FILE_SCSI_SUPPORTED = 6,
	CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
	CU_FILE_NVMESH_SUPPORTED = 8,
	CU_FILE_BEEGFS_SUPPORTED = 9,
	CU_FILE_NVME_P2P_SUPPORTED = 11,
	CU_FILE_SCATEFS_SUPPORTED = 12,
} CUfileDriverStatusFlags_t;

/* Numbers of the bits in nvfs.dcontrolflags. */
typedef enum CUfileDriverControlFlags {
	CU_FILE_USE_POLL_MODE = 0,
	CU_FILE_ALLOW_COMPAT_MODE = 1,
} CUfileDriverControlFlags_t;

/* Numbers of the bits in fflags. */
typedef enum CUfileFeatureFlags {
	CU_FILE_DYN_ROUTING_SUPPORTED = 0,
	CU_FILE_BATCH_IO_SUPPORTED = 1,
	CU_FILE_STREAMS_SUPPORTED = 2,
	CU_FILE_PARALLEL_IO_SUPPORTED = 3,
} CUfileFeatureFlags_t;

/* Sizes are in KiB. */
typedef struct CUfileDrvProps {
	struct {
		unsigned int major_version, minor_version;
		size_t poll_thresh_size, max_direct_io_size;
		unsigned int dstatusflags, dcontrolflags;
	} nvfs;
	unsigned int fflags;
	unsigned int max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size;
	unsigned int max_batch_io_size, max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose_v2(void);
#define cuFileDriverClose cuFileDriverClose_v2
long cuFileUseCount(void);
CUfileError_t cuFileGetVersion(int *version);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props);
CUfileError_t cuFileDriverSetPollMode(bool poll, size_t poll_threshold_size);
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t max_direct_io_size);
CUfileError_t cuFileDriverSetMaxCacheSize(size_t max_cache_size);
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t max_pinned_size);
CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t *kb);

/* ---- files and memory ---- */

typedef struct sockaddr sockaddr_t;

typedef struct cufileRDMAInfo {
	int version, desc_len;
	const char *desc_str;
} cufileRDMAInfo_t;

#define CU_FILE_RDMA_REGISTER 1
#define CU_FILE_RDMA_RELAXED_ORDERING 2

/* Functions that a file system in user space provides. Penstock's library refuses file handles with
 * such functions. */
typedef struct CUfileFSOps {
	const char *(*fs_type)(void *handle);
	int (*getRDMADeviceList)(void *handle, sockaddr_t **addresses);
	int (*getRDMADevicePriority)(void *handle, char *buf, size_t len, off_t off,
				     sockaddr_t *address);
	ssize_t (*read)(void *handle, char *buf, size_t len, off_t off, cufileRDMAInfo_t *info);
	ssize_t (*write)(void *handle, const char *buf, size_t len, off_t off,
			 cufileRDMAInfo_t *info);
} CUfileFSOps_t;

enum CUfileFileHandleType {
	CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1,
	CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2,
	CU_FILE_HANDLE_TYPE_USERSPACE_FS = 3,
};

typedef struct CUfileDescr_t {
	enum CUfileFileHandleType type;
	union {
		int fd;
		void *handle;
	} handle;
	const CUfileFSOps_t *fs_ops;
} CUfileDescr_t;

typedef void *CUfileHandle_t;

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);
void cuFileHandleDeregister(CUfileHandle_t fh);
CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags);
CUfileError_t cuFileBufDeregister(const void *base);
ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_offset,
		   off_t base_offset);
ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t file_offset,
		    off_t base_offset);

/* ---- batches ---- */

typedef enum CUfileOpcode {
	CUFILE_READ = 0,
	CUFILE_WRITE = 1,
} CUfileOpcode_t;

typedef enum CUFILEStatus_enum {
	CUFILE_WAITING = 1,
	CUFILE_PENDING = 2,
	CUFILE_INVALID = 4,
	CUFILE_CANCELED = 8,
	CUFILE_COMPLETE = 16,
	CUFILE_TIMEOUT = 32,
	CUFILE_FAILED = 64,
} CUfileStatus_t;

typedef enum cufileBatchMode {
	CUFILE_BATCH = 1,
} CUfileBatchMode_t;

typedef struct CUfileIOParams {
	CUfileBatchMode_t mode;
	union {
		struct {
			void *devPtr_base;
			off_t file_offset, devPtr_offset;
			size_t size;
		} batch;
	} u;
	CUfileHandle_t fh;
	CUfileOpcode_t opcode;
	void *cookie;
} CUfileIOParams_t;

/* `ret` is a number of bytes, or a negative error code cast to size_t. */
typedef struct CUfileIOEvents {
	void *cookie;
	CUfileStatus_t status;
	size_t ret;
} CUfileIOEvents_t;

typedef void *CUfileBatchHandle_t;

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *batch, unsigned nr);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned nr, CUfileIOParams_t *params,
				  unsigned int flags);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned min_nr, unsigned *nr,
				     CUfileIOEvents_t *events, struct timespec *timeout);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch);
void cuFileBatchIODestroy(CUfileBatchHandle_t batch);

/* ---- stream order ---- */

#define CU_FILE_STREAM_FIXED_BUF_OFFSET 1
#define CU_FILE_STREAM_FIXED_FILE_OFFSET 2
#define CU_FILE_STREAM_FIXED_FILE_SIZE 4
#define CU_FILE_STREAM_PAGE_ALIGNED_INPUTS 8

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
			      off_t *base_offset, ssize_t *bytes_read, CUstream stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
			       off_t *base_offset, ssize_t *bytes_written, CUstream stream);
CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);
CUfileError_t cuFileStreamDeregister(CUstream stream);

/* ---- settings ---- */

typedef enum CUFileSizeTConfigParameter_t {
	CUFILE_PARAM_PROFILE_STATS,
	CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH,
	CUFILE_PARAM_EXECUTION_MAX_IO_THREADS,
	CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB,
	CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM,
	CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE,
	CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS,
} CUFileSizeTConfigParameter_t;

typedef enum CUFileBoolConfigParameter_t {
	CUFILE_PARAM_PROPERTIES_USE_POLL_MODE,
	CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
	CUFILE_PARAM_FORCE_COMPAT_MODE,
	CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE,
	CUFILE_PARAM_EXECUTION_PARALLEL_IO,
	CUFILE_PARAM_PROFILE_NVTX,
	CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY,
	CUFILE_PARAM_USE_PCIP2PDMA,
	CUFILE_PARAM_PREFER_IO_URING,
	CUFILE_PARAM_FORCE_ODIRECT_MODE,
	CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION,
	CUFILE_PARAM_STREAM_MEMOPS_BYPASS,
} CUFileBoolConfigParameter_t;

typedef enum CUFileStringConfigParameter_t {
	CUFILE_PARAM_LOGGING_LEVEL,
	CUFILE_PARAM_ENV_LOGFILE_PATH,
	CUFILE_PARAM_LOG_DIR,
} CUFileStringConfigParameter_t;

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t *value);
CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t param, bool *value);
CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t param, char *text, int len);
CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t param, size_t *min,
					    size_t *max);
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t value);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t param, bool value);
CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t param, const char *text);
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *sizes, const size_t *counts,
						   int len);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts, int len);

/* ---- statistics ---- */

typedef struct CUfileOpCounter {
	uint64_t ok, err;
} CUfileOpCounter_t;

typedef struct CUfileStatsLevel1 {
	CUfileOpCounter_t read_ops, write_ops, hdl_register_ops, hdl_deregister_ops;
	CUfileOpCounter_t buf_register_ops, buf_deregister_ops;
	uint64_t read_bytes, write_bytes;
	uint64_t read_bw_bytes_per_sec, write_bw_bytes_per_sec;
	uint64_t read_lat_avg_us, write_lat_avg_us;
	uint64_t read_ops_per_sec, write_ops_per_sec;
	uint64_t read_lat_sum_us, write_lat_sum_us;
	CUfileOpCounter_t batch_submit_ops, batch_complete_ops, batch_setup_ops;
	CUfileOpCounter_t batch_cancel_ops, batch_destroy_ops, batch_enqueued_ops;
	CUfileOpCounter_t batch_posix_enqueued_ops, batch_processed_ops;
	CUfileOpCounter_t batch_posix_processed_ops, batch_nvfs_submit_ops;
	CUfileOpCounter_t batch_p2p_submit_ops, batch_aio_submit_ops;
	CUfileOpCounter_t batch_iouring_submit_ops, batch_mixed_io_submit_ops;
	CUfileOpCounter_t batch_total_submit_ops;
	uint64_t batch_read_bytes, batch_write_bytes;
	uint64_t batch_read_bw_bytes, batch_write_bw_bytes;
	uint64_t batch_submit_lat_avg_us, batch_completion_lat_avg_us;
	uint64_t batch_submit_ops_per_sec, batch_complete_ops_per_sec;
	uint64_t batch_submit_lat_sum_us, batch_completion_lat_sum_us;
	uint64_t last_batch_read_bytes, last_batch_write_bytes;
} CUfileStatsLevel1_t;

typedef struct CUfileStatsLevel2 {
	CUfileStatsLevel1_t basic;
	uint64_t read_size_kb_hist[32], write_size_kb_hist[32];
} CUfileStatsLevel2_t;

#define CUFILE_GPU_UUID_LEN 16

typedef struct CUfilePerGpuStats {
	char uuid[CUFILE_GPU_UUID_LEN];
	uint64_t read_bytes, read_bw_bytes_per_sec, read_utilization, read_duration_us;
	uint64_t n_total_reads, n_p2p_reads, n_nvfs_reads, n_posix_reads;
	uint64_t n_unaligned_reads, n_dr_reads, n_sparse_regions, n_inline_regions;
	uint64_t n_reads_err;
	uint64_t writes_bytes, write_bw_bytes_per_sec, write_utilization, write_duration_us;
	uint64_t n_total_writes, n_p2p_writes, n_nvfs_writes, n_posix_writes;
	uint64_t n_unaligned_writes, n_dr_writes, n_writes_err;
	uint64_t n_mmap, n_mmap_ok, n_mmap_err, n_mmap_free, reg_bytes;
} CUfilePerGpuStats_t;

typedef struct CUfileStatsLevel3 {
	CUfileStatsLevel2_t detailed;
	uint32_t num_gpus;
	CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

CUfileError_t cuFileSetStatsLevel(int level);
CUfileError_t cuFileGetStatsLevel(int *level);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *stats);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *stats);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *stats);

#ifdef __cplusplus
}
#endif

#endif
