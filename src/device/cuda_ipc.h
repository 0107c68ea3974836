/* SPDX-License-Identifier: Apache-2.0 */
/* Shares device memory between processes: see cuda_ipc.c. */
#ifndef PST_DEVICE_CUDA_IPC_H
#define PST_DEVICE_CUDA_IPC_H

#include "device/cuda_context.h"

/* export_memory and import_memory of the table; same contracts as in core/ops.h. */
int pst_cuda_export(struct penstock_device *dev, void *ptr, size_t len, struct penstock_export *out,
		    struct pst_err *err);
int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err);
/*
 * Returns true if this device has an open import that starts at `base`. The imported memory may
 * be on another device.
 */
bool pst_cuda_imported(struct pst_cuda_device *c, pst_cu_ptr base);
/*
 * Closes an import. Returns 1: closed; 0: `ptr` was not imported; or -errno. The caller has
 * entered the context.
 */
int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err);
/* Closes all open imports. The caller has entered the context. */
void pst_cuda_unimport_all(struct pst_cuda_device *c);

#endif
