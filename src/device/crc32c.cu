/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel behind the device operation sum: computes the raw CRC-32C (common/crc32c.h) of pieces
 * of memory. Each block of threads computes one piece. tools/make-ptx compiles this file to
 * crc32c_image.h and crc32c_ptx.h. tests/unit/test_crc32c_kernel.c compiles it as C and runs it on
 * the CPU, so it must be valid C and C++.
 *
 * A block reads its piece in tiles of 32 rows. A row has one 4-byte word for each thread, so a
 * thread's words lie 2^12 bits apart. The kernel uses a property of polynomials over GF(2): P(x)
 * raised to the power of 2^12 is P(x^(2^12)). If P is the CRC's polynomial, both are 0 modulo P. So
 * P(y) with y = x^(2^12) divides a thread's words, as coefficients of powers of y, without a shift
 * of bits inside a word. This takes 17 XORs of whole words for each word, and most GPUs make
 * two of them by one instruction. Each thread thus reduces its words to 32 words.
 *
 * The tiles end where the piece's last whole word ends. Words before the piece count as 0, which
 * does not change a raw CRC. No byte outside the piece is read.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 128
#define WARPS (THREADS / 32)
#define ROW (THREADS * 4)
#define ROWS 32
#define TILE (ROW * ROWS)
#define POLY 0x82f63b78u /* the CRC's polynomial P; the highest bit is the coefficient of x^0 */
#define TAPS 0x1edc6f41u /* P again, but the lowest bit is the coefficient of x^0 */
#define X_4096 0x74c360a4u /* x^4096 modulo P, written like POLY */

/* A piece of memory. `after` is the number of bytes of its range after it. The kernel sets `raw` to
 * the raw CRC of the piece followed by this number of zero bytes. struct sum_piece in cuda_sum.c
 * has the same layout. */
struct piece {
	u64 begin, len, after, raw;
};

/* x^(8 * 2^k) modulo P. The next entry would equal the first. */
__constant__ static const u32 x_bytes[31] = {
	0x00800000u, 0x00008000u, 0x82f63b78u, 0x6ea2d55cu, 0x18b8ea18u, 0x510ac59au,
	0xb82be955u, 0xb8fdb1e7u, 0x88e56f72u, 0x74c360a4u, 0xe4172b16u, 0x0d65762au,
	0x35d73a62u, 0x28461564u, 0xbf455269u, 0xe2ea32dcu, 0xfe7740e6u, 0xf946610bu,
	0x3c204f8fu, 0x538586e3u, 0x59726915u, 0x734d5309u, 0xbc1ac763u, 0x7d0722ccu,
	0xd289cabeu, 0xe94ca9bcu, 0x05b74f3fu, 0xa51e1f42u, 0x40000000u, 0x20000000u,
	0x08000000u,
};

/* Returns the product modulo P. If b is a constant, all its shifts are constants. */
static __device__ __forceinline__ u32 multiply(u32 a, u32 b)
{
	u32 product = 0;

#pragma unroll
	for (int bit = 0; bit < 32; bit++) {
		product ^= (u32)((int)(a << bit) >> 31) & b;
		b = b >> 1 ^ (b & 1 ? POLY : 0);
	}
	return product;
}

/* Returns the aligned word that contains `begin`. Its bytes before `begin` are 0. */
static __device__ __forceinline__ u32 first_word(u64 begin)
{
	u32 word = 0;

	for (u64 at = begin; at & 3; at++)
		word |= (u32) * (const unsigned char *)at << 8 * (at & 3);
	return word;
}

/* Returns the polynomial of the thread's words, of which the first is at `at` and the last is
 * before `end`. The last word is the coefficient of x^0. `column` is the thread's column of shared
 * memory, which has a word for each coefficient. */
static __device__ __forceinline__ u32 thread_sum(u64 at, u64 begin, u64 end, u32 *column)
{
	const u32 first = first_word(begin);
	u32 s[ROWS], sum = 0; /* s[k] is the coefficient of y^k, except inside the loop over rows */

#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const u64 row = at + i * ROW;

		s[ROWS - 1 - i] = (long long)(row - begin) >= 0 ? __ldcs((const u32 *)row) : 0;
		if (row < begin && row + 4 > begin)
			s[ROWS - 1 - i] = first;
	}
	for (at += TILE; at < end; at += TILE) {
		u32 word[ROWS];

#pragma unroll
		for (int i = 0; i < ROWS; i++)
			word[i] = __ldcs((const u32 *)(at + i * ROW));
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			/* Multiplies by y, and replaces y^32 by the lower terms of P(y). Instead of
			 * a move of all coefficients, their indexes decrease by one. */
			const u32 top = s[ROWS - 1 - i];

			s[ROWS - 1 - i] = top ^ word[i];
#pragma unroll
			for (int k = 1; k < ROWS; k++)
				if (TAPS >> k & 1)
					s[(k - i - 1) & (ROWS - 1)] ^= top;
		}
	}
	/* A loop that is not unrolled cannot index registers. */
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		column[k * THREADS] = s[k];
#pragma unroll 1
	for (int k = ROWS - 1; k >= 0; k--)
		sum = multiply(sum, X_4096) ^ column[k * THREADS];
	return sum;
}

/* Returns, in thread 0, the raw CRC of the words of all threads. `warps` has a word for each warp. */
static __device__ __forceinline__ u32 block_join(u32 sum, u32 *warps)
{
	const u32 thread = threadIdx.x;

	/* x_bytes[2] is x^32, the power of one word. */
#pragma unroll 1
	for (int i = 0; i < 5; i++)
		sum = multiply(sum, x_bytes[2 + i]) ^ __shfl_down_sync(0xffffffffu, sum, 1 << i);
	if (thread % 32 == 0)
		warps[thread / 32] = sum;
	__syncthreads();
	if (thread)
		return 0;
#pragma unroll 1
	for (int i = 1; i < WARPS; i++)
		sum = multiply(sum, x_bytes[2 + 5]) ^ warps[i];
	return multiply(sum, x_bytes[2]);
}

#ifdef __cplusplus
extern "C"
#endif
__global__ void __launch_bounds__(THREADS, 4) pst_crc32c(struct piece *pieces)
{
	__shared__ u32 columns[ROWS * THREADS], warps[WARPS];
	__shared__ struct piece piece;
	u64 words_end;
	u32 crc = 0;

	/* The pieces are in host memory, so only one thread reads the block's piece. */
	if (threadIdx.x == 0) {
		piece.begin = __ldcv(&pieces[blockIdx.x].begin);
		piece.len = __ldcv(&pieces[blockIdx.x].len);
		piece.after = __ldcv(&pieces[blockIdx.x].after);
	}
	__syncthreads();
	words_end = (piece.begin + piece.len) & ~(u64)3;
	if (piece.begin < words_end) {
		const u64 tiles = (words_end - piece.begin + TILE - 1) / TILE;
		const u64 at = words_end - tiles * TILE + threadIdx.x * 4;

		crc = block_join(thread_sum(at, piece.begin, words_end, columns + threadIdx.x),
				 warps);
	}
	if (threadIdx.x)
		return;
	for (u64 at = piece.begin < words_end ? words_end : piece.begin;
	     at < piece.begin + piece.len; at++) {
		crc ^= *(const unsigned char *)at;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLY : 0);
	}
#pragma unroll 1
	for (int k = 0; piece.after; piece.after >>= 1, k = k == 30 ? 0 : k + 1)
		if (piece.after & 1)
			crc = multiply(crc, x_bytes[k]);
	pieces[blockIdx.x].raw = crc;
}
