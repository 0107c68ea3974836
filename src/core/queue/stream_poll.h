/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lanes' part of stream-ordered requests. After submit, a lane (worker thread) polls the stage
 * of each request. It starts the request when the CUDA stream has reached it, and fails the request
 * if it is cancelled or late, or if the device is broken. It drops the request when the stream has
 * passed it. It drops a request that has failed before that, but keeps the stage until its memory
 * is cleared.
 */
#ifndef PST_CORE_STREAM_POLL_H
#define PST_CORE_STREAM_POLL_H

#include "core/lane/pump.h"
#include "core/request/request.h"

/* The functions with which the lanes of a device poll stages. */
extern const struct pst_stream_hooks pst_stream_poll_hooks;

/* Fails a request that waits for its stream (phase ARMED), before any lane has started a byte of
 * it. Returns false if another thread has started or failed it already. Any thread that has a
 * reference to the request may call this function and the next one. */
bool pst_stream_fail_armed(struct pst_request *req, const struct pst_err *err);
/* Fails a request that waits for its stream if it is cancelled or past its deadline. */
void pst_stream_abandon(struct pst_request *req);

#endif
