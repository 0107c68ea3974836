/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring buffer of one request that goes to the upstream (the S3 server behind this gateway). It
 * is between the connection with the client and the exchange with the upstream. The thread of the
 * connection never blocks: if it has to wait, it suspends the connection, and the exchange resumes
 * it. The ring first has bytes of the request, and then bytes of the reply. The last byte of a
 * request must not leave the ring before the request has passed all checks. Called by http.c,
 * upstream.c and exchange.c.
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
/* Maximum length in bytes of a body that stays in the ring until it is complete. It is less than
 * the length of the ring. So the connection can still receive the last bytes of the encoding, which
 * follow the body. */
#define GW_STREAM_WHOLE (GW_STREAM_RING - (16u << 10))
/* Maximum number of a body's bytes that are in memory besides the ring. libmicrohttpd holds them,
 * or a copy of the body's end that http.c has made. */
#define GW_STREAM_BLOCK (64u << 10)
/* Memory of one request, in bytes, that counts against the limit --buffer-memory. */
#define GW_STREAM_COST (GW_STREAM_RING + GW_STREAM_BLOCK)

enum gw_stream_end { GW_STREAM_MORE, GW_STREAM_COMPLETE, GW_STREAM_BROKEN };

/* Why an exchange has no reply. NO_BODY means that the request's body could not be read from the
 * client's window. */
enum gw_stream_failure {
	GW_STREAM_NONE,
	GW_STREAM_REFUSED,
	GW_STREAM_TIMEOUT,
	GW_STREAM_LOST,
	GW_STREAM_NO_BODY
};

struct gw_stream {
	pthread_mutex_t lock; /* protects all members that follow */
	/* signalled for the exchange, which waits for bytes, space or a cancellation */
	pthread_cond_t wake;
	unsigned holders;
	char *ring;
	size_t at, len; /* the bytes in the ring: where they begin, and their number */
	/* length of the request's body; number of its bytes that have left the ring */
	uint64_t want, taken;
	/* the request's body is complete and has passed all checks */
	bool checked;
	/* the upstream has replied and takes no more bytes of the body */
	bool discards;
	bool cancelled; /* the client has gone, or the request is refused */
	bool parked;	/* the connection of the client is suspended */
	bool replied;	/* the members of the reply, or `failure`, are set */
	/* whether the reply's body goes on, is complete or has broken off */
	enum gw_stream_end end;
	enum gw_stream_failure failure;
	unsigned status;
	bool has_length;
	uint64_t length;
	struct pst_text headers; /* each header is a name, a NUL, a value and a NUL */
	int fd;			 /* socket of the exchange, or -1; a cancellation shuts it down */
	/* The connection of the client, and functions that suspend and resume it. They are called
	 * with the lock held and do not block. */
	void *connection;
	void (*suspend)(void *connection), (*resume)(void *connection);
	/* called when the last holder has released the stream */
	void (*freed)(void *owner);
	void *owner;
};

/* Opens a stream for a request's body of `want` bytes. The caller is its only holder. Returns NULL
 * if there is no memory. */
struct gw_stream *gw_stream_open(uint64_t want, void (*freed)(void *owner), void *owner);
struct gw_stream *gw_stream_hold(struct gw_stream *stream);
/* Releases one holder's use of the stream. The last release frees it. NULL is allowed. */
void gw_stream_release(struct gw_stream *stream);

/* Frees a stream that has not been used; freed() is not called. NULL is allowed. */
void gw_stream_discard(struct gw_stream *stream);

/* ---- for the connection ---- */

void gw_stream_attach(struct gw_stream *stream, void *connection, void (*suspend)(void *),
		      void (*resume)(void *));
/* Returns how many bytes of the request's body fit into the ring. If this is 0, suspends the
 * connection. */
size_t gw_stream_room(struct gw_stream *stream);
/* Returns the same number, and does not suspend the connection. */
size_t gw_stream_room_now(struct gw_stream *stream);
/* Appends bytes of the request's body. They must fit. */
void gw_stream_put(struct gw_stream *stream, const char *bytes, size_t len);
/* Marks the request's body as complete and checked, so that its last byte may leave the ring. */
void gw_stream_check(struct gw_stream *stream);
/* Returns whether the upstream takes no more bytes of the request's body. */
bool gw_stream_discards(struct gw_stream *stream);
/* Returns whether there is a reply. If not, the connection is suspended. */
bool gw_stream_replied(struct gw_stream *stream);
/* Takes bytes of the reply's body out of the ring. Returns their number. Returns 0 if it has
 * suspended the connection because the ring is empty, -EPIPE if the body broke off, and -ENODATA at
 * its end. */
ssize_t gw_stream_take(struct gw_stream *stream, char *bytes, size_t len);
/* Cancels the exchange. Shuts its socket down, so that the upstream never gets a complete body. */
void gw_stream_cancel(struct gw_stream *stream);

/* ---- for the exchange ---- */

/* Sets the socket of the exchange; -1 for none. Returns false if the stream is cancelled. */
bool gw_stream_socket(struct gw_stream *stream, int fd);
/* Waits for bytes of the request's body that may be sent to the upstream. Stores their address and
 * returns their number. Returns 0 if all of the body has left the ring, or -ECANCELED. */
ssize_t gw_stream_next(struct gw_stream *stream, const char **bytes);
void gw_stream_sent(struct gw_stream *stream, size_t len);
/* Drops the rest of the request's body. From then on, the ring contains only bytes of the reply. */
void gw_stream_turn(struct gw_stream *stream);
/* Publishes the reply, whose members the caller has set, or a failure. Also drops the rest of the
 * request's body, as gw_stream_turn does. */
void gw_stream_reply(struct gw_stream *stream, enum gw_stream_failure failure);
/* Waits until the ring has free memory. Stores its address and returns its length, or returns
 * -ECANCELED. */
ssize_t gw_stream_space(struct gw_stream *stream, char **bytes);
void gw_stream_filled(struct gw_stream *stream, size_t len);
void gw_stream_finish(struct gw_stream *stream, enum gw_stream_end end);

#endif
