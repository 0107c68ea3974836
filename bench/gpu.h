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
/* Queues a copy of `len` bytes from pinned memory to the GPU, as two rows, so that the driver does
 * not run a short copy in the GPU's compute queue; see tests/standin/README.md. Returns the
 * driver's result. */
int gpu_copy_two_rows(const char *from, unsigned long long to, unsigned len,
		      struct pst_cu_stream *stream);

#endif
