/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the files of the certificate and of its key. Called by serve.c. libmicrohttpd parses and
 * checks them; this file only finds out when the certificate expires.
 */
#ifndef GW_CERTIFICATE_H
#define GW_CERTIFICATE_H

#include <stddef.h>
#include <stdint.h>

/* Texts in PEM form. */
struct gw_certificate {
	char *chain, *key;
	/* Unix time in seconds at which the first of the chain's certificates expires; 0 if it is
	 * unknown. */
	int64_t expires_s;
};

/* Reads both files. Returns 0. On an error, returns -EIO and writes a message to `why`. */
int gw_certificate_read(const char *chain_path, const char *key_path, struct gw_certificate *out,
			char *why, size_t why_len);
/* Overwrites and frees both texts. */
void gw_certificate_free(struct gw_certificate *certificate);

#endif
