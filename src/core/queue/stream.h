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
 * Submitting takes three calls. pst_stream_arm prepares the request and makes its stage (pinned
 * memory). pst_stream_fill takes a reference to the request (PST_HOLD). If the request is a short
 * read of cached bytes, and may start at once, it also reads them into the stage, on a borrowed
 * lane. It may start at once if it has the flag PENSTOCK_R_EARLY, or if the stream has reached it.
 * The caller then passes the request to a lane (worker thread), which polls the stage.
 * pst_stream_queue queues the operations on the stream, and drops the reference. If it fails, the
 * request ends without a completion.
 *
 * The lane must poll the stage before pst_stream_queue, for this reason: as soon as the stream
 * waits, another thread may hold the driver's lock until the stream is idle. Then pst_stream_queue
 * can queue nothing more until the lane has moved the bytes for the operations that are queued. A
 * stream never waits for a request whose bytes pst_stream_fill has read.
 *
 * If the stream is being captured into a CUDA graph, pst_stream_arm captures the request
 * (queue/captured.h). After that, the caller's request has no stage and no bytes. The caller then
 * dispatches it, which completes it, and calls neither pst_stream_fill nor pst_stream_queue.
 */
int pst_stream_arm(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err);
void pst_stream_fill(struct pst_request *req, struct pst_stream_seq *seq);
int pst_stream_queue(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err);

#endif
