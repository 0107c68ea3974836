/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of cufile.json that are known, one a row: what each sets, or why it does
 * nothing here. Included by config.c alone.
 */
#ifndef SHIM_KEYS_H
#define SHIM_KEYS_H

#include "shim.h"

enum kind {
	SIZE,	  /* a whole number into size[which] */
	FLAG,	  /* true or false into flag[which] */
	TEXT,	  /* a string into text[which] */
	POSIX_KB, /* numbers into the slabs */
	POSIX_COUNT,
	GPU_KB,
	GPU_COUNT,
	NOTED,	 /* accepted; the note says why it does nothing */
	SECTION, /* goes on inside */
	CLOSED,	 /* accepted with all that is in it */
};
struct key {
	const char *path; /* "*" is any one name */
	enum kind kind;
	int which;
	const char *note;
};

#define SIZED "this library sizes its own staging ring"
#define CHOSEN "the path is chosen by what is proven here, not by a switch"
#define NO_RDMA "this library has no RDMA transport of its own yet"
#define NO_STATIC "what lies beneath a file is looked at when it is opened"
#define NO_POLL "completions are waited for as suits the load"

static const struct key keys[] = {
	{"logging", SECTION, 0, NULL},
	{"logging.dir", TEXT, CUF_LOG_DIR, NULL},
	{"logging.level", TEXT, CUF_LOGGING_LEVEL, NULL},
	{"logging.max_file_size_mb", NOTED, 0, "the log ends after a number of lines"},
	{"profile", SECTION, 0, NULL},
	{"profile.nvtx", FLAG, CUF_PARAM_NVTX, "there are no NVTX ranges"},
	{"profile.cufile_stats", SIZE, CUF_PROFILE_STATS, NULL},
	{"execution", SECTION, 0, NULL},
	{"execution.max_io_queue_depth", SIZE, CUF_MAX_IO_QUEUE_DEPTH, SIZED},
	{"execution.max_io_threads", SIZE, CUF_MAX_IO_THREADS,
	 "the number of lanes follows from the device"},
	{"execution.parallel_io", FLAG, CUF_PARAM_PARALLEL_IO, "transfers are always cut"},
	{"execution.min_io_threshold_size_kb", SIZE, CUF_MIN_IO_THRESHOLD_KB, SIZED},
	{"execution.max_request_parallelism", SIZE, CUF_MAX_REQUEST_PARALLELISM, SIZED},
	{"properties", SECTION, 0, NULL},
	{"properties.max_direct_io_size_kb", SIZE, CUF_MAX_DIRECT_IO_KB, SIZED},
	{"properties.max_device_cache_size_kb", SIZE, CUF_MAX_DEVICE_CACHE_KB, SIZED},
	{"properties.per_buffer_cache_size_kb", SIZE, CUF_PER_BUFFER_CACHE_KB, SIZED},
	{"properties.max_device_pinned_mem_size_kb", SIZE, CUF_MAX_PINNED_KB,
	 "registering pins no device memory here"},
	{"properties.gpu_bounce_buffer_slab_config", SECTION, 0, NULL},
	{"properties.gpu_bounce_buffer_slab_config.slab_size_kb", GPU_KB, 0, SIZED},
	{"properties.gpu_bounce_buffer_slab_config.slab_count", GPU_COUNT, 0, SIZED},
	{"properties.posix_pool_slab_size_kb", POSIX_KB, 0, SIZED},
	{"properties.posix_pool_slab_count", POSIX_COUNT, 0, SIZED},
	{"properties.use_poll_mode", FLAG, CUF_PARAM_USE_POLL_MODE, NO_POLL},
	{"properties.poll_mode_max_size_kb", SIZE, CUF_POLL_THRESHOLD_KB, NO_POLL},
	{"properties.use_pci_p2pdma", FLAG, CUF_PARAM_USE_PCIP2PDMA, CHOSEN},
	{"properties.allow_compat_mode", FLAG, CUF_PARAM_ALLOW_COMPAT_MODE, NULL},
	{"properties.force_compat_mode", FLAG, CUF_PARAM_FORCE_COMPAT_MODE, NULL},
	{"properties.allow_system_memory", FLAG, CUF_PARAM_ALLOW_SYSTEM_MEMORY,
	 "host memory is always taken"},
	{"properties.prefer_iouring", FLAG, CUF_PARAM_PREFER_IO_URING,
	 "io_uring is used where the kernel allows it"},
	{"properties.force_odirect_mode", FLAG, CUF_PARAM_FORCE_ODIRECT, CHOSEN},
	{"properties.vanilla_posix_io_mode", FLAG, CUF_PARAM_POSIX_IO_MODE, CHOSEN},
	{"properties.gds_fallback_io", FLAG, CUF_PARAM_GDS_FALLBACK_IO, CHOSEN},
	{"properties.gds_rdma_write_support", NOTED, 0, NO_RDMA},
	{"properties.io_batchsize", SIZE, CUF_IO_BATCHSIZE, NULL},
	{"properties.max_batch_io_timeout_msecs", SIZE, CUF_BATCH_TIMEOUT_MS,
	 "cuFileBatchIOGetStatus waits as long as its caller says"},
	{"properties.io_priority", NOTED, 0, "the caller's own I/O priority holds"},
	{"properties.rdma_dev_addr_list", CLOSED, 0, NO_RDMA},
	{"properties.rdma_load_balancing_policy", NOTED, 0, NO_RDMA},
	{"properties.rdma_dynamic_routing", NOTED, 0, NO_RDMA},
	{"properties.rdma_dynamic_routing_order", CLOSED, 0, NO_RDMA},
	{"properties.rdma_peer_type", NOTED, 0, NO_RDMA},
	{"properties.rdma_transport_type", TEXT, CUF_RDMA_TRANSPORT, NO_RDMA},
	{"properties.rdma_access_mask", NOTED, 0, NO_RDMA},
	{"properties.rdma_dc_key", NOTED, 0, NO_RDMA},
	{"properties.rdma_service_level", NOTED, 0, NO_RDMA},
	{"properties.rdma_topN_ranks", NOTED, 0, NO_RDMA},
	{"properties.rdma_multipath_enabled", NOTED, 0, NO_RDMA},
	{"properties.rdma_max_backup_devices", NOTED, 0, NO_RDMA},
	{"properties.rdma_io_retry_count", NOTED, 0, NO_RDMA},
	{"properties.rdma_io_retry_delay_ms", NOTED, 0, NO_RDMA},
	{"properties.rdma_failback_enabled", NOTED, 0, NO_RDMA},
	{"properties.rdma_failback_delay_ms", NOTED, 0, NO_RDMA},
	{"properties.rdma_health_check_interval_ms", NOTED, 0, NO_RDMA},
	{"properties.rdma_async_event_monitoring", NOTED, 0, NO_RDMA},
	{"properties.rdma_unhealthy_threshold", NOTED, 0, NO_RDMA},
	{"properties.allow_rdma_token_reset", NOTED, 0, NO_RDMA},
	{"properties.compat_odirect_unaligned_read_split", NOTED, 0, CHOSEN},
	{"properties.compat_odirect_unaligned_read_split_min_size_kb", NOTED, 0, CHOSEN},
	{"fs", SECTION, 0, NULL},
	{"fs.generic", SECTION, 0, NULL},
	{"fs.lustre", SECTION, 0, NULL},
	{"fs.beegfs", SECTION, 0, NULL},
	{"fs.scatefs", SECTION, 0, NULL},
	{"fs.nfs", SECTION, 0, NULL},
	{"fs.gpfs", SECTION, 0, NULL},
	{"fs.weka", SECTION, 0, NULL},
	{"fs.wekafs", SECTION, 0, NULL},
	{"fs.virtiofs", SECTION, 0, NULL},
	{"fs.panfs", SECTION, 0, NULL},
	{"fs.generic.posix_unaligned_writes", NOTED, 0,
	 "unaligned ends are always written through the page cache"},
	{"fs.*.posix_gds_min_kb", NOTED, 0, CHOSEN},
	{"fs.*.use_pci_p2pdma", NOTED, 0, CHOSEN},
	{"fs.*.rdma_dev_addr_list", CLOSED, 0, NO_RDMA},
	{"fs.*.mount_table", CLOSED, 0, NO_RDMA},
	{"fs.*.rdma_write_support", NOTED, 0, NO_RDMA},
	{"fs.gpfs.gds_write_support", NOTED, 0, CHOSEN},
	{"fs.gpfs.gds_async_support", NOTED, 0, CHOSEN},
	{"block", SECTION, 0, NULL},
	{"block.nvme", SECTION, 0, NULL},
	{"block.nvmeof", SECTION, 0, NULL},
	{"block.raid", SECTION, 0, NULL},
	{"block.raid1", SECTION, 0, NULL},
	{"block.raid10", SECTION, 0, NULL},
	{"block.scsi", SECTION, 0, NULL},
	{"block.*.use_pci_p2pdma", NOTED, 0, CHOSEN},
	{"denylist", CLOSED, 0, "what may go direct follows from an allow-list"},
	{"miscellaneous", SECTION, 0, NULL},
	{"miscellaneous.api_check_aggressive", FLAG, CUF_PARAM_API_CHECK_AGGRESSIVE,
	 "arguments are always checked"},
	{"miscellaneous.skip_topology_detection", FLAG, CUF_PARAM_SKIP_TOPOLOGY,
	 "topology is read only when it is asked for"},
	{"miscellaneous.stream_memops_bypass", FLAG, CUF_PARAM_STREAM_MEMOPS_BYPASS,
	 "stream order follows from what the device can do"},
	{"miscellaneous.enable_static_routing", NOTED, 0, NO_RDMA},
	{"miscellaneous.static_routing_filepath", NOTED, 0, NO_RDMA},
	{"miscellaneous.enable_static_config", NOTED, 0, NO_STATIC},
	{"miscellaneous.static_config_filepath", NOTED, 0, NO_STATIC},
	{"miscellaneous.rdma_token_reset_timeout_secs", NOTED, 0, NO_RDMA},
	{"sparse", SECTION, 0, NULL},
	{"sparse.p2p_compat_enable", NOTED, 0, CHOSEN},
	{"sparse.min_p2pdma_threshold_kb", NOTED, 0, CHOSEN},
};

/* Names that are found in examples, and in the original's own documents, and are nobody's,
 * with what was meant. */
static const struct {
	const char *name, *path;
} meant[] = {
	{"max_batch_io_size", "properties.io_batchsize"},
	{"io_batch_size", "properties.io_batchsize"},
	{"batch_io_timeout_ms", "properties.max_batch_io_timeout_msecs"},
	{"use_compat_mode", "properties.allow_compat_mode"},
	{"compat_mode", "properties.allow_compat_mode"},
	{"rdma_peer_affinity_policy", "properties.rdma_load_balancing_policy"},
	{"poll_mode", "properties.use_poll_mode"},
	{"poll_max_size_kb", "properties.poll_mode_max_size_kb"},
	{"poll_mode_threshold_size_kb", "properties.poll_mode_max_size_kb"},
	{"posix_pool_slab_size", "properties.posix_pool_slab_size_kb"},
	{"gpu_bounce_buffer_slab_size_kb", "properties.gpu_bounce_buffer_slab_config.slab_size_kb"},
	{"gpu_bounce_buffer_slab_count", "properties.gpu_bounce_buffer_slab_config.slab_count"},
	{"blacklist", "denylist"},
	{"max_pinned_memory_size", "properties.max_device_pinned_mem_size_kb"},
	{"max_device_pinned_mem_size", "properties.max_device_pinned_mem_size_kb"},
	{"max_direct_io_size", "properties.max_direct_io_size_kb"},
	{"max_device_cache_size", "properties.max_device_cache_size_kb"},
	{"max_cache_size", "properties.max_device_cache_size_kb"},
	{"per_buffer_cache_size", "properties.per_buffer_cache_size_kb"},
	{"poll_thresh_size", "properties.poll_mode_max_size_kb"},
	{"use_pcip2pdma", "properties.use_pci_p2pdma"},
	{"cufile_stats_level", "profile.cufile_stats"},
	{"log_level", "logging.level"},
	{"log_dir", "logging.dir"},
};

#endif
