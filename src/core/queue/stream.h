/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests. Such a request starts when a device stream reaches it, and the stream
 * continues when the request has completed. The stream writes a semaphore, which a lane polls. The
 * stream then waits for a second semaphore, which the thread that completes the request writes. The
 * device's table has functions that allocate the semaphores' memory.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/request/request.h"

/* Queues two operations on the request's stream: the write of the first semaphore, and the wait
 * for the second. After this call the request must complete, or the stream never continues. */
int pst_stream_arm(struct pst_request *req, struct pst_err *err);
/* Fails an armed request if it is cancelled or past its deadline and its stream has not reached
 * it. Any thread that holds the request may call it. */
void pst_stream_abandon(struct pst_request *req);
/* Lets the stream of a completed request continue, and releases the request's semaphores. */
void pst_stream_release(struct pst_request *req);

#endif
