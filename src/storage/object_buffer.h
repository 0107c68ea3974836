/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of an upload: see object_buffer.c. All functions are called under its lock. */
#ifndef PST_STORAGE_OBJECT_BUFFER_H
#define PST_STORAGE_OBJECT_BUFFER_H

#include "storage/object_upload_state.h"

/* Returns the length of the buffer of a part with `len` bytes. A buffer of the usual length can be
 * used again for another part. */
uint64_t pst_object_buffer_len(const struct pst_object_upload *up, uint64_t len);
/* Returns a buffer for a part with `len` bytes, or NULL. */
char *pst_object_buffer_get(struct pst_object_upload *up, uint64_t len);
/* Takes back a buffer of `len` bytes, as pst_object_buffer_len has returned it. */
void pst_object_buffer_put(struct pst_object_upload *up, char *mem, uint64_t len);
/* Frees a buffer of `len` bytes that is not counted any more. */
void pst_object_buffer_free(struct pst_object_upload *up, char *mem, uint64_t len);
/* Frees the free buffers. */
void pst_object_buffers_close(struct pst_object_upload *up);
/* Returns whether a part on its way, or one that is about to be sent, will free a buffer. */
bool pst_object_buffers_move(const struct pst_object_upload *up);
/* Returns the window that the buffer is, or NULL. */
struct pst_window *pst_object_buffer_window(const struct pst_object_upload *up, const char *mem);

#endif
