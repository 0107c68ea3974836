/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages with which a server of transport rc1 connects to a client. The client listens with
 * rdma_cm. The server's connection request contains the client's random number, which a token has
 * given to the server. The client accepts with a greeting. No further messages follow: the server's
 * network card reads and writes the client's memory.
 */
#ifndef PST_WIRE_RC1_H
#define PST_WIRE_RC1_H

#include <string.h>

#include "s3/token.h"

#define PST_RC1_HELLO "PENSTOCK rc1 1\n" /* 16 bytes with the NUL */
#define PST_RC1_HELLO_LEN 16
/* Length of the private data of a connection request. rdma_cm carries up to 56 bytes, and pads them
 * with zeros. */
#define PST_RC1_REQUEST_LEN (PST_RC1_HELLO_LEN + PST_TOKEN_CAP)

/* Writes the private data of a connection request: the greeting and the client's random number. */
static inline void pst_rc1_put_request(unsigned char out[PST_RC1_REQUEST_LEN],
				       const unsigned char conn[PST_TOKEN_CAP])
{
	memcpy(out, PST_RC1_HELLO, PST_RC1_HELLO_LEN);
	memcpy(out + PST_RC1_HELLO_LEN, conn, PST_TOKEN_CAP);
}

/* Returns whether private data of `found` bytes begins with the greeting and has at least `len`
 * bytes. */
static inline int pst_rc1_is_hello(const void *data, size_t found, size_t len)
{
	return data && found >= len && !memcmp(data, PST_RC1_HELLO, PST_RC1_HELLO_LEN);
}

#endif
