/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints: the servers that this process talks to, with their addresses. All threads share them.
 * A process has one endpoint for each server and each set of connection settings (port, TLS,
 * certificates). If the server's name contains the name of the bucket, each bucket has its own
 * endpoint. Endpoints are never freed, because idle connections refer to them. An endpoint takes
 * about 5 KB; the certificates, which take much more, are shared by the endpoints that trust the
 * same certificates. Called by http.c, by the storage of objects and by the gateway.
 */
#ifndef PST_IO_HTTP_ENDPOINT_H
#define PST_IO_HTTP_ENDPOINT_H

#include <sys/socket.h>

#include "io/http.h"
#include "io/http_limit.h"
#include "io/tls.h"

#define PST_ENDPOINTS_MAX 4096
#define PST_ADDRESSES_MAX 16

struct pst_http_endpoint {
	char host[256];
	char ca_bundle[1025];
	unsigned port;
	bool tls, insecure;
	struct pst_tls_context *tls_context; /* NULL without TLS */
	bool shares_context;		     /* `tls_context` belongs to another endpoint */
	/* guarded by the lock of http_endpoint.c */
	struct sockaddr_storage addresses[PST_ADDRESSES_MAX];
	socklen_t address_lens[PST_ADDRESSES_MAX];
	uint64_t failed_ns[PST_ADDRESSES_MAX]; /* last failure to connect; 0 if there is none */
	unsigned address_count, address_next;
	uint64_t looked_up_ns; /* when the addresses were looked up */
	bool looking_up;       /* a thread is looking up the addresses */
	/* guarded by the lock of http.c */
	struct pst_http_limit limit;
	unsigned inflight;
	struct pst_http_call *waiting, **waiting_end;
	bool queued; /* it is in the queue of endpoints with waiting calls */
	struct pst_http_endpoint *queue_next;
};

struct pst_http_endpoint_opts {
	const char *host; /* name or IP address */
	unsigned port;
	bool tls, insecure;
	const char *ca_bundle; /* "" or NULL for the system's certificates */
};

/* Returns the endpoint with these settings. The first call for an endpoint blocks while it looks up
 * the addresses. Later calls do not block: if the addresses are older than a minute, a thread looks
 * them up again. */
int pst_endpoint_get(const struct pst_http_endpoint_opts *opts, struct pst_http_endpoint **out,
		     struct pst_err *err);
/* Returns the index of the address that a new connection tries first. Successive calls return
 * different addresses, and skip addresses that have failed lately unless all have. */
unsigned pst_endpoint_address_first(struct pst_http_endpoint *endpoint);
/* Stores the address with this index, modulo the number of addresses. Returns the number of
 * addresses. */
unsigned pst_endpoint_address(struct pst_http_endpoint *endpoint, unsigned index,
			      struct sockaddr_storage *out, socklen_t *len);
/* Records that no connection to this address can be made. Returns the number of addresses. */
unsigned pst_endpoint_address_failed(struct pst_http_endpoint *endpoint, unsigned index);
/* Starts a thread that looks up the addresses again, after all of them have failed. Does not
 * block. */
void pst_endpoint_refresh(struct pst_http_endpoint *endpoint);

#endif
