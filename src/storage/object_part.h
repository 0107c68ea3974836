/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of an upload: their ranges, their written bytes, and their requests. Called by
 * object_upload.c, object_commit.c and object_abort.c. */
#ifndef PST_STORAGE_OBJECT_PART_H
#define PST_STORAGE_OBJECT_PART_H

#include "storage/object_upload_state.h"

/* Returns the index of the part that has the byte at `off`. */
unsigned pst_object_part_at(const struct pst_object_upload *up, uint64_t off);
/* Returns the offset of part `index`. Stores in *len_out the length that the part has when all its
 * bytes are written. */
uint64_t pst_object_part_range(const struct pst_object_upload *up, unsigned index,
			       uint64_t *len_out);
/* Records that a range of the part was written. Returns false if the part would have more than
 * SPANS_MAX separate ranges. */
bool pst_object_part_note(struct part *part, uint64_t first, uint64_t end);
bool pst_object_part_is_full(const struct part *part);
/* Writes the query of a request of the multipart upload. `number` is the part that the request is
 * about, or 0 if it is about the whole upload. `out` has UPLOAD_QUERY_MAX bytes. */
void pst_object_part_query(const struct pst_object_upload *up, unsigned number, char *out);
/* Counts a part that is sent in a body although the upload has windows. Returns 0, or -errno with
 * the error in `err` if the caller allows only windows. */
int pst_object_part_near(struct pst_object_upload *up, const struct pst_err *why,
			 struct pst_err *err);

#endif
