/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the URLs of objects: s3://BUCKET/KEY[?OPTION=VALUE&...], and presigned URLs, which begin
 * with http:// or https://. Called by the storage of objects and by the gateway.
 */
#ifndef PST_STORAGE_OBJECT_URL_H
#define PST_STORAGE_OBJECT_URL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

#define PST_OBJECT_KEY_MAX 1024 /* maximum length of a key in S3, in bytes */

/* The name and the port of a server. */
struct pst_object_server {
	bool tls;
	char host[256];	 /* name or IP address, without brackets */
	unsigned port;	 /* never 0 */
	bool port_given; /* the port is in the URL */
};

/* When bytes go through windows (S3 over RDMA): if the server is on this host (the default), never,
 * whenever the server accepts tokens, or always. */
enum pst_object_rdma {
	PST_OBJECT_RDMA_AUTO,
	PST_OBJECT_RDMA_OFF,
	PST_OBJECT_RDMA_ON,
	PST_OBJECT_RDMA_REQUIRE,
};

struct pst_object_url {
	bool presigned;
	/* members for s3:// URLs */
	char bucket[256];
	char key[PST_OBJECT_KEY_MAX + 1]; /* key_len arbitrary bytes, and a NUL */
	size_t key_len;
	char endpoint[1025], region[65], profile[129]; /* options; "" if they are not given */
	int path_style;				       /* 1 or 0; -1 if it is not given */
	bool anonymous, insecure;
	bool unchecked; /* no checksum of the whole object is compared */
	unsigned timeout_s; /* 0 if it is not given */
	enum pst_object_rdma rdma;
	/* transports that windows may use; "" if the option is not given */
	char transports[65];
	/* members for presigned URLs */
	struct pst_object_server server;
	char *target; /* path and query as they are sent; freed by pst_object_url_clear */
	/* The URL without its query, which may contain a signature, for messages. */
	char name[160];
};

/* Returns whether the text is such a URL. */
bool pst_object_url_match(const char *url);
int pst_object_url_parse(const char *url, struct pst_object_url *out, struct pst_err *err);
void pst_object_url_clear(struct pst_object_url *url);
/* Returns whether the text consists of letters, digits and '-', or is empty. */
bool pst_object_region_is_valid(const char *region);

/* Parses an endpoint such as "http://127.0.0.1:9000". */
int pst_object_server_parse(const char *endpoint, struct pst_object_server *out,
			    struct pst_err *err);
/* Longest "HOST:PORT", with its NUL. */
#define PST_OBJECT_AUTHORITY 272
/* Writes "HOST[:PORT]", the value of the header Host. The default port is left out. */
void pst_object_server_authority(const struct pst_object_server *server,
				 char out[PST_OBJECT_AUTHORITY]);
/* Returns whether the host is an IP address or "localhost". */
bool pst_object_server_is_plain(const struct pst_object_server *server);

#endif
