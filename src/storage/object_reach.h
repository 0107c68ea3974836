/* SPDX-License-Identifier: Apache-2.0 */
/* Determines whether an object's server can access windows in the memory of a device. */
#ifndef PST_STORAGE_OBJECT_REACH_H
#define PST_STORAGE_OBJECT_REACH_H

#include "storage/object_window.h"

/* Returns 0 if the server can access windows in the memory of `dev`, or -errno with the reason. If
 * no recent result is stored, reads the first bytes of the object through such a window. The object
 * has `length` bytes. `etag` is NULL if it cannot be used in If-Match. Blocks for some seconds at
 * most. */
int pst_object_reach(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev,
		     struct pst_err *err);

#endif
