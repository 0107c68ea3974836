/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of an upload's parts. Called by object_upload.c and object_commit.c; functions
 * without another note are called under the upload's lock. When parts have been sent or are ready,
 * up->pump is called.
 */
#ifndef PST_STORAGE_OBJECT_SEND_H
#define PST_STORAGE_OBJECT_SEND_H

#include "storage/object_upload_state.h"

/* Prepares a part, which is then ready to be sent. May release the lock meanwhile. */
void pst_object_send_part(struct pst_object_upload *up, struct part *part);
/* Sends the parts that are ready. Before the first part, starts the multipart upload, and sends the
 * parts when the server has replied with an ID. */
void pst_object_send_parts(struct pst_object_upload *up);
void pst_object_send_free(struct part *part);

/* Without the lock: computes the checksum of a part. If the part is in the memory of a device,
 * blocks, and first copies bytes that were written from host memory into the window. Cannot fail if
 * the part is in host memory. */
int pst_object_send_prepare(struct part *part, struct pst_err *err);
/* Without the lock: moves a part out of the memory of a device to host memory, for the reason
 * `why`. Blocks. */
int pst_object_send_fetch(struct part *part, const struct pst_err *why, struct pst_err *err);
/* Without the lock: cancels all requests, and waits for their ends. */
void pst_object_send_stop(struct pst_object_upload *up);

#endif
