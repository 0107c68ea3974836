/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order: a request that starts when a device stream reaches it, and lets the
 * stream go on when it has ended. In front the stream writes a word that a lane
 * looks at; behind, the stream waits for a word that the lane writes. The words are
 * pairs in memory of the device's choosing.
 */
#ifndef PST_CORE_STREAM_H
#define PST_CORE_STREAM_H

#include "core/lane/pump.h"

/* Queues front and behind on the request's stream. After it, the request must end,
 * or the stream never goes on. */
int pst_stream_arm(struct pst_request *req, struct pst_err *err);
/* Gives an armed request to a lane to watch. */
void pst_stream_enqueue(struct pst_request *req);
/* The lane's turn: requests whose stream has come begin; true if any did. */
bool pst_stream_poll(struct pst_lane *lane);
/* Ends it if its stream has not come: it was cancelled, or is too late. Any thread. */
void pst_stream_abandon(struct pst_request *req);
/* The request has ended: lets the stream go on and gives the words back. */
void pst_stream_release(struct pst_request *req);
/* Some calls wait until all streams of the device are idle, and nobody copies meanwhile: to
 * free memory or unregister it, to make a stream now and then. A stream that waits for a
 * request of ours would never be. Such a call stands between these two, and only after a
 * true: no stream waits, and none begins to. */
bool pst_device_sync_begin(struct penstock_device *dev);
void pst_device_sync_end(struct penstock_device *dev);
/* The same, as soon as no stream waits; those that are about to hold back for a while. */
void pst_device_sync_await(struct penstock_device *dev);
/* In the child of a fork. */
void pst_streams_forked(void);
void pst_stream_close(struct pst_pump *pump);

#endif
