/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of memory. Called by the code that writes and reads parts, and by the code for
 * manifests. This file holds the place of penstock_sum and has the same interface.
 */
#ifndef PST_CKPT_SUM_H
#define PST_CKPT_SUM_H

#include "penstock.h"

/* Range of device or host memory whose checksum pst_sum computes. */
struct pst_sum_args {
	size_t size;
	struct penstock_device *dev; /* device of `ptr` */
	const void *ptr;
	uint64_t len;
	uint32_t crc32c; /* receives the CRC-32C of the bytes */
};

/* Computes the checksums of ranges. Returns -EOPNOTSUPP if the device cannot compute them. */
int pst_sum(struct pst_sum_args *sums, unsigned count);
/* Returns the CRC-32C of a concatenation, of the checksums of its two parts and the length of the
 * second part. */
uint32_t pst_crc32c_join(uint32_t first, uint32_t second, uint64_t second_len);

#endif
