/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the server of an object: finds the server, writes the heads of requests with their
 * signatures, and turns the errors of responses into messages. The files object*.c here and
 * object/request.c call these functions. They never write a secret into a message.
 *
 * An exchange replaces a GET or PUT by the requests PREPARE, READY and CANCEL of protocol
 * hipobj-rc-v2. With them, the server moves the bytes by RDMA (object_exchange.h).
 */
#ifndef PST_STORAGE_OBJECT_REQUEST_H
#define PST_STORAGE_OBJECT_REQUEST_H

#include <pthread.h>

#include "io/http.h"
#include "s3/credentials.h"
#include "s3/sigv4.h"
#include "storage/object_url.h"

#define PST_OBJECT_HEADERS_MAX 6
/* maximum number of protocol headers in a PREPARE, READY or CANCEL */
#define PST_OBJECT_EXCHANGE_MAX 8

/* The place of an object: its server, and the settings for the signatures of requests. Constant
 * after it has been opened, so any thread may read it. */
struct pst_object_place {
	struct pst_object_url url;
	struct pst_s3_settings settings;
	/* signing keys that were derived from the secret in `settings`; NULL if there is no memory
	 * for them */
	struct pst_sigv4_day *day;
	/* the server's name begins with the bucket's name unless `path` contains the bucket */
	struct pst_object_server server;
	struct pst_http_endpoint *endpoint;
	char host[PST_OBJECT_AUTHORITY]; /* value of the header Host */
	/* path of a request as it is sent, without a query */
	char *path;
	/* whether the region was corrected, because the server has named another one; only one
	 * correction is possible */
	bool moved;
};

int pst_object_place_open(const char *url, struct pst_object_place *out, struct pst_err *err);
void pst_object_place_close(struct pst_object_place *place);
/* Changes the region to the one that the server has named. Returns 0, or -errno if it has been
 * changed before or the server is not found. */
int pst_object_place_move(struct pst_object_place *place, const char *region, struct pst_err *err);

struct pst_object_call;

/* The request of an exchange (see above) that is sent next. */
enum pst_object_phase {
	PST_OBJECT_PREPARES,
	PST_OBJECT_MOVES,   /* READY: the server moves the bytes, and judge() judges its response */
	PST_OBJECT_CANCELS, /* CANCEL ends the session at the server; REFUSED follows */
	PST_OBJECT_REFUSED, /* no further request; the server has moved nothing */
};

struct pst_object_exchange_ops {
	/* Writes the headers of the next request to `headers`, PST_OBJECT_EXCHANGE_MAX at most.
	 * Returns their number. */
	unsigned (*compose)(struct pst_object_call *call, const char **path,
			    struct pst_header *headers);
	/* Takes the response to a PREPARE, and returns the next phase. */
	enum pst_object_phase (*paired)(struct pst_object_call *call);
};

/* An exchange: requests that replace the call's own GET or PUT. */
struct pst_object_exchange {
	const struct pst_object_exchange_ops *ops;
	enum pst_object_phase phase;
	/* number of bytes that the server moves by RDMA before it replies to the READY */
	uint64_t beside;
};

/* State that a thread that waits for the end of a call shares with the reactor that ends the call.
 * `lock` guards `ended`. */
struct pst_object_wait {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool ended;
};

/* A request to the object's server. */
struct pst_object_call {
	struct pst_http_call http; /* must be the first member */
	const struct pst_object_place *place;
	const char *method;
	/* query of the URL, percent-encoded, without the question mark; "" if there is none */
	const char *query;
	/* Additional headers, which are signed. A value must stay valid until the call's end. */
	struct pst_header headers[PST_OBJECT_HEADERS_MAX];
	unsigned header_count;
	/* Token of the window through which the server moves the bytes; NULL if an HTTP body
	 * carries them. judge() may set it to NULL. */
	const char *token;
	/* Requests that replace the call's own GET or PUT; NULL if there are none. If the server
	 * refuses them, the call ends with status 501. */
	struct pst_object_exchange *exchange;
	bool ranged; /* the request has a Range header, for the bytes from `first` to `last` */
	uint64_t first, last;
	bool sends; /* the request has a body, perhaps of 0 bytes */
	/* Decides what to do with a response of status 2xx. NULL: its body is stored as text. */
	enum pst_http_verdict (*judge)(struct pst_object_call *call);
	/* The reactor calls this function when the call has ended. The function may free the
	 * call. */
	void (*ended)(struct pst_object_call *call);
	void *user;
	/* maximum duration of pst_object_call_run in seconds; 0 for a default that suits the
	 * call */
	unsigned deadline_s;
	/* further limits of pst_object_call_run, set by the caller of the commit or abort; NULL:
	 * none */
	const struct penstock_end_opts *limits;
	unsigned repeats; /* how often pst_object_call_repeat was called */
};

/* Prepares a call, whose memory must be zero. */
void pst_object_call_init(struct pst_object_call *call, const struct pst_object_place *place,
			  const char *method, const char *query);
void pst_object_call_header(struct pst_object_call *call, const char *name, const char *value);
/* Offers a window (memory that the server may access) to the server: adds its token to the request.
 * The server then moves `len` bytes through the window before it responds, and the request has no
 * body. */
void pst_object_call_offer(struct pst_object_call *call, const char *token, uint64_t len);
/* Frees the response's body, which was stored as text. */
void pst_object_call_clear(struct pst_object_call *call);
/* Returns whether a call has ended with an error that may be temporary, so that it can be repeated.
 * S3 gives some of these errors the status 400. If S3 begins its response before the work is done,
 * even an error has the status 200. */
bool pst_object_call_may_pass(const struct pst_object_call *call);
/* Returns whether a call has ended with such an error, even if it was repeated often enough. */
bool pst_object_call_is_passing(const struct pst_object_call *call);
/* Returns whether the code of an error is in the list, which ends with NULL. */
bool pst_object_code_is(const char *code, const char *const *list);
/* Returns whether the server has answered a call with an error that asks for fewer requests. */
bool pst_object_call_is_slowed(const struct pst_object_call *call);
/* Starts an ended call once more, after the delay that http.c computes for another attempt. */
int pst_object_call_repeat(struct pst_object_call *call, struct pst_err *err);
/* Returns whether the server has refused a request because it does not support the kind of checksum
 * in it. */
bool pst_object_call_lacks_sums(const struct pst_object_call *call);
/* Starts a call, for whose end pst_object_call_wait then waits. The caller closes the wait after
 * that, unless this function has returned an error. */
int pst_object_call_begin(struct pst_object_call *call, struct pst_object_wait *wait,
			  struct pst_err *err);
/* Waits for the end of a call. Cancels the call at the time `until_ns`, or when the caller's limits
 * demand its end. Returns 0, or -errno if the call was cancelled. */
int pst_object_call_wait(struct pst_object_call *call, struct pst_object_wait *wait,
			 uint64_t until_ns, struct pst_err *err);
void pst_object_wait_close(struct pst_object_wait *wait);
/* Starts a call and waits for its end, but not longer than its deadline and its limits. Returns 0
 * if there was a final response, whatever its status. If every attempt failed with a temporary
 * error, such as 503, returns this error. */
int pst_object_call_run(struct pst_object_call *call, struct pst_err *err);

/* Returns 0 if the response's status is 2xx. Otherwise returns -errno, with a sentence about what
 * failed and what to do. `what` is the attempted action for the message, such as "read". */
int pst_object_call_result(const struct pst_object_call *call, const char *what,
			   struct pst_err *err);

/* Returns whether the ETag can be used in If-Match: a weak ETag never matches. */
bool pst_object_etag_is_strong(const char *etag);
/* Returns a hash of the ETag (64-bit FNV-1a), or 0 if there is none. */
uint64_t pst_object_etag_hash(const char *etag);

/* Copies the text of the first XML element `name` of a response to `out`. Removes control
 * characters, and decodes the escapes of quotes and ampersands. The copy is empty if there is no
 * such element or the text does not fit. */
void pst_object_xml_text(const struct pst_text *body, const char *name, char *out, size_t out_len);

#endif
