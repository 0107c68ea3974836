/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for calls of a device that block, one for each device. The lanes must not make such
 * calls, because requests in stream order may need them, and neither must the reactors. Called by
 * object.c and object_upload.c.
 */
#ifndef PST_STORAGE_OBJECT_WORKER_H
#define PST_STORAGE_OBJECT_WORKER_H

#include "core/ops.h"
#include "s3/hash.h"

struct pst_object_job {
	void (*run)(struct pst_object_job *job); /* may free the job */
	struct pst_object_job *next;		 /* used by the thread */
};

/* Runs a job on the thread of the device, after the jobs that it has got before. Returns false if
 * no thread can be started: the caller must then run the job. The device must stay open until the
 * job has ended. */
bool pst_object_work(const struct penstock_device *dev, struct pst_object_job *job);

/* Prepares pst_object_device_sum for this kind of CRC: returns 0, or -errno if the device cannot
 * compute it. May block. */
int pst_object_device_sums(struct penstock_device *dev, enum pst_hash_kind kind,
			   struct pst_err *err);
/* Lets the device compute the checksum of bytes of its memory. Blocks. With `unless_waiting`,
 * returns -EAGAIN if a stream waits for a request. */
int pst_object_device_sum(struct penstock_device *dev, enum pst_hash_kind kind, const void *mem,
			  uint64_t len, bool unless_waiting, uint64_t *crc, struct pst_err *err);

#endif
