/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The types of the cuFile ABI: the numbers and layouts that callers were compiled with. The drop-in
 * (Penstock's libcufile), path `vendor` (which loads NVIDIA's libcufile) and the tests include this
 * file; cufile_calls.h declares the functions. The types were written from public facts and have
 * names other than NVIDIA's, so that a test can include both headers and compare them. All layouts
 * are from version 1.15 and must never change; comments mark what versions 1.16 to 1.19 added.
 */
#ifndef CUFILE_ABI_H
#define CUFILE_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

/* X(name, number): the codes of cuf_error.err. Calls that return a byte count return a negated
 * code on failure. Version 1.15 added the codes of CUF_ERROR_LIST_1_15. */
#define CUF_ERROR_LIST_OLD(X)              \
	X(SUCCESS, 0)                      \
	X(DRIVER_NOT_INITIALIZED, 5001)    \
	X(DRIVER_INVALID_PROPS, 5002)      \
	X(DRIVER_UNSUPPORTED_LIMIT, 5003)  \
	X(DRIVER_VERSION_MISMATCH, 5004)   \
	X(DRIVER_VERSION_READ_ERROR, 5005) \
	X(DRIVER_CLOSING, 5006)            \
	X(PLATFORM_NOT_SUPPORTED, 5007)    \
	X(IO_NOT_SUPPORTED, 5008)          \
	X(DEVICE_NOT_SUPPORTED, 5009)      \
	X(NVFS_DRIVER_ERROR, 5010)         \
	X(CUDA_DRIVER_ERROR, 5011)         \
	X(CUDA_POINTER_INVALID, 5012)      \
	X(CUDA_MEMORY_TYPE_INVALID, 5013)  \
	X(CUDA_POINTER_RANGE_ERROR, 5014)  \
	X(CUDA_CONTEXT_MISMATCH, 5015)     \
	X(INVALID_MAPPING_SIZE, 5016)      \
	X(INVALID_MAPPING_RANGE, 5017)     \
	X(INVALID_FILE_TYPE, 5018)         \
	X(INVALID_FILE_OPEN_FLAG, 5019)    \
	X(DIO_NOT_SET, 5020)               \
	X(INVALID_VALUE, 5022)             \
	X(MEMORY_ALREADY_REGISTERED, 5023) \
	X(MEMORY_NOT_REGISTERED, 5024)     \
	X(PERMISSION_DENIED, 5025)         \
	X(DRIVER_ALREADY_OPEN, 5026)       \
	X(HANDLE_NOT_REGISTERED, 5027)     \
	X(HANDLE_ALREADY_REGISTERED, 5028) \
	X(DEVICE_NOT_FOUND, 5029)          \
	X(INTERNAL_ERROR, 5030)            \
	X(GETNEWFD_FAILED, 5031)           \
	X(NVFS_SETUP_ERROR, 5033)          \
	X(IO_DISABLED, 5034)               \
	X(BATCH_SUBMIT_FAILED, 5035)       \
	X(GPU_MEMORY_PINNING_FAILED, 5036) \
	X(BATCH_FULL, 5037)                \
	X(ASYNC_NOT_SUPPORTED, 5038)
#define CUF_ERROR_LIST_1_15(X)                  \
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
#define CUF_ERROR_LIST(X) CUF_ERROR_LIST_OLD(X) CUF_ERROR_LIST_1_15(X)

enum cuf_op_error {
#define CUF_ERROR_ENUM(name, number) CUF_##name = (number),
	CUF_ERROR_LIST(CUF_ERROR_ENUM)
#undef CUF_ERROR_ENUM
};

/* The result that most calls return by value. If err is CUF_CUDA_DRIVER_ERROR, cu_err is a
 * CUresult. */
struct cuf_error {
	int err, cu_err;
};

/* Bits of cuf_props.nvfs.dstatusflags. */
enum {
	CUF_LUSTRE = 0,
	CUF_WEKAFS = 1,
	CUF_NFS = 2,
	CUF_GPFS = 3,
	CUF_NVME = 4,
	CUF_NVMEOF = 5,
	CUF_SCSI = 6,
	CUF_SCALEFLUX = 7,
	CUF_NVMESH = 8,
	CUF_BEEGFS = 9,
	CUF_NVME_P2P = 11,
	CUF_SCATEFS = 12,
	CUF_VIRTIOFS = 13,
	CUF_TARGETS = 15, /* number of bits in version 1.20, whose last bit is 14 */
};
/* Bits of cuf_props.nvfs.dcontrolflags. Version 1.19 added the last two bits. */
enum {
	CUF_USE_POLL_MODE = 0,
	CUF_ALLOW_COMPAT_MODE = 1,
	CUF_POSIX_IO_MODE = 2,
	CUF_FALLBACK_IO_MODE = 4,
};
/* Bits of cuf_props.fflags. */
enum {
	CUF_DYN_ROUTING = 0,
	CUF_BATCH_IO = 1,
	CUF_STREAMS = 2,
	CUF_PARALLEL_IO = 3,
	CUF_P2P = 4,
};
/* Bits of the flags of cuFileDriverSetP2PFlags, which version 1.16 added. */
enum {
	CUF_P2P_P2PDMA = 0,
	CUF_P2P_NVFS = 1,
	CUF_P2P_DMABUF = 2,
	CUF_P2P_C2C = 3,
	CUF_P2P_PEERMEM = 4,
};
enum { CUF_FD = 1, CUF_WIN32 = 2, CUF_USERSPACE_FS = 3 };
enum { CUF_READ = 0, CUF_WRITE = 1 };
enum { CUF_BATCH = 1 };
enum {
	CUF_WAITING = 1,
	CUF_PENDING = 2,
	CUF_INVALID = 4,
	CUF_CANCELED = 8,
	CUF_COMPLETE = 16,
	CUF_TIMEOUT = 32,
	CUF_FAILED = 64,
};
enum { CUF_RDMA_REGISTER = 1, CUF_RDMA_RELAXED_ORDERING = 2 };
enum {
	CUF_STREAM_FIXED_BUF_OFFSET = 1,
	CUF_STREAM_FIXED_FILE_OFFSET = 2,
	CUF_STREAM_FIXED_FILE_SIZE = 4,
	CUF_STREAM_PAGE_ALIGNED = 8,
};

enum cuf_size_param {
	CUF_PROFILE_STATS,
	CUF_MAX_IO_QUEUE_DEPTH,
	CUF_MAX_IO_THREADS,
	CUF_MIN_IO_THRESHOLD_KB,
	CUF_MAX_REQUEST_PARALLELISM,
	CUF_MAX_DIRECT_IO_KB,
	CUF_MAX_DEVICE_CACHE_KB,
	CUF_PER_BUFFER_CACHE_KB,
	CUF_MAX_PINNED_KB,
	CUF_IO_BATCHSIZE,
	CUF_POLL_THRESHOLD_KB,
	CUF_BATCH_TIMEOUT_MS,
	CUF_SIZE_PARAMS,
};
enum cuf_bool_param {
	CUF_PARAM_USE_POLL_MODE,
	CUF_PARAM_ALLOW_COMPAT_MODE,
	CUF_PARAM_FORCE_COMPAT_MODE,
	CUF_PARAM_API_CHECK_AGGRESSIVE,
	CUF_PARAM_PARALLEL_IO,
	CUF_PARAM_NVTX,
	CUF_PARAM_ALLOW_SYSTEM_MEMORY,
	CUF_PARAM_USE_PCIP2PDMA,
	CUF_PARAM_PREFER_IO_URING,
	CUF_PARAM_FORCE_ODIRECT,
	CUF_PARAM_SKIP_TOPOLOGY,
	CUF_PARAM_STREAM_MEMOPS_BYPASS,
	CUF_PARAM_POSIX_IO_MODE,   /* since 1.19 */
	CUF_PARAM_GDS_FALLBACK_IO, /* since 1.19 */
	CUF_BOOL_PARAMS,
};
enum cuf_string_param {
	CUF_LOGGING_LEVEL,
	CUF_LOGFILE_PATH,
	CUF_LOG_DIR,
	CUF_RDMA_TRANSPORT, /* since 1.19 */
	CUF_STRING_PARAMS,
};

struct cuf_props {
	struct {
		unsigned major_version, minor_version;
		/* Sizes in KiB, like the cache and memory sizes below. */
		size_t poll_thresh_size, max_direct_io_size;
		unsigned dstatusflags, dcontrolflags;
	} nvfs;
	unsigned fflags;
	unsigned max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size;
	unsigned max_batch_io_size, max_batch_io_timeout_msecs;
};

struct cuf_rdma_info {
	int version, desc_len;
	const char *desc_str;
};
struct cuf_fs_ops {
	const char *(*fs_type)(const void *handle);
	int (*rdma_devices)(const void *handle, struct sockaddr **out);
	int (*rdma_priority)(const void *handle, char *buf, size_t len, off_t off,
			     const struct sockaddr *host);
	ssize_t (*read)(const void *handle, char *buf, size_t len, off_t off,
			const struct cuf_rdma_info *info);
	ssize_t (*write)(const void *handle, const char *buf, size_t len, off_t off,
			 const struct cuf_rdma_info *info);
};
struct cuf_descr {
	int type; /* CUF_FD */
	union {
		int fd;
		void *handle;
	} handle;
	const struct cuf_fs_ops *fs_ops;
};

struct cuf_io_params {
	int mode; /* CUF_BATCH */
	union {
		struct {
			void *base;
			off_t file_offset, base_offset;
			size_t size;
		} batch;
	} u;
	void *fh;
	int opcode;
	void *cookie;
};
struct cuf_io_event {
	void *cookie;
	int status;
	size_t ret; /* number of bytes, or a negative error code cast to size_t */
};
/* One element of the vector of cuFileReadv or cuFileWritev, which version 1.19 added. */
struct cuf_iovec {
	void *base;
	size_t len;
};

struct cuf_op_counter {
	uint64_t ok, err;
};
/* Statistics of level 1, in the layout of version 1.15. */
struct cuf_stats_l1 {
	struct cuf_op_counter read_ops, write_ops, hdl_register_ops, hdl_deregister_ops;
	struct cuf_op_counter buf_register_ops, buf_deregister_ops;
	uint64_t read_bytes, write_bytes;
	uint64_t read_bw_bytes_per_sec, write_bw_bytes_per_sec;
	uint64_t read_lat_avg_us, write_lat_avg_us;
	uint64_t read_ops_per_sec, write_ops_per_sec;
	uint64_t read_lat_sum_us, write_lat_sum_us;
	struct cuf_op_counter batch_submit_ops, batch_complete_ops, batch_setup_ops;
	struct cuf_op_counter batch_cancel_ops, batch_destroy_ops, batch_enqueued_ops;
	struct cuf_op_counter batch_posix_enqueued_ops, batch_processed_ops;
	struct cuf_op_counter batch_posix_processed_ops, batch_nvfs_submit_ops;
	struct cuf_op_counter batch_p2p_submit_ops, batch_aio_submit_ops;
	struct cuf_op_counter batch_iouring_submit_ops, batch_mixed_io_submit_ops;
	struct cuf_op_counter batch_total_submit_ops;
	uint64_t batch_read_bytes, batch_write_bytes;
	uint64_t batch_read_bw_bytes, batch_write_bw_bytes;
	uint64_t batch_submit_lat_avg_us, batch_completion_lat_avg_us;
	uint64_t batch_submit_ops_per_sec, batch_complete_ops_per_sec;
	uint64_t batch_submit_lat_sum_us, batch_completion_lat_sum_us;
	uint64_t last_batch_read_bytes, last_batch_write_bytes;
};
/* Statistics of cuFileReadv and cuFileWritev. Version 1.19 inserts this struct between the
 * statistics of level 1 and those that level 2 adds. */
struct cuf_stats_v {
	struct cuf_op_counter readv_ops, writev_ops;
	uint64_t readv_bytes, writev_bytes;
	uint64_t readv_bw_bytes_per_sec, writev_bw_bytes_per_sec;
	uint64_t readv_lat_avg_us, writev_lat_avg_us;
	uint64_t readv_ops_per_sec, writev_ops_per_sec;
	uint64_t readv_lat_sum_us, writev_lat_sum_us;
};
#define CUF_HIST_BINS 32
/* Histograms of sizes. The statistics of level 2 are the statistics of level 1, followed by
 * this struct. */
struct cuf_stats_hist {
	uint64_t read_size_kb[CUF_HIST_BINS], write_size_kb[CUF_HIST_BINS];
};
struct cuf_gpu_stats {
	char uuid[16];
	uint64_t read_bytes, read_bw_bytes_per_sec, read_utilization, read_duration_us;
	uint64_t n_total_reads, n_p2p_reads, n_nvfs_reads, n_posix_reads;
	uint64_t n_unaligned_reads, n_dr_reads, n_sparse_regions, n_inline_regions;
	uint64_t n_reads_err;
	uint64_t writes_bytes, write_bw_bytes_per_sec, write_utilization, write_duration_us;
	uint64_t n_total_writes, n_p2p_writes, n_nvfs_writes, n_posix_writes;
	uint64_t n_unaligned_writes, n_dr_writes, n_writes_err;
	uint64_t n_mmap, n_mmap_ok, n_mmap_err, n_mmap_free, reg_bytes;
};
#define CUF_GPUS 16
/* Statistics of each GPU. The statistics of level 3 are the statistics of level 2, followed by
 * this struct. */
struct cuf_stats_gpus {
	uint32_t num_gpus;
	struct cuf_gpu_stats gpu[CUF_GPUS];
};

#endif
