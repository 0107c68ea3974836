/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests. Such a request starts when a device stream reaches it, and the stream
 * continues when the request has completed. The stream writes a semaphore, which a lane polls,
 * and then waits for a second semaphore, which the completing thread writes. The device's table
 * allocates their memory.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/request/request.h"

/* Queues the semaphore write and the semaphore wait on the request's stream. Afterwards the request
 * must complete, or the stream never continues. */
int pst_stream_arm(struct pst_request *req, struct pst_err *err);
/* Fails an armed request that is cancelled or past its deadline, if its stream has not reached it.
 * Any thread that holds the request. */
void pst_stream_abandon(struct pst_request *req);
/* Lets the stream of a completed request continue, and releases its semaphores. */
void pst_stream_release(struct pst_request *req);

#endif
