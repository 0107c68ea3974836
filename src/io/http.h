/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 requests to object stores. A few threads, the reactors, own connections that stay open
 * between requests. A body is received straight into the caller's memory: only body bytes that
 * arrive together with the head are copied, at most 4 KiB of a response. Called by the storage of
 * objects and by the gateway.
 *
 * Everything is bounded: connections, heads, bodies of errors, retries and times. Each endpoint has
 * a limit of requests in flight, which is adapted to the measured speed (http_limit.h). A second
 * limit, PST_HTTP_INFLIGHT_MAX, holds for all endpoints together. The reactors share both limits.
 * Requests beyond a limit wait in a list of their endpoint.
 *
 * A failed attempt is repeated after a random time that doubles with each attempt. Meanwhile other
 * requests may start, unless the server asked for fewer. If a body was cut off, the next attempt
 * requests the rest: write_head() reads in `got` how many bytes have arrived.
 */
#ifndef PST_IO_HTTP_H
#define PST_IO_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/text.h"
#include "core/base/err.h"
#include "io/http_head.h"

#define PST_HTTP_TEXT_MAX (64u << 10) /* stored bytes of a text body, at most */
#define PST_HTTP_TRIES_MAX 8	      /* attempts in a row without a byte of progress */
#define PST_HTTP_REACTORS_MAX 32

struct pst_http_call;
struct pst_http_endpoint;
struct pst_http_conn;

/* Decision of pst_http_ops.judge about a response. */
enum pst_http_verdict {
	PST_HTTP_BODY,	/* receive the body into the call's memory */
	PST_HTTP_TEXT,	/* receive it into the call's text, then end the call with result 0 */
	PST_HTTP_RETRY, /* receive it into the call's text, then repeat the call */
	PST_HTTP_FAIL,	/* end the call; judge() has filled call->err */
};

struct pst_http_ops {
	/* Appends the request line, the headers and the empty line. It is called for each attempt,
	 * because the signature of a request expires. */
	void (*write_head)(struct pst_http_call *call, struct pst_text *out);
	/* Judges call->head. */
	enum pst_http_verdict (*judge)(struct pst_http_call *call);
	/* Called once, after which the call's owner may free it. */
	void (*done)(struct pst_http_call *call);
};

/* One request, with its repetitions. The owner keeps the struct, and the memory that its members
 * point to, until done() is called. All functions of `ops` are called on a reactor's thread. */
struct pst_http_call {
	/* set by the owner */
	const struct pst_http_ops *ops;
	struct pst_http_endpoint *endpoint;
	bool no_body; /* a response has no body, as after HEAD */
	/* maximum number of bytes of a text body that are kept; 0 for PST_HTTP_TEXT_MAX */
	size_t text_max;
	const void *out; /* body of the request */
	uint64_t out_len;
	/* Number of body bytes that the server moves by RDMA, not over this connection.
	 * http_limit.c counts them when it measures the speed. judge() may set it to 0. */
	uint64_t beside;
	struct iovec *in; /* memory for the body of the response */
	unsigned in_count;
	uint64_t in_len;
	/* In seconds; 0 for the default. patience_s: maximum wait for the head of a response.
	 * slow_s: a connection that moves fewer than PST_HTTP_SLOW bytes a second for this time is
	 * replaced. */
	unsigned patience_s, slow_s;
	/* results */
	int result; /* 0 or -errno */
	/* Reason if the result is negative. If the call was cancelled while it was repeated, the
	 * text is about an earlier attempt. */
	struct pst_err err;
	/* Bytes of the response's body that have arrived in `in`. The owner sets it to 0, or to the
	 * number of bytes that it has already, which the server shall not send. */
	uint64_t got;
	/* head of the last response; its status is 0 if there was no response */
	struct pst_http_head head;
	/* text body of the last response that had one; the owner frees text.at */
	struct pst_text text;
	unsigned attempts; /* number of attempts, including the first */
	/* Number of failed attempts since the last progress. The owner sets it, together with
	 * `slowed` and head.retry_after_s, before pst_http_start_later. */
	unsigned tries;
	/* the server has asked for fewer requests, with an answer that judge() has not taken for a
	 * temporary error */
	bool slowed;
	/* used by http.c and the reactors */
	unsigned address;	  /* index of the address that this attempt uses */
	unsigned addresses_tried; /* addresses that failed in a row */
	int place;		  /* list that the call is on; guarded by http.c's lock */
	unsigned reactor;
	_Atomic bool cancelled;
	/* the call waits for its next attempt, and counts as in flight meanwhile, so that no other
	 * call takes its place */
	bool keeps_slot;
	uint64_t delay_ns;   /* last delay before an attempt */
	uint64_t due_ns;     /* time of the next attempt */
	uint64_t got_first;  /* value of `got` when the call began */
	uint64_t got_before; /* value of `got` when the attempt began */
	struct pst_http_call *next;
};

/* Lowest speed of a connection, in bytes per second. A slower one is replaced. */
#define PST_HTTP_SLOW (16u << 10)

/* Starts a call. Returns 0 or -errno. If it returns -errno, done() will not be called. Any thread
 * may call pst_http_start, which takes a lock for a short time. */
int pst_http_start(struct pst_http_call *call, struct pst_err *err);
/* Like pst_http_start, but after the delay that follows a temporary error. The owner of a call uses
 * it to repeat a call that has ended with such an error. `tries` is at least 1. */
int pst_http_start_later(struct pst_http_call *call, struct pst_err *err);
/*
 * Cancels a call whose done() has not been called. Returns true if the call had not started: it has
 * then ended with -ECANCELED, and done() is not called. Returns false if a reactor has the call:
 * the reactor ends it soon, perhaps with another result, and calls done(). After the end no thread
 * touches the call's memory. Never blocks.
 */
bool pst_http_cancel(struct pst_http_call *call);

/* Counters of this process since its start, for tests and benchmarks. */
struct pst_http_counts {
	uint64_t connections, requests, retries, body_bytes, copied_bytes;
};
void pst_http_get_counts(struct pst_http_counts *out);

#endif
