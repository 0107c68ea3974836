/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of an upload, see object_buffer.c. The caller of each function holds the upload's
 * lock. */
#ifndef PST_STORAGE_OBJECT_BUFFER_H
#define PST_STORAGE_OBJECT_BUFFER_H

#include "storage/object_upload_state.h"

/* Returns the length in bytes of the buffer for a part with `len` bytes. The short last part of an
 * object gets a buffer of the usual length, so that another part can use the buffer later. */
uint64_t pst_object_buffer_len(const struct pst_object_upload *up, uint64_t len);
/* Returns a buffer for a part with `len` bytes, or NULL if the upload's buffers have reached their
 * limit or there is no memory. */
char *pst_object_buffer_get(struct pst_object_upload *up, uint64_t len);
/* Allocates a buffer, even if the upload's buffers have reached their limit. Does not change
 * buffer_bytes of the upload: the caller adds the buffer's length (pst_object_buffer_len). */
char *pst_object_buffer_alloc(struct pst_object_upload *up, uint64_t len);
/* Makes a buffer free for another part. `len` is the length that pst_object_buffer_len has
 * returned. */
void pst_object_buffer_put(struct pst_object_upload *up, char *mem, uint64_t len);
/* Frees a buffer of `len` bytes. The upload's buffer_bytes stays unchanged. */
void pst_object_buffer_free(struct pst_object_upload *up, char *mem, uint64_t len);
/* Frees all buffers of the list `spare`. */
void pst_object_buffers_close(struct pst_object_upload *up);
/* Returns whether a buffer will become free without further writes: a part is being sent, or is
 * about to be sent. */
bool pst_object_buffers_move(const struct pst_object_upload *up);
/* Returns the window whose memory is the buffer `mem`, or NULL if the buffer is not a window,
 * memory that the server may access. */
struct pst_window *pst_object_buffer_window(const struct pst_object_upload *up, const char *mem);

#endif
