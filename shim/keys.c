/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the keys of cufile.json. Each row has the parameter that a key sets, or the reason
 * why the key has no effect in this library. config.c looks up keys here. The table must contain
 * every key that NVIDIA's library reads, so that no valid cufile.json causes a warning.
 */
#include "keys.h"

#include <stdbool.h>
#include <string.h>

#include "abi/cufile_abi.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define SIZED "this library sizes its own staging ring"
#define CHOSEN "this library chooses the path by what it has proven, not by a switch"
#define NO_RDMA "this library has no RDMA transport yet"
#define NO_STATIC "this library inspects the block stack of a file when it opens the file"
#define NO_POLL "this library chooses between polling and sleeping by the load"

static const struct shim_key keys[] = {
	{"logging", SHIM_KEY_SECTION, 0, NULL},
	{"logging.dir", SHIM_KEY_TEXT, CUF_LOG_DIR, NULL},
	{"logging.level", SHIM_KEY_TEXT, CUF_LOGGING_LEVEL, NULL},
	{"logging.max_file_size_mb", SHIM_KEY_NOTED, 0,
	 "the log ends after a fixed number of lines"},
	{"profile", SHIM_KEY_SECTION, 0, NULL},
	{"profile.nvtx", SHIM_KEY_FLAG, CUF_PARAM_NVTX, "this library emits no NVTX ranges"},
	{"profile.cufile_stats", SHIM_KEY_SIZE, CUF_PROFILE_STATS, NULL},
	{"execution", SHIM_KEY_SECTION, 0, NULL},
	{"execution.max_io_queue_depth", SHIM_KEY_SIZE, CUF_MAX_IO_QUEUE_DEPTH, SIZED},
	{"execution.max_io_threads", SHIM_KEY_SIZE, CUF_MAX_IO_THREADS,
	 "the number of lanes follows from the device"},
	{"execution.parallel_io", SHIM_KEY_FLAG, CUF_PARAM_PARALLEL_IO,
	 "transfers are always split"},
	{"execution.min_io_threshold_size_kb", SHIM_KEY_SIZE, CUF_MIN_IO_THRESHOLD_KB, SIZED},
	{"execution.max_request_parallelism", SHIM_KEY_SIZE, CUF_MAX_REQUEST_PARALLELISM, SIZED},
	{"properties", SHIM_KEY_SECTION, 0, NULL},
	{"properties.max_direct_io_size_kb", SHIM_KEY_SIZE, CUF_MAX_DIRECT_IO_KB, SIZED},
	{"properties.max_device_cache_size_kb", SHIM_KEY_SIZE, CUF_MAX_DEVICE_CACHE_KB, SIZED},
	{"properties.per_buffer_cache_size_kb", SHIM_KEY_SIZE, CUF_PER_BUFFER_CACHE_KB, SIZED},
	{"properties.max_device_pinned_mem_size_kb", SHIM_KEY_SIZE, CUF_MAX_PINNED_KB,
	 "registering a buffer pins no device memory in this library"},
	{"properties.gpu_bounce_buffer_slab_config", SHIM_KEY_SECTION, 0, NULL},
	{"properties.gpu_bounce_buffer_slab_config.slab_size_kb", SHIM_KEY_GPU_KB, 0, SIZED},
	{"properties.gpu_bounce_buffer_slab_config.slab_count", SHIM_KEY_GPU_COUNT, 0, SIZED},
	{"properties.posix_pool_slab_size_kb", SHIM_KEY_POSIX_KB, 0, SIZED},
	{"properties.posix_pool_slab_count", SHIM_KEY_POSIX_COUNT, 0, SIZED},
	{"properties.use_poll_mode", SHIM_KEY_FLAG, CUF_PARAM_USE_POLL_MODE, NO_POLL},
	{"properties.poll_mode_max_size_kb", SHIM_KEY_SIZE, CUF_POLL_THRESHOLD_KB, NO_POLL},
	{"properties.use_pci_p2pdma", SHIM_KEY_FLAG, CUF_PARAM_USE_PCIP2PDMA, CHOSEN},
	{"properties.allow_compat_mode", SHIM_KEY_FLAG, CUF_PARAM_ALLOW_COMPAT_MODE, NULL},
	{"properties.force_compat_mode", SHIM_KEY_FLAG, CUF_PARAM_FORCE_COMPAT_MODE, NULL},
	{"properties.allow_system_memory", SHIM_KEY_FLAG, CUF_PARAM_ALLOW_SYSTEM_MEMORY,
	 "host memory is always accepted"},
	{"properties.prefer_iouring", SHIM_KEY_FLAG, CUF_PARAM_PREFER_IO_URING,
	 "io_uring is used where the kernel allows it"},
	{"properties.force_odirect_mode", SHIM_KEY_FLAG, CUF_PARAM_FORCE_ODIRECT, CHOSEN},
	{"properties.vanilla_posix_io_mode", SHIM_KEY_FLAG, CUF_PARAM_POSIX_IO_MODE, CHOSEN},
	{"properties.gds_fallback_io", SHIM_KEY_FLAG, CUF_PARAM_GDS_FALLBACK_IO, CHOSEN},
	{"properties.gds_rdma_write_support", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.io_batchsize", SHIM_KEY_SIZE, CUF_IO_BATCHSIZE, NULL},
	{"properties.max_batch_io_timeout_msecs", SHIM_KEY_SIZE, CUF_BATCH_TIMEOUT_MS,
	 "the timeout argument of cuFileBatchIOGetStatus applies"},
	{"properties.io_priority", SHIM_KEY_NOTED, 0,
	 "the I/O priority of the calling thread applies"},
	{"properties.rdma_dev_addr_list", SHIM_KEY_CLOSED, 0, NO_RDMA},
	{"properties.rdma_load_balancing_policy", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_dynamic_routing", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_dynamic_routing_order", SHIM_KEY_CLOSED, 0, NO_RDMA},
	{"properties.rdma_peer_type", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_transport_type", SHIM_KEY_TEXT, CUF_RDMA_TRANSPORT, NO_RDMA},
	{"properties.rdma_access_mask", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_dc_key", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_service_level", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_topN_ranks", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_multipath_enabled", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_max_backup_devices", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_io_retry_count", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_io_retry_delay_ms", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_failback_enabled", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_failback_delay_ms", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_health_check_interval_ms", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_async_event_monitoring", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.rdma_unhealthy_threshold", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.allow_rdma_token_reset", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"properties.compat_odirect_unaligned_read_split", SHIM_KEY_NOTED, 0, CHOSEN},
	{"properties.compat_odirect_unaligned_read_split_min_size_kb", SHIM_KEY_NOTED, 0, CHOSEN},
	{"fs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.generic", SHIM_KEY_SECTION, 0, NULL},
	{"fs.lustre", SHIM_KEY_SECTION, 0, NULL},
	{"fs.beegfs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.scatefs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.nfs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.gpfs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.weka", SHIM_KEY_SECTION, 0, NULL},
	{"fs.wekafs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.virtiofs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.panfs", SHIM_KEY_SECTION, 0, NULL},
	{"fs.generic.posix_unaligned_writes", SHIM_KEY_NOTED, 0,
	 "unaligned ends are always written through the page cache"},
	{"fs.*.posix_gds_min_kb", SHIM_KEY_NOTED, 0, CHOSEN},
	{"fs.*.use_pci_p2pdma", SHIM_KEY_NOTED, 0, CHOSEN},
	{"fs.*.rdma_dev_addr_list", SHIM_KEY_CLOSED, 0, NO_RDMA},
	{"fs.*.mount_table", SHIM_KEY_CLOSED, 0, NO_RDMA},
	{"fs.*.rdma_write_support", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"fs.gpfs.gds_write_support", SHIM_KEY_NOTED, 0, CHOSEN},
	{"fs.gpfs.gds_async_support", SHIM_KEY_NOTED, 0, CHOSEN},
	{"block", SHIM_KEY_SECTION, 0, NULL},
	{"block.nvme", SHIM_KEY_SECTION, 0, NULL},
	{"block.nvmeof", SHIM_KEY_SECTION, 0, NULL},
	{"block.raid", SHIM_KEY_SECTION, 0, NULL},
	{"block.raid1", SHIM_KEY_SECTION, 0, NULL},
	{"block.raid10", SHIM_KEY_SECTION, 0, NULL},
	{"block.scsi", SHIM_KEY_SECTION, 0, NULL},
	{"block.*.use_pci_p2pdma", SHIM_KEY_NOTED, 0, CHOSEN},
	{"denylist", SHIM_KEY_CLOSED, 0, "an allow-list decides which files may use a direct path"},
	{"miscellaneous", SHIM_KEY_SECTION, 0, NULL},
	{"miscellaneous.api_check_aggressive", SHIM_KEY_FLAG, CUF_PARAM_API_CHECK_AGGRESSIVE,
	 "arguments are always checked"},
	{"miscellaneous.skip_topology_detection", SHIM_KEY_FLAG, CUF_PARAM_SKIP_TOPOLOGY,
	 "the topology is read only on request"},
	{"miscellaneous.stream_memops_bypass", SHIM_KEY_FLAG, CUF_PARAM_STREAM_MEMOPS_BYPASS,
	 "the abilities of the device decide how streams are ordered"},
	{"miscellaneous.enable_static_routing", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"miscellaneous.static_routing_filepath", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"miscellaneous.enable_static_config", SHIM_KEY_NOTED, 0, NO_STATIC},
	{"miscellaneous.static_config_filepath", SHIM_KEY_NOTED, 0, NO_STATIC},
	{"miscellaneous.rdma_token_reset_timeout_secs", SHIM_KEY_NOTED, 0, NO_RDMA},
	{"sparse", SHIM_KEY_SECTION, 0, NULL},
	{"sparse.p2p_compat_enable", SHIM_KEY_NOTED, 0, CHOSEN},
	{"sparse.min_p2pdma_threshold_kb", SHIM_KEY_NOTED, 0, CHOSEN},
};

/* Wrong key names that appear in examples and in NVIDIA's documents, each with the correct key. */
static const struct {
	const char *name, *path;
} misnomers[] = {
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

/* Returns whether a path matches a pattern. Compares the path and the pattern name by name; "*"
 * matches any one name. */
static bool path_matches(const char *pattern, const char *path)
{
	for (;;) {
		size_t a = strcspn(pattern, "."), b = strcspn(path, ".");

		if (!(a == 1 && *pattern == '*' && b) && (a != b || strncmp(pattern, path, a) != 0))
			return false;
		if (!pattern[a] || !path[b])
			return pattern[a] == path[b];
		pattern += a + 1;
		path += b + 1;
	}
}

static const char *last_name(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot ? dot + 1 : path;
}

const struct shim_key *shim_key_find(const char *path)
{
	for (size_t i = 0; i < COUNT(keys); i++)
		if (path_matches(keys[i].path, path))
			return &keys[i];
	return NULL;
}

const char *shim_key_place(const char *path)
{
	const char *name = last_name(path);

	for (size_t i = 0; i < COUNT(keys); i++)
		if (!strcmp(last_name(keys[i].path), name) && strcmp(name, "*") != 0)
			return keys[i].path;
	for (size_t i = 0; i < COUNT(misnomers); i++)
		if (!strcmp(misnomers[i].name, name))
			return misnomers[i].path;
	return NULL;
}
