/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an upload without an object, see object_upload.h. Called by object.c. */
#ifndef PST_STORAGE_OBJECT_ABORT_H
#define PST_STORAGE_OBJECT_ABORT_H

#include "storage/object_upload.h"

/* Ends the upload without an object. Blocks until the server has dropped the parts, but not for
 * longer than the limits allow; they may be NULL. After an error, it may be called again. */
int pst_object_upload_abort(struct pst_object_upload *upload,
			    const struct penstock_end_opts *limits, struct pst_err *err);
/* Frees the upload, after a commit or an abort, and aborts it otherwise. */
void pst_object_upload_close(struct pst_object_upload *upload);

#endif
