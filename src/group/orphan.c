/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits, on a separate thread, for reads that are still in flight after a group's load has failed.
 * The load has already returned its error to the caller. The memory must not be freed before these
 * reads have completed. The caller may close its handles of the model and the device meanwhile, so
 * the thread holds references to both. Called by window.c.
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
	/* `memory` is the caller's handle of the device; `dev` is this thread's own reference to
	 * the same device. */
	struct penstock_device *memory, *dev;
	void *ptr;
	size_t len;
	bool mapped; /* Whether `ptr` is mapped host memory; if not, it is device memory. */
};

static void orphan_end(struct orphan *o)
{
	/* penstock_queue_close waits for the reads that are in flight. */
	penstock_queue_close(o->q);
	if (o->mapped)
		munmap(o->ptr, o->len);
	else
		/* penstock_free fails only for an address that penstock_alloc did not return;
		 * penstock_alloc returned `ptr`. */
		penstock_free(o->memory, o->ptr);
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
	/* The device is already open, so this call only adds a reference. */
	if (penstock_device_open(penstock_device_name(dev), NULL, &here.dev) < 0)
		here.dev = NULL;
	pst_weights_ref(w);
	if (o && here.dev) {
		*o = here;
		if (orphan_start(o))
			return;
	}
	/* No thread could be started, or no reference could be taken. So the caller itself waits
	 * for the reads: to free the memory while a read writes to it would be worse. */
	free(o);
	orphan_end(&here);
}
