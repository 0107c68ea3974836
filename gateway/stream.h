/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging of one request that goes to the upstream: a ring of bytes between the connection with
 * the client and the exchange with the upstream. The thread of the connection never blocks: if it
 * has to wait, it suspends the connection, and the exchange resumes it. The ring first has bytes of
 * the request, and then bytes of the reply. The last byte of a request must not leave the ring
 * before the request has passed all checks. Called by http.c, upstream.c and exchange.c.
 */
#ifndef GW_STREAM_H
#define GW_STREAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/text.h"

#define GW_STREAM_RING (192u << 10)
/* Longest body that waits in the ring until it is complete. There has to be room for more, because
 * bytes of the encoding follow the last byte. */
#define GW_STREAM_WHOLE (GW_STREAM_RING - (16u << 10))
#define GW_STREAM_BLOCK (64u << 10) /* bytes that http.c has in memory besides the ring */
/* Memory of one request that counts against the limit. */
#define GW_STREAM_COST (GW_STREAM_RING + GW_STREAM_BLOCK)

enum gw_stream_end { GW_STREAM_MORE, GW_STREAM_COMPLETE, GW_STREAM_BROKEN };

/* Why an exchange has no reply. NO_BODY: the request's body could not be read from the window. */
enum gw_stream_failure {
	GW_STREAM_NONE,
	GW_STREAM_REFUSED,
	GW_STREAM_TIMEOUT,
	GW_STREAM_LOST,
	GW_STREAM_NO_BODY
};

struct gw_stream {
	pthread_mutex_t lock; /* protects all members that follow */
	pthread_cond_t wake;  /* the exchange waits for it */
	unsigned holders;
	char *ring;
	size_t at, len;		/* the bytes in the ring: where they begin, and their number */
	uint64_t want, taken;	/* length of the request's body; bytes that have left the ring */
	bool checked;		/* the whole body is in the ring or has left it, and is right */
	bool discards;		/* the upstream wants no more bytes of the body */
	bool cancelled;		/* the client has gone, or the request is refused */
	bool parked;		/* the connection is suspended */
	bool replied;		/* the members of the reply are valid, or `failure` is */
	enum gw_stream_end end; /* of the reply's body */
	enum gw_stream_failure failure;
	unsigned status;
	bool has_length;
	uint64_t length;
	struct pst_text headers; /* names and values, each with a NUL */
	int fd; /* socket of the exchange, which a cancellation shuts down; or -1 */
	/* Called with the lock held; they do not block. */
	void *connection;
	void (*suspend)(void *connection), (*resume)(void *connection);
	void (*freed)(void *owner); /* called when the memory is free */
	void *owner;
};

/* Opens a stream for a body of `want` bytes, with one holder. Returns NULL without memory. */
struct gw_stream *gw_stream_open(uint64_t want, void (*freed)(void *owner), void *owner);
struct gw_stream *gw_stream_hold(struct gw_stream *stream);
/* Frees the stream with its last holder. NULL is allowed. */
void gw_stream_release(struct gw_stream *stream);

/* Frees a stream that nobody has used; freed() is not called. NULL is allowed. */
void gw_stream_discard(struct gw_stream *stream);

/* ---- for the connection ---- */

void gw_stream_attach(struct gw_stream *stream, void *connection, void (*suspend)(void *),
		      void (*resume)(void *));
/* Returns the number of bytes of the body that fit. If it is 0, the connection is suspended. */
size_t gw_stream_room(struct gw_stream *stream);
/* Appends bytes of the body; at most as many as fit. */
void gw_stream_put(struct gw_stream *stream, const char *bytes, size_t len);
/* Marks the body as complete and checked. */
void gw_stream_check(struct gw_stream *stream);
/* Returns whether the upstream wants no more of the body. */
bool gw_stream_discards(struct gw_stream *stream);
/* Returns whether there is a reply. If not, the connection is suspended. */
bool gw_stream_replied(struct gw_stream *stream);
/* Takes bytes of the reply's body. Returns 0 if the connection is suspended, -EPIPE if the body
 * broke off, and -ENODATA at its end. */
ssize_t gw_stream_take(struct gw_stream *stream, char *bytes, size_t len);
/* Ends the exchange: the socket is shut down, so that the upstream gets no complete body. */
void gw_stream_cancel(struct gw_stream *stream);

/* ---- for the exchange ---- */

/* Sets the socket, or -1. Returns false if the stream is cancelled. */
bool gw_stream_socket(struct gw_stream *stream, int fd);
/* Waits for bytes that may be sent. Returns their number and where they are: 0 if all of the body
 * has left the ring, or -ECANCELED. */
ssize_t gw_stream_next(struct gw_stream *stream, const char **bytes);
void gw_stream_sent(struct gw_stream *stream, size_t len);
/* Drops the rest of the request's body. Then the ring has bytes of the reply only. */
void gw_stream_turn(struct gw_stream *stream);
/* Publishes the reply, whose members the caller has set, or a failure. First does the same as
 * gw_stream_turn. */
void gw_stream_reply(struct gw_stream *stream, enum gw_stream_failure failure);
/* Waits for free memory in the ring. Returns its length and place, or -ECANCELED. */
ssize_t gw_stream_space(struct gw_stream *stream, char **bytes);
void gw_stream_filled(struct gw_stream *stream, size_t len);
void gw_stream_finish(struct gw_stream *stream, enum gw_stream_end end);

#endif
