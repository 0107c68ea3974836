/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of protocol hipobj-rc-v2, for clients and servers. A transfer is a session of two
 * requests without a body, whose fields are in headers x-amz-rdma-*. PREPARE names operation,
 * target and range, and both sides exchange the numbers of their queue pairs. READY moves the
 * bytes, and its response takes the place of the response to the GET or PUT. CANCEL ends a session
 * for which no READY is sent. The functions have no side effects. Called by src/wire and by the
 * gateway. The headers come from the network, so all fields have limits.
 *
 * PREPARE	protocol, token, psn, cookie, op, target, size, offset if it is not 0
 *   response	protocol, reply "200:<88 hex>", session, psn, qpn, mr-addr, mr-rkey
 * READY	protocol, session, cookie, qpn, mr-addr, mr-rkey
 *   response	protocol, cookie, bytes-transferred, etag
 * CANCEL	protocol, session, cookie
 */
#ifndef PST_S3_HIPOBJ_H
#define PST_S3_HIPOBJ_H

#include "penstock_object.h"
#include "s3/token.h"

#define PST_HIPOBJ "hipobj-rc-v2"
#define PST_HIPOBJ_SESSION 32	     /* length of a session's name, in hex digits */
#define PST_HIPOBJ_LEN_MAX INT32_MAX /* maximum number of bytes of a transfer */
#define PST_HIPOBJ_PSN_MAX 0xffffffu
#define PST_HIPOBJ_TOKEN 88    /* length of a token */
#define PST_HIPOBJ_TARGET 4096 /* maximum length in bytes of a target that is accepted */

#define PST_HIPOBJ_H_PROTOCOL "x-amz-rdma-protocol"
#define PST_HIPOBJ_H_STATUS "x-amz-rdma-protocol-status"
#define PST_HIPOBJ_H_TOKEN "x-amz-rdma-token"
#define PST_HIPOBJ_H_REPLY "x-amz-rdma-reply"
#define PST_HIPOBJ_H_SESSION "x-amz-rdma-session"
#define PST_HIPOBJ_H_PSN "x-amz-rdma-psn"
#define PST_HIPOBJ_H_COOKIE "x-amz-rdma-cookie"
#define PST_HIPOBJ_H_OP "x-amz-rdma-op"
#define PST_HIPOBJ_H_TARGET "x-amz-rdma-target"
#define PST_HIPOBJ_H_SIZE "x-amz-rdma-size"
#define PST_HIPOBJ_H_OFFSET "x-amz-rdma-offset"
#define PST_HIPOBJ_H_QPN "x-amz-rdma-qpn"
#define PST_HIPOBJ_H_ADDR "x-amz-rdma-mr-addr"
#define PST_HIPOBJ_H_KEY "x-amz-rdma-mr-rkey"
#define PST_HIPOBJ_H_ETAG "x-amz-rdma-etag"

/* The headers of a message: find() returns the value of the header `name`, which is in lower case,
 * or NULL. */
struct pst_hipobj_source {
	const char *(*find)(const void *user, const char *name);
	const void *user;
};

/* The fields of a PREPARE. `target` and `token` point to the values of the headers. */
struct pst_hipobj_prepare {
	enum penstock_op op;
	const char *target, *token;
	uint64_t len, offset;
	uint32_t psn, cookie; /* the client's packet sequence number and cookie */
};

struct pst_hipobj_ready {
	char session[PST_HIPOBJ_SESSION + 1];
	uint32_t cookie;
	/* number of the client's queue pair, and key of its memory; 0 if the header is missing */
	uint32_t qpn, key;
	uint64_t address;
};

/* The response to a PREPARE. */
struct pst_hipobj_offer {
	char session[PST_HIPOBJ_SESSION + 1];
	struct pst_token token; /* token that describes the server's queue pair */
	uint32_t psn, key;
	uint64_t address; /* address of the server's memory for a PUT; 0 for a GET */
};

/* The parsers return 0 or a negative errno, and write *out only on success. -EBADMSG: a field is
 * missing or malformed. -EPROTO: the header x-amz-rdma-protocol does not name hipobj-rc-v2. */
/* Parses a PREPARE. Also returns -EFBIG if the transfer is longer than PST_HIPOBJ_LEN_MAX. */
int pst_hipobj_prepare_parse(const struct pst_hipobj_source *in, struct pst_hipobj_prepare *out);
/* Parses a READY. */
int pst_hipobj_ready_parse(const struct pst_hipobj_source *in, struct pst_hipobj_ready *out);
/* Parses a CANCEL. `cookie` is 0 if the header is missing. */
int pst_hipobj_cancel_parse(const struct pst_hipobj_source *in, struct pst_hipobj_ready *out);
int pst_hipobj_offer_parse(const struct pst_hipobj_source *in, struct pst_hipobj_offer *out);
/* Checks the protocol and the cookie of the response to a READY. */
int pst_hipobj_final_parse(const struct pst_hipobj_source *in, uint32_t cookie);

/* Memory for the values of a request's headers. */
struct pst_hipobj_texts {
	char psn[8], cookie[12], size[24], offset[24], qpn[12], address[20], key[12];
};
#define PST_HIPOBJ_HEADERS_MAX 8

/* Compose the headers of a request. Return their number, which is at most PST_HIPOBJ_HEADERS_MAX.
 * The values point into the arguments and into *texts. */
unsigned pst_hipobj_put_prepare(const struct pst_hipobj_prepare *prepare,
				struct pst_hipobj_texts *texts, struct penstock_object_header *out);
/* Composes a READY. If qpn is 0, composes a CANCEL. */
unsigned pst_hipobj_put_ready(const struct pst_hipobj_ready *ready, struct pst_hipobj_texts *texts,
			      struct penstock_object_header *out);

#endif
