/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the URLs of objects: s3://BUCKET/KEY[?OPTION=VALUE&...], and presigned URLs, which begin
 * with http:// or https://. object_request.c and the gateway call these functions.
 */
#ifndef PST_STORAGE_OBJECT_URL_H
#define PST_STORAGE_OBJECT_URL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

#define PST_OBJECT_KEY_MAX 1024 /* maximum length of a key in S3, in bytes */
/* Maximum number of addresses in the option "rdma-addresses", and size in bytes of the option's
 * value, with its NUL. */
#define PST_OBJECT_ADDRESSES_MAX 8
#define PST_OBJECT_ADDRESSES (PST_OBJECT_ADDRESSES_MAX * INET6_ADDRSTRLEN)

/* The name and the port of a server. */
struct pst_object_server {
	bool tls;
	char host[256];	 /* name or IP address, without brackets */
	unsigned port;	 /* never 0 */
	bool port_given; /* the port is in the URL */
};

/* The option "rdma": when the server moves bytes through windows by S3 over RDMA instead of HTTP
 * bodies. AUTO: only with a server on this host (the default). OFF: never. ON: whenever the server
 * accepts tokens. REQUIRE: always, so a transfer fails if the server does not accept tokens. */
enum pst_object_rdma {
	PST_OBJECT_RDMA_AUTO,
	PST_OBJECT_RDMA_OFF,
	PST_OBJECT_RDMA_ON,
	PST_OBJECT_RDMA_REQUIRE,
};

struct pst_object_url {
	bool presigned;
	/* The members up to `addresses` are for s3:// URLs. */
	char bucket[256];
	char key[PST_OBJECT_KEY_MAX + 1]; /* key_len arbitrary bytes, and a NUL */
	size_t key_len;
	/* options of the URL; "" if the URL does not have them */
	char endpoint[1025], region[65], profile[129];
	/* 1: the bucket is in the path; 0: it is in the host name; -1: not given */
	int path_style;
	bool anonymous, insecure;
	bool unchecked; /* no checksum of the whole object is compared */
	unsigned timeout_s; /* 0 if it is not given */
	enum pst_object_rdma rdma;
	/* transports that windows may use; "" if neither option nor environment names any */
	char transports[65];
	/* numeric addresses of this host's network cards, separated by commas, that windows may
	 * use; "" if neither option nor environment names any */
	char addresses[PST_OBJECT_ADDRESSES];
	/* The members `server` and `target` are for presigned URLs. */
	struct pst_object_server server;
	char *target; /* path and query as a request contains them; freed by pst_object_url_clear */
	/* The URL for messages, without its query, because that may contain a signature. */
	char name[160];
};

/* Returns whether the text is a URL that begins with s3://, http:// or https://. */
bool pst_object_url_match(const char *url);
int pst_object_url_parse(const char *url, struct pst_object_url *out, struct pst_err *err);
void pst_object_url_clear(struct pst_object_url *url);
/* Returns whether the text consists of letters, digits and '-', or is empty. */
bool pst_object_region_is_valid(const char *region);

/* Parses an endpoint such as "http://127.0.0.1:9000". */
int pst_object_server_parse(const char *endpoint, struct pst_object_server *out,
			    struct pst_err *err);
/* Maximum length in bytes of "HOST:PORT", with its NUL. */
#define PST_OBJECT_AUTHORITY 272
/* Writes "HOST[:PORT]", the value of the header Host. The default port is left out. */
void pst_object_server_authority(const struct pst_object_server *server,
				 char out[PST_OBJECT_AUTHORITY]);
/* Returns whether the host is an IP address or "localhost". */
bool pst_object_server_is_plain(const struct pst_object_server *server);

#endif
