/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resources of one device for stream-ordered requests: worker threads (a pump) and pinned
 * memory (stages). The first such request of the device creates them. stream.c takes a stage for
 * each request, and stream_poll.c gives it back. Another request gets it when the CUDA stream has
 * passed the request. The pinned memory grows on demand.
 */
#ifndef PST_CORE_STREAMS_H
#define PST_CORE_STREAMS_H

#include <pthread.h>

#include "core/lane/pump.h"
#include "core/lane/ring.h"
#include "core/lane/stage.h"

/* Unit in bytes in which memory for stages is allocated. */
#define PST_STAGE_UNIT ((size_t)4096)
/* Maximum number of bytes of one stream-ordered request. The limit ensures that two pieces of the
 * request, and the lists for the GPU kernel, fit in one block of memory. */
#define PST_STAGE_PLACES_MAX ((uint64_t)1 << 30)
/* Maximum number of copies in the lists for the GPU kernel. The limit ensures that the lists and
 * two pieces fit in one block of memory. */
#define PST_STAGE_COPIES_MAX 300000u
#define PST_STAGE_BLOCKS_MAX 8u
#define PST_STREAMS_REMEMBERED 64u
#define PST_STAGES_MAX 1024u /* maximum number of stream-ordered requests in flight */
/* Maximum number of stages that requests captured in CUDA graphs occupy. They also occupy at most
 * half of the memory. So other requests always get a stage after some time. */
#define PST_STAGES_CAPTURED_MAX (PST_STAGES_MAX / 2)
/* If a stream has more than this number of operations of requests in flight, it gets no other
 * request. A hardware queue of the GPU holds about 1,020 operations. A call of the driver that
 * queues one more waits until the GPU has executed an operation, and the caller may hold a lock
 * meanwhile. A request has at most 643 operations. So a stream that has its queue to itself has at
 * most 963. Three streams with short requests can share a queue. */
#define PST_STREAM_OPS_MAX 320u

struct pst_stage_block;

struct pst_streams {
	struct penstock_device *gpu, *host;
	const struct pst_pump *gpu_pump;
	struct pst_pump *pump;
	struct pst_ring words; /* memory for the words of all stages */
	struct pst_stage *stages;
	/* Guards the members below. Worker threads take this lock, so a thread that holds it takes
	 * no other lock and makes no driver call. */
	pthread_mutex_t lock;
	pthread_mutex_t grow_lock; /* held while a block of memory is added; locked before `lock` */
	struct pst_stage *free;
	/* List of stages whose request has ended, but whose stream has not passed the request
	 * yet. */
	struct pst_stage *owed;
	struct pst_stage_block *blocks[PST_STAGE_BLOCKS_MAX];
	unsigned block_count;
	size_t units_used; /* number of units of memory that all stages occupy */
	uint64_t turns;	   /* number of requests that have taken a stage so far */
	/* Number of units, and number of stages, that captured requests occupy. */
	size_t units_captured;
	unsigned stages_captured;
	/* The streams that have operations of requests in flight, and the number of these
	 * operations. Each of these streams has a stage, so the array is long enough. */
	struct pst_stream_load {
		const void *stream;
		unsigned ops;
	} loads[PST_STAGES_MAX];
	unsigned load_count;
	/* Hash table: for some streams, the stage of the last request whose copies were queued at
	 * submit. */
	struct pst_last_copies {
		const void *stream;
		const struct pst_stage *stage;
		uint64_t turn; /* `turn` of the stage for that request */
	} last_copies[PST_STREAMS_REMEMBERED];
	/* For each stage, in the order of `stages`: whether a request has it that is not captured,
	 * and the member `user` of this request. Only the first users_count stages have been taken
	 * so far. An array of its own is faster to search than the stages. */
	struct pst_stage_user {
		const void *user;
		bool used;
	} users[PST_STAGES_MAX];
	unsigned users_count;
};

/* Size and kind of the stage (pinned memory) that a request needs. */
struct pst_stage_shape {
	/* number of bytes, or an upper bound if the stream supplies an offset later
	 * (penstock_late) */
	uint64_t places;
	uint64_t block;	 /* length of the storage's blocks */
	unsigned copies; /* number of copies, or an upper bound */
	/* number of copies queued on the stream, or an upper bound; not used if by_kernel */
	unsigned copies_queued;
	bool by_kernel;
	bool empty; /* no byte passes through pinned memory */
	bool captured;
	bool reached;	    /* the stream has reached the request already */
	const void *stream; /* identity of the stream, see struct pst_stream_seq */
};

/* Creates the struct pst_streams of the pump's device, unless the device has one. */
int pst_streams_open(struct pst_pump *pump, const struct pst_stream_hooks *hooks,
		     struct pst_err *err);
/* Waits until the device's streams have passed all requests. Then stops the worker threads for
 * stream-ordered requests, and frees all memory. */
void pst_streams_close(struct pst_streams *streams);

/* Amount of memory for a stage: as little as possible, as much as most requests need to be fast, or
 * room for all bytes of the request if it has at most 16 MiB. */
enum pst_stage_size { PST_STAGE_SMALL, PST_STAGE_NORMAL, PST_STAGE_WHOLE };

/* Divides a stage into pieces: sets their length and number. */
void pst_stage_cut(struct pst_stage *stage, const struct pst_stage_shape *shape,
		   enum pst_stage_size size);
/* Takes a free stage, allocates its memory and prepares it for the request. If there is no stage or
 * memory, or if the stream has too many operations of earlier requests, returns -EAGAIN. A capture
 * does not count the operations. For a captured request the function returns -ENOMEM instead of
 * -EAGAIN, because it may take long until a stage becomes free. */
int pst_stage_get(struct pst_streams *streams, struct pst_request *req,
		  const struct pst_stage_shape *shape, struct pst_stage **out, struct pst_err *err);
/* Takes back the stage of a request that has completed. Any thread may call it. If the stream has
 * not passed the request yet, the stage is freed later. */
void pst_stage_put(struct pst_streams *streams, struct pst_stage *stage);
/* Takes back a stage that no stream uses any more, whatever its words say. */
void pst_stage_put_unused(struct pst_streams *streams, struct pst_stage *stage);

/* Returns whether the streams have passed all requests that are not captured and whose member
 * `user` has this value. A request counts from pst_stage_get on. Any thread may call the function,
 * also while another thread submits such a request. */
bool pst_streams_passed(struct pst_streams *streams, const void *user);

/* Stores `stage` as the stage of the stream's latest request whose copies were queued at submit.
 * Here and below, `stream` is the identity of the stream (struct pst_stream_seq). */
void pst_streams_remember(struct pst_streams *streams, const void *stream,
			  const struct pst_stage *stage);
/* The state of the copies of the stream's latest request:
 *	PST_LAST_OTHER		its copies were not queued at submit, or it is unknown
 *	PST_LAST_COPYING	they were, and the stream still executes them
 *	PST_LAST_COPIED		they were, and the stream has passed the request
 */
enum pst_last { PST_LAST_OTHER, PST_LAST_COPYING, PST_LAST_COPIED };
enum pst_last pst_streams_last(struct pst_streams *streams, const void *stream);

#endif
