/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares shim/abi/cufile_abi.h with NVIDIA's cufile.h: every number, size and offset. The
 * compiler makes all comparisons. meson.build builds this program only if it finds NVIDIA's header.
 * Some types exist only in some versions of that header; meson.build defines a HAVE_* macro for
 * each such type that it finds. No other file may include NVIDIA's header.
 */
#include <cufile.h>
#include <stdio.h>

#include "abi/cufile_abi.h"

#define SAME(ours, theirs) \
	_Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SIZE(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define AT(ours, field, theirs, name) SAME(offsetof(ours, field), offsetof(theirs, name))

#define ERROR(name, number) SAME(CUF_##name, CU_FILE_##name);
CUF_ERROR_LIST_OLD(ERROR)
#if HAVE_STATS
CUF_ERROR_LIST_1_15(ERROR)
#endif

SAME(CUF_LUSTRE, CU_FILE_LUSTRE_SUPPORTED);
SAME(CUF_WEKAFS, CU_FILE_WEKAFS_SUPPORTED);
SAME(CUF_NFS, CU_FILE_NFS_SUPPORTED);
SAME(CUF_GPFS, CU_FILE_GPFS_SUPPORTED);
SAME(CUF_NVME, CU_FILE_NVME_SUPPORTED);
SAME(CUF_NVMEOF, CU_FILE_NVMEOF_SUPPORTED);
SAME(CUF_SCSI, CU_FILE_SCSI_SUPPORTED);
SAME(CUF_SCALEFLUX, CU_FILE_SCALEFLUX_CSD_SUPPORTED);
SAME(CUF_NVMESH, CU_FILE_NVMESH_SUPPORTED);
SAME(CUF_BEEGFS, CU_FILE_BEEGFS_SUPPORTED);
SAME(CUF_NVME_P2P, CU_FILE_NVME_P2P_SUPPORTED);
SAME(CUF_SCATEFS, CU_FILE_SCATEFS_SUPPORTED);
SAME(CUF_USE_POLL_MODE, CU_FILE_USE_POLL_MODE);
SAME(CUF_ALLOW_COMPAT_MODE, CU_FILE_ALLOW_COMPAT_MODE);
SAME(CUF_DYN_ROUTING, CU_FILE_DYN_ROUTING_SUPPORTED);
SAME(CUF_BATCH_IO, CU_FILE_BATCH_IO_SUPPORTED);
SAME(CUF_STREAMS, CU_FILE_STREAMS_SUPPORTED);
SAME(CUF_PARALLEL_IO, CU_FILE_PARALLEL_IO_SUPPORTED);
SAME(CUF_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
SAME(CUF_WIN32, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32);
SAME(CUF_USERSPACE_FS, CU_FILE_HANDLE_TYPE_USERSPACE_FS);
SAME(CUF_READ, CUFILE_READ);
SAME(CUF_WRITE, CUFILE_WRITE);
SAME(CUF_BATCH, CUFILE_BATCH);
SAME(CUF_WAITING, CUFILE_WAITING);
SAME(CUF_PENDING, CUFILE_PENDING);
SAME(CUF_INVALID, CUFILE_INVALID);
SAME(CUF_CANCELED, CUFILE_CANCELED);
SAME(CUF_COMPLETE, CUFILE_COMPLETE);
SAME(CUF_TIMEOUT, CUFILE_TIMEOUT);
SAME(CUF_FAILED, CUFILE_FAILED);
SAME(CUF_RDMA_REGISTER, CU_FILE_RDMA_REGISTER);
SAME(CUF_RDMA_RELAXED_ORDERING, CU_FILE_RDMA_RELAXED_ORDERING);
SAME(CUF_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_BUF_OFFSET);
SAME(CUF_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET);
SAME(CUF_STREAM_FIXED_FILE_SIZE, CU_FILE_STREAM_FIXED_FILE_SIZE);
SAME(CUF_STREAM_PAGE_ALIGNED, CU_FILE_STREAM_PAGE_ALIGNED_INPUTS);

SAME(CUF_PROFILE_STATS, CUFILE_PARAM_PROFILE_STATS);
SAME(CUF_MAX_IO_QUEUE_DEPTH, CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH);
SAME(CUF_MAX_IO_THREADS, CUFILE_PARAM_EXECUTION_MAX_IO_THREADS);
SAME(CUF_MIN_IO_THRESHOLD_KB, CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB);
SAME(CUF_MAX_REQUEST_PARALLELISM, CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM);
SAME(CUF_MAX_DIRECT_IO_KB, CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
SAME(CUF_MAX_DEVICE_CACHE_KB, CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
SAME(CUF_PER_BUFFER_CACHE_KB, CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
SAME(CUF_MAX_PINNED_KB, CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
SAME(CUF_IO_BATCHSIZE, CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
SAME(CUF_POLL_THRESHOLD_KB, CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
SAME(CUF_BATCH_TIMEOUT_MS, CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
SAME(CUF_PARAM_USE_POLL_MODE, CUFILE_PARAM_PROPERTIES_USE_POLL_MODE);
SAME(CUF_PARAM_ALLOW_COMPAT_MODE, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
SAME(CUF_PARAM_FORCE_COMPAT_MODE, CUFILE_PARAM_FORCE_COMPAT_MODE);
SAME(CUF_PARAM_API_CHECK_AGGRESSIVE, CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE);
SAME(CUF_PARAM_PARALLEL_IO, CUFILE_PARAM_EXECUTION_PARALLEL_IO);
SAME(CUF_PARAM_NVTX, CUFILE_PARAM_PROFILE_NVTX);
SAME(CUF_PARAM_ALLOW_SYSTEM_MEMORY, CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY);
SAME(CUF_PARAM_USE_PCIP2PDMA, CUFILE_PARAM_USE_PCIP2PDMA);
SAME(CUF_PARAM_PREFER_IO_URING, CUFILE_PARAM_PREFER_IO_URING);
SAME(CUF_PARAM_FORCE_ODIRECT, CUFILE_PARAM_FORCE_ODIRECT_MODE);
SAME(CUF_PARAM_SKIP_TOPOLOGY, CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION);
SAME(CUF_PARAM_STREAM_MEMOPS_BYPASS, CUFILE_PARAM_STREAM_MEMOPS_BYPASS);
SAME(CUF_LOGGING_LEVEL, CUFILE_PARAM_LOGGING_LEVEL);
SAME(CUF_LOGFILE_PATH, CUFILE_PARAM_ENV_LOGFILE_PATH);
SAME(CUF_LOG_DIR, CUFILE_PARAM_LOG_DIR);

SIZE(struct cuf_error, CUfileError_t);
AT(struct cuf_error, cu_err, CUfileError_t, cu_err);
SIZE(struct cuf_props, CUfileDrvProps_t);
AT(struct cuf_props, nvfs.poll_thresh_size, CUfileDrvProps_t, nvfs.poll_thresh_size);
AT(struct cuf_props, nvfs.max_direct_io_size, CUfileDrvProps_t, nvfs.max_direct_io_size);
AT(struct cuf_props, nvfs.dstatusflags, CUfileDrvProps_t, nvfs.dstatusflags);
AT(struct cuf_props, nvfs.dcontrolflags, CUfileDrvProps_t, nvfs.dcontrolflags);
AT(struct cuf_props, fflags, CUfileDrvProps_t, fflags);
AT(struct cuf_props, max_device_cache_size, CUfileDrvProps_t, max_device_cache_size);
AT(struct cuf_props, per_buffer_cache_size, CUfileDrvProps_t, per_buffer_cache_size);
AT(struct cuf_props, max_device_pinned_mem_size, CUfileDrvProps_t, max_device_pinned_mem_size);
AT(struct cuf_props, max_batch_io_size, CUfileDrvProps_t, max_batch_io_size);
AT(struct cuf_props, max_batch_io_timeout_msecs, CUfileDrvProps_t, max_batch_io_timeout_msecs);
SIZE(struct cuf_descr, CUfileDescr_t);
AT(struct cuf_descr, type, CUfileDescr_t, type);
AT(struct cuf_descr, handle, CUfileDescr_t, handle);
AT(struct cuf_descr, fs_ops, CUfileDescr_t, fs_ops);
SIZE(struct cuf_fs_ops, CUfileFSOps_t);
AT(struct cuf_fs_ops, read, CUfileFSOps_t, read);
AT(struct cuf_fs_ops, write, CUfileFSOps_t, write);
SIZE(struct cuf_rdma_info, cufileRDMAInfo_t);
AT(struct cuf_rdma_info, desc_str, cufileRDMAInfo_t, desc_str);
SIZE(struct cuf_io_params, CUfileIOParams_t);
AT(struct cuf_io_params, u.batch.base, CUfileIOParams_t, u.batch.devPtr_base);
AT(struct cuf_io_params, u.batch.file_offset, CUfileIOParams_t, u.batch.file_offset);
AT(struct cuf_io_params, u.batch.base_offset, CUfileIOParams_t, u.batch.devPtr_offset);
AT(struct cuf_io_params, u.batch.size, CUfileIOParams_t, u.batch.size);
AT(struct cuf_io_params, fh, CUfileIOParams_t, fh);
AT(struct cuf_io_params, opcode, CUfileIOParams_t, opcode);
AT(struct cuf_io_params, cookie, CUfileIOParams_t, cookie);
SIZE(struct cuf_io_event, CUfileIOEvents_t);
AT(struct cuf_io_event, status, CUfileIOEvents_t, status);
AT(struct cuf_io_event, ret, CUfileIOEvents_t, ret);

#if HAVE_STATS
SIZE(struct cuf_op_counter, CUfileOpCounter_t);
AT(struct cuf_op_counter, err, CUfileOpCounter_t, err);
#define L1(field) AT(struct cuf_stats_l1, field, CUfileStatsLevel1_t, field)
L1(read_ops);
L1(buf_deregister_ops);
L1(read_bytes);
L1(write_bw_bytes_per_sec);
L1(read_lat_avg_us);
L1(write_ops_per_sec);
L1(write_lat_sum_us);
L1(batch_submit_ops);
L1(batch_complete_ops);
L1(batch_setup_ops);
L1(batch_cancel_ops);
L1(batch_destroy_ops);
L1(batch_enqueued_ops);
L1(batch_posix_enqueued_ops);
L1(batch_processed_ops);
L1(batch_posix_processed_ops);
L1(batch_nvfs_submit_ops);
L1(batch_p2p_submit_ops);
L1(batch_aio_submit_ops);
L1(batch_iouring_submit_ops);
L1(batch_mixed_io_submit_ops);
L1(batch_total_submit_ops);
L1(batch_read_bytes);
L1(batch_write_bw_bytes);
L1(batch_submit_lat_avg_us);
L1(batch_completion_lat_avg_us);
L1(batch_submit_ops_per_sec);
L1(batch_complete_ops_per_sec);
L1(batch_submit_lat_sum_us);
L1(batch_completion_lat_sum_us);
L1(last_batch_read_bytes);
L1(last_batch_write_bytes);

struct l1 {
	struct cuf_stats_l1 l1;
#if HAVE_VECTORS
	struct cuf_stats_v v;
#endif
};
struct l2 {
	struct l1 basic;
	struct cuf_stats_hist hist;
};
struct l3 {
	struct l2 detailed;
	struct cuf_stats_gpus gpus;
};
SIZE(struct l1, CUfileStatsLevel1_t);
SIZE(struct l2, CUfileStatsLevel2_t);
SIZE(struct l3, CUfileStatsLevel3_t);
AT(struct l2, hist, CUfileStatsLevel2_t, read_size_kb_hist);
AT(struct l2, hist.write_size_kb, CUfileStatsLevel2_t, write_size_kb_hist);
AT(struct l3, gpus.num_gpus, CUfileStatsLevel3_t, num_gpus);
AT(struct l3, gpus.gpu, CUfileStatsLevel3_t, per_gpu_stats);
SIZE(struct cuf_gpu_stats, CUfilePerGpuStats_t);
#define GPU(field) AT(struct cuf_gpu_stats, field, CUfilePerGpuStats_t, field)
GPU(read_bytes);
GPU(read_utilization);
GPU(read_duration_us);
GPU(n_total_reads);
GPU(n_p2p_reads);
GPU(n_nvfs_reads);
GPU(n_posix_reads);
GPU(n_unaligned_reads);
GPU(n_sparse_regions);
GPU(n_reads_err);
GPU(writes_bytes);
GPU(write_duration_us);
GPU(n_total_writes);
GPU(n_posix_writes);
GPU(n_unaligned_writes);
GPU(n_writes_err);
GPU(n_mmap);
GPU(n_mmap_free);
GPU(reg_bytes);
#endif

#if HAVE_P2P
SAME(CUF_P2P, CU_FILE_P2P_SUPPORTED);
SAME(CUF_P2P_P2PDMA, CUFILE_P2PDMA);
SAME(CUF_P2P_NVFS, CUFILE_NVFS);
SAME(CUF_P2P_DMABUF, CUFILE_DMABUF);
SAME(CUF_P2P_C2C, CUFILE_C2C);
SAME(CUF_P2P_PEERMEM, CUFILE_NVIDIA_PEERMEM);
SAME(CUF_VIRTIOFS, CU_FILE_VIRTIOFS_SUPPORTED);
#endif

#if HAVE_VECTORS
SAME(CUF_POSIX_IO_MODE, CU_FILE_VANILLA_POSIX_IO_MODE);
SAME(CUF_FALLBACK_IO_MODE, CU_FILE_FALLBACK_IO_MODE);
SAME(CUF_PARAM_POSIX_IO_MODE, CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE);
SAME(CUF_PARAM_GDS_FALLBACK_IO, CUFILE_PARAM_GDS_FALLBACK_IO);
SAME(CUF_RDMA_TRANSPORT, CUFILE_PARAM_RDMA_TRANSPORT);
SIZE(struct cuf_iovec, CUfileIOVec_t);
AT(struct cuf_iovec, len, CUfileIOVec_t, len);
SAME(offsetof(struct l1, v.readv_bytes), offsetof(CUfileStatsLevel1_t, readv_bytes));
SAME(offsetof(struct l1, v.writev_lat_sum_us), offsetof(CUfileStatsLevel1_t, writev_lat_sum_us));
#endif

int main(void)
{
	printf("compared with cufile.h: statistics %d, P2P flags %d, vectors %d\n", HAVE_STATS,
	       HAVE_P2P, HAVE_VECTORS);
	return 0;
}
