/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request to S3: its bucket, key and parameters, found in the bytes from the network, and
 * functions that fill its reply. Called by front.c and by the operations. A key is arbitrary bytes
 * without NUL, and it is decoded exactly once.
 */
#ifndef GW_REQUEST_H
#define GW_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "body.h"
#include "errors.h"
#include "http.h"
#include "s3/sigv4.h"
#include "server.h"

#define GW_PARAMS_MAX 64

/* A parameter of the query, decoded. */
struct gw_param {
	const char *name, *value;
	size_t value_len;
};

struct passage;

struct gw_request {
	struct gw_server *server;
	struct gw_http_request *http;
	char id[17];	    /* value of the header x-amz-request-id */
	char *path;	    /* path of the target, not decoded */
	const char *query;  /* query of the target, not decoded; "" if there is none */
	const char *bucket; /* decoded; NULL for requests to the service */
	const char *key;    /* decoded; NULL for requests to a bucket or to the service */
	/* last part of a path that begins with /.hipobj-rc/, such as "prepare"; otherwise NULL */
	const char *control;
	size_t key_len;
	struct gw_param params[GW_PARAMS_MAX];
	unsigned param_count;
	char *memory; /* memory that contains bucket, key and parameters */
	const struct gw_op *op;
	unsigned op_number;
	/* set by auth.c */
	struct gw_keys *keys; /* held */
	const struct gw_key *identity;
	struct pst_sigv4_claim *claim;
	int bucket_fd; /* -1 if the bucket is not open */
	struct gw_body body;
	/* state of a request that goes to the upstream (upstream.c); otherwise NULL */
	struct passage *passage;
	void *state; /* state of the operation; gw_request_close frees it with free() */
	/* Window of the client's memory from which the request's body is read, or into which the
	 * reply's body is written; NULL if there is none. Set by rdma.c. */
	struct penstock_object_remote *remote;
	/* why the gateway declines the request's token, if it does */
	enum gw_decline decline;
	/* Session of hipobj-rc-v2 that has prepared this GET or PUT; NULL if there is none. */
	struct gw_session *session;
	char range[64]; /* value of the header Range, if `session` has set it */
	bool moves;	/* whether gw_rdma_enter has counted this request */
	/* Transport that has moved bytes of the body by RDMA, or NULL, and the number of these
	 * bytes. The thread that moves them may not be the one that reads these members. */
	const char *_Atomic transport;
	atomic_ullong rdma_bytes;
	bool has_crc64; /* whether the transport has computed `crc64` */
	uint64_t crc64; /* CRC-64/NVME of the bytes that have moved by RDMA */
	enum gw_error error;
	/* for the reply with an error: region for which the client shall sign; NULL for none */
	const char *hint;
	bool failed;
};

/* Finds bucket, key and parameters in the target and in the header Host. `domain` is the suffix of
 * a host that names a bucket, such as s3.example.com for BUCKET.s3.example.com, or NULL. On an
 * error, fills the reply and returns false. */
bool gw_request_parse(struct gw_request *req, const char *domain);
/* Gives a request another method and target, in path style. `target` must stay valid as long as the
 * request. Returns false after it has filled the reply with an error. */
bool gw_request_retarget(struct gw_request *req, const char *method, const char *target);
/* Frees the request, whose body must have been closed before. */
void gw_request_close(struct gw_request *req);

const char *gw_header(const struct gw_request *req, const char *name);
/* Returns the value of a parameter, or NULL. */
const char *gw_param(const struct gw_request *req, const char *name);
const struct gw_param *gw_param_find(const struct gw_request *req, const char *name);
/* Parses a parameter as a number. Returns `fallback` if it is missing, or -1 after it has filled
 * the reply with InvalidArgument. */
int64_t gw_param_number(struct gw_request *req, const char *name, int64_t fallback, int64_t max);

/* ---- replies ---- */

/* Fills the reply with an error. Returns -1. `fmt` is NULL for the default message. */
int gw_fail(struct gw_request *req, enum gw_error error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Returns whether the folder with the objects is gone: it was removed, or its file system is not
 * mounted any more. */
bool gw_root_is_gone(const struct gw_server *server);
/* Fills the reply with the S3 error for an errno (negative or positive). `what` is the S3 error to
 * use for ENOENT. */
int gw_fail_errno(struct gw_request *req, int code, enum gw_error what);
/* Begins a reply with an XML document. Returns the text to which the caller appends. */
struct pst_text *gw_reply_xml(struct gw_request *req, unsigned status);
void gw_reply_empty(struct gw_request *req, unsigned status);
void gw_header_add(struct gw_request *req, const char *name, const char *value);
void gw_header_number(struct gw_request *req, const char *name, uint64_t value);
/* Adds the header ETag, with quotes. */
void gw_header_etag(struct gw_request *req, const char *etag);

/* gw_http_date writes a time as "Sun, 22 Nov 2026 19:00:00 GMT", and gw_iso_date as
 * "2026-11-22T19:00:00.000Z". */
void gw_http_date(time_t when, char out[40]);
void gw_iso_date(const struct timespec *when, char out[40]);
/* Parses a date of HTTP. Returns false if it is malformed. */
bool gw_http_date_parse(const char *text, time_t *out);

#endif
