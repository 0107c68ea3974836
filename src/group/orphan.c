/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits, on a thread of its own, for reads that are still in flight after a rank has failed or
 * is lost; the caller has had its error by then. Called by window.c. The memory must not be
 * freed before the reads have completed, nor may the model and the device go, whose handles the
 * caller may close meanwhile: the thread holds references to them.
 */
#include "group/orphan.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/thread.h"
#include "weights/open.h"

struct orphan {
	struct penstock_queue *q;
	struct penstock_weights *w;
	struct penstock_device *memory, *dev; /* The caller's handle, and a reference of this
					       * thread's. */
	void *ptr;
	size_t len;
	bool mapped; /* Host memory; else device memory. */
};

static void orphan_end(struct orphan *o)
{
	penstock_queue_close(o->q); /* Waits for the reads. */
	if (o->mapped)
		munmap(o->ptr, o->len);
	else
		penstock_free(o->memory, o->ptr); /* Fails only for an address that is not its
						   * memory. */
	penstock_weights_close(o->w);
	penstock_device_close(o->dev);
}

static void *orphan_main(void *arg)
{
	orphan_end(arg);
	free(arg);
	return NULL;
}

static bool orphan_start(struct orphan *o)
{
	pthread_t thread;

	return !pst_thread_start(&thread, orphan_main, o) && !pthread_detach(thread);
}

void pst_orphan_adopt(struct penstock_queue *q, struct penstock_weights *w,
		      struct penstock_device *dev, void *ptr, size_t len, bool mapped)
{
	struct orphan here, *o = malloc(sizeof(*o));

	here = (struct orphan){
		.q = q, .w = w, .memory = dev, .ptr = ptr, .len = len, .mapped = mapped};
	/* The device is open already: this adds a reference. */
	if (penstock_device_open(penstock_device_name(dev), NULL, &here.dev) < 0)
		here.dev = NULL;
	pst_weights_ref(w);
	if (o && here.dev) {
		*o = here;
		if (orphan_start(o))
			return;
	}
	/* Without a thread or a reference the caller waits: that is better than memory that is
	 * freed while a read writes to it. */
	free(o);
	orphan_end(&here);
}
