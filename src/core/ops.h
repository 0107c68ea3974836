/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The four tables of functions that backends implement, and the structs that they exchange.
 * A storage holds the bytes, a device is their destination or source. A path decides which
 * memory they touch on the way, and an engine makes the system calls. Read penstock.h first,
 * this file second and core/backends.c third. ARCHITECTURE.md follows one read through them.
 *
 * Core calls backends through these tables only and knows no backend by name. A backend uses
 * this file and core's helpers, and must never use another backend. A path moves bytes to and
 * from host memory through the storage's table, and to and from device memory through the
 * device's table. It sees no file descriptor except facts.fd. Only a storage calls an engine.
 *
 * Every table is const. A NULL entry means that the backend lacks the feature.
 */
#ifndef PST_CORE_OPS_H
#define PST_CORE_OPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "core/base/err.h"
#include "core/request/io_size.h"
#include "penstock.h"

struct pst_lane;    /* a loop that moves chunks: core/lane/lane.h */
struct pst_chunk;   /* a range of bytes that moves as one: below */
struct pst_request; /* core/request/request.h */
struct pst_route;   /* core/request/plan.h */
struct pst_slot;    /* a piece of a lane's ring: core/lane/ring.h */

#define PST_PATHS_MAX PENSTOCK_PATHS_MAX
#define PST_DRIVES_MAX 32  /* drives of one storage; bits of pst_route.write_drives */
#define PST_DEVICES_MAX 64 /* open devices; bits of the masks of devices */

/* ---- storage ---------------------------------------------------------------- */

/* Whether a range is in the page cache. PST_MIXED: a part of it is. */
enum pst_residency { PST_COLD, PST_WARM, PST_UNKNOWN, PST_RESIDENCIES, PST_MIXED };

struct pst_drive {
	char name[32]; /* such as "nvme0n1" */
	char bdf[16];  /* PCI address; "": none or unknown */
	int numa;      /* NUMA node; -1: unknown */
};

/* Facts that a storage reports when it is opened. Paths and plans know it by these only. */
struct pst_storage_facts {
	uint64_t length; /* bytes, when it was opened */
	int fd;		 /* descriptor for buffered I/O; -1: none (objects) */
	int fd_direct;	 /* descriptor with O_DIRECT; -1: none, for the reason in why_direct */
	bool writable;
	bool growing;	     /* private until commit, which can truncate a padded tail */
	bool immutable;	     /* the caller promised that the bytes never change */
	bool mappable;	     /* mmap(MAP_SHARED) of fd maps its page cache */
	bool fd_blocks;	     /* fd has O_DIRECT too (see why_fd) and moves whole blocks only */
	bool mapped_quick;   /* it has large folios, so registering a byte costs little */
	bool listed;	     /* on the allow-list: O_DIRECT uses the drive's DMA */
	uint32_t off_align;  /* alignment of O_DIRECT offsets and lengths */
	uint32_t mem_align;  /* alignment of O_DIRECT addresses */
	uint32_t edge_align; /* writes are split at it: max(page size, file-system block) */
	uint32_t chunk_best; /* preferred length of one call; 0: any */
	uint64_t stripe_len; /* consecutive bytes on one drive; 0: not striped */
	unsigned drive_count;
	struct pst_drive drives[PST_DRIVES_MAX];
	struct pst_err why_direct;    /* why O_DIRECT is missing or not trusted */
	struct pst_err why_fd;	      /* why the caller's descriptor is used, not a new one */
	struct pst_err why_no_write;  /* why it cannot be written; code 0: nothing prevents it */
	char text[PENSTOCK_TEXT_MAX]; /* "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)" */
};

struct pst_storage_ops;
/* An open storage. */
struct penstock_storage {
	const struct pst_storage_ops *ops;
	void *priv; /* the backend's state */
	/* Serial numbers of the devices of `routes`, each written after its route. */
	_Atomic uint64_t route_serials[2][PST_DEVICES_MAX];
	struct pst_storage_facts facts;
	_Atomic unsigned inflight;     /* requests in flight */
	_Atomic unsigned losses;       /* failed syncs; each may have lost bytes of any request */
	_Atomic uint64_t direct_bytes; /* bytes in flight between its drives and memory */
	struct pst_io_size io_size;    /* preferred size of O_DIRECT reads */
	_Atomic bool cached_by_lanes;  /* a lane may cache state of it until it closes */
	uint64_t cache_bit;	     /* its bit in pst_lane.caches; every 64th storage shares it */
	_Atomic int residency_probe; /* enum pst_residency_probe */
	_Atomic uint64_t unprobed_bytes; /* bytes claimed since the last residency probe began */
	unsigned generation;		 /* pst_fork_generation() of the process that opened it */
	_Atomic(struct pst_route *) routes[2][PST_DEVICES_MAX]; /* by op and device index */
};

/* pst_io.flags */
#define PST_IO_DIRECT 0x1u /* with O_DIRECT; else through the page cache */
#define PST_IO_RING 0x2u   /* the memory is in the lane's ring, which may be registered */
#define PST_IO_NOW 0x4u	   /* the call is known to be quick: make it at once, on this thread */

#define PST_IO_PRIV 112 /* bytes of a storage's state in a pst_io */

/* Direction of a transfer: storage to memory, memory to storage; or make writes durable. */
enum pst_io_op { PST_IO_FILL, PST_IO_DRAIN, PST_IO_SYNC };

/* One system call. A storage fills it in, and an engine makes it. */
struct pst_call {
	int fd;
	enum pst_io_op op;
	bool fixed; /* the memory is inside the registered slots */
	const struct iovec *iov;
	unsigned iov_count;
	uint64_t off;
	int64_t result;			     /* bytes or -errno */
	const char *engine;		     /* name of the engine that carried it; static */
	enum penstock_why engine_why;	     /* why it is not the preferred engine */
	void (*done)(struct pst_call *call); /* called on the lane's thread */
	struct pst_call *next;		     /* for the engine while in flight */
	uint64_t word;			     /* for the engine */
};

/*
 * One asynchronous transfer between storage and host memory. The storage owns the struct and
 * the memory until it calls done(), exactly once, on the lane's thread. A storage that has
 * threads or an event loop calls pst_io_done() (core/lane/inbox.h) from any thread instead. It
 * passes the completion to the lane, which calls done().
 */
struct pst_io {
	struct penstock_storage *st;
	struct pst_lane *lane;
	enum pst_io_op op;
	unsigned flags; /* PST_IO_* */
	uint64_t off;
	uint64_t len;	   /* sum of all iov */
	struct iovec one;  /* where iov points if one piece is enough */
	struct iovec *iov; /* the storage may change the entries */
	unsigned iov_count;
	int64_t result;		      /* bytes (short only at the storage's end) or -errno */
	const char *engine;	      /* name of the engine that carried it; static */
	enum penstock_why engine_why; /* why it was not a better engine, if the storage knows */
	struct pst_err err;	      /* reason and text if result < 0 */
	void (*done)(struct pst_io *io);
	struct pst_io *next; /* for the storage while in flight, then for the lane */
	_Alignas(8) unsigned char priv[PST_IO_PRIV]; /* the storage's state */
};

/* The functions of a kind of storage. */
struct pst_storage_ops {
	const char *name;
	/* Returns whether this kind of storage opens the URL. */
	bool (*match)(const char *url);

	/* Fills st->priv and st->facts. `fd` is the caller's descriptor; -1: open `url`. */
	int (*open)(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err);
	void (*close)(struct penstock_storage *st);

	/* Start an asynchronous transfer: into memory, out of memory, or a sync, which makes
	 * drained bytes survive a power cut. After an error return done() is never called. */
	int (*fill)(struct pst_io *io);
	int (*drain)(struct pst_io *io);
	int (*sync)(struct pst_io *io);
	/* Optional, for storages whose transfers may take long. The caller has cancelled the
	 * request of this transfer. The storage completes it early with -ECANCELED, and must
	 * not touch its memory afterwards, or lets it run. It is called on the lane's thread,
	 * perhaps more than once, and possibly after another thread has completed the io. So
	 * the storage must find the io among those in flight before it touches it. It must
	 * never block. */
	void (*cancel)(struct pst_io *io);

	/* Optional. Called with no request in flight. They may block. commit publishes the
	 * written bytes, abort discards them, length returns the current length. */
	int (*commit)(struct penstock_storage *st, bool durable, struct pst_err *err);
	int (*abort)(struct penstock_storage *st, struct pst_err *err);
	int (*length)(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

	/* Optional. Returns whether the range is in the page cache: cold, warm, mixed (the
	 * caller queries a shorter range) or unknown, for the reason in `why`. It makes one
	 * quick system call. */
	enum pst_residency (*residency)(struct penstock_storage *st, uint64_t off, uint64_t len,
					enum penstock_why *why);

	/* Optional, for canaries. Finds a written extent (not a hole, not unwritten, not inline)
	 * at or after *off. -ENODATA: none exists. */
	int (*written)(struct penstock_storage *st, uint64_t *off, uint64_t *len);
	/* Optional. Returns a number that changes when bytes may have been written. It makes one
	 * quick system call. */
	uint64_t (*stamp)(struct penstock_storage *st);
};

/* ---- device ----------------------------------------------------------------- */

/* Facts that a device reports when it is opened. */
struct pst_device_facts {
	bool cpu_addressable;	   /* the CPU may load and store at its addresses */
	bool is_host;		   /* ordinary host memory: transfers need no ring */
	bool reads_page_cache;	   /* it can register a read-only file mapping and copy from it */
	bool peer_pages;	   /* its memory has pages that O_DIRECT can pin */
	bool stream_memops;	   /* stream_write and stream_wait exist */
	uint32_t mem_align;	   /* alignment of its addresses for DMA by a peer */
	unsigned lanes_best;	   /* preferred number of lanes; 0: no preference */
	int numa;		   /* NUMA node; -1: unknown */
	char bdf[16];		   /* PCI address; "": none */
	struct pst_err why_peer;   /* why peer_pages is false */
	struct pst_err why_mapped; /* why reads_page_cache is false */
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_device_ops;
struct pst_device_hooks; /* in core/base/devices.h */
struct pst_pump;	 /* in core/lane/pump.h */
/* An open device. */
struct penstock_device {
	const struct pst_device_ops *ops;
	void *priv; /* the backend's state */
	struct pst_device_facts facts;
	struct penstock_device_opts opts; /* with copies of the caller's strings */
	const struct pst_device_hooks *hooks;
	unsigned index;	     /* in the process's table of devices */
	uint64_t serial;     /* unique number; a later device may get the same index */
	unsigned generation; /* pst_fork_generation() of the process that opened it */
	unsigned refs;	     /* number of openers, guarded by the table's lock */
	char name[32];
	_Atomic(struct pst_pump *) pump; /* NULL until the device's first route */
	_Atomic unsigned guests;	 /* requests of other devices' pumps that use this device */
	/* The next three belong to core/base/device_sync.c. */
	_Atomic unsigned streams_waiting; /* streams that wait for requests */
	_Atomic unsigned syncs;		/* running calls that wait for all streams of the device */
	_Atomic uint64_t sync_first_ns; /* until this time no further stream may start to wait */
	_Atomic(void *) scratch;	/* memory kept by core/base/scratch.c; NULL: none */
	_Atomic uint64_t page_cache;	/* bytes of page cache that path mapped has registered */
};

/* Facts that a device knows about a pointer. */
struct pst_memory {
	uint64_t base, len; /* its allocation; len 0: unknown */
	uint64_t id;	    /* changes when the address is allocated again; 0: unknown */
	bool managed;	    /* may move between host and device, so no peer DMA may use it */
};

/* A rectangle to copy: `rows` rows of row_len bytes. The pitches are ignored for a single row. */
struct pst_rect {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch;
	uint64_t row_len, rows;
	bool unsure;	/* the host side may be unmapped, so check it before the CPU copies */
	unsigned piece; /* registered piece of the ring with the host side. The driver refuses
			 * a copy that spans two pieces. */
	/* If not NULL, the copier may delay this copy until record(), to submit many at once. It
	 * stores the error of a refused copy here, before query() reports the ticket. */
	int *refused;
};

/*
 * A copier is one lane's queue of copies on one device. Only that lane's thread uses it. Copies
 * run in order. record() returns a ticket, and query() reports whether every copy queued before
 * the ticket is done (like cuEventRecord and cuEventQuery).
 */
struct pst_copier;

/* The functions of a kind of device. */
struct pst_device_ops {
	const char *name;
	/* Returns whether this backend opens devices of that name. */
	bool (*match)(const char *name);
	/* dev->name and dev->opts are set. */
	int (*open)(struct penstock_device *dev, struct pst_err *err);
	void (*close)(struct penstock_device *dev);
	int (*count)(void); /* number of devices; NULL: "auto" never selects this kind */
	bool numbered;	    /* "auto" selects NAME:0, not NAME */

	int (*alloc)(struct penstock_device *dev, size_t len, void **out, struct pst_err *err);
	int (*free)(struct penstock_device *dev, void *ptr, struct pst_err *err);
	/* Returns 1 if ptr belongs to this device, else 0. It must be quick and thread-safe. */
	int (*classify)(struct penstock_device *dev, const void *ptr, struct pst_memory *out);

	/* Pin and unpin host memory, so that copies of every device of this kind run at full
	 * speed. read_only: a mapping that must not be written. NULL: copies need no pinning. */
	int (*host_register)(struct penstock_device *dev, void *host, size_t len, bool read_only,
			     struct pst_err *err);
	int (*host_unregister)(struct penstock_device *dev, void *host, struct pst_err *err);

	/* `tickets` is the number that is likely in flight. copier_open creates the events
	 * that they need, because creating them later could wait for streams. */
	int (*copier_open)(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			   struct pst_err *err);
	void (*copier_close)(struct pst_copier *copier);
	/* Queue a copy from host to device memory, or back. */
	int (*copy_in)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*copy_out)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*record)(struct pst_copier *copier, uint64_t *ticket);
	int (*query)(struct pst_copier *copier, uint64_t ticket); /* 1: done, 0: not yet, -errno */
	int (*wait)(struct pst_copier *copier, uint64_t ticket);  /* blocks until done */
	/* Optional. Returns -errno once the device has failed for good and will run no stream
	 * again, else 0. */
	int (*alive)(struct pst_copier *copier);

	/* Copies between devices of this kind and returns when done. NULL or -EXDEV: core copies
	 * through host memory. */
	int (*copy_peer)(struct penstock_device *dst, struct penstock_device *src,
			 const struct pst_rect *rect, struct pst_err *err);
	/* Optional. Export memory to another process, and import its memory. */
	int (*export_memory)(struct penstock_device *dev, void *ptr, size_t len,
			     struct penstock_export *out, struct pst_err *err);
	int (*import_memory)(struct penstock_device *dev, const struct penstock_export *exported,
			     void **out, struct pst_err *err);

	/* Calls fn(arg) with the thread state that the device's library needs (a current
	 * context), for a vendor's code. Returns fn's result. */
	int (*inside)(struct penstock_device *dev, int (*fn)(void *arg), void *arg);

	/* Makes bytes that a peer's DMA wrote visible to later reads of device memory. Paths
	 * with such DMA call it before a chunk completes. A vendor's library does so itself. */
	int (*order_writes)(struct penstock_device *dev, struct pst_err *err);

	/* For stream order. stream_write queues a store of `value` to *semaphore on the stream.
	 * stream_wait makes the stream wait until *semaphore is at least `value`. Semaphores
	 * are zeroed host memory from semaphores_alloc, so that lanes can poll them. */
	int (*semaphores_alloc)(struct penstock_device *dev, size_t count, uint64_t **out,
				struct pst_err *err);
	void (*semaphores_free)(struct penstock_device *dev, uint64_t *semaphores);
	int (*stream_write)(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			    uint64_t value, struct pst_err *err);
	int (*stream_wait)(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			   uint64_t value, struct pst_err *err);
};

/* ---- path ------------------------------------------------------------------- */

/* Constant properties of a path. plan.c sorts by them. */
struct pst_path_traits {
	bool reads, writes;
	bool uses_cache;       /* the bytes pass through the page cache */
	bool probes_residency; /* the duration of its call shows whether the bytes were cached */
	bool detects_cold; /* the duration of its start shows the same, but a miss is expensive */
	bool by_name_only; /* used only if the caller names it: null and fault, last in the table */
	bool synchronous;  /* start() completes the chunk before it returns. If chunk->lane is
			    * NULL, it does not call pst_chunk_done. */
	enum penstock_class class_; /* the highest class that it can meet on any route */
};

/* Facts that a path's probe found out about one route. */
struct pst_path_facts {
	enum penstock_class class_; /* the highest class that it meets on this route */
	uint32_t off_align;	    /* alignment of a chunk's storage offset and length; 1: any */
	uint32_t mem_align;	    /* alignment of a chunk's device address; 1: any */
	bool exact;		    /* a chunk is a piece of one row of a segment, moved in place */
	bool slotted;		    /* a chunk must fit a slot of its lane */
	uint64_t chunk_max;	    /* longest chunk; 0 from a probe: no limit */
	/* Approximate length of a request's first and last chunks. Chunks grow and shrink
	 * between them. 0: chunk_max throughout. */
	uint64_t chunk_first;
	bool io_size;	      /* chunks are at most as long as the storage's preferred I/O */
	uint64_t chunk_quick; /* below this length another path is quicker; 0: never */
	const _Atomic uint64_t *held; /* bytes that the path has pinned; NULL: it pins none */
	uint64_t held_max;	      /* if `held` reaches this, the plan's next path is used */
	unsigned lanes;		      /* lanes needed for full speed; 0: all */
	bool quick;		      /* false: it works, but is used only if no other path does */
	bool canary; /* its reports of success are not trusted until bytes are compared */
};

/* The functions of a path. */
struct pst_path_ops {
	const char *name;
	struct pst_path_traits traits;
	/* Finds out whether the path is open on this route. 0: fills `facts`, and `err` with the
	 * reason if it misses its highest class. -errno: fills `err` with the reason, and `fix`
	 * (PENSTOCK_TEXT_MAX) with advice how to open the path. It may block. */
	int (*probe)(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		     char *fix);
	/* Optional, for a path that wraps another one. Parses its arguments (the text after '?'
	 * in a request's path) into the request's wrap_state. Core then calls this path's
	 * start() instead of the wrapped path's, whose index chunk->path still is. */
	int (*wrap)(const char *args, void *state, struct pst_err *err);
	/* Starts to move the chunk. 0: the path calls pst_chunk_done exactly once, when the chunk
	 * completes or fails. -EAGAIN: no slot is free, and the lane tries again later. After
	 * any error the path must not call pst_chunk_done. */
	int (*start)(struct pst_chunk *chunk);
	/* Optional: the path's state of one lane, in lane->path_state[index]. The lane calls
	 * idle() when it has nothing else to do. idle() releases resources that no request
	 * needs, and returns false when nothing is left to release. */
	int (*lane_open)(struct pst_lane *lane, unsigned index, struct pst_err *err);
	void (*lane_close)(struct pst_lane *lane, unsigned index);
	bool (*idle)(struct pst_lane *lane, unsigned index);
	/* Optional. Frees the path's state of a route, in route->path_priv[index]. */
	void (*route_close)(struct pst_route *route, unsigned index);
	/* Optional. The storage or the device (the other is NULL) is about to close, and the path
	 * drops the lane's caches of it. Returns the cache_bits of all storages that the
	 * path still caches state of on this lane. */
	uint64_t (*invalidate)(struct pst_lane *lane, unsigned index, struct penstock_storage *st,
			       const struct penstock_device *dev);
};

/*
 * A chunk: a contiguous range of one storage that moves as one, between the storage and the
 * parts of segments that it covers. It is an element of its lane's pool.
 */
struct pst_chunk {
	struct pst_request *req;
	struct pst_lane *lane;
	struct pst_route *route;
	unsigned span;	       /* index of the request's span */
	uint64_t off, len;     /* range in the storage */
	uint64_t rest;	       /* bytes after len that move once len is done: chunk_continue */
	uint8_t path;	       /* index in pst_paths */
	uint8_t tries;	       /* paths that failed for it */
	uint8_t residency;     /* enum pst_residency, from its claim or a residency probe */
	uint32_t pad;	       /* bytes after len, in the segment's `room`, that move too */
	const char *engine;    /* name of the engine that carried it; static */
	struct pst_slot *slot; /* NULL: none */
	uint64_t direct_bytes; /* its share of the storage's direct_bytes */
	struct pst_io io;
	bool io_started;     /* the storage owns `io` */
	uint64_t mem_head;   /* path staged: bytes in the slot before the chunk's first byte */
	uint64_t moved;	     /* bytes delivered; less than len at the storage's end */
	uint64_t cpu_copied; /* bytes that the CPU copied so far */
	uint64_t dram_laid;  /* bytes written to host memory on the way so far */
	uint64_t start_ns;
	bool timed;	   /* the duration of its call, or of start(), shows its residency */
	uint64_t timed_ns; /* when that call began; 0: it does not run */
	int refused;	   /* error of a copy that a copier delayed; 0: none */
	unsigned waits;	   /* copiers that have not completed its copies yet */
	struct pst_err err;
	/* Called instead of the chunk's completion. Path fault and canaries set it; else NULL. */
	void (*on_done)(struct pst_chunk *chunk, int result);
	void (*after_copies)(struct pst_chunk *chunk,
			     int result); /* the path's next step after copies */
	void *priv;			  /* the path's state */
	struct pst_chunk *next;		  /* in the list of free or deferred chunks */
};

/* ---- engine ----------------------------------------------------------------- */

struct pst_engine; /* an engine of one lane */

/* The functions of a kind of engine. Only the thread that runs the lane calls them. */
struct pst_engine_ops {
	const char *name;
	/* Opens an engine for at most `depth` calls in flight. A write to the eventfd `wake_fd`
	 * ends wait(). */
	int (*open)(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err);
	void (*close)(struct pst_engine *engine);
	/* Optional. Registers a piece of the lane's ring, for calls with `fixed`. The lane may
	 * register a second piece later. */
	int (*register_slots)(struct pst_engine *engine, void *base, size_t len,
			      struct pst_err *err);
	/* Submits a call. 0: poll or wait calls done() once, even if the engine fails meanwhile.
	 * -EAGAIN: `depth` calls are in flight. */
	int (*submit)(struct pst_engine *engine, struct pst_call *call);
	/* Passes submitted calls to the kernel and reaps completed ones. Returns how many. */
	int (*poll)(struct pst_engine *engine);
	/* Sleeps until a completion, a write to wake_fd, or timeout_us (-1: no limit). Reaps
	 * completed calls. */
	int (*wait)(struct pst_engine *engine, int64_t timeout_us);
};

#endif
