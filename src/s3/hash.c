/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements hash.h: MD5 and the SHA functions by libcrypto, CRCs by our own code. No other file of
 * the library calls libcrypto's hash functions.
 */
#include "s3/hash.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/crc32c.h"
#include "common/digits.h"
#include "s3/crc.h"

struct pst_hash {
	enum pst_hash_kind kind;
	EVP_MD_CTX *context; /* NULL for CRCs */
	uint64_t crc;
	bool failed; /* whether libcrypto reported an error */
};

static const struct hash_facts {
	const char *name; /* name as in the header x-amz-checksum-NAME */
	size_t len_bytes;
	const EVP_MD *(*digest)(void); /* NULL for CRCs */
} facts[PST_HASH_KINDS] = {
	[PST_HASH_MD5] = {"md5", 16, EVP_md5},
	[PST_HASH_SHA1] = {"sha1", 20, EVP_sha1},
	[PST_HASH_SHA256] = {"sha256", 32, EVP_sha256},
	[PST_HASH_CRC32] = {"crc32", 4, NULL},
	[PST_HASH_CRC32C] = {"crc32c", 4, NULL},
	[PST_HASH_CRC64NVME] = {"crc64nvme", 8, NULL},
};

/* Returns the initial value of a CRC, which is also its final exclusive-or: all bits are 1. */
static uint64_t crc_mask(enum pst_hash_kind kind)
{
	return kind == PST_HASH_CRC64NVME ? UINT64_MAX : UINT32_MAX;
}

static uint64_t crc_put(enum pst_hash_kind kind, uint64_t crc, const void *bytes, size_t len)
{
	switch (kind) {
	case PST_HASH_CRC32:
		return pst_crc_raw(PST_CRC32, crc, bytes, len);
	case PST_HASH_CRC32C:
		return pst_crc32c_raw((uint32_t)crc, bytes, len);
	default:
		return pst_crc_raw(PST_CRC64NVME, crc, bytes, len);
	}
}

struct pst_hash *pst_hash_open(enum pst_hash_kind kind)
{
	struct pst_hash *hash = calloc(1, sizeof(*hash));

	if (!hash)
		return NULL;
	hash->kind = kind;
	hash->crc = crc_mask(kind);
	if (!facts[kind].digest)
		return hash;
	hash->context = EVP_MD_CTX_new();
	if (hash->context && EVP_DigestInit_ex(hash->context, facts[kind].digest(), NULL) == 1)
		return hash;
	pst_hash_close(hash);
	return NULL;
}

void pst_hash_put(struct pst_hash *hash, const void *bytes, size_t len)
{
	if (!len)
		return;
	if (!hash->context) {
		hash->crc = crc_put(hash->kind, hash->crc, bytes, len);
		return;
	}
	/* OpenSSL's own digests cannot fail here, but those of another provider may. */
	if (EVP_DigestUpdate(hash->context, bytes, len) != 1)
		hash->failed = true;
}

size_t pst_hash_end(struct pst_hash *hash, unsigned char out[PST_HASH_MAX])
{
	size_t len = facts[hash->kind].len_bytes;
	uint64_t crc = hash->crc ^ crc_mask(hash->kind);

	if (hash->context && EVP_DigestFinal_ex(hash->context, out, NULL) != 1)
		hash->failed = true;
	for (size_t i = 0; !hash->context && i < len; i++)
		out[i] = (unsigned char)(crc >> 8 * (len - 1 - i));
	if (hash->failed)
		memset(out, 0, PST_HASH_MAX);
	return hash->failed ? 0 : len;
}

void pst_hash_close(struct pst_hash *hash)
{
	if (hash)
		EVP_MD_CTX_free(hash->context);
	free(hash);
}

bool pst_sha256_hex(const void *bytes, size_t len, char out[PST_SHA256_HEX])
{
	unsigned char digest[32];

	out[0] = '\0';
	if (EVP_Digest(bytes, len, digest, NULL, EVP_sha256(), NULL) != 1)
		return false;
	pst_hex(digest, sizeof(digest), out);
	return true;
}

bool pst_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
		     unsigned char out[32])
{
	unsigned n = 0;

	return HMAC(EVP_sha256(), key, (int)key_len, bytes, len, out, &n) && n == 32;
}

uint64_t pst_crc_combine(enum pst_hash_kind kind, uint64_t a, uint64_t b, uint64_t len_b)
{
	/* The initial values and the final exclusive-ors of a and b cancel out, so both can be
	 * combined like raw CRCs. */
	switch (kind) {
	case PST_HASH_CRC32:
		return pst_crc_shift(PST_CRC32, a, len_b) ^ b;
	case PST_HASH_CRC32C:
		return pst_crc32c_shift((uint32_t)a, len_b) ^ b;
	default:
		return pst_crc_shift(PST_CRC64NVME, a, len_b) ^ b;
	}
}

size_t pst_hash_len(enum pst_hash_kind kind)
{
	return facts[kind].len_bytes;
}

const char *pst_hash_name(enum pst_hash_kind kind)
{
	return facts[kind].name;
}

int pst_compare_secret(const void *a, const void *b, size_t len)
{
	return CRYPTO_memcmp(a, b, len);
}
