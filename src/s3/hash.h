/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash functions of S3: MD5, SHA-1, SHA-256, HMAC-SHA-256 and three CRCs. No other file calls
 * libcrypto's hash functions. Called by sigv4.c and chunked.c, by src/storage/object*.c and by the
 * gateway.
 */
#ifndef PST_S3_HASH_H
#define PST_S3_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pst_hash_kind {
	PST_HASH_MD5,
	PST_HASH_SHA1,
	PST_HASH_SHA256,
	PST_HASH_CRC32,	    /* polynomial of zlib, RFC 1952 */
	PST_HASH_CRC32C,    /* Castagnoli, RFC 3720 */
	PST_HASH_CRC64NVME, /* NVM Express NVM Command Set Specification, 64b CRC */
	PST_HASH_KINDS,
};

#define PST_HASH_MAX 32		/* length of the longest digest, in bytes */
#define PST_SHA256_HEX (64 + 1) /* a SHA-256 digest in lower-case hex digits, with a NUL */

/* The state of one hash computation. */
struct pst_hash;

/* Begins a hash computation. Returns NULL if there is no memory, or if libcrypto's settings forbid
 * the function, as they forbid MD5 on machines in FIPS mode. */
struct pst_hash *pst_hash_open(enum pst_hash_kind kind);
void pst_hash_put(struct pst_hash *hash, const void *bytes, size_t len);
/* Writes the digest and returns its length in bytes, or 0 if libcrypto failed. The digest of a CRC
 * has its most significant byte first. The computation cannot go on afterwards. */
size_t pst_hash_end(struct pst_hash *hash, unsigned char out[PST_HASH_MAX]);
/* Frees the state; NULL is allowed. */
void pst_hash_close(struct pst_hash *hash);

/* Computes the SHA-256 digest of `len` bytes as hex digits. Returns false and writes "" if there is
 * no memory. */
bool pst_sha256_hex(const void *bytes, size_t len, char out[PST_SHA256_HEX]);
/* Computes HMAC-SHA-256. Returns false if there is no memory; `out` is then not a digest, and a
 * server must refuse the request. */
bool pst_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
		     unsigned char out[32]);

/* Combines the CRCs of two consecutive ranges to the CRC of both; `len_b` is the length of the
 * second range in bytes. `kind` is one of the CRCs. */
uint64_t pst_crc_combine(enum pst_hash_kind kind, uint64_t a, uint64_t b, uint64_t len_b);

/* Returns the length of a digest in bytes. */
size_t pst_hash_len(enum pst_hash_kind kind);
/* Returns the name in S3's headers, such as "crc64nvme" in x-amz-checksum-crc64nvme. */
const char *pst_hash_name(enum pst_hash_kind kind);

/* Compares two strings of equal length in a time that does not depend on their bytes. Returns 0 if
 * they are equal. */
int pst_compare_secret(const void *a, const void *b, size_t len);

#endif
