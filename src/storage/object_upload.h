/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upload of one object, in parts. Writes may arrive in any order and in any pieces. They are
 * copied into buffers of one part each, and a part is sent when its buffer is full: a part must be
 * kept until the server has it, because it may have to be sent again. An object of at most one part
 * is sent by the commit. The object appears only at the commit. Called by object.c.
 */
#ifndef PST_STORAGE_OBJECT_UPLOAD_H
#define PST_STORAGE_OBJECT_UPLOAD_H

#include "core/ops.h"
#include "storage/object_request.h"

struct pst_object_upload;
struct pst_object_windows;

/* Begins an upload. `length` is the object's length, or 0 if it is as long as the written bytes.
 * With `must_be_new`, the commit fails if the object exists. */
int pst_object_upload_open(const struct pst_object_place *place, uint64_t length, bool must_be_new,
			   struct pst_object_upload **out, struct pst_err *err);
/* Lets the parts go through windows. `windows` may be NULL, for the reason `why`. Called before the
 * first write. */
void pst_object_upload_windows(struct pst_object_upload *upload, struct pst_object_windows *windows,
			       const struct pst_err *why);
/* Stores in the facts how the parts have been sent. Called after the commit. */
void pst_object_upload_facts(const struct pst_object_upload *upload,
			     struct pst_storage_facts *facts);
/* Takes the bytes of a write. Returns 0 or -errno like the storage's function drain. */
int pst_object_upload_write(struct pst_object_upload *upload, struct pst_io *io);
/* Takes a waiting write back. Returns whether it had not begun; it has then ended for the upload.
 */
bool pst_object_upload_cancel(struct pst_object_upload *upload, const struct pst_io *io);
/* Makes the object appear, and stores its ETag and length. Blocks, but not for longer than the
 * limits allow. After an error, it may be called again. */
int pst_object_upload_commit(struct pst_object_upload *upload,
			     const struct penstock_end_opts *limits, char *etag, size_t etag_len,
			     uint64_t *length, struct pst_err *err);
/* Ends the upload without an object. Blocks until the server has dropped the parts, but not for
 * longer than the limits allow; they may be NULL. After an error, it may be called again. */
int pst_object_upload_abort(struct pst_object_upload *upload,
			    const struct penstock_end_opts *limits, struct pst_err *err);
/* Returns the end of the written bytes. */
uint64_t pst_object_upload_length(struct pst_object_upload *upload);
/* Frees the upload, after a commit or an abort, and aborts it otherwise. */
void pst_object_upload_close(struct pst_object_upload *upload);

#endif
