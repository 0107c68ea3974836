/* SPDX-License-Identifier: Apache-2.0 */
/* The commit of an upload, see object_upload.h. Called by object.c and object_abort.c. */
#ifndef PST_STORAGE_OBJECT_COMMIT_H
#define PST_STORAGE_OBJECT_COMMIT_H

#include "storage/object_upload.h"

/* Makes the object appear, and stores its ETag and length. Blocks, but not longer than the limits
 * allow. After an error, the function may be called again. */
int pst_object_upload_commit(struct pst_object_upload *upload,
			     const struct penstock_end_opts *limits, char *etag, size_t etag_len,
			     uint64_t *length, struct pst_err *err);

enum pst_object_identity { PST_OBJECT_OURS, PST_OBJECT_NOT_OURS, PST_OBJECT_UNKNOWN };

/* Compares the object on the server with the one that was sent. If it is the same, stores its ETag.
 */
enum pst_object_identity pst_object_upload_identify(struct pst_object_upload *up,
						    const struct penstock_end_opts *limits,
						    char *etag, size_t etag_len);

#endif
