/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a GPU before its first transfer. */
#ifndef SHIM_PREPARE_H
#define SHIM_PREPARE_H

/* Starts the library's threads for a GPU, and waits until they have loaded their kernels. Does
 * nothing if the GPU is already prepared, if `ordinal` is negative, if `stream` has unfinished
 * work, or if `stream` is being captured. If `stream` is NULL, it is the default stream of the
 * thread's current context. If the GPU cannot be prepared, logs the reason once. The caller holds
 * no lock. */
void shim_prepare(int ordinal, void *stream);

#endif
