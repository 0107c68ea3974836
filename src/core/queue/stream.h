/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests. Such a request starts when a device stream reaches it, and later work on
 * the stream waits until the request has completed. Everything that the device has to do for the
 * request is queued on the stream at submit (lane/stage.h). After that, no thread of the library
 * calls the driver for it. The requests run on a pump of their own, whose lanes never call the
 * driver.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/request/request.h"

/* Makes the request's stage and queues its operations on the request's stream. After this call the
 * request must complete, or the stream never continues. */
int pst_stream_arm(struct pst_request *req, struct pst_err *err);
/* Fails an armed request if it is cancelled or past its deadline and its stream has not reached
 * it. Any thread that holds the request may call it. */
void pst_stream_abandon(struct pst_request *req);

#endif
