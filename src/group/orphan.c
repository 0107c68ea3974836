/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads that a store still owes when a rank of the group has failed or gone: the caller is told at
 * once, and a thread waits for them and gives back what they lie in. Called by
 * group_load.c and group_window.c. The memory must not go before the reads have ended, nor
 * the model and the device that they use, whose handles the caller may close meanwhile.
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
	struct penstock_device *memory, *dev; /* the device, and a reference of its own */
	void *ptr;
	size_t len;
	bool mapped; /* else the device's memory */
};

static void orphan_end(struct orphan *o)
{
	penstock_queue_close(o->q); /* waits */
	if (o->mapped)
		munmap(o->ptr, o->len);
	else
		penstock_free(o->memory, o->ptr); /* fails only for what is none of its memory */
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
	/* It is open: this is one more reference. */
	if (penstock_device_open(penstock_device_name(dev), NULL, &here.dev) < 0)
		here.dev = NULL;
	pst_weights_ref(w);
	if (o && here.dev) {
		*o = here;
		if (orphan_start(o))
			return;
	}
	/* Late is better than memory that goes while something is read into it. */
	free(o);
	orphan_end(&here);
}
