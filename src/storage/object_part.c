/* SPDX-License-Identifier: Apache-2.0 */
/* Implements object_part.h. */
#include "storage/object_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "s3/uri.h"

/* If the object's length is unknown, parts become longer: after each PARTS_EQUAL parts, the length
 * doubles. So 10,000 parts, the maximum, have 8 TB; S3 allows 5 TB. */
#define PARTS_EQUAL 1000u

unsigned pst_object_part_at(const struct pst_object_upload *up, uint64_t off)
{
	uint64_t start = 0, len = up->part_bytes;
	unsigned base = 0;

	if (up->length)
		return (unsigned)(off / len);
	while (off - start >= len * PARTS_EQUAL) {
		start += len * PARTS_EQUAL;
		base += PARTS_EQUAL;
		len *= 2;
	}
	return base + (unsigned)((off - start) / len);
}

uint64_t pst_object_part_range(const struct pst_object_upload *up, unsigned index,
			       uint64_t *len_out)
{
	uint64_t start = 0, len = up->part_bytes;

	if (up->length) {
		start = index * len;
		*len_out = up->length - start < len ? up->length - start : len;
		return start;
	}
	for (; index >= PARTS_EQUAL; index -= PARTS_EQUAL) {
		start += len * PARTS_EQUAL;
		len *= 2;
	}
	*len_out = len;
	return start + index * len;
}

bool pst_object_part_note(struct part *part, uint64_t first, uint64_t end)
{
	struct span *spans = part->spans;
	unsigned from = 0, to;

	while (from < part->span_count && spans[from].end < first)
		from++;
	for (to = from; to < part->span_count && spans[to].first <= end; to++) {
		first = spans[to].first < first ? spans[to].first : first;
		end = spans[to].end > end ? spans[to].end : end;
	}
	if (part->span_count - (to - from) == SPANS_MAX)
		return false;
	memmove(&spans[from + 1], &spans[to], (part->span_count - to) * sizeof(*spans));
	part->span_count = part->span_count - (to - from) + 1;
	spans[from] = (struct span){first, end};
	return true;
}

bool pst_object_part_is_full(const struct part *part)
{
	return part->span_count == 1 && !part->spans[0].first && part->spans[0].end == part->len;
}

void pst_object_part_query(const struct pst_object_upload *up, unsigned number, char *out)
{
	struct pst_text id = {NULL, 0, 0, false};

	pst_uri_put(&id, up->id, strlen(up->id), false);
	if (number)
		snprintf(out, UPLOAD_QUERY_MAX, "partNumber=%u&uploadId=%s", number,
			 id.at ? id.at : "");
	else
		snprintf(out, UPLOAD_QUERY_MAX, "uploadId=%s", id.at ? id.at : "");
	free(id.at);
}

int pst_object_part_near(struct pst_object_upload *up, const struct pst_err *why,
			 struct pst_err *err)
{
	bool asked = up->place->url.rdma != PST_OBJECT_RDMA_AUTO;

	if (up->windows_only)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
				      "%s: rdma=require, but: %s", up->place->url.name, why->text);
	if (!up->parts_near++) {
		char note[PENSTOCK_TEXT_MAX + 200];

		up->why_near = *why;
		snprintf(note, sizeof(note), "%s: parts go by HTTP: %s", up->place->url.name,
			 why->text);
		penstock_stats_note(note);
	}
	pst_log(asked && up->parts_near == 1 ? PST_LOG_WARN : PST_LOG_INFO, "object",
		"%s: a part goes by HTTP: %s", up->place->url.name, why->text);
	return 0;
}
