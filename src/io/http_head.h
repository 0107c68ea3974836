/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the head of an HTTP/1.1 response: the status line and the header lines (RFC 9112).
 * Called by http_conn.c. The input comes from the network, so every length is bounded, and a head
 * that two readers could understand differently is refused.
 */
#ifndef PST_IO_HTTP_HEAD_H
#define PST_IO_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_HTTP_HEAD_MAX 16384 /* maximum length of a head, in bytes */
#define PST_HTTP_LINES_MAX 128	/* maximum number of header lines */

/* The fields of a response's head that the client uses. Strings are empty if the header is missing.
 */
struct pst_http_head {
	unsigned status; /* 100 to 599 */
	bool keeps;	 /* the server keeps the connection open after the body */
	bool chunked;	 /* the body has the transfer coding chunked */
	bool has_length;
	uint64_t length; /* Content-Length */
	/* Content-Range: "bytes FIRST-LAST/TOTAL", or "bytes * /TOTAL" without a range */
	bool has_range, has_total;
	uint64_t range_first, range_last, range_total;
	unsigned retry_after_s; /* Retry-After in seconds; 0 if there is none or it is a date */
	char etag[256];		/* ETag with its quotes */
	char modified[32];	/* Last-Modified */
	char region[65];	/* x-amz-bucket-region */
	char crc32[17], crc32c[17], crc64nvme[17]; /* x-amz-checksum-..., in base64 */
	char checksum_type[17];		/* x-amz-checksum-type, such as FULL_OBJECT */
	/* values of the headers x-amz-rdma-reply, x-amz-rdma-bytes-transferred and
	 * x-amz-rdma-checksum */
	char rdma_reply[16 + 88], rdma_bytes[48], rdma_checksum[48];
	/* values of the headers of the protocol hipobj-rc-v2 (s3/hipobj.h): x-amz-rdma-protocol,
	 * -session, -psn, -qpn, -cookie, -mr-addr, -mr-rkey */
	char rdma_protocol[16], rdma_session[40], rdma_psn[20], rdma_qpn[20], rdma_cookie[20];
	char rdma_address[20], rdma_key[20];
	char rdma_etag[256]; /* x-amz-rdma-etag, with or without quotes */
};

/*
 * Parses a head at the start of `bytes`. Returns its length, with the empty line at its end, or 0
 * if the head is not complete yet. Returns -EBADMSG if the head is malformed, and -E2BIG if it is
 * longer than the limits allow.
 */
long pst_http_head_parse(const char *bytes, size_t len, struct pst_http_head *out);

/* The decoder of a body with the transfer coding chunked (RFC 9112, section 7.1). All members are 0
 * at first. */
struct pst_http_chunks {
	uint64_t left; /* bytes of the current chunk that have not arrived */
	unsigned state, digits;
	unsigned trailer_len; /* bytes of trailers so far */
	bool line_has_bytes;  /* whether the current line of the trailers has bytes */
};

/*
 * Takes up to `len` bytes of a chunked body. Moves the decoded bytes to the start of `bytes`, and
 * stores their number in *decoded. Returns the number of bytes taken, which is less than `len` only
 * if the body ends earlier. Sets *ended to whether the end of the body was reached. Returns
 * -EBADMSG if the coding is malformed.
 */
long pst_http_chunks_take(struct pst_http_chunks *chunks, char *bytes, size_t len, size_t *decoded,
			  bool *ended);

#endif
