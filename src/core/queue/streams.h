/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of one device: the pump and the stages of its stream-ordered requests. The first such
 * request of the device makes them. stream.c takes a stage for each request and returns it when the
 * stream has passed the request. The stages use pinned memory that grows on demand.
 */
#ifndef PST_CORE_STREAMS_H
#define PST_CORE_STREAMS_H

#include <pthread.h>

#include "core/lane/pump.h"
#include "core/lane/ring.h"
#include "core/lane/stage.h"

/* Stages' memory is allocated in units of this many bytes. */
#define PST_STAGE_UNIT ((size_t)4096)
/* Most places of a stage, so that two pieces and the kernel's lists fit in a block. */
#define PST_STAGE_PLACES_MAX ((uint64_t)1 << 30)
/* Most copies in the kernel's lists. With two pieces they fit in a block, too. */
#define PST_STAGE_COPIES_MAX 300000u
#define PST_STAGE_BLOCKS_MAX 8u
#define PST_STREAMS_REMEMBERED 64u
#define PST_STAGES_MAX 1024u /* number of stream-ordered requests of one device in flight */
/* Most stages that captured requests hold. They hold at most half of the memory, too, so that
 * other requests always find a stage after a while. */
#define PST_STAGES_CAPTURED_MAX (PST_STAGES_MAX / 2)

struct pst_stage_block;

struct pst_streams {
	struct penstock_device *gpu, *host;
	const struct pst_pump *gpu_pump;
	struct pst_pump *pump;
	struct pst_ring words; /* the words of all stages */
	struct pst_stage *stages;
	/* Guards the members below. Lanes take it, so a thread that holds it takes no other lock
	 * and makes no driver call. */
	pthread_mutex_t lock;
	pthread_mutex_t grow_lock; /* held while a block is added; taken before `lock` */
	struct pst_stage *free;
	/* Stages that have no request any more, and that their streams have yet to pass. */
	struct pst_stage *owed;
	struct pst_stage_block *blocks[PST_STAGE_BLOCKS_MAX];
	unsigned block_count;
	size_t units_used; /* number of units of all stages */
	/* Number of units, and of stages, of captured requests. */
	size_t units_captured;
	unsigned stages_captured;
	/* For some streams, the last request whose copies were queued at submit. */
	struct pst_last_copies {
		void *stream;
		const struct pst_stage *stage;
		uint64_t turn; /* the stage's `turn` at that time */
	} last_copies[PST_STREAMS_REMEMBERED];
};

/* The shape of the stage that a request needs. */
struct pst_stage_shape {
	/* number of places, or an upper bound if an offset is late (penstock_late) */
	uint64_t places;
	uint64_t block;	 /* length of the storage's blocks */
	unsigned copies; /* number of copies, or an upper bound */
	bool by_kernel;
	bool empty; /* no byte passes through the stage */
	bool captured;
};

/* Makes the streams of the pump's device, unless they exist. */
int pst_streams_open(struct pst_pump *pump, const struct pst_stream_hooks *hooks,
		     struct pst_err *err);
/* Stops the plain pump and frees all memory. Waits until the device's streams have passed all
 * requests. */
void pst_streams_close(struct pst_streams *streams);

/* Sets the length and number of the stage's pieces. If `small` is true, the stage gets as little
 * memory as possible. */
void pst_stage_cut(struct pst_stage *stage, const struct pst_stage_shape *shape, bool small);
/* Takes a free stage and prepares it for the request. If none is free, returns -EAGAIN, but -ENOMEM
 * for a captured request, because it may take long until a stage becomes free. */
int pst_stage_get(struct pst_streams *streams, struct pst_request *req,
		  const struct pst_stage_shape *shape, struct pst_stage **out, struct pst_err *err);
/* Takes back the stage of a request that has completed. Lanes call it. */
void pst_stage_put(struct pst_streams *streams, struct pst_stage *stage);

/* Records the stage of the stream's latest request whose copies were queued at submit. */
void pst_streams_remember(struct pst_streams *streams, void *stream, const struct pst_stage *stage);
/* Returns whether the stream still executes copies that were queued at the submit of an earlier
 * request. */
bool pst_streams_copy(struct pst_streams *streams, const void *stream);

#endif
