/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GETs and PUTs with windows, which the library sends itself: signs the request with the token,
 * judges the response, and moves the bytes as a body if the server has not moved them through the
 * window. Called by client.c; a plane reaches it through the public API. In builds without libssl,
 * no_request.c takes its place.
 */
#ifndef PST_OBJECT_REQUEST_H
#define PST_OBJECT_REQUEST_H

#include "object/ends.h"
#include "wire/client.h"

struct pst_object_transfer;

/* The requests of a client that are in flight. */
struct pst_object_requests {
	pthread_mutex_t lock; /* taken before the lock of io/http.c */
	pthread_cond_t none;  /* signalled when `count` becomes 0 */
	struct pst_object_transfer *all;
	unsigned count;
	bool closing;
	struct pst_ends *ends; /* receives the completions */
	const struct pst_wire_devices *devices;
};

/* A window of a request. All members but the first two are constant while a request is in flight.
 */
struct pst_object_target {
	struct pst_wire_grant *grant; /* NULL after it has been released */
	int released;		      /* result of the release, if grant is NULL */
	struct pst_wire_buffer *buffer;
	uint64_t off;		     /* of the window in the buffer */
	struct penstock_device *dev; /* NULL: host memory */
	unsigned char *mem;
	uint64_t len;
	enum penstock_op op;
	/* Called when the request has completed, before its completion can be taken. */
	void (*idle)(struct pst_object_target *target);
};

int pst_object_requests_open(struct pst_object_requests *requests, struct pst_ends *ends,
			     const struct pst_wire_devices *devices);
/* Cancels the requests, and waits until all have completed. No further request can be started. */
void pst_object_requests_cancel(struct pst_object_requests *requests);
/* Does the same, and frees what the requests share. */
void pst_object_requests_close(struct pst_object_requests *requests);
/* Starts a request. After success, target->idle() is called once. */
int pst_object_request_start(struct pst_object_requests *requests, struct pst_object_target *target,
			     const struct penstock_object_request *request, struct pst_err *err);

#endif
