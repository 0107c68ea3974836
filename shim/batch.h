/* SPDX-License-Identifier: Apache-2.0 */
/* Batches; their calls are in cufile_calls.h. */
#ifndef SHIM_BATCH_H
#define SHIM_BATCH_H

/* Forgets all batches in the child of a fork; they belong to the parent. */
void shim_batch_forked(void);

#endif
