/* SPDX-License-Identifier: Apache-2.0 */
/* Implements object_worker.h. A thread starts with the first job of its device, and stays until the
 * process ends. */
#include "storage/object_worker.h"

#include <pthread.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/thread.h"
#include "core/base/fork.h"
#include "s3/crc.h"

struct worker {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct pst_object_job *first, *last;
	bool running;
};

static struct worker workers[PST_DEVICES_MAX]; /* the index is that of the device */

static void workers_init(void)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++) {
		memset(&workers[i], 0, sizeof(workers[i]));
		pthread_mutex_init(&workers[i].lock, NULL);
		pthread_cond_init(&workers[i].more, NULL);
	}
}

/* A forked child has none of the parent's threads. */
__attribute__((constructor)) static void workers_start(void)
{
	workers_init();
	pst_fork_hook(workers_init);
}

static void *worker_run(void *arg)
{
	struct worker *worker = arg;

	for (;;) {
		struct pst_object_job *job;

		pthread_mutex_lock(&worker->lock);
		while (!worker->first)
			pthread_cond_wait(&worker->more, &worker->lock);
		job = worker->first;
		worker->first = job->next;
		pthread_mutex_unlock(&worker->lock);
		job->run(job);
	}
	return NULL;
}

bool pst_object_work(const struct penstock_device *dev, struct pst_object_job *job)
{
	struct worker *worker = &workers[dev->index];
	pthread_t thread;

	job->next = NULL;
	pthread_mutex_lock(&worker->lock);
	if (!worker->running && !pst_thread_start(&thread, worker_run, worker)) {
		pthread_detach(thread);
		worker->running = true;
	}
	if (!worker->running) {
		pthread_mutex_unlock(&worker->lock);
		return false;
	}
	if (worker->first)
		worker->last->next = job;
	else
		worker->first = job;
	worker->last = job;
	pthread_cond_signal(&worker->more);
	pthread_mutex_unlock(&worker->lock);
	return true;
}

/* ---- checksums ---- */

static enum pst_sum_kind sum_kind(enum pst_hash_kind kind)
{
	return kind == PST_HASH_CRC64NVME ? PST_SUM_CRC64NVME : PST_SUM_CRC32C;
}

int pst_object_device_sums(struct penstock_device *dev, enum pst_hash_kind kind,
			   struct pst_err *err)
{
	if (!dev->ops->sum)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "%s cannot compute checksums",
				dev->name);
	return dev->ops->sum(dev, sum_kind(kind), NULL, 0, false, err);
}

int pst_object_device_sum(struct penstock_device *dev, enum pst_hash_kind kind, const void *mem,
			  uint64_t len, bool unless_waiting, uint64_t *crc, struct pst_err *err)
{
	struct pst_sum sum = {.ptr = mem, .len = len, .dev = dev};
	int ret = dev->ops->sum(dev, sum_kind(kind), &sum, 1, unless_waiting, err);

	if (ret)
		return ret;
	/* Adds the initial value and the final exclusive-or. */
	*crc = kind == PST_HASH_CRC64NVME
		       ? sum.raw ^ pst_crc_shift(PST_CRC64NVME, UINT64_MAX, len) ^ UINT64_MAX
		       : pst_crc32c_finish((uint32_t)sum.raw, len);
	return 0;
}
