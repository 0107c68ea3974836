/* SPDX-License-Identifier: Apache-2.0 */
/* Shares GPU memory with other processes and with drivers of network cards: see cuda_ipc.c. */
#ifndef PST_DEVICE_CUDA_IPC_H
#define PST_DEVICE_CUDA_IPC_H

#include "device/cuda_context.h"

/* The functions export_memory, import_memory, export_len and dma_buf of device cuda's table.
 * core/ops.h describes what each of them must do. */
int pst_cuda_export(struct penstock_device *dev, void *ptr, size_t len, struct penstock_export *out,
		    struct pst_err *err);
int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err);
uint64_t pst_cuda_export_len(const struct penstock_export *exported);
int pst_cuda_dma_buf(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off,
		     struct pst_err *err);
/*
 * Returns true if this process has imported memory of another process for this device, and the
 * imported allocation starts at `base`. The memory may be on another GPU.
 */
bool pst_cuda_imported(struct pst_cuda_device *c, pst_cu_ptr base);
/*
 * Closes the import whose memory is at `ptr`. Returns 1 if it is closed, 0 if `ptr` was not
 * imported, or -errno. The caller has made the context current.
 */
int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err);
/* Closes all open imports. The caller has made the context current. */
void pst_cuda_unimport_all(struct pst_cuda_device *c);

#endif
