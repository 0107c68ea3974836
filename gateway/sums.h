/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksums of S3: the header and the XML element of each kind. Called by the operations and by
 * the files that read or write checksums. MD5 is not in this table, because its header Content-MD5
 * has another form.
 */
#ifndef GW_SUMS_H
#define GW_SUMS_H

#include "common/text.h"
#include "meta.h"
#include "s3/hash.h"

#define GW_SUM_KINDS 5

struct gw_sum {
	enum pst_hash_kind kind;
	const char *header;    /* such as "x-amz-checksum-crc32"; also the name in the metadata */
	const char *element;   /* such as "ChecksumCRC32" */
	const char *algorithm; /* such as "CRC32" */
};

/* All kinds, in the order in which a reply lists them. */
extern const struct gw_sum gw_sums[GW_SUM_KINDS];

/* Returns the kind with a name such as "crc32c", in upper or lower case; PST_HASH_KINDS if there is
 * none. */
enum pst_hash_kind gw_sum_kind(const char *name);
/* Returns the row of a kind, which must be one of gw_sums. */
const struct gw_sum *gw_sum_of(enum pst_hash_kind kind);
/* Appends an XML element for each checksum that the metadata contains. */
void gw_sums_put(struct pst_text *out, const struct gw_meta *meta);

#endif
