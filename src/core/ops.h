/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The four tables that everything hangs on: storage (where the bytes are),
 * device (where they land), path (which memory they touch on the way) and engine
 * (which system calls move them), with the few structs that they hand to each
 * other. Read penstock.h first, this second, core/backends.c third.
 *
 * One read goes down through it, and comes back up:
 *
 *	api queue admit route plan cut pump | lane claim path storage io
 *	                  harvest | finish chunk lane_copy device path storage
 *
 * core knows tables, never names. A backend knows this file and the helpers of
 * core (ring.h, pump.h, err.h, log.h), never another backend. A path reaches host
 * memory through the storage's table and device memory through the device's; it
 * sees no descriptor, except through facts.fd. Only a storage calls an engine.
 *
 * Every table is const and a feature that is missing is a NULL entry.
 */
#ifndef PST_CORE_OPS_H
#define PST_CORE_OPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "core/base/err.h"
#include "core/request/io_size.h"
#include "penstock.h"

struct pst_lane;    /* a thread of a pump: core/pump.h */
struct pst_chunk;   /* what moves as one: below */
struct pst_request; /* core/request.h */
struct pst_route;   /* core/route.h */
struct pst_slot;    /* a piece of the ring: core/ring.h */

#define PST_PATHS_MAX PENSTOCK_PATHS_MAX
#define PST_DRIVES_MAX 32
#define PST_DEVICES_MAX 64

/* ---- far windows ------------------------------------------------------------ */

/*
 * A stretch of device memory that a far side may read or write: opaque bytes that
 * a transport made and a storage passes on (an RDMA token, a shared-memory name).
 * Core carries it, so that the path which makes one and the storage which uses it
 * need not know each other. `release` fences late writes before it returns. No backend
 * of this version makes or takes one.
 */
struct pst_far_window {
	char token[520];  /* NUL-terminated; the longest protocol allows 512 */
	const char *kind; /* of transport, which the far side must speak too */
	uint64_t length;
	void (*release)(struct pst_far_window *w);
	void *priv;
};

/* ---- storage ---------------------------------------------------------------- */

enum pst_residency { PST_COLD, PST_WARM, PST_UNKNOWN, PST_RESIDENCIES, PST_MIXED };

struct pst_drive {
	char name[32]; /* "nvme0n1" */
	char bdf[16];  /* PCI address, "" when there is none or it is not known */
	int numa;      /* node, -1: unknown */
};

/* What a storage reports when it is opened; plan.c decides from nothing else. */
struct pst_storage_facts {
	uint64_t length; /* at open */
	int fd;		 /* buffered descriptor, -1: none (objects) */
	int fd_direct;	 /* O_DIRECT descriptor, -1: none, and why_direct says so */
	bool writable;
	bool growing;	     /* ours until commit: a padded tail may be cut off then */
	bool immutable;	     /* the caller promised */
	bool mappable;	     /* mmap(MAP_SHARED) of fd gives the page cache */
	bool fd_blocks;	     /* fd is O_DIRECT too, as why_fd says: whole blocks only */
	bool mapped_quick;   /* large folios: registering is cheap a byte */
	bool listed;	     /* allow-list: O_DIRECT is a drive's DMA as this kernel sees it */
	bool far_windows;    /* transfer() exists and the far side speaks windows */
	uint32_t off_align;  /* of O_DIRECT offsets and lengths */
	uint32_t mem_align;  /* of O_DIRECT addresses */
	uint32_t edge_align; /* where unaligned writes are cut: max(page, fs block) */
	uint32_t chunk_best; /* bytes of one call that the storage likes; 0: any */
	uint64_t stripe_len; /* one drive's turn in a stripe, 0: none */
	unsigned drive_count;
	struct pst_drive drives[PST_DRIVES_MAX];
	struct pst_err why_direct;    /* why O_DIRECT is missing or not to be trusted */
	struct pst_err why_fd;	      /* why a caller's descriptor is used as it is */
	struct pst_err why_no_write;  /* not writable, though the caller may write; else code 0 */
	char text[PENSTOCK_TEXT_MAX]; /* "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)" */
};

struct pst_storage_ops;
struct penstock_storage {
	const struct pst_storage_ops *ops;
	void *priv;					    /* the backend's */
	_Atomic uint64_t route_serials[2][PST_DEVICES_MAX]; /* of routes' devices; set after them */
	struct pst_storage_facts facts;
	_Atomic unsigned inflight;     /* requests */
	_Atomic unsigned losses;       /* syncs that failed; whose bytes they lost nobody knows */
	_Atomic uint64_t direct_bytes; /* on their way between its drives and memory */
	struct pst_io_size io_size;    /* of reads by O_DIRECT */
	_Atomic bool cached_by_lanes;  /* a lane keeps something of it until it closes */
	uint64_t cache_bit;	       /* a bit, one in 64 has the same: which lanes they are */
	_Atomic int
		residency_probe; /* enum pst_residency_probe: is it cached, where nobody can ask */
	_Atomic uint64_t unprobed_bytes; /* bytes since the last one began */
	unsigned generation;		 /* of the process that opened it, see objects.h */
	_Atomic(struct pst_route *) routes[2][PST_DEVICES_MAX]; /* by op and device index */
};

/* pst_io.flags */
#define PST_IO_DIRECT 0x1u /* by O_DIRECT; else through the page cache */
#define PST_IO_RING 0x2u   /* the memory lies in the lane's ring (may be registered) */
#define PST_IO_NOW 0x4u	   /* known to be quick: do it on this thread, at once */

#define PST_IO_PRIV 112

enum pst_io_op { PST_IO_FILL, PST_IO_DRAIN, PST_IO_SYNC };

/* One system call in flight; the storage fills it in, the engine carries it. */
struct pst_call {
	int fd;
	enum pst_io_op op;
	bool fixed; /* inside the registered slots */
	const struct iovec *iov;
	unsigned iov_count;
	uint64_t off;
	int64_t result;	    /* bytes or -errno */
	const char *engine; /* what carried it, static; the engine's, if that is another */
	enum penstock_why engine_why;	     /* then why */
	void (*done)(struct pst_call *call); /* on the lane's thread */
	struct pst_call *next;		     /* the engine's while in flight */
	uint64_t word;			     /* the engine's */
};

/*
 * One asynchronous transfer between storage and host memory. The memory and the
 * struct are the storage's until done() has been called, exactly once, on the
 * lane's thread. A storage with threads or an event loop of its own ends it with
 * pst_io_done() from wherever it is; that carries it over to the lane.
 */
struct pst_io {
	struct penstock_storage *st;
	struct pst_lane *lane;
	enum pst_io_op op;
	unsigned flags; /* PST_IO_* */
	uint64_t off;
	uint64_t len;	   /* of all iov together */
	struct iovec one;  /* what iov points to when one piece is enough */
	struct iovec *iov; /* consumed: the storage may change the entries */
	unsigned iov_count;
	int64_t result;		      /* bytes (short only at the end) or -errno */
	const char *engine;	      /* what carried it, static */
	enum penstock_why engine_why; /* why not a better one, if that showed on the way */
	struct pst_err err;	      /* with the sentence when result < 0 */
	void (*done)(struct pst_io *io);
	struct pst_io *next; /* the storage's while in flight, then the lane's */
	_Alignas(8) unsigned char priv[PST_IO_PRIV]; /* the storage's, for what else it needs */
};

struct pst_storage_ops {
	const char *name;
	bool (*match)(const char *url);

	/* Fills st->priv and st->facts. `fd` is the caller's, or -1 and `url` counts. */
	int (*open)(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err);
	void (*close)(struct penstock_storage *st);

	/* Start an asynchronous transfer; an error return means done() never comes. */
	int (*fill)(struct pst_io *io);
	int (*drain)(struct pst_io *io);
	int (*sync)(struct pst_io *io); /* what was drained survives a power cut */
	/* Optional, for storages whose transfers may last: the caller has cancelled what this
	 * one belongs to. If it can it ends it early, with -ECANCELED and the memory left
	 * alone from then on; else it goes on. Asked on the lane's thread, perhaps again, and
	 * also when the io has just been ended on another thread: pst_io_done hands it back,
	 * so find it among those in hand before touching it. Does not block. */
	void (*cancel)(struct pst_io *io);
	void (*poll)(struct pst_lane *lane); /* optional: called in each turn of a lane */

	/* Optional: the far side moves the bytes between itself and a window. */
	int (*transfer)(struct pst_io *io, const struct pst_far_window *w, uint64_t w_off);

	/* Optional, may block, no request in flight. */
	int (*commit)(struct penstock_storage *st, bool durable, struct pst_err *err);
	int (*abort)(struct penstock_storage *st, struct pst_err *err);
	int (*length)(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

	/* Optional. Where the bytes are now: cold, warm, mixed (ask for less) or unknown,
	 * which `why` explains. One quick system call. */
	enum pst_residency (*residency)(struct penstock_storage *st, uint64_t off, uint64_t len,
					enum penstock_why *why);

	/* Optional. A written extent at or behind *off (not a hole, unwritten or inline)
	 * for the canary; -ENODATA: none. */
	int (*written)(struct penstock_storage *st, uint64_t *off, uint64_t *len);
	/* Optional: another number when more may have been written since it was last asked.
	 * One quick system call. */
	uint64_t (*stamp)(struct penstock_storage *st);
};

/* For storages whose completions come from other threads; any thread. A failure without a
 * sentence in io->err gets one. */
void pst_io_done(struct pst_io *io, int64_t result);

/* ---- device ----------------------------------------------------------------- */

struct pst_device_facts {
	bool cpu_addressable;  /* the CPU may load and store at its addresses */
	bool is_host;	       /* ordinary host memory: no ring is needed in front */
	bool reads_page_cache; /* can register and copy from a read-only file mapping */
	bool peer_pages;       /* its addresses have pages that O_DIRECT can pin */
	bool stream_memops;    /* stream_write and stream_wait exist */
	uint32_t mem_align;    /* of addresses that a peer's DMA may use */
	unsigned lanes_best;
	int numa;
	char bdf[16];
	struct pst_err why_peer;   /* why peer_pages is false */
	struct pst_err why_mapped; /* why reads_page_cache is false */
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_device_ops;
struct pst_pump;
struct penstock_device {
	const struct pst_device_ops *ops;
	void *priv;
	struct pst_device_facts facts;
	struct penstock_device_opts opts; /* strings are the device's copies */
	unsigned index;			  /* in the process's table */
	uint64_t serial;		  /* no other device has it, the index's next neither */
	unsigned generation;		  /* of the process that opened it */
	unsigned refs;			  /* under the table's lock */
	char name[32];
	_Atomic(struct pst_pump *) pump; /* NULL until the first route */
	_Atomic unsigned guests; /* requests of other devices' pumps with parts on this one */
	_Atomic unsigned streams_waiting; /* for requests of ours */
	_Atomic unsigned syncs;		/* calls that wait for all streams: pst_device_sync_begin */
	_Atomic uint64_t sync_first_ns; /* until then they go before streams that begin to wait */
	_Atomic(void *) scratch;	/* a canary's, kept until the next one or the end */
	_Atomic uint64_t page_cache;	/* bytes of it that path mapped has registered */
};

/* What a pointer turned out to be. */
struct pst_memory {
	uint64_t base, len; /* of its allocation; len 0: not known */
	uint64_t id;	    /* changes when the address is allocated anew; 0: none given */
	bool managed;	    /* may lie on either side: no peer DMA into it */
};

/* rows x row_len bytes; rows = 1: pitches do not matter. */
struct pst_rect {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch;
	uint64_t row_len, rows;
	bool unsure;	/* the host's side may not be there: look before the CPU copies */
	unsigned piece; /* of the ring, that the host's side lies in: none is copied together
			 * with one of another, which the driver refuses */
	int *refused;	/* lets a copier put this off until mark(), to hand on many at once: then
			 * a refusal is left here before the ticket is reached. NULL: it may not */
};

/*
 * A copier is one lane's copy queue on one device, used by that lane's thread
 * only. Copies run in order; mark() gives a ticket that reached() knows to be
 * passed when every copy queued before it is done.
 */
struct pst_copier;

struct pst_device_ops {
	const char *name;
	bool (*match)(const char *name);
	int (*open)(struct penstock_device *dev, struct pst_err *err); /* dev->name, opts set */
	void (*close)(struct penstock_device *dev);
	int (*count)(void); /* how many there are, for "auto"; NULL: never taken by auto */
	bool numbered;	    /* "auto" means NAME:0, not NAME */

	int (*alloc)(struct penstock_device *dev, size_t len, void **out, struct pst_err *err);
	int (*free)(struct penstock_device *dev, void *ptr, struct pst_err *err);
	/* 1: ptr is this device's, 0: it is not. Cheap; thread-safe. */
	int (*classify)(struct penstock_device *dev, const void *ptr, struct pst_memory *out);

	/* Host memory that its copies may use at full speed. Portable across devices of
	 * the kind. read_only: a mapping that may not be written. NULL: nothing to do. */
	int (*host_register)(struct penstock_device *dev, void *host, size_t len, bool read_only,
			     struct pst_err *err);
	int (*host_unregister)(struct penstock_device *dev, void *host, struct pst_err *err);

	/* tickets: likely to be in flight at once. What they take is made now, and nothing later
	 * that waits for streams. */
	int (*copier_open)(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			   struct pst_err *err);
	void (*copier_close)(struct pst_copier *copier);
	/* Queue a copy into (host to device) or out of device memory. */
	int (*copy_in)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*copy_out)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*record)(struct pst_copier *copier, uint64_t *ticket);
	int (*query)(struct pst_copier *copier, uint64_t ticket); /* 1, 0 or -errno */
	int (*wait)(struct pst_copier *copier, uint64_t ticket);  /* sleeps until reached */
	/* Optional: -errno when the device is broken for good, so that what is to come from
	 * its streams never will. */
	int (*alive)(struct pst_copier *copier);

	/* Device to device, also of another device of the same kind; returns when done.
	 * NULL or -EXDEV: core goes through host memory. */
	int (*copy_peer)(struct penstock_device *dst, struct penstock_device *src,
			 const struct pst_rect *rect, struct pst_err *err);
	int (*export_memory)(struct penstock_device *dev, void *ptr, size_t len,
			     struct penstock_export *out, struct pst_err *err);
	int (*import_memory)(struct penstock_device *dev, const struct penstock_export *exported,
			     void **out, struct pst_err *err);

	/* Calls fn(arg) where the device's own library finds its state (a current context),
	 * for somebody else's code; gives what fn returns. */
	int (*inside)(struct penstock_device *dev, int (*fn)(void *arg), void *arg);

	/* Makes what a peer's DMA wrote visible to later reads of device memory. Called before a
	 * chunk is done by paths on which one does; a vendor's library sees to it itself. */
	int (*order_writes)(struct penstock_device *dev, struct pst_err *err);
	/* An address whose pages O_DIRECT can pin; often ptr itself. */
	int (*peer_address)(struct penstock_device *dev, void *ptr, size_t len, void **out,
			    struct pst_err *err);
	/* A dma-buf of the range for a NIC; the caller closes it. */
	int (*dmabuf)(struct penstock_device *dev, void *ptr, size_t len, struct pst_err *err);

	/* Stream order. front: when the stream gets there, *word becomes value; behind:
	 * the stream goes on when *word is at least value. The words are host memory that
	 * semaphores_alloc gave, zero at first. A lane that watches a word looks at it. */
	int (*semaphores_alloc)(struct penstock_device *dev, size_t count, uint64_t **out,
				struct pst_err *err);
	void (*semaphores_free)(struct penstock_device *dev, uint64_t *words);
	int (*stream_write)(struct penstock_device *dev, void *stream, uint64_t *word,
			    uint64_t value, struct pst_err *err);
	int (*stream_wait)(struct penstock_device *dev, void *stream, uint64_t *word,
			   uint64_t value, struct pst_err *err);
};

/* ---- path ------------------------------------------------------------------- */

/* Constant properties, by which plan.c sorts and lanes decide. */
struct pst_path_traits {
	bool reads, writes;
	bool uses_cache;   /* the bytes pass through the page cache */
	bool times;	   /* by a call on the lane's thread: quick if they are there */
	bool tells;	   /* so is its start, but to find that they are not costs much */
	bool by_name_only; /* null and fault: taken only when asked for; last in the table */
	bool at_once;	   /* start() completes before it returns: no lane needed, and
			    * where there is none it does without pst_chunk_done */
	enum penstock_class class_; /* the highest that it can meet */
};

/* What a path found out about one route. */
struct pst_path_facts {
	enum penstock_class class_; /* that it meets on this route */
	uint32_t off_align;	    /* of storage offset and length of a chunk; 1: any */
	uint32_t mem_align;	    /* of the device address of a chunk; 1: any */
	bool exact;		    /* a chunk is one piece of one segment, moved in place */
	bool slotted;		    /* it fits a slot of the lane that drives it */
	uint64_t chunk_max;	    /* longest chunk */
	uint64_t chunk_first;	    /* a request's first and last chunks are so long, more or less;
				     * between they grow and shrink. 0: chunk_max throughout */
	bool io_size;		    /* nor longer than the storage's grain */
	uint64_t chunk_quick;	    /* shorter ones go quicker by another path; 0: none */
	const _Atomic uint64_t *held; /* bytes that it holds on to, NULL: none; from */
	uint64_t held_max;	      /* so many on the next path of the plan is taken */
	unsigned lanes;		      /* lanes that it takes to reach its speed; 0: all */
	bool quick;		      /* false: works, but only when nothing else does */
	bool canary;		      /* its success proves nothing until bytes are compared */
};

struct pst_path_ops {
	const char *name;
	struct pst_path_traits traits;
	/* Is it open on this route? 0 and facts, and in `err` what keeps it from its highest
	 * class; or -errno with the reason, and in `fix` (PENSTOCK_TEXT_MAX) what would make
	 * it possible. May block. */
	int (*probe)(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		     char *fix);
	/* Optional: this path wraps any other. Reads its arguments (what stands behind '?' in
	 * a request's path) into the request's wrap_state; start() is then called in the
	 * wrapped path's place, with chunk->path naming that one. */
	int (*wrap)(const char *args, void *state, struct pst_err *err);
	/* Moves the chunk: asynchronously, ending in exactly one pst_chunk_done. 0, or
	 * -EAGAIN (no slot: try again later), or an error (pst_chunk_done never comes). */
	int (*start)(struct pst_chunk *chunk);
	/* Optional, per lane: state in lane->path_state[index]; idle is called when the
	 * lane has nothing else to do and returns false when it is done with tidying. */
	int (*lane_open)(struct pst_lane *lane, unsigned index, struct pst_err *err);
	void (*lane_close)(struct pst_lane *lane, unsigned index);
	bool (*idle)(struct pst_lane *lane, unsigned index);
	void (*route_close)(struct pst_route *route, unsigned index); /* optional */
	/* Optional: the storage, or the device (the other NULL), is about to close; lanes
	 * forget what they keep of it. Returns the marks of the storages that they keep
	 * something of. */
	uint64_t (*invalidate)(struct pst_lane *lane, unsigned index, struct penstock_storage *st,
			       const struct penstock_device *dev);
};

/*
 * A chunk: a contiguous stretch of one storage that moves as one, and the parts
 * of segments that it feeds (or is fed from). Lives in its lane's pool.
 */
struct pst_chunk {
	struct pst_request *req;
	struct pst_lane *lane;
	struct pst_route *route;
	unsigned span;	   /* of the request */
	uint64_t off, len; /* in the storage */
	uint64_t rest;	   /* behind len, after it: what failed as one goes on in pieces */
	uint8_t path;	   /* index in pst_paths */
	uint8_t tries;
	uint8_t residency;  /* enum pst_residency when it was claimed */
	uint32_t pad;	    /* bytes behind len, in the segment's room, that move along */
	const char *engine; /* which system calls carried it, static */
	struct pst_slot *slot;
	uint64_t direct_bytes; /* its part of the storage's, see pst_chunk_direct_begin */
	struct pst_io io;
	bool in_hand;	     /* the storage has io; between start and done */
	uint64_t mem_head;   /* staged: bytes in the slot before the chunk's first */
	uint64_t moved;	     /* bytes delivered, short at the storage's end */
	uint64_t cpu_copied; /* counted as it happens */
	uint64_t dram_laid;
	uint64_t start_ns;
	bool timed;	   /* the time of its call, or start, tells where its bytes were */
	uint64_t timed_ns; /* when that began, 0: it has not, or has ended */
	int refused;	   /* copies that a copier had put off */
	unsigned waits;	   /* copiers whose ticket is not reached yet */
	struct pst_err err;
	void (*on_done)(struct pst_chunk *chunk, int result); /* fault's, canary's; else NULL */
	void (*after_copies)(struct pst_chunk *chunk, int result); /* the path's next step */
	void *priv;						   /* the path's */
	struct pst_chunk *next;
};

/* chunk.c: the chunk's io, between `len` bytes of its storage at `off` and `mem`, and its
 * start: as fill, drain and sync, with the error in chunk->err. */
void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io));
int pst_chunk_io_start(struct pst_chunk *chunk);
/* For `done`, first of all: whose it was. */
struct pst_chunk *pst_chunk_io_done(struct pst_io *io);
/* And what it moved, in place: a read may end short, a write may not. */
int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n);

/* Ends a chunk, on its lane's thread: 0 and chunk->moved, or -errno and chunk->err. */
void pst_chunk_done(struct pst_chunk *chunk, int result);

/* ---- engine ----------------------------------------------------------------- */

struct pst_engine; /* one lane's */

struct pst_engine_ops {
	const char *name;
	/* `depth` calls at most in flight; `wake_fd` is an eventfd that ends wait(). */
	int (*open)(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err);
	void (*close)(struct pst_engine *engine);
	/* Of the lane's part of the ring, so that calls with `fixed` may name it: a piece, and
	 * perhaps another one later. */
	int (*register_slots)(struct pst_engine *engine, void *base, size_t len,
			      struct pst_err *err);
	/* 0 and done() comes once from poll or wait; -EAGAIN when depth is reached. Whatever
	 * becomes of the engine, calls that it has taken are carried. */
	int (*submit)(struct pst_engine *engine, struct pst_call *call);
	int (*poll)(struct pst_engine *engine); /* flush, reap; how many were reaped */
	/* Sleeps until a completion, the wake_fd, or timeout_us (-1: none); reaps. */
	int (*wait)(struct pst_engine *engine, int64_t timeout_us);
};

/* ---- what exists, in order of preference: core/backends.c ------------------- */

extern const struct pst_storage_ops *const pst_storages[]; /* NULL-terminated */
extern const struct pst_device_ops *const pst_devices[];
extern const struct pst_path_ops *const pst_paths[];	    /* most direct first */
extern const struct pst_engine_ops *const pst_engines[];    /* the last one runs anywhere */
extern const struct pst_engine_ops *const pst_engine_plain; /* that one */
extern const unsigned pst_path_count;

#endif
