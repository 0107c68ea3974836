/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests. Such a request starts when a CUDA stream reaches it, and later work on
 * the stream waits until the request has completed. At submit, all operations of the device for the
 * request are queued on the stream (lane/stage.h). After that, no thread of the library calls the
 * driver for it. The requests run on worker threads of their own, which never call the driver.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/request/request.h"

/*
 * Submitting takes two calls. pst_stream_arm prepares the request and makes its stage (pinned
 * memory). The caller then passes the request to a lane (worker thread), which polls the stage.
 * pst_stream_queue queues the operations on the stream. The lane must poll the stage before that,
 * for this reason: as soon as the stream waits, another thread may hold the driver's lock until the
 * stream is idle. Then pst_stream_queue can queue nothing more until the lane has moved the bytes
 * for the operations that are queued. The caller has a reference to the request during
 * pst_stream_queue. If this call fails, the request ends without a completion.
 *
 * If the stream is being captured into a CUDA graph, pst_stream_arm captures the request
 * (queue/captured.h). After that, the caller's request has no stage and no bytes. The caller then
 * dispatches it, which completes it, and does not call pst_stream_queue.
 */
int pst_stream_arm(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err);
int pst_stream_queue(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err);
/* Fails a request that waits for its stream (phase ARMED) if it is cancelled or past its deadline.
 * Any thread that has a reference to the request may call it. */
void pst_stream_abandon(struct pst_request *req);

#endif
