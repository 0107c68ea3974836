/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two files that call the driver: gpu.c and gpu_window.c. */
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
int gpu_bad(const char *what, int rc); /* 0 or -errno, said on stderr */

#endif
