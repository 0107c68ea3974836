/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the server of an object: where the object is, the heads of requests with their
 * signatures, and the errors of responses. Called by object.c and object_upload.c. No secret
 * appears in a message.
 */
#ifndef PST_STORAGE_OBJECT_REQUEST_H
#define PST_STORAGE_OBJECT_REQUEST_H

#include "io/http.h"
#include "s3/credentials.h"
#include "s3/sigv4.h"
#include "storage/object_url.h"

#define PST_OBJECT_HEADERS_MAX 6

/* Where an object is, and how requests to it are signed. Constant after it has been opened, so any
 * thread may read it. */
struct pst_object_place {
	struct pst_object_url url;
	struct pst_s3_settings settings;
	struct pst_sigv4_day *day; /* of the settings' secret; NULL if there is no memory for it */
	struct pst_object_server server; /* with the bucket's name in virtual-host style */
	struct pst_http_endpoint *endpoint;
	char host[PST_OBJECT_AUTHORITY]; /* header Host */
	char *path;			 /* as on the wire, without a query */
	bool moved;			 /* the region was corrected once */
};

int pst_object_place_open(const char *url, struct pst_object_place *out, struct pst_err *err);
void pst_object_place_close(struct pst_object_place *place);
/* Changes the region to the one that the server has named. Returns 0, or -errno if it has been
 * changed before or the server is not found. */
int pst_object_place_move(struct pst_object_place *place, const char *region, struct pst_err *err);

/* A request to the object's server. */
struct pst_object_call {
	struct pst_http_call http; /* the first member */
	const struct pst_object_place *place;
	const char *method;
	const char *query; /* as on the wire, without the question mark; "" if there is none */
	/* Additional headers, which are signed. A value must stay valid until the call's end. */
	struct pst_header headers[PST_OBJECT_HEADERS_MAX];
	unsigned header_count;
	/* Token of the window through which the server shall move the bytes; NULL: they are in the
	 * body. judge() may set it to NULL. */
	const char *token;
	bool ranged; /* asks for the bytes from `first` to `last` */
	uint64_t first, last;
	bool sends; /* the request has a body, perhaps of 0 bytes */
	/* Judges a response with status 2xx. NULL: its body is a text. */
	enum pst_http_verdict (*judge)(struct pst_object_call *call);
	/* Called by done() of the HTTP call. The call's owner may free it then. */
	void (*ended)(struct pst_object_call *call);
	void *user;
	unsigned deadline_s; /* longest time of pst_object_call_run; 0 for a time that fits the call
			      */
	const struct penstock_end_opts *limits; /* more limits of pst_object_call_run; NULL: none */
	unsigned repeats;    /* number of calls of pst_object_call_repeat */
};

/* Prepares a call, whose memory must be zero. */
void pst_object_call_init(struct pst_object_call *call, const struct pst_object_place *place,
			  const char *method, const char *query);
void pst_object_call_header(struct pst_object_call *call, const char *name, const char *value);
/* Lets the server move `len` bytes through the window with this token, before it answers. The
 * request then has no body. */
void pst_object_call_offer(struct pst_object_call *call, const char *token, uint64_t len);
/* Frees what the call has allocated. */
void pst_object_call_clear(struct pst_object_call *call);
/* Returns whether a call that has ended got an error that may pass, and can be repeated: S3 gives
 * some of them the status 400, or 200 if the answer begins before the work is done. */
bool pst_object_call_may_pass(const struct pst_object_call *call);
/* Starts a call again that has ended. */
int pst_object_call_repeat(struct pst_object_call *call, struct pst_err *err);
/* Returns whether the server has refused a request because it does not know its checksum. */
bool pst_object_call_lacks_sums(const struct pst_object_call *call);
/* Makes a call and waits for its end, but not longer than its deadline and its limits. Returns 0 if
 * there was a response, whatever its status. But if each attempt got an error that might have
 * passed, such as 503, it returns this error. */
int pst_object_call_run(struct pst_object_call *call, struct pst_err *err);

/* Returns 0 if the response's status is 2xx. Otherwise returns -errno, with a sentence about what
 * failed in the response and what to do. `what` is the action, such as "read". */
int pst_object_call_result(const struct pst_object_call *call, const char *what,
			   struct pst_err *err);

/* Copies the text of the first XML element `name` of a response, without control characters, and
 * with the escapes of quotes and ampersands decoded. The copy is empty if there is none or it does
 * not fit. */
void pst_object_xml_text(const struct pst_text *body, const char *name, char *out, size_t out_len);

#endif
