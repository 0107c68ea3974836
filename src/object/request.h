/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET and PUT requests with windows, which the library sends itself. It signs the request with the
 * token, judges the response, and moves the bytes as a body if the server has not moved them
 * through the window. Called by client.c. A plane calls it through the public API. In builds
 * without libssl, no_request.c replaces it.
 */
#ifndef PST_OBJECT_REQUEST_H
#define PST_OBJECT_REQUEST_H

#include "object/ends.h"
#include "wire/client.h"

struct pst_object_transfer;

/* The requests in flight of one client. */
struct pst_object_requests {
	pthread_mutex_t lock; /* taken before the lock of io/http.c */
	pthread_cond_t none;  /* signalled when no request is in flight any more */
	struct pst_object_transfer *all;
	unsigned count;
	bool closing;
	struct pst_ends *ends; /* receives the completions */
	const struct pst_wire_devices *devices;
};

/* A window with which requests are made. While a request is in flight, only the first two members
 * change. */
struct pst_object_target {
	struct pst_wire_grant *grant; /* NULL after it has been released */
	/* result of the release; valid when `grant` is NULL */
	int released;
	struct pst_wire_buffer *buffer;
	uint64_t off;		     /* of the window in the buffer */
	struct penstock_device *dev; /* device of the memory; NULL for host memory */
	unsigned char *mem;
	uint64_t len;
	enum penstock_op op;
	/* Called when the request has completed. The application can take its completion only
	 * afterwards. */
	void (*idle)(struct pst_object_target *target);
};

int pst_object_requests_open(struct pst_object_requests *requests, struct pst_ends *ends,
			     const struct pst_wire_devices *devices);
/* Cancels all requests, and waits until they have completed. After this call no request can be
 * started. */
void pst_object_requests_cancel(struct pst_object_requests *requests);
/* Cancels in the same way, and then frees *requests. */
void pst_object_requests_close(struct pst_object_requests *requests);
/* Starts a request. After success, target->idle() is called exactly once. */
int pst_object_request_start(struct pst_object_requests *requests, struct pst_object_target *target,
			     const struct penstock_object_request *request, struct pst_err *err);

#endif
