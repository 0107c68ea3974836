/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upload of one object, in parts. Writes may arrive in any order and with any length. Their
 * bytes are copied into buffers of one part each, and a part is sent when its buffer is full. The
 * buffer keeps the part until the server has stored it, because it may have to be sent again. An
 * object of at most one part is sent by the commit. Other clients see the object only after the
 * commit. object.c calls these functions.
 */
#ifndef PST_STORAGE_OBJECT_UPLOAD_H
#define PST_STORAGE_OBJECT_UPLOAD_H

#include "core/ops.h"
#include "storage/object_request.h"

struct pst_object_upload;
struct pst_object_windows;

/* Begins an upload. `length` is the length of the object; 0 means that the object ends with the
 * last byte that is written. With `must_be_new`, the commit fails if the object exists. */
int pst_object_upload_open(const struct pst_object_place *place, uint64_t length, bool must_be_new,
			   struct pst_object_upload **out, struct pst_err *err);
/* Makes the upload offer its parts to the server through windows, memory that the server may read.
 * `windows` is NULL if that is not possible, for the reason `why`. Called before the first write.
 * Returns `windows`, or NULL with the reason in `why` if the upload uses none. */
struct pst_object_windows *pst_object_upload_windows(struct pst_object_upload *upload,
						     struct pst_object_windows *windows,
						     struct pst_err *why);
/* Stores in `facts` how many parts the server has fetched through windows, and how many were sent
 * in HTTP bodies. Called after the commit. */
void pst_object_upload_facts(const struct pst_object_upload *upload,
			     struct pst_storage_facts *facts);
/* Copies the bytes of a write into buffers. Returns 0 or -errno, with the contract of the function
 * `drain` in core/ops.h. */
int pst_object_upload_write(struct pst_object_upload *upload, struct pst_io *io);
/* Returns 0 if the server may fetch parts out of the memory of `dev`, or -errno with the reason.
 * May block. The device then stays open until the upload is closed. */
int pst_object_upload_reach(struct pst_object_upload *upload, struct penstock_device *dev,
			    struct pst_err *err);
/* These two functions are the storage's functions `drain`, if the flag PST_IO_PLACE is set, and
 * `placed`: see core/ops.h. */
int pst_object_upload_place(struct pst_object_upload *upload, struct pst_io *io);
int pst_object_upload_placed(struct pst_object_upload *upload, uint64_t off, uint64_t len,
			     bool copied, struct pst_err *err);
/* Cancels a write that waits for a buffer. Returns true if the write had not begun. The upload then
 * never accesses the write's memory. */
bool pst_object_upload_cancel(struct pst_object_upload *upload, const struct pst_io *io);
/* Returns the offset after the last byte that has been written. */
uint64_t pst_object_upload_length(struct pst_object_upload *upload);

/* ---- for object_commit.c and object_abort.c ---- */

/* Sends the last part, and waits until the server has all `count` parts, or until the caller's
 * limits end the wait. */
int pst_object_upload_finish(struct pst_object_upload *up, unsigned count,
			     const struct penstock_end_opts *limits, struct pst_err *err);

/* Frees an upload after pst_object_send_stop. */
void pst_object_upload_free(struct pst_object_upload *up);

#endif
