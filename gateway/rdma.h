/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests with the header x-amz-rdma-token, which describes a window of the client's memory. The
 * server half of penstock_object.h moves the object's bytes between the object's file and this
 * window by RDMA. With an upstream, the bytes move between the window and the request's ring buffer
 * (stream.h). Called by front.c, upstream.c and the operations. A request whose token cannot be
 * served is declined: the bytes then go by HTTP. A PUT is answered with success only if all bytes
 * have been read from the window and stored.
 */
#ifndef GW_RDMA_H
#define GW_RDMA_H

#include "penstock.h"
#include "request.h"
#include "session.h"

struct gw_rdma;

struct gw_rdma_options {
	/* networks in which clients have further network cards, such as "10.1.0.0/16" (see
	 * penstock_object.h); NULL for none */
	const char *networks;
	const char *transports; /* names of the accepted transports; NULL for all */
	/* GPU through which windows in memory of GPUs are accessed; NULL for none */
	const char *device;
	unsigned moves_max; /* maximum number of moves (transfers by RDMA) at a time */
	/* minimum rate of a move in bytes a second; 0 for any */
	unsigned rate_min;
	/* whether clients may get the objects' files, to copy the bytes themselves */
	bool pass_files;
	bool encrypt;		    /* whether bytes must not leave the host unencrypted */
	struct gw_metrics *metrics; /* receives the names of the transports */
};

/* Starts the server half of S3 over RDMA. On an error, returns NULL and writes a message to
 * `why`. */
struct gw_rdma *gw_rdma_open(const struct gw_rdma_options *o, char *why, size_t why_len);
/* Ends all moves (transfers by RDMA) at once. Requests that wait for a move fail, and later tokens
 * are declined. As the workers then wait no more, they can be stopped. NULL is allowed. */
void gw_rdma_cancel(struct gw_rdma *rdma);
/* Frees the server half. No other thread may use it. NULL is allowed. */
void gw_rdma_close(struct gw_rdma *rdma);

/* ---- sessions of hipobj-rc-v2 ---- */

/* Returns whether the transports include hipobj-rc-v2. NULL is allowed. */
bool gw_rdma_pairs(const struct gw_rdma *rdma);
/* Opens a session for a PREPARE, a client's first message. `token` and `pairing` contain the
 * client's values. If the result is 0, the session is in the table, and `id` receives its ID.
 * Otherwise returns -EAGAIN if there are too many sessions, or the negative errno of
 * penstock_object_prepare. */
int gw_rdma_prepare(struct gw_request *req, const char *token,
		    struct penstock_object_pairing *pairing, struct gw_session *session,
		    char id[GW_SESSION_ID]);
/* Takes the session `id` off the table if it belongs to the access key `owner`. The caller frees
 * it. Returns NULL if there is no such session. */
struct gw_session *gw_rdma_session(struct gw_rdma *rdma, const char *id, const char *owner);
/* Counts a session's request as a move (transfer by RDMA) in progress until gw_rdma_leave is
 * called. Returns false if too many moves are in progress. */
bool gw_rdma_enter(struct gw_request *req);
void gw_rdma_leave(struct gw_request *req);

/* Checks the RDMA token of a request that stores an object, before its body is read. On an error,
 * fills the reply and returns false. If the request has a token, gw_rdma_receive then reads the
 * client's window. */
bool gw_rdma_check(struct gw_request *req);
/* Reads the client's window, in place of the body of a request that stores an object. Does nothing
 * for a request without a token. On an error, fills the reply and returns false. */
bool gw_rdma_receive(struct gw_request *req);
/* Adds the headers that report the transfer by RDMA, after a request has stored an object. */
void gw_rdma_stored(struct gw_request *req);
/* Fills the reply to a request whose window could not be read. `code` is the negative errno. */
void gw_rdma_store_fail(struct gw_request *req, int code);

/* Results of gw_rdma_send. */
enum gw_rdma_sent {
	GW_RDMA_BODY,	/* nothing has moved: the reply needs a body */
	GW_RDMA_MOVED,	/* all bytes are in the window: the reply has no body */
	GW_RDMA_FAILED, /* the reply is filled with an error */
};

/* Writes a range of an object's file into the window of a GET, and adds the headers x-amz-rdma-* to
 * the reply. */
enum gw_rdma_sent gw_rdma_send(struct gw_request *req, int fd, uint64_t at, uint64_t len,
			       bool ranged);
/* Adds the headers x-amz-rdma-* to a reply that has the object in its body, because nothing was
 * moved to the window. `code` is 0 or -EOPNOTSUPP if the token is declined, -ERANGE if the window
 * is too short, else the negative errno of the failed transfer. */
void gw_rdma_decline(struct gw_request *req, int code);

/* ---- objects of another server ---- */

/* Checks the token of a GET. If the gateway can serve it, req->remote becomes the window. On an
 * error, fills the reply and returns false. */
bool gw_rdma_check_read(struct gw_request *req);
/* Returns the length of the window. */
uint64_t gw_rdma_window_length(const struct gw_request *req);
/* Sets the length of the request's body to the length of the window. On an error, fills the reply
 * and returns false. */
bool gw_rdma_length(struct gw_request *req);
/* Moves a piece by RDMA between memory and the client's window, and waits. Returns its length or a
 * negative errno: -EOPNOTSUPP if nothing has moved because the window cannot be reached. */
int64_t gw_rdma_move(struct gw_request *req, enum penstock_op op, uint64_t at, void *bytes,
		     size_t len);
/* Adds the headers that report the transfer by RDMA to the reply to a GET. */
void gw_rdma_sent(struct gw_request *req, uint64_t bytes, bool ranged);

#endif
