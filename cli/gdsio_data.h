/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the bytes that `penstock gdsio` writes, and its random numbers. */
#ifndef PENSTOCK_CLI_GDSIO_DATA_H
#define PENSTOCK_CLI_GDSIO_DATA_H

#include <stddef.h>
#include <stdint.h>

/* Fills `to` with the bytes that a write with -V and this seed puts at offset `off` of any file. */
void gdsio_pattern(void *to, size_t len, uint64_t off, uint64_t seed);
/* Returns the index of the first byte that differs from what gdsio_pattern generates, or `len`
 * if none differs. */
size_t gdsio_differs(const void *bytes, size_t len, uint64_t off, uint64_t seed);
/* Returns the next random number of the generator xorshift64*. *state must not be 0. */
uint64_t gdsio_random(uint64_t *state);
/* Returns the splitmix64 hash of `n`. */
uint64_t gdsio_splitmix64(uint64_t n);

#endif
