/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The four tables of functions that backends implement: storage (where the bytes are),
 * device (where they land), path (which memory they touch on the way) and engine (which
 * system calls move them), and the structs that they exchange. Read penstock.h first, this
 * file second and core/backends.c third. ARCHITECTURE.md follows one read through them.
 *
 * Core calls backends through these tables only and knows no backend by name. A backend uses
 * this file and core's helpers, never another backend. A path reaches host memory through the
 * storage's table and device memory through the device's table. It sees no file descriptor
 * except facts.fd. Only a storage calls an engine.
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

struct pst_lane;    /* a thread of a pump: core/lane/lane.h */
struct pst_chunk;   /* the unit that moves as one: below */
struct pst_request; /* core/request/request.h */
struct pst_route;   /* core/route/route.h */
struct pst_slot;    /* a piece of the ring: core/lane/ring.h */

#define PST_PATHS_MAX PENSTOCK_PATHS_MAX
#define PST_DRIVES_MAX 32
#define PST_DEVICES_MAX 64

/* ---- storage ---------------------------------------------------------------- */

enum pst_residency { PST_COLD, PST_WARM, PST_UNKNOWN, PST_RESIDENCIES, PST_MIXED };

struct pst_drive {
	char name[32]; /* "nvme0n1" */
	char bdf[16];  /* PCI address; "": none, or not known */
	int numa;      /* NUMA node; -1: unknown */
};

/* What a storage reports when it is opened. plan.c decides from nothing else. */
struct pst_storage_facts {
	uint64_t length; /* at open */
	int fd;		 /* buffered descriptor; -1: none (objects) */
	int fd_direct;	 /* O_DIRECT descriptor; -1: none, for the reason in why_direct */
	bool writable;
	bool growing;	     /* private until commit, so a padded tail can be truncated then */
	bool immutable;	     /* the caller promised that the bytes never change */
	bool mappable;	     /* mmap(MAP_SHARED) of fd maps the page cache */
	bool fd_blocks;	     /* fd is O_DIRECT as well (see why_fd) and takes whole blocks only */
	bool mapped_quick;   /* large folios: registration costs little per byte */
	bool listed;	     /* on the allow-list: this kernel does O_DIRECT by the drive's DMA */
	uint32_t off_align;  /* alignment of O_DIRECT offsets and lengths */
	uint32_t mem_align;  /* alignment of O_DIRECT addresses */
	uint32_t edge_align; /* writes are split here: max(page size, file-system block) */
	uint32_t chunk_best; /* preferred bytes of one call; 0: any */
	uint64_t stripe_len; /* bytes on one drive before the next one follows; 0: no stripe */
	unsigned drive_count;
	struct pst_drive drives[PST_DRIVES_MAX];
	struct pst_err why_direct;    /* why O_DIRECT is missing or cannot be trusted */
	struct pst_err why_fd;	      /* why the caller's own descriptor had to be used */
	struct pst_err why_no_write;  /* why the file is read-only for us; code 0: it is not */
	char text[PENSTOCK_TEXT_MAX]; /* "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)" */
};

struct pst_storage_ops;
struct penstock_storage {
	const struct pst_storage_ops *ops;
	void *priv; /* the backend's */
	/* Serial numbers of the devices of `routes`. Written after the route. */
	_Atomic uint64_t route_serials[2][PST_DEVICES_MAX];
	struct pst_storage_facts facts;
	_Atomic unsigned inflight;     /* requests */
	_Atomic unsigned losses;       /* failed syncs; each may have lost anybody's bytes */
	_Atomic uint64_t direct_bytes; /* in flight between its drives and memory */
	struct pst_io_size io_size;    /* of O_DIRECT reads */
	_Atomic bool cached_by_lanes;  /* a lane caches something of it until it closes */
	uint64_t cache_bit;	       /* its bit in pst_lane.caches; one storage in 64 shares it */
	_Atomic int residency_probe;   /* enum pst_residency_probe */
	_Atomic uint64_t unprobed_bytes; /* claimed since the last residency probe began */
	unsigned generation;		 /* pst_fork_generation() of the process that opened it */
	_Atomic(struct pst_route *) routes[2][PST_DEVICES_MAX]; /* by op and device index */
};

/* pst_io.flags */
#define PST_IO_DIRECT 0x1u /* by O_DIRECT; else through the page cache */
#define PST_IO_RING 0x2u   /* the memory is in the lane's ring, and may be registered */
#define PST_IO_NOW 0x4u	   /* known to be quick: make the call on this thread, at once */

#define PST_IO_PRIV 112

enum pst_io_op { PST_IO_FILL, PST_IO_DRAIN, PST_IO_SYNC };

/* One system call. The storage fills it in and an engine carries it out. */
struct pst_call {
	int fd;
	enum pst_io_op op;
	bool fixed; /* inside the registered slots */
	const struct iovec *iov;
	unsigned iov_count;
	uint64_t off;
	int64_t result;			     /* bytes or -errno */
	const char *engine;		     /* name of the engine that carried it; static */
	enum penstock_why engine_why;	     /* why that is not the preferred engine */
	void (*done)(struct pst_call *call); /* on the lane's thread */
	struct pst_call *next;		     /* the engine's while in flight */
	uint64_t word;			     /* the engine's */
};

/*
 * One asynchronous transfer between storage and host memory. The storage owns the struct and
 * the memory until it has called done(), exactly once, on the lane's thread. A storage with
 * threads or an event loop of its own calls pst_io_done() (core/lane/inbox.h) from any thread
 * instead, which passes the completion to the lane.
 */
struct pst_io {
	struct penstock_storage *st;
	struct pst_lane *lane;
	enum pst_io_op op;
	unsigned flags; /* PST_IO_* */
	uint64_t off;
	uint64_t len;	   /* of all iov together */
	struct iovec one;  /* iov may point here if one piece is enough */
	struct iovec *iov; /* consumed: the storage may change the entries */
	unsigned iov_count;
	int64_t result;		      /* bytes (short only at the storage's end) or -errno */
	const char *engine;	      /* name of the engine that carried it; static */
	enum penstock_why engine_why; /* why not a better one, if that showed on the way */
	struct pst_err err;	      /* with text if result < 0 */
	void (*done)(struct pst_io *io);
	struct pst_io *next; /* the storage's while in flight, then the lane's */
	_Alignas(8) unsigned char priv[PST_IO_PRIV]; /* the storage's */
};

struct pst_storage_ops {
	const char *name;
	/* Whether this storage opens such a URL. */
	bool (*match)(const char *url);

	/* Fills st->priv and st->facts. `fd` is the caller's; -1: open `url`. */
	int (*open)(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err);
	void (*close)(struct penstock_storage *st);

	/* Start an asynchronous transfer. On an error return done() is never called. */
	int (*fill)(struct pst_io *io);
	int (*drain)(struct pst_io *io);
	int (*sync)(struct pst_io *io); /* makes drained bytes survive a power cut */
	/* Optional, for storages whose transfers may take long. The caller has cancelled the
	 * request that this transfer belongs to. The storage completes it early with -ECANCELED
	 * and leaves its memory alone from then on, or lets it run. Called on the lane's
	 * thread, perhaps more than once, and possibly after another thread has completed the
	 * io: the storage must look it up among its own before it touches it. Never blocks. */
	void (*cancel)(struct pst_io *io);

	/* Optional, may block, no request in flight. */
	int (*commit)(struct penstock_storage *st, bool durable, struct pst_err *err);
	int (*abort)(struct penstock_storage *st, struct pst_err *err);
	int (*length)(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

	/* Optional. Reports whether the range is in the page cache: cold, warm, mixed (ask for
	 * a shorter range) or unknown, for the reason in `why`. One quick system call. */
	enum pst_residency (*residency)(struct penstock_storage *st, uint64_t off, uint64_t len,
					enum penstock_why *why);

	/* Optional. Finds a written extent (no hole, not unwritten, not inline) at or after
	 * *off, for the canary. -ENODATA: none. */
	int (*written)(struct penstock_storage *st, uint64_t *off, uint64_t *len);
	/* Optional. Returns another number once more bytes may have been written. One quick
	 * system call. */
	uint64_t (*stamp)(struct penstock_storage *st);
};

/* ---- device ----------------------------------------------------------------- */

struct pst_device_facts {
	bool cpu_addressable;  /* the CPU may load and store at its addresses */
	bool is_host;	       /* ordinary host memory: transfers need no ring */
	bool reads_page_cache; /* can register and copy from a read-only file mapping */
	bool peer_pages;       /* its addresses have pages that O_DIRECT can pin */
	bool stream_memops;    /* stream_write and stream_wait exist */
	uint32_t mem_align;    /* alignment of addresses that a peer's DMA may use */
	unsigned lanes_best;
	int numa;
	char bdf[16];
	struct pst_err why_peer;   /* why peer_pages is false */
	struct pst_err why_mapped; /* why reads_page_cache is false */
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_device_ops;
struct pst_device_hooks; /* core/base/devices.h */
struct pst_pump;	 /* core/lane/pump.h */
struct penstock_device {
	const struct pst_device_ops *ops;
	void *priv; /* the backend's */
	struct pst_device_facts facts;
	struct penstock_device_opts opts; /* its strings are the device's copies */
	const struct pst_device_hooks *hooks;
	unsigned index;	     /* in the process's table */
	uint64_t serial;     /* unique, also among devices that have the index later */
	unsigned generation; /* pst_fork_generation() of the process that opened it */
	unsigned refs;	     /* openers; under the table's lock */
	char name[32];
	_Atomic(struct pst_pump *) pump; /* NULL until the first route */
	_Atomic unsigned guests;	 /* requests of other devices' pumps that use this one */
	/* core/base/device_sync.c */
	_Atomic unsigned streams_waiting; /* streams that wait for requests of ours */
	_Atomic unsigned syncs;		  /* calls that wait for all streams, now running */
	_Atomic uint64_t sync_first_ns;	  /* until this time streams let such calls go first */
	_Atomic(void *) scratch;	  /* kept by core/lane/scratch.c; NULL: none */
	_Atomic uint64_t page_cache;	  /* bytes of it that path mapped has registered */
};

/* What a device knows about a pointer. */
struct pst_memory {
	uint64_t base, len; /* of its allocation; len 0: not known */
	uint64_t id;	    /* changes when the address is allocated again; 0: not known */
	bool managed;	    /* may move between host and device: no peer DMA into it */
};

/* rows x row_len bytes. The pitches do not matter for one row. */
struct pst_rect {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch;
	uint64_t row_len, rows;
	bool unsure;	/* the host side may be unmapped: check it before the CPU copies */
	unsigned piece; /* registered piece of the ring that holds the host side; the driver
			 * refuses one copy that spans two pieces */
	/* Not NULL: the copier may delay this copy until record(), to hand over many at once.
	 * It stores a refusal here before query() reports the ticket. */
	int *refused;
};

/*
 * A copier is one lane's copy queue on one device, used by that lane's thread only. Copies
 * run in order. record() returns a ticket, and query() reports it once every copy queued
 * before it is done (as cuEventRecord and cuEventQuery do).
 */
struct pst_copier;

struct pst_device_ops {
	const char *name;
	/* Whether this backend opens a device of that name. */
	bool (*match)(const char *name);
	int (*open)(struct penstock_device *dev, struct pst_err *err); /* dev->name, opts set */
	void (*close)(struct penstock_device *dev);
	int (*count)(void); /* devices present, for "auto"; NULL: auto never selects it */
	bool numbered;	    /* "auto" means NAME:0, not NAME */

	int (*alloc)(struct penstock_device *dev, size_t len, void **out, struct pst_err *err);
	int (*free)(struct penstock_device *dev, void *ptr, struct pst_err *err);
	/* 1: ptr belongs to this device; 0: it does not. Cheap, thread-safe. */
	int (*classify)(struct penstock_device *dev, const void *ptr, struct pst_memory *out);

	/* Pins host memory, so that copies of every device of the kind run at full speed.
	 * read_only: a mapping that must not be written. NULL: nothing to do. */
	int (*host_register)(struct penstock_device *dev, void *host, size_t len, bool read_only,
			     struct pst_err *err);
	int (*host_unregister)(struct penstock_device *dev, void *host, struct pst_err *err);

	/* `tickets` is how many are likely to be in flight. The copier creates now whatever
	 * they need, so that nothing later waits for streams. */
	int (*copier_open)(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			   struct pst_err *err);
	void (*copier_close)(struct pst_copier *copier);
	/* Queue a copy from host to device memory, or back. */
	int (*copy_in)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*copy_out)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*record)(struct pst_copier *copier, uint64_t *ticket);
	int (*query)(struct pst_copier *copier, uint64_t ticket); /* 1: done, 0: not yet, -errno */
	int (*wait)(struct pst_copier *copier, uint64_t ticket);  /* sleeps until done */
	/* Optional: -errno once the device is broken for good, so that no stream of it will
	 * ever run again. */
	int (*alive)(struct pst_copier *copier);

	/* Copies between devices of the same kind and returns when done. NULL or -EXDEV: core
	 * copies through host memory. */
	int (*copy_peer)(struct penstock_device *dst, struct penstock_device *src,
			 const struct pst_rect *rect, struct pst_err *err);
	int (*export_memory)(struct penstock_device *dev, void *ptr, size_t len,
			     struct penstock_export *out, struct pst_err *err);
	int (*import_memory)(struct penstock_device *dev, const struct penstock_export *exported,
			     void **out, struct pst_err *err);

	/* Calls fn(arg) with the state that the device's own library needs on a thread (a
	 * current context), for code of a vendor. Returns what fn returns. */
	int (*inside)(struct penstock_device *dev, int (*fn)(void *arg), void *arg);

	/* Makes what a peer's DMA wrote visible to later reads of device memory. Paths with
	 * such DMA call it before a chunk completes; a vendor's library does it itself. */
	int (*order_writes)(struct penstock_device *dev, struct pst_err *err);

	/* Stream order. stream_write: the stream stores `value` in *semaphore when it gets
	 * there. stream_wait: the stream waits until *semaphore is at least `value`. The
	 * semaphores are zeroed host memory from semaphores_alloc, which a lane polls. */
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
	bool probes_residency; /* the duration of its call tells whether the bytes were cached */
	bool detects_cold;     /* so does the duration of its start, but a miss is expensive */
	bool by_name_only;     /* null and fault: used only on request; last in the table */
	bool synchronous;      /* start() completes the chunk before it returns, and works without
				* a lane and pst_chunk_done */
	enum penstock_class class_; /* the highest class that it can meet */
};

/* What a path found out about one route. */
struct pst_path_facts {
	enum penstock_class class_; /* the class that it meets on this route */
	uint32_t off_align;	    /* alignment of a chunk's storage offset and length; 1: any */
	uint32_t mem_align;	    /* alignment of a chunk's device address; 1: any */
	bool exact;		    /* a chunk is one piece of one segment, moved in place */
	bool slotted;		    /* a chunk must fit a slot of its lane */
	uint64_t chunk_max;	    /* longest chunk */
	/* Approximate length of a request's first and last chunks. Chunks grow and shrink
	 * between them. 0: chunk_max throughout. */
	uint64_t chunk_first;
	bool io_size;		      /* a chunk is at most the storage's preferred I/O size */
	uint64_t chunk_quick;	      /* another path is quicker below this length; 0: none */
	const _Atomic uint64_t *held; /* bytes that the path keeps pinned; NULL: none */
	uint64_t held_max;	      /* from here on the plan's next path is used */
	unsigned lanes;		      /* lanes needed for full speed; 0: all */
	bool quick;		      /* false: works, but is used only if nothing else does */
	bool canary;		      /* its success proves nothing until bytes are compared */
};

struct pst_path_ops {
	const char *name;
	struct pst_path_traits traits;
	/* Finds out whether the path is open on this route. 0: facts, and in `err` what keeps
	 * it from its highest class. -errno: the reason in `err`, and in `fix`
	 * (PENSTOCK_TEXT_MAX) what would open it. May block. */
	int (*probe)(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		     char *fix);
	/* Optional: this path wraps another one. Parses its arguments (the text after '?' in a
	 * request's path) into the request's wrap_state. Core then calls this path's start()
	 * instead of the wrapped path's, and chunk->path names the wrapped one. */
	int (*wrap)(const char *args, void *state, struct pst_err *err);
	/* Starts moving the chunk. The path calls pst_chunk_done exactly once at its end. 0;
	 * -EAGAIN: no slot, try again later; other errors: pst_chunk_done is never called. */
	int (*start)(struct pst_chunk *chunk);
	/* Optional, per lane: state in lane->path_state[index]. idle() is called when the lane
	 * has nothing else to do; it returns false when it has nothing left to trim. */
	int (*lane_open)(struct pst_lane *lane, unsigned index, struct pst_err *err);
	void (*lane_close)(struct pst_lane *lane, unsigned index);
	bool (*idle)(struct pst_lane *lane, unsigned index);
	void (*route_close)(struct pst_route *route, unsigned index); /* optional */
	/* Optional: the storage, or the device (the other is NULL), is about to close. Drops
	 * what the lane caches of it. Returns the cache_bit of every storage that the lane
	 * still caches something of. */
	uint64_t (*invalidate)(struct pst_lane *lane, unsigned index, struct penstock_storage *st,
			       const struct penstock_device *dev);
};

/*
 * A chunk: a contiguous range of one storage that moves as one, and the parts of segments
 * that it fills or is filled from. It is an element of its lane's pool.
 */
struct pst_chunk {
	struct pst_request *req;
	struct pst_lane *lane;
	struct pst_route *route;
	unsigned span;	   /* of the request */
	uint64_t off, len; /* in the storage */
	uint64_t rest;	   /* bytes after len that follow once len is done; see chunk_continue */
	uint8_t path;	   /* index in pst_paths */
	uint8_t tries;
	uint8_t residency;  /* enum pst_residency when it was claimed */
	uint32_t pad;	    /* bytes after len, in the segment's room, that move along */
	const char *engine; /* name of the engine that carried it; static */
	struct pst_slot *slot;
	uint64_t direct_bytes; /* its share of the storage's direct_bytes */
	struct pst_io io;
	bool io_started;     /* the storage owns io */
	uint64_t mem_head;   /* staged: bytes in the slot before the chunk's first */
	uint64_t moved;	     /* bytes delivered; short at the storage's end */
	uint64_t cpu_copied; /* bytes that the CPU copied, counted as it happens */
	uint64_t dram_laid;  /* bytes written to host memory on the way, likewise */
	uint64_t start_ns;
	bool timed;	   /* the duration of its call, or of start, tells its residency */
	uint64_t timed_ns; /* when that call began; 0: not running */
	int refused;	   /* result of copies that a copier delayed */
	unsigned waits;	   /* copiers that have not completed its copies yet */
	struct pst_err err;
	/* Set by path fault and by canaries, which take the completion; else NULL. */
	void (*on_done)(struct pst_chunk *chunk, int result);
	void (*after_copies)(struct pst_chunk *chunk, int result); /* the path's next step */
	void *priv;						   /* the path's */
	struct pst_chunk *next;
};

/* ---- engine ----------------------------------------------------------------- */

struct pst_engine; /* one lane's */

struct pst_engine_ops {
	const char *name;
	/* At most `depth` calls are in flight. A write to the eventfd `wake_fd` ends wait(). */
	int (*open)(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err);
	void (*close)(struct pst_engine *engine);
	/* Registers a piece of the lane's ring, so that calls with `fixed` may use it. A second
	 * piece may follow later. */
	int (*register_slots)(struct pst_engine *engine, void *base, size_t len,
			      struct pst_err *err);
	/* 0: done() is called once, from poll or wait, also if the engine fails meanwhile.
	 * -EAGAIN: depth calls are in flight. */
	int (*submit)(struct pst_engine *engine, struct pst_call *call);
	int (*poll)(struct pst_engine *engine); /* flushes and reaps; returns calls reaped */
	/* Sleeps until a completion, a write to wake_fd, or timeout_us (-1: none); reaps. */
	int (*wait)(struct pst_engine *engine, int64_t timeout_us);
};

#endif
