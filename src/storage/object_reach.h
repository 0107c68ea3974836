/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the server of an object can access windows in the memory of a device. */
#ifndef PST_STORAGE_OBJECT_REACH_H
#define PST_STORAGE_OBJECT_REACH_H

#include "storage/object_window.h"

/* Returns 0 if the server can access windows in the memory of `dev`, or -errno with the reason.
 * If its last answer is not known or too old, asks it for the first bytes of the object, which has
 * `length` bytes, through such a window. `etag` is NULL if it cannot be used in If-Match. Blocks,
 * for some seconds at most. */
int pst_object_reach(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev,
		     struct pst_err *err);

#endif
