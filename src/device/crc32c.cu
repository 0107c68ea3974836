/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel behind the device operation sum for CRC-32C (common/crc32c.h): the polynomial of
 * crc_sum.cuh. tools/make-ptx compiles this file to crc32c_image.h and crc32c_ptx.h.
 */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 crc;
typedef int signed_crc;

#define KERNEL pst_crc32c
#define DEGREE 32
#define POLY 0x82f63b78u /* the CRC's polynomial P; the highest bit is the coefficient of x^0 */
#define TAPS 0x1edc6f41u /* P again, but the lowest bit is the coefficient of x^0 */
#define X_4096 0x74c360a4u /* x^4096 modulo P, written like POLY */

/* x^(8 * 2^k) modulo P. The next entry would equal the first. */
__constant__ static const crc x_bytes[] = {
	0x00800000u, 0x00008000u, 0x82f63b78u, 0x6ea2d55cu, 0x18b8ea18u, 0x510ac59au,
	0xb82be955u, 0xb8fdb1e7u, 0x88e56f72u, 0x74c360a4u, 0xe4172b16u, 0x0d65762au,
	0x35d73a62u, 0x28461564u, 0xbf455269u, 0xe2ea32dcu, 0xfe7740e6u, 0xf946610bu,
	0x3c204f8fu, 0x538586e3u, 0x59726915u, 0x734d5309u, 0xbc1ac763u, 0x7d0722ccu,
	0xd289cabeu, 0xe94ca9bcu, 0x05b74f3fu, 0xa51e1f42u, 0x40000000u, 0x20000000u,
	0x08000000u,
};

#include "crc_sum.cuh"
