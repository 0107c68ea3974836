/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered transfers. cufile_calls.h declares the cuFile calls that start them. */
#ifndef SHIM_ASYNC_H
#define SHIM_ASYNC_H

/* Collects all stream requests at the last close of the driver. Returns a code if a stream has
 * not reached its transfer after a short wait. The caller holds shim.lock. */
int shim_async_close(void);
/* Removes the registrations of all streams. */
void shim_streams_drop(void);
/* Discards all requests and stream registrations in the child of a fork. Does not free them,
 * because they belong to the parent. */
void shim_async_forked(void);

#endif
