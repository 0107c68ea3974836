/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP requests (GET and PUT) that the library sends for a window, which is memory that a server
 * may access. The code signs the request with the window's token and judges the response. If the
 * server has not moved the bytes through the window, they move as an HTTP body. client.c calls
 * these functions; a plane uses them through the public API. In builds without libssl, no_request.c
 * replaces request.c.
 */
#ifndef PST_OBJECT_REQUEST_H
#define PST_OBJECT_REQUEST_H

#include "object/ends.h"
#include "wire/client.h"

struct pst_object_transfer;

/* The requests in flight of one client. */
struct pst_object_requests {
	/* lock order: a thread that needs this lock and the lock of io/http.c takes this one
	 * first */
	pthread_mutex_t lock;
	pthread_cond_t none; /* signalled when no request is in flight any more */
	struct pst_object_transfer *all;
	unsigned count;
	bool closing;
	struct pst_ends *ends; /* receives the completions, for the application */
	const struct pst_wire_devices *devices;
};

/* A window that HTTP requests use. While a request is in flight, only the first two members
 * change. */
struct pst_object_target {
	/* the server's access to the window; NULL after its release */
	struct pst_wire_grant *grant;
	/* result of the release; valid when `grant` is NULL */
	int released;
	struct pst_wire_buffer *buffer;
	uint64_t off;		     /* offset of the window in the buffer */
	struct penstock_device *dev; /* device of the memory; NULL for host memory */
	unsigned char *mem;
	uint64_t len;
	enum penstock_op op;
	/* request.c calls this function when the request has completed. Only afterwards can the
	 * application take the completion. */
	void (*idle)(struct pst_object_target *target);
};

int pst_object_requests_open(struct pst_object_requests *requests, struct pst_ends *ends,
			     const struct pst_wire_devices *devices);
/* Cancels all requests, and waits until they have completed. After this call no request can be
 * started. */
void pst_object_requests_cancel(struct pst_object_requests *requests);
/* Cancels all requests like pst_object_requests_cancel, and then frees the members of *requests. */
void pst_object_requests_close(struct pst_object_requests *requests);
/* Starts a request. After success, target->idle() is called exactly once. */
int pst_object_request_start(struct pst_object_requests *requests, struct pst_object_target *target,
			     const struct penstock_object_request *request, struct pst_err *err);

#endif
