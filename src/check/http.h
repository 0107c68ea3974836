/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the parts of HTTP that the check of an object store needs: a URL and the head of a
 * response. Called by gates_endpoint.c and by a fuzz target. The input may come from the network,
 * so the parser must never read beyond `len` or return bytes that are not printable.
 */
#ifndef PST_CHECK_HTTP_H
#define PST_CHECK_HTTP_H

#include <stdbool.h>
#include <stddef.h>

struct pst_http_url {
	char host[256];
	char port[8];
	bool tls;
};

/* Parses a URL such as "http://host" or "https://[::1]:9000/bucket/key". Returns 0, or
 * -EINVAL if the text is not a valid URL. */
int pst_http_url_parse(const char *text, struct pst_http_url *out);

struct pst_http_answer {
	int status;	 /* 403 */
	char server[64]; /* for example "MinIO"; "" if the response has no Server header */
	bool rdma;	 /* whether the server supports S3 over RDMA */
};

/* Parses the head of a response, and as much of its body as `text` contains. Returns 0, or
 * -EINVAL if the text is not HTTP. */
int pst_http_answer_parse(const char *text, size_t len, struct pst_http_answer *out);

#endif
