/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_sum.h: combines the checksums of ranges of an object. Only pst_object_sum_of
 * reads the bytes themselves.
 */
#include "storage/object_sum.h"

#include <stdlib.h>
#include <string.h>

#include "common/digits.h"

static uint64_t digest_number(const unsigned char *digest, size_t len)
{
	uint64_t n = 0;

	for (size_t i = 0; i < len; i++)
		n = n << 8 | digest[i];
	return n;
}

void pst_object_sum_open(struct pst_object_sum *sum, const struct pst_http_head *head,
			 uint64_t length)
{
	/* A checksum of the type COMPOSITE is computed from the checksums of the parts. It cannot
	 * be compared with a checksum of the bytes, so it is ignored. If the server does not tell
	 * the type, the checksum of an object in parts may be composite. The ETag of such an object
	 * ends with a hyphen and the number of parts. A CRC64NVME is never composite. */
	bool whole = head->checksum_type[0] ? !strcmp(head->checksum_type, "FULL_OBJECT")
					    : head->crc64nvme[0] || !strchr(head->etag, '-');
	const char *text = head->crc64nvme[0] ? head->crc64nvme
			   : head->crc32c[0]  ? head->crc32c
					      : head->crc32;
	unsigned char digest[16];
	long len;

	memset(sum, 0, sizeof(*sum));
	sum->kind = head->crc64nvme[0] ? PST_HASH_CRC64NVME
		    : head->crc32c[0]  ? PST_HASH_CRC32C
				       : PST_HASH_CRC32;
	sum->length = length;
	len = pst_base64_parse(text, strlen(text), digest, sizeof(digest));
	if (!whole || !length || len != (long)pst_hash_len(sum->kind))
		return;
	sum->expected = digest_number(digest, (size_t)len);
	sum->pieces = calloc(PST_OBJECT_SUM_PIECES_MAX + 1, sizeof(*sum->pieces));
	if (sum->pieces)
		sum->state = PST_OBJECT_SUM_OPEN;
}

bool pst_object_sum_by_device(struct pst_object_sum *sum)
{
	if (sum->state == PST_OBJECT_SUM_OPEN && sum->kind == PST_HASH_CRC32) {
		sum->state = PST_OBJECT_SUM_GIVEN_UP;
		return true;
	}
	return false;
}

void pst_object_sum_close(struct pst_object_sum *sum)
{
	free(sum->pieces);
	sum->pieces = NULL;
}

uint64_t pst_object_sum_of(enum pst_hash_kind kind, const struct iovec *iov, unsigned iov_count,
			   uint64_t skip, uint64_t len)
{
	struct pst_hash *hash = pst_hash_open(kind);
	unsigned char digest[PST_HASH_MAX] = {0};
	uint64_t crc;

	if (!hash)
		/* There is no memory for the computation. The wrong result 0 makes the check fail,
		 * so no bad bytes can pass. */
		return 0;
	for (unsigned i = 0; i < iov_count && len; i++) {
		uint64_t from = iov[i].iov_len < skip ? iov[i].iov_len : skip;
		uint64_t n = iov[i].iov_len - from < len ? iov[i].iov_len - from : len;

		if (n)
			pst_hash_put(hash, (const char *)iov[i].iov_base + from, (size_t)n);
		skip -= from;
		len -= n;
	}
	crc = digest_number(digest, pst_hash_end(hash, digest));
	pst_hash_close(hash);
	return crc;
}

/* Joins piece `at` with the piece after it, if they are adjacent. */
static void piece_join(struct pst_object_sum *sum, unsigned at)
{
	struct pst_object_piece *a = &sum->pieces[at], *b = a + 1;

	if (at + 1 >= sum->count || a->off + a->len != b->off)
		return;
	a->crc = pst_crc_combine(sum->kind, a->crc, b->crc, b->len);
	a->len += b->len;
	sum->count--;
	memmove(b, b + 1, (sum->count - at - 1) * sizeof(*b));
}

uint64_t pst_object_sum_gap(const struct pst_object_sum *sum, uint64_t *off, uint64_t end)
{
	if (sum->state != PST_OBJECT_SUM_OPEN)
		return 0;
	for (unsigned i = 0; i < sum->count && *off < end; i++) {
		const struct pst_object_piece *piece = &sum->pieces[i];

		if (*off < piece->off)
			return (piece->off < end ? piece->off : end) - *off;
		if (*off < piece->off + piece->len)
			*off = piece->off + piece->len;
	}
	return *off < end ? end - *off : 0;
}

enum pst_object_sum_state pst_object_sum_add(struct pst_object_sum *sum, uint64_t off, uint64_t len,
					     uint64_t crc)
{
	unsigned at = 0;

	if (sum->state != PST_OBJECT_SUM_OPEN || !len)
		return sum->state;
	while (at < sum->count && sum->pieces[at].off + sum->pieces[at].len <= off)
		at++;
	if (at < sum->count && sum->pieces[at].off < off + len)
		return sum->state;
	if (sum->count == PST_OBJECT_SUM_PIECES_MAX) {
		sum->state = PST_OBJECT_SUM_GIVEN_UP;
		return sum->state;
	}
	memmove(&sum->pieces[at + 1], &sum->pieces[at], (sum->count - at) * sizeof(sum->pieces[0]));
	sum->pieces[at] = (struct pst_object_piece){off, len, crc};
	sum->count++;
	piece_join(sum, at);
	if (at)
		piece_join(sum, at - 1);
	if (sum->count != 1 || sum->pieces[0].len != sum->length)
		return sum->state;
	sum->found = sum->pieces[0].crc;
	if (sum->found == sum->expected) {
		sum->state = PST_OBJECT_SUM_RIGHT;
		return sum->state;
	}
	/* Nothing shows which piece is wrong. So all bytes must be read and checked again. */
	sum->count = 0;
	return PST_OBJECT_SUM_WRONG;
}

void pst_object_sum_text(enum pst_hash_kind kind, uint64_t crc, char *out)
{
	unsigned char digest[8];
	size_t len = pst_hash_len(kind);

	for (size_t i = len; i--; crc >>= 8)
		digest[i] = (unsigned char)crc;
	pst_base64(digest, len, out);
}
