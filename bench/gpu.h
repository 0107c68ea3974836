/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files that call the driver: gpu.c, gpu_blocked.c, gpu_calls.c,
 * gpu_cold.c, gpu_copies.c, gpu_mixed.c, gpu_window.c and gpu_written.c. */
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
/* Allocates huge pages, touches and pins them. Returns their address, or NULL after a failure.
 * gpu_close frees them. */
char *gpu_pinned_mem(uint64_t len);
/* If `rc` is a driver error, prints it to stderr. Returns 0 or -errno. */
int gpu_bad(const char *what, int rc);

#endif
