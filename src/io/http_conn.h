/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of a reactor: it sends the request of a call and receives the response. The
 * reactor calls pst_http_conn_run when the socket is ready, and decides what happens with a call
 * whose attempt has ended. Only the reactor's thread uses a connection.
 */
#ifndef PST_IO_HTTP_CONN_H
#define PST_IO_HTTP_CONN_H

#include <sys/socket.h>

#include "io/http.h"
#include "io/tls.h"

/* Maximum number of bytes of the first receive of a response. They are the head, and perhaps the
 * first bytes of the body, which must then be copied. */
#define PST_HTTP_FIRST 4096

enum pst_http_conn_state {
	PST_CONN_CONNECTING,
	PST_CONN_SHAKING,
	PST_CONN_SENDING,
	PST_CONN_HEAD, /* waits for the head of the response, or receives it */
	PST_CONN_BODY, /* receives into the call's memory */
	PST_CONN_TEXT, /* receives the body into the member `text` of the call */
	PST_CONN_IDLE, /* has no call */
};

/* How an attempt ended. */
enum pst_http_end {
	PST_HTTP_RUNNING, /* the attempt has not ended */
	PST_HTTP_DONE,	  /* the response is complete */
	PST_HTTP_AGAIN,	  /* the response is complete, and the call is to be repeated */
	PST_HTTP_BROKEN,  /* the connection broke; call->err says how */
	PST_HTTP_STALE,	  /* the server had closed the idle connection before the request */
	PST_HTTP_REFUSED, /* no connection could be made; call->err says why */
	PST_HTTP_FAILED,  /* the call has failed for good; call->err says why */
};

struct pst_http_conn {
	int fd;
	enum pst_http_conn_state state;
	struct pst_http_endpoint *endpoint;
	struct pst_http_call *call; /* NULL if idle */
	struct pst_http_conn *next; /* next connection in a list of the reactor */
	struct pst_tls *tls;	    /* NULL without TLS */
	/* the server's name, for TLS and for messages; the endpoint owns the string */
	const char *host;
	struct pst_tls_context *tls_context;
	bool reused;		 /* the connection carried a request before */
	bool wants_write;	 /* the reactor must start to wait for a writable socket */
	bool watches_write;	 /* the reactor waits for a writable socket */
	bool usable;		 /* the connection can carry another request */
	bool repeat;		 /* judge() has asked to repeat the call */
	struct pst_text request; /* the request's head */
	uint64_t sent;		 /* bytes of the head and the body that were sent */
	char *buf;		 /* PST_HTTP_HEAD_MAX bytes for the response's head */
	size_t have;
	/* number of body bytes that have not arrived; UINT64_MAX if the body ends with the
	 * connection */
	uint64_t left;
	struct pst_http_chunks chunks;
	/* moved: number of bytes moved so far. mark_moved, mark_ns: value of `moved`, and the time,
	 * at the last check of the speed. */
	uint64_t moved, mark_moved, mark_ns;
	/* The last time at which the connection got a call, had sent a whole request or became
	 * idle. The time limits for connecting, for the wait for a response's head and for an idle
	 * connection begin at this time. */
	uint64_t began_ns;
	/* number of body bytes that were copied; the reactor adds them to its counters */
	uint64_t copied;
};

/* Opens a non-blocking socket and begins to connect it. Returns 0 or -errno. */
int pst_http_conn_open(struct pst_http_conn *conn, const struct sockaddr *address,
		       socklen_t address_len);
void pst_http_conn_close(struct pst_http_conn *conn);
/* Returns true if a connection without a call has ended, or has received bytes that no call
 * expects. Such a connection cannot carry another request. */
bool pst_http_conn_has_surplus(const struct pst_http_conn *conn);
/* Gives a call to a connection that is idle or connecting. */
void pst_http_conn_give(struct pst_http_conn *conn, struct pst_http_call *call, uint64_t now_ns);
/* Continues the call after the socket has become ready. */
enum pst_http_end pst_http_conn_run(struct pst_http_conn *conn, uint64_t now_ns);
/* Checks the time limits and the speed. Returns PST_HTTP_BROKEN or PST_HTTP_REFUSED if the
 * connection exceeds a time limit or is too slow. */
enum pst_http_end pst_http_conn_check(struct pst_http_conn *conn, uint64_t now_ns);

#endif
