/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the table of checksums, see sums.h. */
#include "sums.h"

#include <assert.h>
#include <stddef.h>
#include <strings.h>

#include "xml_write.h"

const struct gw_sum gw_sums[GW_SUM_KINDS] = {
	{PST_HASH_CRC32, "x-amz-checksum-crc32", "ChecksumCRC32", "CRC32"},
	{PST_HASH_CRC32C, "x-amz-checksum-crc32c", "ChecksumCRC32C", "CRC32C"},
	{PST_HASH_CRC64NVME, "x-amz-checksum-crc64nvme", "ChecksumCRC64NVME", "CRC64NVME"},
	{PST_HASH_SHA1, "x-amz-checksum-sha1", "ChecksumSHA1", "SHA1"},
	{PST_HASH_SHA256, "x-amz-checksum-sha256", "ChecksumSHA256", "SHA256"},
};

enum pst_hash_kind gw_sum_kind(const char *name)
{
	for (unsigned i = 0; i < GW_SUM_KINDS; i++)
		if (!strcasecmp(name, gw_sums[i].algorithm))
			return gw_sums[i].kind;
	return PST_HASH_KINDS;
}

const struct gw_sum *gw_sum_of(enum pst_hash_kind kind)
{
	unsigned i = 0;

	while (i < GW_SUM_KINDS - 1 && gw_sums[i].kind != kind)
		i++;
	assert(gw_sums[i].kind == kind);
	return &gw_sums[i];
}

void gw_sums_put(struct pst_text *out, const struct gw_meta *meta)
{
	for (unsigned i = 0; i < GW_SUM_KINDS; i++) {
		const char *value = gw_meta_get(meta, gw_sums[i].header);

		if (value)
			gw_xml_element(out, gw_sums[i].element, value);
	}
}
