/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the raw CRC (common/crc32c.h) of pieces of memory, for crc32c.cu and crc64nvme.cu, which
 * define the polynomial and then include this file. Each block of threads computes one piece.
 * tests/unit/crc_kernel.h compiles this file as C and runs it on the CPU, so it must be valid C and
 * C++.
 *
 * A block reads its piece in tiles. A tile has a row for each power of x in P but the highest: 32
 * rows for a CRC of 32 bits, 64 for one of 64 bits. A row has one 4-byte word for each thread, so a
 * thread's words lie 2^12 bits apart. The kernel uses a property of polynomials over GF(2): P(x)
 * raised to the power of 2^12 is P(x^(2^12)). If P is the CRC's polynomial, both are 0 modulo P. So
 * P(y) with y = x^(2^12) divides a thread's words, as coefficients of powers of y, without a shift
 * of bits inside a word. This takes 17 XORs of whole words for each word (CRC-64/NVME: 32), and most
 * GPUs make two of them by one instruction. Each thread thus reduces its words to a word for each
 * row of a tile.
 *
 * The tiles end where the piece's last whole word ends. Words before the piece count as 0, which
 * does not change a raw CRC. No byte outside the piece is read.
 */
#define THREADS 128
#define WARPS (THREADS / 32)
#define ROW (THREADS * 4)
#define ROWS DEGREE
#define TILE (ROW * ROWS)
/* Number of rows that are loaded before the first of them is used. Their words and those of the
 * result are in registers. */
#define LOADS 32
#define POWERS ((int)(sizeof(x_bytes) / sizeof(x_bytes[0])))

/* A piece of memory. `after` is the number of bytes of its range after it. The kernel sets `raw` to
 * the raw CRC of the piece followed by this number of zero bytes. struct sum_piece in cuda_sum.c
 * has the same layout. */
struct piece {
	u64 begin, len, after, raw;
};

/* Returns the product modulo P. If b is a constant, all its shifts are constants. */
static __device__ __forceinline__ crc multiply(crc a, crc b)
{
	crc product = 0;

#pragma unroll
	for (int bit = 0; bit < DEGREE; bit++) {
		product ^= (crc)((signed_crc)(a << bit) >> (DEGREE - 1)) & b;
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
static __device__ __forceinline__ crc thread_sum(u64 at, u64 begin, u64 end, u32 *column)
{
	const u32 first = first_word(begin);
	u32 s[ROWS]; /* s[k] is the coefficient of y^k, except inside the loop over rows */
	crc sum = 0;

#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const u64 row = at + i * ROW;

		s[ROWS - 1 - i] = (long long)(row - begin) >= 0 ? __ldcs((const u32 *)row) : 0;
		if (row < begin && row + 4 > begin)
			s[ROWS - 1 - i] = first;
	}
	for (at += TILE; at < end; at += TILE) {
#pragma unroll
		for (int first_row = 0; first_row < ROWS; first_row += LOADS) {
			u32 word[LOADS];

#pragma unroll
			for (int i = 0; i < LOADS; i++)
				word[i] = __ldcs((const u32 *)(at + (first_row + i) * ROW));
#pragma unroll
			for (int i = 0; i < LOADS; i++) {
				/* Multiplies by y, and replaces y^ROWS by the lower terms of P(y).
				 * Instead of a move of all coefficients, their indexes decrease by
				 * one. */
				const int top_at = ROWS - 1 - first_row - i;
				const u32 top = s[top_at];

				s[top_at] = top ^ word[i];
#pragma unroll
				for (int k = 1; k < ROWS; k++)
					if (TAPS >> k & 1)
						s[(top_at + k) & (ROWS - 1)] ^= top;
			}
		}
	}
	/* A loop that is not unrolled cannot index registers. */
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		column[k * THREADS] = s[k];
#pragma unroll 1
	for (int k = ROWS - 1; k >= 0; k--)
		sum = multiply(sum, X_4096) ^ (crc)column[k * THREADS] << (DEGREE - 32);
	return sum;
}

/* Returns, in thread 0, the raw CRC of the words of all threads. `warps` has a word for each warp. */
static __device__ __forceinline__ crc block_join(crc sum, crc *warps)
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
	return multiply(sum, x_bytes[DEGREE == 32 ? 2 : 3]); /* times x^DEGREE */
}

#ifdef __cplusplus
extern "C"
#endif
__global__ void __launch_bounds__(THREADS, 4) KERNEL(struct piece *pieces)
{
	__shared__ u32 columns[ROWS * THREADS];
	__shared__ crc warps[WARPS];
	__shared__ struct piece piece;
	u64 words_end;
	crc raw = 0;

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

		raw = block_join(thread_sum(at, piece.begin, words_end, columns + threadIdx.x),
				 warps);
	}
	if (threadIdx.x)
		return;
	for (u64 at = piece.begin < words_end ? words_end : piece.begin;
	     at < piece.begin + piece.len; at++) {
		raw ^= *(const unsigned char *)at;
		for (int bit = 0; bit < 8; bit++)
			raw = raw >> 1 ^ (raw & 1 ? POLY : 0);
	}
#pragma unroll 1
	for (int k = 0; piece.after; piece.after >>= 1, k = k == POWERS - 1 ? 0 : k + 1)
		if (piece.after & 1)
			raw = multiply(raw, x_bytes[k]);
	pieces[blockIdx.x].raw = raw;
}
