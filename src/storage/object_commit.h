/* SPDX-License-Identifier: Apache-2.0 */
/* Commits an upload, after which the object exists on the server. See object_upload.h. object.c and
 * object_abort.c call these functions. */
#ifndef PST_STORAGE_OBJECT_COMMIT_H
#define PST_STORAGE_OBJECT_COMMIT_H

#include "storage/object_upload.h"

/* Stores the object on the server. Writes its ETag to `etag` and its length to *length. Blocks, but
 * not longer than the limits allow. After an error, the function may be called again. */
int pst_object_upload_commit(struct pst_object_upload *upload,
			     const struct penstock_end_opts *limits, char *etag, size_t etag_len,
			     uint64_t *length, struct pst_err *err);

enum pst_object_identity { PST_OBJECT_OURS, PST_OBJECT_NOT_OURS, PST_OBJECT_UNKNOWN };

/* Requests the properties of the object on the server, and compares them with the object of this
 * upload. If it is the same object, stores its ETag in `etag`. */
enum pst_object_identity pst_object_upload_identify(struct pst_object_upload *up,
						    const struct penstock_end_opts *limits,
						    char *etag, size_t etag_len);

#endif
