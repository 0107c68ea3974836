/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the part of the CUDA driver API that Penstock uses, without NVIDIA's header. It has
 * handles, constants, structs, and one list of functions with their symbol names. Device cuda and
 * the tests call these functions; tests/standin implements them for machines without a GPU.
 * cuda_api.c loads the driver with dlopen. This header must never need an NVIDIA header or
 * library at build time. It contains only facts of the interface: where the real cuda.h exists,
 * tests/standin/abi.c compares every line with it.
 */
#ifndef PST_CUDA_API_H
#define PST_CUDA_API_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

/* Opaque objects of the driver, to which the library has only pointers. */
struct pst_cu_ctx;
struct pst_cu_stream;
struct pst_cu_event;
struct pst_cu_module;
struct pst_cu_function;
struct pst_cu_graph;
struct pst_cu_node;
struct pst_cu_edge;
struct pst_cu_user_object;

/* An address in the driver's unified address space, of a GPU or of the host. */
typedef unsigned long long pst_cu_ptr;

/* Handles of the driver's two default streams. A stream handle of NULL means the legacy stream,
 * too. */
#define PST_CU_STREAM_LEGACY ((struct pst_cu_stream *)0x1)
#define PST_CU_STREAM_PER_THREAD ((struct pst_cu_stream *)0x2)

/* The results of the CUDA driver's functions. This list has the codes that Penstock handles. The
 * driver has other codes, which the library passes on as numbers. */
enum pst_cu_result {
	PST_CU_OK = 0,
	PST_CU_INVALID_VALUE = 1,
	PST_CU_OUT_OF_MEMORY = 2,
	PST_CU_NOT_INITIALIZED = 3,
	PST_CU_DEINITIALIZED = 4,
	PST_CU_STUB_LIBRARY = 34,
	PST_CU_NEWER_DRIVER_NEEDED = 36,
	PST_CU_DEVICE_UNAVAILABLE = 46,
	PST_CU_NO_DEVICE = 100,
	PST_CU_INVALID_DEVICE = 101,
	PST_CU_INVALID_CONTEXT = 201,
	PST_CU_MAP_FAILED = 205,
	PST_CU_UNMAP_FAILED = 206,
	PST_CU_ALREADY_MAPPED = 208,
	PST_CU_ECC_UNCORRECTABLE = 214,
	PST_CU_PEER_ACCESS_UNSUPPORTED = 217,
	PST_CU_NVLINK_UNCORRECTABLE = 220,
	PST_CU_OPERATING_SYSTEM = 304,
	PST_CU_INVALID_HANDLE = 400,
	PST_CU_ILLEGAL_STATE = 401,
	PST_CU_NOT_FOUND = 500,
	PST_CU_NOT_READY = 600,
	PST_CU_ILLEGAL_ADDRESS = 700,
	PST_CU_LAUNCH_OUT_OF_RESOURCES = 701,
	PST_CU_LAUNCH_TIMEOUT = 702,
	PST_CU_PEER_ACCESS_ALREADY_ENABLED = 704,
	PST_CU_PEER_ACCESS_NOT_ENABLED = 705,
	PST_CU_CONTEXT_IS_DESTROYED = 709,
	PST_CU_TOO_MANY_PEERS = 711,
	PST_CU_HOST_ALREADY_REGISTERED = 712,
	PST_CU_HOST_NOT_REGISTERED = 713,
	PST_CU_MISALIGNED_ADDRESS = 716,
	PST_CU_LAUNCH_FAILED = 719,
	PST_CU_NOT_PERMITTED = 800,
	PST_CU_NOT_SUPPORTED = 801,
	PST_CU_SYSTEM_NOT_READY = 802,
	PST_CU_SYSTEM_DRIVER_MISMATCH = 803,
	PST_CU_COMPAT_NOT_SUPPORTED = 804,
	PST_CU_CAPTURE_UNSUPPORTED = 900,
	PST_CU_CAPTURE_INVALIDATED = 901,
	PST_CU_CAPTURE_IMPLICIT = 906,
	PST_CU_TIMEOUT = 909,
	PST_CU_UNKNOWN = 999,
};

/* Attributes for cuPointerGetAttributes. Each comment names the type that data[i] must point to
 * for this attribute. */
enum pst_cu_ptr_attr {
	PST_CU_PTR_CONTEXT = 1,		 /* struct pst_cu_ctx * */
	PST_CU_PTR_MEMORY_TYPE = 2,	 /* unsigned, pst_cu_memtype */
	PST_CU_PTR_DEVICE_POINTER = 3,	 /* pst_cu_ptr */
	PST_CU_PTR_HOST_POINTER = 4,	 /* void * */
	PST_CU_PTR_SYNC_MEMOPS = 6,	 /* int */
	PST_CU_PTR_BUFFER_ID = 7,	 /* unsigned long long */
	PST_CU_PTR_IS_MANAGED = 8,	 /* int */
	PST_CU_PTR_DEVICE_ORDINAL = 9,	 /* int */
	PST_CU_PTR_IS_IPC_CAPABLE = 10,	 /* int: whether cuIpcGetMemHandle works */
	PST_CU_PTR_RANGE_START = 11,	 /* pst_cu_ptr */
	PST_CU_PTR_RANGE_SIZE = 12,	 /* size_t */
	PST_CU_PTR_MAPPED = 13,		 /* int */
	PST_CU_PTR_HANDLE_TYPES = 14,	 /* unsigned long long; cuda.h names no type */
	PST_CU_PTR_IS_RDMA_CAPABLE = 15, /* int */
	/* unsigned: 1 for read access, 3 for read and write access */
	PST_CU_PTR_ACCESS_FLAGS = 16,
	PST_CU_PTR_MEMPOOL = 17,       /* void * */
	PST_CU_PTR_MAPPING_SIZE = 18,  /* size_t */
	PST_CU_PTR_MAPPING_START = 19, /* pst_cu_ptr */
	PST_CU_PTR_BLOCK_ID = 20,      /* unsigned long long */
};

/* Types of memory. For an address that the driver does not know, cuPointerGetAttributes stores
 * 0. */
enum pst_cu_memtype {
	PST_CU_MEMTYPE_HOST = 1,
	PST_CU_MEMTYPE_DEVICE = 2,
	PST_CU_MEMTYPE_ARRAY = 3,
	PST_CU_MEMTYPE_UNIFIED = 4,
};

/* Attributes for cuDeviceGetAttribute. */
enum pst_cu_dev_attr {
	PST_CU_DEV_INTEGRATED = 18,
	PST_CU_DEV_CAN_MAP_HOST = 19,
	PST_CU_DEV_PCI_BUS_ID = 33,
	PST_CU_DEV_PCI_DEVICE_ID = 34,
	PST_CU_DEV_COPY_ENGINES = 40,
	PST_CU_DEV_UNIFIED_ADDRESSING = 41,
	PST_CU_DEV_PCI_DOMAIN_ID = 50,
	PST_CU_DEV_CC_MAJOR = 75,
	PST_CU_DEV_CC_MINOR = 76,
	PST_CU_DEV_PAGEABLE_ACCESS = 88,
	PST_CU_DEV_HOST_PTR_IS_DEV_PTR = 91,
	PST_CU_DEV_CAN_FLUSH_REMOTE = 98,
	PST_CU_DEV_HOST_REGISTER = 99,
	PST_CU_DEV_VMM = 102,
	PST_CU_DEV_HANDLE_FD = 103,
	PST_CU_DEV_RDMA_WITH_VMM = 110,
	PST_CU_DEV_READ_ONLY_REGISTER = 113,
	PST_CU_DEV_RDMA = 116,
	PST_CU_DEV_RDMA_FLUSH_OPTIONS = 117,
	PST_CU_DEV_RDMA_ORDERING = 118,
	PST_CU_DEV_MEMOPS_64 = 122,
	PST_CU_DEV_WAIT_VALUE_NOR = 123,
	PST_CU_DEV_DMA_BUF = 124,
	PST_CU_DEV_NUMA_ID = 131,
	PST_CU_DEV_HOST_NUMA_ID = 134,
};

/* Attributes for cuDeviceGetP2PAttribute. */
enum pst_cu_p2p_attr {
	PST_CU_P2P_PERFORMANCE_RANK = 1,
	PST_CU_P2P_ACCESS = 2,
};

/* Flags of cuCtxCreate and of a primary context. */
enum {
	PST_CU_CTX_SCHED_SPIN = 1,
	PST_CU_CTX_SCHED_YIELD = 2,
	PST_CU_CTX_SCHED_BLOCKING = 4,
};

/* Flags of cuMemHostRegister. The first two are also flags of cuMemHostAlloc. */
enum {
	PST_CU_HOST_PORTABLE = 0x1,
	PST_CU_HOST_MAPPED = 0x2,
	PST_CU_HOST_IOMEMORY = 0x4,
	PST_CU_HOST_READ_ONLY = 0x8,
};

/* Flags of cuStreamCreateWithPriority and cuEventCreate. */
enum {
	PST_CU_STREAM_DEFAULT = 0x0,
	PST_CU_STREAM_NON_BLOCKING = 0x1,
	PST_CU_EVENT_DEFAULT = 0x0,
	PST_CU_EVENT_BLOCKING = 0x1,
	PST_CU_EVENT_NO_TIMING = 0x2,
	PST_CU_EVENT_INTERPROCESS = 0x4,
};

/* Flags of cuStreamWaitValue32/64 and cuStreamWriteValue32/64. */
enum {
	PST_CU_WAIT_GEQ = 0x0, /* signed (*addr - value) >= 0 */
	PST_CU_WAIT_EQ = 0x1,
	PST_CU_WAIT_AND = 0x2, /* (*addr & value) != 0 */
	PST_CU_WAIT_NOR = 0x3, /* ~(*addr | value) != 0 */
	PST_CU_WAIT_FLUSH = 1 << 30,
	PST_CU_WRITE_DEFAULT = 0x0,
	PST_CU_WRITE_NO_BARRIER = 0x1,
};

/* Operations of cuStreamBatchMemOp. */
enum {
	PST_CU_OP_WAIT_64 = 4,
	PST_CU_OP_WRITE_64 = 5,
};

/* One operation of cuStreamBatchMemOp: a wait or a write of a word of 64 bits. */
union pst_cu_mem_op {
	struct {
		uint32_t operation;
		pst_cu_ptr addr;
		uint64_t value;
		unsigned int flags;
		pst_cu_ptr alias; /* the driver stores it */
	} word;
	uint64_t unused[6];
};

/* Results of cuStreamIsCapturing. */
enum pst_cu_capture {
	PST_CU_CAPTURE_NONE = 0,
	PST_CU_CAPTURE_ACTIVE = 1,
	PST_CU_CAPTURE_BROKEN = 2,
};

/* Modes of cuThreadExchangeStreamCaptureMode. While a stream is being captured into a graph, the
 * driver refuses some calls of a thread. With GLOBAL, captures of all threads have this effect;
 * with THREAD_LOCAL, only the thread's own captures; with RELAXED, no capture. */
enum pst_cu_capture_mode {
	PST_CU_CAPTURE_GLOBAL = 0,
	PST_CU_CAPTURE_THREAD_LOCAL = 1,
	PST_CU_CAPTURE_RELAXED = 2,
};

/* Flags of user objects of graphs. The destructor of a user object runs when no graph refers to it
 * any more. */
enum {
	PST_CU_USER_OBJECT_NO_SYNC = 0x1, /* the driver accepts only this flag */
	PST_CU_GRAPH_MOVE_REFS = 0x1,	  /* the graph takes the caller's references */
};

/* The only flag of cuIpcOpenMemHandle. */
enum {
	PST_CU_IPC_LAZY_PEER = 0x1,
};

/* Handle types and flags of cuMemGetHandleForAddressRange. */
enum pst_cu_range_handle {
	PST_CU_RANGE_DMA_BUF_FD = 0x1,
};
enum {
	PST_CU_RANGE_FLAG_PCIE = 0x1,
};

/* Targets and scopes of cuFlushGPUDirectRDMAWrites. */
enum pst_cu_flush_target {
	PST_CU_FLUSH_CURRENT_CTX = 0,
};
enum pst_cu_flush_scope {
	PST_CU_FLUSH_TO_OWNER = 100,
	PST_CU_FLUSH_TO_ALL = 200,
};

/* Types for the driver's functions of virtual memory management, such as cuMemCreate. */
enum pst_cu_alloc_type {
	PST_CU_ALLOC_PINNED = 1,
};
enum pst_cu_handle_type {
	PST_CU_HANDLE_NONE = 0x0,
	PST_CU_HANDLE_FD = 0x1,
	PST_CU_HANDLE_FABRIC = 0x8,
};
enum pst_cu_location_type {
	PST_CU_LOCATION_NONE = 0,
	PST_CU_LOCATION_DEVICE = 1,
	PST_CU_LOCATION_HOST = 2,
	PST_CU_LOCATION_HOST_NUMA = 3,
};
enum pst_cu_access {
	PST_CU_ACCESS_NONE = 0,
	PST_CU_ACCESS_READ = 1,
	PST_CU_ACCESS_READWRITE = 3,
};
enum pst_cu_granularity {
	PST_CU_GRANULARITY_MIN = 0,
	PST_CU_GRANULARITY_RECOMMENDED = 1,
};

enum pst_cu_operand_type {
	PST_CU_OPERAND_POINTER = 1,
};
enum pst_cu_source_order {
	PST_CU_SOURCE_IN_STREAM = 1,
	PST_CU_SOURCE_DURING_CALL = 2,
	PST_CU_SOURCE_ANY = 3,
};

struct pst_cu_location {
	enum pst_cu_location_type type;
	int id;
};

/* Attributes of the copies of one batch. */
struct pst_cu_copy_attr {
	enum pst_cu_source_order source_order;
	struct pst_cu_location src_hint, dst_hint; /* Used for managed memory only. */
	unsigned int flags;
};

struct pst_cu_alloc_prop {
	enum pst_cu_alloc_type type;
	enum pst_cu_handle_type handle_types;
	struct pst_cu_location location;
	void *win32_meta;
	struct {
		unsigned char compression;
		unsigned char rdma_capable;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct pst_cu_access_desc {
	struct pst_cu_location location;
	enum pst_cu_access flags;
};

struct pst_cu_uuid {
	char bytes[16];
};

struct pst_cu_ipc_mem {
	char reserved[64];
};

/* A copy of `height` rows by cuMemcpy2D. If `src_type` is host, the driver uses only `src_host`,
 * else only `src_dev`; the same holds for `dst`. A pitch is the distance in bytes between the
 * starts of two rows. It may be 0 if there is one row. */
struct pst_cu_memcpy2d {
	size_t src_x_bytes;
	size_t src_y;
	enum pst_cu_memtype src_type;
	const void *src_host;
	pst_cu_ptr src_dev;
	void *src_array;
	size_t src_pitch;
	size_t dst_x_bytes;
	size_t dst_y;
	enum pst_cu_memtype dst_type;
	void *dst_host;
	pst_cu_ptr dst_dev;
	void *dst_array;
	size_t dst_pitch;
	size_t width_bytes;
	size_t height;
};

/* Source or destination of one copy in a batch (struct pst_cu_copy3d). The distance between the
 * starts of two rows is `row_len` bytes. */
struct pst_cu_operand3d {
	enum pst_cu_operand_type type;
	pst_cu_ptr ptr;
	size_t row_len, layer_rows;
	struct pst_cu_location hint; /* Used for managed memory only. */
};

/* One copy in a batch of cuMemcpy3DBatchAsync: `rows` rows of `width_bytes` bytes, in `layers`
 * layers. */
struct pst_cu_copy3d {
	struct pst_cu_operand3d src, dst;
	size_t width_bytes, rows, layers;
	enum pst_cu_source_order source_order;
	unsigned int flags;
};

/*
 * The list of functions: R(name, symbol, parameters) for a required function, O(...) for an
 * optional one. The name is NVIDIA's name without its version suffix. The symbol is the name of the
 * function in the library, in the version that has these parameters. A driver that lacks a required
 * function is not used at all. An optional function that the driver lacks is NULL in the table, so
 * code must check it before the call. The comment after an optional function names the CUDA version
 * that introduced it.
 */
/* clang-format off */
#define PST_CU_DEVICE_FUNCS(R, O) \
R(cuInit, cuInit, (unsigned int flags)) \
R(cuDriverGetVersion, cuDriverGetVersion, (int *version)) \
R(cuGetErrorName, cuGetErrorName, (enum pst_cu_result rc, const char **name)) \
R(cuGetErrorString, cuGetErrorString, (enum pst_cu_result rc, const char **text)) \
R(cuDeviceGet, cuDeviceGet, (int *dev, int ordinal)) \
R(cuDeviceGetCount, cuDeviceGetCount, (int *count)) \
R(cuDeviceGetName, cuDeviceGetName, (char *name, int len, int dev)) \
R(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *bdf, int len, int dev)) \
R(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, (int *dev, const char *bdf)) \
R(cuDeviceGetAttribute, cuDeviceGetAttribute, \
	(int *value, enum pst_cu_dev_attr attr, int dev)) \
R(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *len_bytes, int dev)) \
R(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int dev, int peer)) \
R(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, \
	(struct pst_cu_ctx **ctx, int dev)) \
R(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int dev)) \
R(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, \
	(int dev, unsigned int *flags, int *active)) \
R(cuCtxGetCurrent, cuCtxGetCurrent, (struct pst_cu_ctx **ctx)) \
R(cuCtxSetCurrent, cuCtxSetCurrent, (struct pst_cu_ctx *ctx)) \
R(cuCtxPushCurrent, cuCtxPushCurrent_v2, (struct pst_cu_ctx *ctx)) \
R(cuCtxPopCurrent, cuCtxPopCurrent_v2, (struct pst_cu_ctx **ctx)) \
R(cuCtxGetDevice, cuCtxGetDevice, (int *dev)) \
R(cuCtxSynchronize, cuCtxSynchronize, (void)) \
R(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, \
	(int *least, int *greatest)) \
R(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, \
	(struct pst_cu_ctx *peer, unsigned int flags)) \
O(cuDeviceGetUuid, cuDeviceGetUuid_v2, (struct pst_cu_uuid *uuid, int dev)) /* 11.4 */ \
O(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, \
	(int *value, enum pst_cu_p2p_attr attr, int src_dev, int dst_dev)) \
O(cuFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, \
	(enum pst_cu_flush_target target, enum pst_cu_flush_scope scope)) /* 11.3 */

#define PST_CU_MEM_FUNCS(R, O) \
R(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes)) \
R(cuMemAlloc, cuMemAlloc_v2, (pst_cu_ptr *dev, size_t len_bytes)) \
R(cuMemFree, cuMemFree_v2, (pst_cu_ptr dev)) \
R(cuMemGetAddressRange, cuMemGetAddressRange_v2, \
	(pst_cu_ptr *start, size_t *len_bytes, pst_cu_ptr dev)) \
R(cuMemHostAlloc, cuMemHostAlloc, \
	(void **host, size_t len_bytes, unsigned int flags)) \
R(cuMemFreeHost, cuMemFreeHost, (void *host)) \
R(cuMemHostRegister, cuMemHostRegister_v2, \
	(void *host, size_t len_bytes, unsigned int flags)) \
R(cuMemHostUnregister, cuMemHostUnregister, (void *host)) \
R(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, \
	(pst_cu_ptr *dev, void *host, unsigned int flags)) \
R(cuPointerGetAttribute, cuPointerGetAttribute, \
	(void *data, enum pst_cu_ptr_attr attr, pst_cu_ptr ptr)) \
R(cuPointerGetAttributes, cuPointerGetAttributes, \
	(unsigned int count, enum pst_cu_ptr_attr *attrs, void **data, pst_cu_ptr ptr)) \
O(cuPointerSetAttribute, cuPointerSetAttribute, \
	(const void *value, enum pst_cu_ptr_attr attr, pst_cu_ptr ptr)) \
O(cuIpcGetMemHandle, cuIpcGetMemHandle, \
	(struct pst_cu_ipc_mem *handle, pst_cu_ptr dev)) \
O(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, \
	(pst_cu_ptr *dev, struct pst_cu_ipc_mem handle, unsigned int flags)) /* 11.0 */ \
O(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (pst_cu_ptr dev)) \
O(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, \
	(void *handle, pst_cu_ptr dev, size_t len_bytes, \
	 enum pst_cu_range_handle type, unsigned long long flags)) /* 11.7 */

#define PST_CU_STREAM_FUNCS(R, O) \
R(cuMemcpyAsync, cuMemcpyAsync, \
	(pst_cu_ptr dst, pst_cu_ptr src, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, \
	(pst_cu_ptr dst, const void *src, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, \
	(void *dst, pst_cu_ptr src, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, \
	(pst_cu_ptr dst, pst_cu_ptr src, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuMemcpyPeerAsync, cuMemcpyPeerAsync, \
	(pst_cu_ptr dst, struct pst_cu_ctx *dst_ctx, pst_cu_ptr src, \
	 struct pst_cu_ctx *src_ctx, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, \
	(const struct pst_cu_memcpy2d *copy, struct pst_cu_stream *stream)) \
O(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, \
	(pst_cu_ptr *dsts, pst_cu_ptr *srcs, size_t *lens_bytes, size_t count, \
	 struct pst_cu_copy_attr *attrs, size_t *attr_firsts, size_t attr_count, \
	 struct pst_cu_stream *stream)) /* 13.0 */ \
O(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2, \
	(size_t count, struct pst_cu_copy3d *copies, unsigned long long flags, \
	 struct pst_cu_stream *stream)) /* 13.0 */ \
R(cuMemsetD8Async, cuMemsetD8Async, \
	(pst_cu_ptr dst, unsigned char byte, size_t len_bytes, struct pst_cu_stream *stream)) \
R(cuStreamCreateWithPriority, cuStreamCreateWithPriority, \
	(struct pst_cu_stream **stream, unsigned int flags, int priority)) \
R(cuStreamDestroy, cuStreamDestroy_v2, (struct pst_cu_stream *stream)) \
R(cuStreamQuery, cuStreamQuery, (struct pst_cu_stream *stream)) \
R(cuStreamSynchronize, cuStreamSynchronize, (struct pst_cu_stream *stream)) \
R(cuStreamWaitEvent, cuStreamWaitEvent, \
	(struct pst_cu_stream *stream, struct pst_cu_event *event, unsigned int flags)) \
R(cuStreamGetFlags, cuStreamGetFlags, (struct pst_cu_stream *stream, unsigned int *flags)) \
R(cuStreamGetCtx, cuStreamGetCtx, \
	(struct pst_cu_stream *stream, struct pst_cu_ctx **ctx)) \
O(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, \
	(enum pst_cu_capture_mode *mode)) /* 10.1 */ \
R(cuStreamIsCapturing, cuStreamIsCapturing, \
	(struct pst_cu_stream *stream, enum pst_cu_capture *status)) \
R(cuEventCreate, cuEventCreate, (struct pst_cu_event **event, unsigned int flags)) \
R(cuEventRecord, cuEventRecord, \
	(struct pst_cu_event *event, struct pst_cu_stream *stream)) \
R(cuEventQuery, cuEventQuery, (struct pst_cu_event *event)) \
R(cuEventSynchronize, cuEventSynchronize, (struct pst_cu_event *event)) \
R(cuEventDestroy, cuEventDestroy_v2, (struct pst_cu_event *event)) \
R(cuModuleLoadData, cuModuleLoadData, \
	(struct pst_cu_module **module, const void *image)) \
R(cuModuleUnload, cuModuleUnload, (struct pst_cu_module *module)) \
R(cuModuleGetFunction, cuModuleGetFunction, \
	(struct pst_cu_function **function, struct pst_cu_module *module, const char *name)) \
R(cuLaunchKernel, cuLaunchKernel, \
	(struct pst_cu_function *function, unsigned int grid_x, unsigned int grid_y, \
	 unsigned int grid_z, unsigned int block_x, unsigned int block_y, \
	 unsigned int block_z, unsigned int shared_bytes, struct pst_cu_stream *stream, \
	 void **args, void **extra)) \
R(cuLaunchHostFunc, cuLaunchHostFunc, \
	(struct pst_cu_stream *stream, void (*fn)(void *), void *arg)) \
O(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, \
	(struct pst_cu_stream *stream, enum pst_cu_capture *status, \
	 uint64_t *id, struct pst_cu_graph **graph, \
	 struct pst_cu_node *const **deps, const struct pst_cu_edge **edges, \
	 size_t *dep_count)) /* 12.3 */ \
O(cuStreamGetCaptureInfoNoEdges, cuStreamGetCaptureInfo_v2, \
	(struct pst_cu_stream *stream, enum pst_cu_capture *status, \
	 uint64_t *id, struct pst_cu_graph **graph, \
	 struct pst_cu_node *const **deps, size_t *dep_count)) /* 11.3 */ \
O(cuUserObjectCreate, cuUserObjectCreate, \
	(struct pst_cu_user_object **object, void *arg, void (*destroy)(void *arg), \
	 unsigned int refs, unsigned int flags)) /* 11.3 */ \
O(cuUserObjectRelease, cuUserObjectRelease, \
	(struct pst_cu_user_object *object, unsigned int refs)) /* 11.3 */ \
O(cuGraphRetainUserObject, cuGraphRetainUserObject, \
	(struct pst_cu_graph *graph, struct pst_cu_user_object *object, \
	 unsigned int refs, unsigned int flags)) /* 11.3 */ \
O(cuStreamWriteValue32, cuStreamWriteValue32_v2, \
	(struct pst_cu_stream *stream, pst_cu_ptr addr, uint32_t value, \
	 unsigned int flags)) /* 11.7 */ \
O(cuStreamWriteValue64, cuStreamWriteValue64_v2, \
	(struct pst_cu_stream *stream, pst_cu_ptr addr, uint64_t value, \
	 unsigned int flags)) /* 11.7 */ \
O(cuStreamWaitValue32, cuStreamWaitValue32_v2, \
	(struct pst_cu_stream *stream, pst_cu_ptr addr, uint32_t value, \
	 unsigned int flags)) /* 11.7 */ \
O(cuStreamWaitValue64, cuStreamWaitValue64_v2, \
	(struct pst_cu_stream *stream, pst_cu_ptr addr, uint64_t value, \
	 unsigned int flags)) /* 11.7 */ \
O(cuStreamBatchMemOp, cuStreamBatchMemOp_v2, \
	(struct pst_cu_stream *stream, unsigned int count, union pst_cu_mem_op *ops, \
	 unsigned int flags)) /* 11.7 */

#define PST_CU_VMM_FUNCS(R, O) \
O(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, \
	(size_t *granularity, const struct pst_cu_alloc_prop *prop, \
	 enum pst_cu_granularity option)) /* introduced in 10.2, as are all functions below */ \
O(cuMemCreate, cuMemCreate, \
	(unsigned long long *handle, size_t len_bytes, \
	 const struct pst_cu_alloc_prop *prop, unsigned long long flags)) \
O(cuMemRelease, cuMemRelease, (unsigned long long handle)) \
O(cuMemAddressReserve, cuMemAddressReserve, \
	(pst_cu_ptr *dev, size_t len_bytes, size_t align, pst_cu_ptr hint, \
	 unsigned long long flags)) \
O(cuMemAddressFree, cuMemAddressFree, (pst_cu_ptr dev, size_t len_bytes)) \
O(cuMemMap, cuMemMap, \
	(pst_cu_ptr dev, size_t len_bytes, size_t offset, unsigned long long handle, \
	 unsigned long long flags)) \
O(cuMemUnmap, cuMemUnmap, (pst_cu_ptr dev, size_t len_bytes)) \
O(cuMemSetAccess, cuMemSetAccess, \
	(pst_cu_ptr dev, size_t len_bytes, const struct pst_cu_access_desc *descs, \
	 size_t count)) \
O(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, \
	(unsigned long long *handle, void *addr)) \
O(cuMemExportToShareableHandle, cuMemExportToShareableHandle, \
	(void *shareable, unsigned long long handle, enum pst_cu_handle_type type, \
	 unsigned long long flags)) \
O(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, \
	(unsigned long long *handle, void *os_handle, enum pst_cu_handle_type type))
/* clang-format on */

#define PST_CU_FUNCS(R, O)        \
	PST_CU_DEVICE_FUNCS(R, O) \
	PST_CU_MEM_FUNCS(R, O)    \
	PST_CU_STREAM_FUNCS(R, O) \
	PST_CU_VMM_FUNCS(R, O)

/* The loaded driver. It is read-only after pst_cuda_get has returned it. */
struct pst_cuda {
#define PST_CU_MEMBER(name, symbol, params) enum pst_cu_result(*name) params;
	PST_CU_FUNCS(PST_CU_MEMBER, PST_CU_MEMBER)
#undef PST_CU_MEMBER
	int driver_version; /* CUDA version of the driver: 1000 × major + 10 × minor. */
	int device_count;   /* Number of GPUs; at least 1. */
};

/*
 * Returns the driver, or NULL with a sentence in *why (static storage) that tells what is missing.
 * The first call loads and initialises the driver, which may take a second. Every later call
 * returns the same result, with one exception: if the driver could not be loaded for lack of memory
 * or descriptors, *temporary is ENOMEM, EMFILE or ENFILE, and the next call tries again. Otherwise
 * *temporary is 0. Any thread may call it. The environment variable PENSTOCK_LIBCUDA names a file
 * to load instead of libcuda.so.1.
 */
const struct pst_cuda *pst_cuda_load(const char **why, int *temporary);
/* Does the same as pst_cuda_load, without `temporary`. `why` may be NULL. */
const struct pst_cuda *pst_cuda_get(const char **why);

/* Returns whether the machine has a driver that cannot be loaded or started in this process.
 * Returns false if it has no driver, if the driver finds no GPU, or before pst_cuda_load. */
bool pst_cuda_broken(void);

/* Returns the -errno that stands for a result of the driver, or 0 for success. */
int pst_cuda_errno(enum pst_cu_result rc);

/* Returns the driver's name of a result, such as "CUDA_ERROR_INVALID_VALUE", in static storage.
 * For the results listed above it needs no driver. */
const char *pst_cuda_name(enum pst_cu_result rc);

#endif /* PST_CUDA_API_H */
