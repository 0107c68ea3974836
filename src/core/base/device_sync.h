/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Postpones driver calls that synchronise a whole device. A driver call that frees or unregisters
 * memory, and sometimes one that creates a stream, waits until every stream of the device is idle.
 * Meanwhile the call holds the driver's lock. A stream that waits for a request of this library may
 * take long to become idle. So the library delays its own calls of this kind, where it can, until
 * no stream waits for a request. The application may make such calls at any time; core/lane/stage.h
 * describes how the library copes with them.
 */
#ifndef PST_CORE_DEVICE_SYNC_H
#define PST_CORE_DEVICE_SYNC_H

#include "core/ops.h"

/* Call these before and after a driver call that synchronises the device. pst_device_sync_begin
 * returns true if no stream waits for a request. From then on, no stream starts to wait until
 * pst_device_sync_end is called. It returns false if a stream waits for a request. In that
 * case, call neither the driver nor pst_device_sync_end. */
bool pst_device_sync_begin(struct penstock_device *dev);
void pst_device_sync_end(struct penstock_device *dev);
/* Like pst_device_sync_begin, but waits until no stream waits for a request. Meanwhile it makes
 * threads pause before they submit stream-ordered requests. */
void pst_device_sync_await(struct penstock_device *dev);

/* Call these before and after the time in which a stream of the device waits for a request.
 * pst_device_stream_enter blocks while a synchronising driver call runs. It also blocks, for a
 * limited time, while a thread is in pst_device_sync_await. */
void pst_device_stream_enter(struct penstock_device *dev);
void pst_device_stream_leave(struct penstock_device *dev);

#endif
