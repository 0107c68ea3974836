/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel behind the device operation sum for CRC-64/NVME (s3/crc.h): the polynomial of
 * crc_sum.cuh. tools/make-ptx compiles this file to crc64nvme_image.h and crc64nvme_ptx.h.
 */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u64 crc;
typedef long long signed_crc;

#define KERNEL pst_crc64nvme
#define DEGREE 64
#define POLY 0x9a6c9329ac4bc9b5u /* see crc32c.cu */
#define TAPS 0xad93d23594c93659u
#define X_4096 0xfb4cdc3b379ee6edu

/* x^(8 * 2^k) modulo P. The next entry would equal the first. */
__constant__ static const crc x_bytes[] = {
	0x0080000000000000u, 0x0000800000000000u, 0x0000000080000000u, 0x9a6c9329ac4bc9b5u,
	0x10f4bb0f129310d6u, 0x70f05dcea2ebd226u, 0x311211205672822du, 0x2fc297db0f46c96eu,
	0xca4d536fabf7da84u, 0xfb4cdc3b379ee6edu, 0xea261148df25140au, 0x59ccb2c07aa6c9b4u,
	0x20b3674a839af27au, 0x2d8e1986da94d583u, 0x42cdf4c20337635du, 0x1d78724bf0f26839u,
	0xb96c84e0afb34bd5u, 0x5d2e1fcd2df0a3eau, 0xcd9506572332be42u, 0x23bda2427f7d690fu,
	0x347a953232374f07u, 0x1c2a807ac2a8ceeau, 0x9b92ad0e14fe1460u, 0x2574114889f670b2u,
	0x4a84a6c45e3bf520u, 0x915bbac21cd1c7ffu, 0xb0290ec579f291f5u, 0xcf2548505c624e6eu,
	0xb154f27bf08a8207u, 0xce4e92344baf7d35u, 0x51da8d7e057c5eb3u, 0x9fb10823f5be15dfu,
	0x73b825b3ff1f71cfu, 0x5db436c5406ebb74u, 0xfa7ed8f3ec3f2bcau, 0xc4d58efdc61b9ef6u,
	0xa7e39e61e855bd45u, 0x97ad46f9dd1bf2f1u, 0x1a0abb01f853ee6bu, 0x3f0827c3348f8215u,
	0x4eb68c4506134607u, 0x4a46f6de5df34e0au, 0x2d855d6a1c57a8ddu, 0x8688da58e1115812u,
	0x5232f417fc7c7300u, 0xa4080fb2e767d8dau, 0xd515a7e17693e562u, 0x1181f7c862e94226u,
	0x9e23cd058204ca91u, 0x9b8992c57a0aed82u, 0xb2c0afb84609b6ffu, 0x2f7160553a5ea018u,
	0x3cd378b5c99f2722u, 0x814054ad61a3b058u, 0xbf766189fce806d8u, 0x85a5e898ac49f86fu,
	0x34830d11bc84f346u, 0x9644d95b173c8c1cu, 0x150401ac9ac759b1u, 0xebe1f7f46fb00ebau,
	0x8ee4ce0c2e2bd662u, 0x4000000000000000u, 0x2000000000000000u, 0x0800000000000000u,
};

#include "crc_sum.cuh"
