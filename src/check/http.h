/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little of HTTP that asking an object store for RDMA takes: the parts of a URL,
 * and the head of an answer. Pure: text in, facts out. What comes from the network may
 * be anything; it must never read past `len`, nor pass on what cannot be printed.
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

/* "http://host", "https://[::1]:9000/bucket/key". 0 or -EINVAL. */
int pst_http_url_parse(const char *text, struct pst_http_url *out);

struct pst_http_answer {
	int status;	 /* 403 */
	char server[64]; /* "MinIO"; "" not said */
	bool rdma;	 /* it knows the words of S3 over RDMA */
};

/* The head of an answer and what came of its body. 0 or -EINVAL: no HTTP. */
int pst_http_answer_parse(const char *text, size_t len, struct pst_http_answer *out);

#endif
