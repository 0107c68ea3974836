/* SPDX-License-Identifier: Apache-2.0 */
/* Ends an upload without storing an object, see object_upload.h. object.c calls these functions. */
#ifndef PST_STORAGE_OBJECT_ABORT_H
#define PST_STORAGE_OBJECT_ABORT_H

#include "storage/object_upload.h"

/* Ends the upload without storing an object. Blocks until the server has removed the parts, but not
 * longer than `limits` allows. `limits` may be NULL. After an error, the function may be called
 * again. */
int pst_object_upload_abort(struct pst_object_upload *upload,
			    const struct penstock_end_opts *limits, struct pst_err *err);
/* Frees the upload. If it was neither committed nor aborted, aborts it first. */
void pst_object_upload_close(struct pst_object_upload *upload);

#endif
