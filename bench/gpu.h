/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that call the driver: gpu.c, gpu_cold.c, gpu_copies.c, gpu_window.c. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

struct pst_cuda;
struct pst_cu_ctx;
struct pst_cu_stream;

struct gpu {
	const struct pst_cuda *api;
	int ordinal;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *stream;
};

struct gpu *gpu_get(void);
char *gpu_pinned_mem(uint64_t len);    /* populated huge pages, NULL: none; kept */
int gpu_bad(const char *what, int rc); /* 0 or -errno, said on stderr */

#endif
