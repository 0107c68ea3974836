/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP server: connections, TLS, request heads and bodies, replies. Only http.c and daemons.c
 * call libmicrohttpd. Started by serve.c. The functions of struct gw_http_calls, which front.c
 * implements, handle the requests. A request that breaks a limit must never reach these functions.
 */
#ifndef GW_HTTP_H
#define GW_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "s3/sigv4.h"
#include "common/text.h"
#include "pool.h"

#define GW_TARGET_MAX 16384	  /* longest target of a request in bytes */
#define GW_HEAD_MAX (32u << 10)	  /* maximum total length of a request's headers in bytes */
#define GW_DISCARD_MAX (1u << 20) /* longest body of a refused request that is read to its end */

struct gw_addresses;
struct gw_http;
struct gw_stream;

/* The answer to a request. The owner of the request fills it. */
struct gw_reply {
	unsigned status;
	struct pst_text headers; /* each header is a name, a NUL, a value and a NUL */
	struct pst_text body;	 /* used if `fd` is -1 */
	int fd;			 /* file with the body, or -1; the server closes it */
	uint64_t at, len;	 /* range of the file */
	bool close;		 /* whether to end the connection afterwards */
	/* whether the body is the body of the upstream's reply, from the request's stream */
	bool streams;
	/* If `streams` is true: whether `len` is the length of the body. Otherwise the length is
	 * not known in advance. */
	bool has_len;
};

/* A request and its reply. */
struct gw_http_request {
	/* NULL if libmicrohttpd has refused the head, or if the head is incomplete. Then head() was
	 * not called. */
	const char *method;
	/* Target of the request as it was sent: the path, and the query after a '?'. NULL if even
	 * the first line is incomplete or malformed. */
	char *target;
	struct pst_header headers[PST_SIGV4_HEADERS_MAX]; /* names in lower case */
	unsigned header_count;
	char *header_names; /* memory that contains the names of the headers */
	char remote[64];    /* address of the client */
	uint64_t started_ns;
	/* number of bytes of the body that have arrived; without a method, of the head. With TLS,
	 * the length of such a head is not known, and this member is 0. */
	uint64_t body_len;
	/* the server itself has refused the head, because it breaks a limit, is malformed or is
	 * incomplete */
	bool refused;
	/* the server has ended the connection, because the client was too slow */
	bool slow;
	/* for the access log: code of the error if the server itself has ended the request, or
	 * NULL */
	const char *error;
	/* The head does not say clearly where the body ends. head() must refuse the request. The
	 * server closes the connection after the reply. */
	bool ambiguous;
	struct gw_reply reply;
	void *user; /* state of the functions in struct gw_http_calls */
	/* Ring buffer through which the bodies pass if the request goes to the upstream; NULL
	 * otherwise. head() sets it, and done() may free it. */
	struct gw_stream *stream;
	/* set by end() if it has not filled the reply: the upstream's reply will come through the
	 * stream */
	bool answers;
	/* used by http.c only */
	unsigned state;
	bool too_long, completed;
	/* the connection waits for room in the stream, or for bytes of the reply in it */
	bool waits;
	/* The whole request has arrived, and libmicrohttpd does not read from the connection before
	 * the reply. */
	bool settled;
	/* copy of the end of a request's body, which did not fit into the stream's ring; `at` is
	 * the index of the first byte that has not yet been moved to the ring */
	struct {
		char *bytes;
		size_t at, len;
	} spill;
	/* number of bytes of the stream that were sent as the reply's body */
	uint64_t sent_len;
	uint64_t discarded;
	struct gw_watched *watched;
	struct gw_job job;
	struct gw_http *http;
	unsigned thread; /* index of the connection's thread */
	void *connection;
};

/* The functions that handle requests. The server's threads call them. */
struct gw_http_calls {
	/* Called when the request's head has arrived. Returns true if the body is wanted, or false
	 * if the reply is complete. */
	bool (*head)(void *owner, struct gw_http_request *req);
	/* Called when a piece of the body has arrived. Returns false if the rest of the body is not
	 * wanted. */
	bool (*body)(void *owner, struct gw_http_request *req, const char *bytes, size_t len);
	/* Called when the whole body has arrived. Fills the reply. If the request has a stream,
	 * end() may set `answers` instead; answer() then fills the reply. */
	void (*end)(void *owner, struct gw_http_request *req);
	/* Called when the upstream's reply has arrived in the request's stream. Fills the reply
	 * with the upstream's status and headers. */
	void (*answer)(void *owner, struct gw_http_request *req);
	/* Returns whether end() may take long. If so, a worker thread calls end(). */
	bool (*is_long)(void *owner, struct gw_http_request *req);
	/* Called when the reply has been sent (`complete`), or when the connection has ended
	 * before. Frees req->user. Also called for requests that the server itself has refused. */
	void (*done)(void *owner, struct gw_http_request *req, bool complete);
};

/* State of all servers with one listening socket. After a reload of the certificate, the servers
 * with older certificates keep their connections. The caller owns it, and frees it after the
 * servers. */
struct gw_http_shared {
	atomic_uint connections, requests;
	unsigned connections_max;
	struct gw_addresses *addresses; /* limit for each client address; NULL if there is none */
	/* Number of descriptors that connections must leave to other uses, and number of
	 * descriptors that a connection needs for its socket and for files. If `connection_files`
	 * is 0, the limit of open files does not limit the connections. */
	atomic_uint own_files;
	unsigned connection_files;
	atomic_ullong refused; /* connections that were closed at once because of a limit */
};

struct gw_http_options {
	int fd;		  /* socket that listens, from gw_listen; the caller owns it */
	unsigned workers; /* threads for operations that may take long; 0 for none */
	unsigned threads;
	struct gw_http_shared *shared;
	unsigned timeout_s;	/* time without a byte after which a connection ends */
	unsigned rate_min;	/* minimum rate of a transfer in bytes a second */
	const char *cert, *key; /* texts in PEM form; NULL without TLS */
	const struct gw_http_calls *calls;
	void *owner;
};

/* Returns whether this build of libmicrohttpd has TLS. */
bool gw_http_has_tls(void);
/* Starts a server. On an error, returns NULL and writes a message to `why`. */
struct gw_http *gw_http_start(const struct gw_http_options *options, char *why, size_t why_len);
/* Accepts no more connections, and closes each connection after its next reply. */
void gw_http_quiesce(struct gw_http *http);
/* Returns the number of open connections of this server. */
unsigned gw_http_connections(const struct gw_http *http);
/* Returns how many connections the servers may have: `connections_max`, or as many as the limit of
 * open files allows. */
unsigned gw_http_connections_allowed(const struct gw_http_shared *shared);
/* Ends all connections and frees the server. NULL is allowed. */
void gw_http_stop(struct gw_http *http);

/* Appends a header to a reply. If the value has control characters, does nothing. */
void gw_reply_header(struct gw_reply *reply, const char *name, const char *value);
/* Returns the value of a reply's header, or NULL. */
const char *gw_reply_header_find(const struct gw_reply *reply, const char *name);
/* Returns the value of a request's header, or NULL. The name is in lower case. */
const char *gw_http_header(const struct gw_http_request *req, const char *name);
/* Changes or adds a header of a request. The strings must stay valid as long as the request.
 * Returns false if there are too many headers. */
bool gw_http_header_set(struct gw_http_request *req, const char *name, const char *value);

#endif
