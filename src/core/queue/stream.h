/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order: a request that starts when a device stream reaches it, and lets the stream
 * continue when it has completed. Before the request the stream writes a semaphore that a lane
 * polls. After it the stream waits for a semaphore that the lane writes. Both are in memory of
 * the device's choosing.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/request/request.h"

/* Queues the write and the wait on the request's stream. Afterwards the request must complete,
 * or the stream never continues. */
int pst_stream_arm(struct pst_request *req, struct pst_err *err);
/* Abandons an armed request that is cancelled or too late and whose stream has not arrived. Any
 * thread that holds it. */
void pst_stream_abandon(struct pst_request *req);
/* Lets the stream of a completed request continue, and releases its semaphores. */
void pst_stream_release(struct pst_request *req);

#endif
