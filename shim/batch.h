/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of reads and writes. cufile_calls.h declares the batch calls. */
#ifndef SHIM_BATCH_H
#define SHIM_BATCH_H

/* Discards all batches in the child of a fork. Does not free them, because they belong to the
 * parent. */
void shim_batch_forked(void);

#endif
