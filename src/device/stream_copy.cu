/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels behind the device operations stream_run and stream_count.
 *
 * pst_stream_copy copies rectangles between pinned host memory and device memory. Requests whose
 * addresses or lengths are not known at submit need it, and requests whose stream is busy. The
 * kernel reads the addresses from pinned host memory when the stream reaches it, which the copy
 * engine cannot do. tools/make-ptx compiles this file to two headers that are part of the library,
 * so a build of the library needs no nvcc: stream_copy_image.h has machine code for common GPUs,
 * and stream_copy_ptx.h has text that the driver of any other GPU compiles.
 *
 * The layouts of `copy` and `round` are those of struct pst_stream_copy and struct
 * pst_stream_round in core/ops.h.
 */
typedef unsigned long long u64;

struct copy {
	u64 dst, src, dst_pitch, src_pitch, row_len, rows;
};
struct round {
	u64 first, count;
};

/* Copies one row, in units of T. Each thread has 8 loads in flight, because a load from host memory
 * takes about 1.5 us: 2 blocks of 512 threads then have 128 KiB in flight, which fill a PCIe 5 link.
 * The loads bypass the caches (ld.global.cv), because the host may have written the bytes while an
 * earlier kernel ran. */
template <typename T>
__device__ __forceinline__ static void copy_row(char *dst, const char *src, u64 len)
{
	const u64 n = len / sizeof(T), step = (u64)gridDim.x * blockDim.x;
	const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
	u64 i = thread;
	T *d = (T *)dst;
	const T *s = (const T *)src;

	for (; i + 7 * step < n; i += 8 * step) {
		T unit[8];

#pragma unroll
		for (int k = 0; k < 8; k++)
			unit[k] = __ldcv(s + i + k * step);
#pragma unroll
		for (int k = 0; k < 8; k++)
			d[i + k * step] = unit[k];
	}
	for (; i < n; i += step)
		d[i] = __ldcv(s + i);
	for (i = n * sizeof(T) + thread; i < len; i += step)
		dst[i] = __ldcv(src + i);
}

extern "C" __global__ void pst_stream_copy(const struct round *round, const struct copy *copies)
{
	const u64 first = __ldcv(&round->first), end = first + __ldcv(&round->count);

	for (u64 i = first; i < end; i++) {
		const struct copy *c = &copies[i];
		const u64 dst = __ldcv(&c->dst), src = __ldcv(&c->src);
		const u64 dst_pitch = __ldcv(&c->dst_pitch), src_pitch = __ldcv(&c->src_pitch);
		const u64 row_len = __ldcv(&c->row_len), rows = __ldcv(&c->rows);

		for (u64 row = 0; row < rows; row++) {
			char *to = (char *)(dst + row * dst_pitch);
			const char *from = (const char *)(src + row * src_pitch);

			if (!(((u64)to | (u64)from) & 15))
				copy_row<uint4>(to, from, row_len);
			else if (!(((u64)to | (u64)from) & 3))
				copy_row<unsigned>(to, from, row_len);
			else
				copy_row<unsigned char>(to, from, row_len);
		}
	}
}

/* Sets the words `zero` and `zero_too` to 0, then adds 1 to `count`. All three are in pinned host
 * memory. A pointer to a word that shall not change is NULL. The addition is atomic with regard to
 * this GPU's other kernels, but not with regard to the CPU, which must only read the word. */
extern "C" __global__ void pst_stream_count(u64 *count, u64 *zero, u64 *zero_too)
{
	if (zero)
		*(volatile u64 *)zero = 0;
	if (zero_too)
		*(volatile u64 *)zero_too = 0;
	__threadfence_system();
	atomicAdd(count, 1ull);
	__threadfence_system();
}
