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

/* Number of copies whose addresses a block loads at once. The block's threads load one word each. */
#define COPY_WORDS (sizeof(struct copy) / sizeof(u64))
#define LIST 64u
#define WARP 32u
/* Rows of at least this many bytes are long. */
#define LONG_ROW 16384u

/* Copies one row in units of T, by `step` threads, of which this one is number `thread`. Each thread
 * has 8 loads in flight, because a load from host memory takes about 1.5 us: 2 blocks of 512 threads
 * then have 128 KiB in flight, which fill a PCIe 5 link. The loads bypass the caches (ld.global.cv),
 * because the host may have written the bytes while an earlier kernel ran. */
template <typename T>
__device__ __forceinline__ static void copy_row(char *dst, const char *src, u64 len, u64 thread,
						u64 step)
{
	const u64 n = len / sizeof(T);
	T *d = (T *)dst;
	const T *s = (const T *)src;

	for (u64 i = thread; i < n; i += 8 * step) {
		T unit[8];

#pragma unroll
		for (int k = 0; k < 8; k++)
			if (i + k * step < n)
				unit[k] = __ldcv(s + i + k * step);
#pragma unroll
		for (int k = 0; k < 8; k++)
			if (i + k * step < n)
				d[i + k * step] = unit[k];
	}
	for (u64 i = n * sizeof(T) + thread; i < len; i += step)
		dst[i] = __ldcv(src + i);
}

/* Copies one row by the threads `thread`, `thread` + 1, ... of `step` threads, in the largest units
 * that both addresses allow. */
__device__ __forceinline__ static void copy_any(u64 to, u64 from, u64 len, u64 thread, u64 step)
{
	if (!((to | from) & 15))
		copy_row<uint4>((char *)to, (const char *)from, len, thread, step);
	else if (!((to | from) & 3))
		copy_row<unsigned>((char *)to, (const char *)from, len, thread, step);
	else
		copy_row<unsigned char>((char *)to, (const char *)from, len, thread, step);
}

/* Loads `count` words from host memory to `to`, which the threads of a block share. Each word is
 * loaded once: loads of one address by several warps follow each other, and take about 1 us each
 * (H200). */
__device__ __forceinline__ static void load_words(u64 *to, const void *from, unsigned count)
{
	__syncthreads(); /* the threads no longer use the words that `to` had */
	if (threadIdx.x < count)
		to[threadIdx.x] = __ldcv((const u64 *)from + threadIdx.x);
	__syncthreads();
}

/* All threads together copy a long row, or the only row. Each warp copies other short rows by
 * itself, so that many rows are in flight. */
extern "C" __global__ void pst_stream_copy(const struct round *round, const struct copy *copies)
{
	__shared__ struct round r;
	__shared__ struct copy list[LIST];
	const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
	const u64 threads = (u64)gridDim.x * blockDim.x;
	const u64 warp = thread / WARP, warps = threads / WARP;
	u64 turn = 0; /* number of short rows before the current copy, modulo `warps` */

	load_words((u64 *)&r, round, sizeof(r) / sizeof(u64));
	for (u64 at = 0; at < r.count; at += LIST) {
		const unsigned n = r.count - at < LIST ? (unsigned)(r.count - at) : LIST;

		load_words((u64 *)list, &copies[r.first + at], n * COPY_WORDS);
		for (unsigned i = 0; i < n; i++) {
			const struct copy c = list[i];

			if (c.row_len >= LONG_ROW || (r.count == 1 && c.rows == 1)) {
				for (u64 row = 0; row < c.rows; row++)
					copy_any(c.dst + row * c.dst_pitch, c.src + row * c.src_pitch,
						 c.row_len, thread, threads);
				continue;
			}
			for (u64 row = (warp + warps - turn) % warps; row < c.rows; row += warps)
				copy_any(c.dst + row * c.dst_pitch, c.src + row * c.src_pitch,
					 c.row_len, thread % WARP, WARP);
			turn = (turn + c.rows) % warps;
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
