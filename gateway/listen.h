/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the sockets at which the HTTP servers listen. Called by serve.c. A socket must not block,
 * because several threads accept connections from it.
 */
#ifndef GW_LISTEN_H
#define GW_LISTEN_H

#include <stddef.h>

/* Opens a socket that listens at "ADDRESS:PORT", where the address may be empty, a name, or an IPv6
 * address in brackets. Returns the descriptor. On an error, returns a negative errno and writes a
 * message to `why`. */
int gw_listen(const char *address, char *why, size_t why_len);

#endif
