/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files that contain secrets: the access keys, and the key of the certificate. Called by
 * keys.c and certificate.c. It must refuse each file that users without a right to it may read or
 * write.
 */
#ifndef GW_SECRET_H
#define GW_SECRET_H

#include <stddef.h>

/* Opens a file with a secret. The file, which may be behind symbolic links, must belong to this
 * user or to root. Other users must have no rights to it, with one exception: if the file belongs
 * to root, its group is a group of this process, and it has no access control list, the group may
 * read it. Returns a descriptor. On an error, returns -1 and writes a message to `why`, which
 * contains the text `what`. */
int gw_secret_open(const char *path, const char *what, char *why, size_t why_len);

#endif
