/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two halves of transport rc1 tell each other when they connect. The client listens with
 * rdma_cm. The server shows the number of the client, which only clients' tokens have, and the
 * client answers with a greeting. Afterwards they exchange no message: the server's network card
 * reads and writes the client's memory.
 */
#ifndef PST_WIRE_RC1_H
#define PST_WIRE_RC1_H

#include <string.h>

#include "s3/token.h"

#define PST_RC1_HELLO "PENSTOCK rc1 1\n" /* 16 bytes with the NUL */
#define PST_RC1_HELLO_LEN 16
/* rdma_cm carries up to 56 bytes for the connecting side, and pads them with zeros. */
#define PST_RC1_REQUEST_LEN (PST_RC1_HELLO_LEN + PST_TOKEN_CAP)

/* The private data of a connection request. */
static inline void pst_rc1_put_request(unsigned char out[PST_RC1_REQUEST_LEN],
				       const unsigned char conn[PST_TOKEN_CAP])
{
	memcpy(out, PST_RC1_HELLO, PST_RC1_HELLO_LEN);
	memcpy(out + PST_RC1_HELLO_LEN, conn, PST_TOKEN_CAP);
}

/* Returns whether private data begins with the greeting and has `len` bytes. */
static inline int pst_rc1_is_hello(const void *data, size_t found, size_t len)
{
	return data && found >= len && !memcmp(data, PST_RC1_HELLO, PST_RC1_HELLO_LEN);
}

#endif
