/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the backends in this build: of storages, of devices, of paths, and of engines. A
 * path is a way for bytes between storage and device, and the most direct path comes first. An
 * engine is a way to make system calls, and the fastest engine comes first. To open a storage or a
 * device, core asks the kinds in the listed order until one accepts the name. The last kind of
 * device is host memory, which "auto" selects if there is no other device. For a backend that this
 * build lacks, a file no_*.c is compiled, which reports that the backend is missing. Core reads
 * these tables; no other file of core may name a backend.
 */
#include "core/ops.h"
#include "device/cuda.h"
#include "device/host.h"
#include "device/peermem.h"
#include "io/threads.h"
#include "io/uring.h"
#include "path/fault.h"
#include "path/mapped.h"
#include "path/null.h"
#include "path/odirect.h"
#include "path/p2p.h"
#include "path/rdma.h"
#include "path/slotted.h"
#include "path/vendor.h"
#include "storage/file.h"
#include "storage/mem.h"
#include "storage/object.h"

const struct pst_storage_ops *const pst_storages[] = {
	&pst_storage_file,
	&pst_storage_mem,
	&pst_storage_object,
	NULL,
};

const struct pst_device_ops *const pst_devices[] = {
	&pst_device_cuda,
	&pst_device_peermem,
	&pst_device_host,
	NULL,
};

const struct pst_path_ops *const pst_paths[] = {
	&pst_path_p2p,	  &pst_path_odirect, &pst_path_vendor, &pst_path_rdma,	&pst_path_mapped,
	&pst_path_staged, &pst_path_bounce,  &pst_path_null,   &pst_path_fault, NULL,
};
const unsigned pst_path_count = sizeof(pst_paths) / sizeof(pst_paths[0]) - 1;

const struct pst_engine_ops *const pst_engines[] = {
	&pst_engine_uring,
	&pst_engine_threads,
	NULL,
};
const struct pst_engine_ops *const pst_engine_plain = &pst_engine_threads;
