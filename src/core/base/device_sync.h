/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls that synchronise a whole device. Freeing or unregistering memory, and at times
 * creating a stream, waits until every stream of the device is idle, and no copy of the
 * process runs meanwhile. A stream that waits for one of our requests never gets idle, so
 * such a call must not overlap with a waiting stream.
 */
#ifndef PST_CORE_DEVICE_SYNC_H
#define PST_CORE_DEVICE_SYNC_H

#include "core/ops.h"

/* Brackets such a call. True: no stream waits for a request of ours, and none starts to
 * until the matching end. False: a stream waits; do not make the call, do not call end. */
bool pst_device_sync_begin(struct penstock_device *dev);
void pst_device_sync_end(struct penstock_device *dev);
/* Waits until begin succeeds. Stream-ordered submits hold back for a while meanwhile. */
void pst_device_sync_await(struct penstock_device *dev);

/* The other side: brackets the time in which a stream of the device waits for a request.
 * Enter blocks while such a call runs, and at first also where one is waiting to run. */
void pst_device_stream_enter(struct penstock_device *dev);
void pst_device_stream_leave(struct penstock_device *dev);

#endif
