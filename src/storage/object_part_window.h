/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The windows of an upload in the memory of devices. Each is for one part. Called by
 * object_upload.c and object_commit.c. Functions without another note are called under the upload's
 * lock, and make no call of a device's driver: requests in stream order may wait for the lock.
 */
#ifndef PST_STORAGE_OBJECT_PART_WINDOW_H
#define PST_STORAGE_OBJECT_PART_WINDOW_H

#include "storage/object_upload_state.h"

/* Prepares windows in the memory of `dev`. Returns 0, or -errno with the reason if parts cannot
 * have such windows. Called without the lock, by a thread that may block. Waits for no stream. */
int pst_part_window_reach(struct pst_object_upload *up, struct penstock_device *dev,
			   struct pst_err *err);

/* Finds a free window of at least `len` bytes in the memory of `dev`. Returns 0, -EAGAIN if one
 * becomes free without further writes, or -EOPNOTSUPP. Returns 1 if it has opened or closed a
 * window, for which it has released the lock: the caller must then begin again. It does so only if
 * `may_open` is true. */
int pst_part_window_get(struct pst_object_upload *up, struct penstock_device *dev, uint64_t len,
			 bool may_open, struct pst_window **out, struct pst_err *err);
void pst_part_window_put(struct pst_object_upload *up, struct pst_window *window);
/* Copies bytes of host memory for a part whose window is in the memory of a device. Bytes that are
 * written again replace the earlier ones, so a part needs at most its length of host memory.
 * pst_part_window_prepare copies the bytes into the window. */
int pst_part_window_patch(struct part *part, uint64_t first, const void *mem, uint64_t len,
			   struct pst_err *err);
/* Returns whether a write from host memory has written some of these bytes of the part. */
bool pst_part_window_is_patched(const struct part *part, uint64_t first, uint64_t end);

/* Makes all bytes of a full part present in its window, and computes their checksum. Called without
 * the lock, by a thread that may block. */
int pst_part_window_prepare(struct part *part, struct pst_err *err);
/* Copies the bytes of a full part to host memory. Called without the lock, by a thread that may
 * block. */
int pst_part_window_fetch(const struct part *part, char *mem, struct pst_err *err);

/* Frees all windows. Called without the lock, by a thread that may block. */
void pst_part_windows_close(struct pst_object_upload *up);

#endif
