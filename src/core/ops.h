/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The four tables of functions that backends implement, and the structs that these functions
 * exchange. A storage holds the bytes, a device is their destination or source. A path decides
 * which memory the bytes pass through, and an engine makes the system calls. Read penstock.h
 * first, this file second and core/backends.c third. ARCHITECTURE.md explains the project's words
 * in its section Words, and follows one read through the four tables.
 *
 * Core calls backends through these tables only and knows no backend by name. A backend uses
 * this file and core's helpers, and must never use another backend. A path moves bytes to and
 * from host memory through the storage's table, and to and from device memory through the
 * device's table. A path sees no file descriptor except facts.fd. Only a storage calls an
 * engine.
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

struct pst_lane;    /* a worker loop; see core/lane/lane.h */
struct pst_chunk;   /* a range of bytes in transfer; below */
struct pst_request; /* defined in core/request/request.h */
struct pst_route;   /* defined in core/request/plan.h */
struct pst_slot;    /* a piece of staging memory; see core/lane/ring.h */

#define PST_PATHS_MAX PENSTOCK_PATHS_MAX
/* Maximum number of drives below one storage, for example in a RAID. Each drive has a bit in
 * pst_route.write_drives. */
#define PST_DRIVES_MAX 32
#define PST_DEVICES_MAX 64 /* maximum number of open devices; some masks have a bit for each */

/* ---- storage ---------------------------------------------------------------- */

/* Whether a range is in the kernel's page cache: no (cold), yes (warm), unknown, or only in part
 * (mixed). PST_RESIDENCIES is the number of the values before it. */
enum pst_residency { PST_COLD, PST_WARM, PST_UNKNOWN, PST_RESIDENCIES, PST_MIXED };

struct pst_drive {
	char name[32]; /* kernel's name, such as "nvme0n1" */
	char bdf[16];  /* PCI address; "" if there is none or it is unknown */
	int numa;      /* NUMA node; -1 if unknown */
};

/* Facts that a storage reports when it is opened. The code of paths and plans may use no other
 * information about a storage. */
struct pst_storage_facts {
	uint64_t length; /* number of bytes in the storage when it was opened */
	/* Version of the object: a number that differs if the object's bytes differ. 0 if it is
	 * unknown. */
	uint64_t version;
	int fd; /* descriptor for buffered I/O; -1 if there is none (object storage) */
	/* Descriptor with O_DIRECT; -1 if there is none, for the reason in why_direct. */
	int fd_direct;
	bool writable;
	/* New storage, which is private until commit. The commit can cut off padding at its end. */
	bool growing;
	bool immutable; /* the caller promised that the bytes never change */
	bool mappable;	/* mmap(MAP_SHARED) of `fd` maps the storage's page cache */
	bool fd_blocks; /* `fd` has O_DIRECT (see why_fd) and moves only whole blocks */
	/* The file system keeps large folios in the page cache, so registering page-cache memory
	 * with a GPU takes little time. */
	bool mapped_quick;
	/* The file system and all block layers below it are on the library's allow-list: for them,
	 * an O_DIRECT call makes the drive's DMA move the bytes. */
	bool listed;
	uint32_t off_align; /* alignment of O_DIRECT offsets and lengths, in bytes */
	uint32_t mem_align; /* alignment of the memory addresses of O_DIRECT calls, in bytes */
	/* Alignment in bytes at which writes are split: the larger of the page size and the file
	 * system's block size. */
	uint32_t edge_align;
	uint32_t chunk_best; /* preferred length of one system call; 0 if there is none */
	/* Stripe length: number of consecutive bytes that are on one drive before the next drive
	 * follows. 0 if the storage is not striped. */
	uint64_t stripe_len;
	unsigned drive_count;
	struct pst_drive drives[PST_DRIVES_MAX];
	/* Identifies a kind of window, which is memory that the storage's server accesses itself.
	 * Storages with the same value can use each other's windows. NULL if the storage's server
	 * cannot read or write windows; why_windows has the reason. */
	const void *windows;
	struct pst_err why_windows;
	/* The highest class that path "rdma" can meet for a transfer to or from a GPU through a
	 * window. */
	enum penstock_class windows_class;
	bool windows_only; /* the caller allows only transfers through windows */
	/* Why the storage does not check bytes in windows in a device's memory, although it checks
	 * other bytes; NULL if this is not so. */
	const char *device_unchecked;
	/* fills with PST_IO_FAR are possible: the server may pass a file (see there) */
	bool windows_files;
	/* Set by the commit of an upload to an object store. parts_far: number of parts that the
	 * server fetched through windows. parts_near: number of other parts. why_near: why the
	 * first of the other parts was not fetched through a window. */
	unsigned parts_far, parts_near;
	unsigned parts_device; /* those of parts_far whose windows were memory of a device */
	struct pst_err why_near;
	/* 0 while the server uses windows. After it has stopped using them, the reason (enum
	 * penstock_why). NULL if `windows` is NULL. */
	const _Atomic unsigned *windows_shut;
	struct pst_err why_direct; /* why O_DIRECT is missing, or why it is not trusted */
	struct pst_err why_fd; /* why `fd` is the caller's descriptor and not a newly opened one */
	/* Why the storage cannot be written; the code is 0 if it can be written. */
	struct pst_err why_no_write;
	/* Description, such as "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)". */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * A window: memory of the host or of a device that a storage's server (also called the far side)
 * can read and write itself, for example by RDMA. A storage allocates it. A transfer that names the
 * window moves its bytes. Only path "rdma" and storages with such servers use it.
 */
struct pst_window {
	char *mem;
	size_t len;
	struct penstock_device *dev; /* device of the memory; NULL: host memory */
	const void *kind; /* facts.windows of the storages that can use it */
	/* True if the server lost its access during a transfer, so that the window's pages were
	 * replaced. A device that has pinned the old pages would copy from those. So code that
	 * finds this flag set must copy nothing from the window, and close it. */
	_Atomic bool spoiled;
	/* Frees the window. If the window is in a device's memory, the caller has called
	 * pst_device_sync_begin before. If the far side may still write to that memory, the
	 * function leaves it allocated. */
	void (*close)(struct pst_window *window);
};

struct pst_storage_ops;
struct pst_cache_fill;
/* An open storage. */
struct penstock_storage {
	const struct pst_storage_ops *ops;
	void *priv; /* the backend's state */
	/* For each entry of `routes`, the serial number of the route's device, which shows whether
	 * the entry belongs to the device now at this index. It is written after the route. */
	_Atomic uint64_t route_serials[2][PST_DEVICES_MAX];
	struct pst_storage_facts facts;
	_Atomic unsigned inflight; /* number of requests in flight */
	/* Number of syncs of this storage that have failed. Each of them may have lost bytes of any
	 * write in flight. */
	_Atomic unsigned losses;
	/* Number of bytes in flight between the storage's drives and memory, without the page
	 * cache. */
	_Atomic uint64_t direct_bytes;
	struct pst_io_size io_size;   /* preferred size of O_DIRECT reads */
	_Atomic bool cached_by_lanes; /* a lane may have cached state of this storage */
	/* the storage's bit in the mask pst_lane.caches; every 64th storage has the same bit */
	uint64_t cache_bit;
	_Atomic int residency_probe; /* enum pst_residency_probe */
	/* Number of bytes that lanes have taken from requests since the last residency probe began.
	 * Such a probe is a read whose duration shows whether bytes are in the page cache. */
	_Atomic uint64_t unprobed_bytes;
	/* Records of bytes that this process brings into the page cache (cache_fill.h), or NULL. */
	struct pst_cache_fill *cache_fill;
	unsigned generation; /* fork generation of the process that opened it (fork.h) */
	/* Routes to open devices, indexed by operation (read or write) and device index. A route is
	 * what the library knows about transfers between this storage and one device. */
	_Atomic(struct pst_route *) routes[2][PST_DEVICES_MAX];
};

/* pst_io.flags */
#define PST_IO_DIRECT 0x1u /* use O_DIRECT, not the page cache */
#define PST_IO_RING 0x2u   /* the memory is a lane's staging memory, which may be registered */
#define PST_IO_NOW 0x4u	   /* the call takes little time: make it at once, on this thread */
/* For a drain: the server shall fetch the bytes through a window. For a fill without a window: the
 * server shall pass a file, from which the storage copies the bytes to the transfer's memory. Such
 * a fill fails with -EOPNOTSUPP if the server passes no file, and the next ones do for a while. */
#define PST_IO_FAR 0x8u
/* For a drain: move no bytes, but find memory for them in a window. See `placed`. */
#define PST_IO_PLACE 0x10u

#define PST_IO_PRIV 112 /* size of the storage's own state in a struct pst_io, in bytes */

/* Kind of a transfer: from the storage to memory, from memory to the storage, or a sync, which
 * makes earlier writes durable. */
enum pst_io_op { PST_IO_FILL, PST_IO_DRAIN, PST_IO_SYNC };

/* One read, write or sync by a system call. A storage fills in the struct, and an engine makes the
 * call. */
struct pst_call {
	int fd;
	enum pst_io_op op;
	bool fixed; /* the memory lies in slots that are registered with the engine */
	const struct iovec *iov;
	unsigned iov_count;
	uint64_t off;
	int64_t result;			     /* number of bytes, or -errno */
	const char *engine;		     /* name of the engine that carried it; static */
	enum penstock_why engine_why;	     /* why the preferred engine does not make the call */
	void (*done)(struct pst_call *call); /* called on the lane's thread */
	struct pst_call *next;		     /* used by the engine while the call is in flight */
	uint64_t word;			     /* used by the engine */
};

/*
 * One asynchronous transfer between storage and host memory. The struct and the memory belong to
 * the storage until it calls done(), exactly once, on the thread of the lane that started the
 * transfer. A storage with its own threads or event loop calls pst_io_done() (core/lane/inbox.h)
 * from any thread instead. That function passes the completion to the lane, which calls done().
 */
struct pst_io {
	struct penstock_storage *st;
	struct pst_lane *lane;
	enum pst_io_op op;
	unsigned flags; /* PST_IO_* */
	uint64_t off;
	uint64_t len;	   /* total length of all entries of `iov` */
	struct iovec one;  /* `iov` points here if it has one entry */
	struct iovec *iov; /* the storage may change the entries */
	unsigned iov_count;
	int64_t result; /* number of bytes (less than `len` only at the storage's end), or -errno */
	/* name of the engine (way to make system calls) that carried the transfer; a static
	 * string */
	const char *engine;
	/* Why the transfer was not carried by a better engine, if the storage knows the reason. */
	enum penstock_why engine_why;
	/* For a fill into a window (struct pst_window): the window. The transfer's memory begins
	 * where the window begins, and the server may write the bytes into the window. After a
	 * drain with PST_IO_PLACE: the window with the memory. Else NULL. */
	struct pst_window *window;
	/* For PST_IO_PLACE: the device in whose memory the window is. */
	struct penstock_device *dev;
	/* Results of a fill into a window or with PST_IO_FAR. by_window: the server wrote the bytes
	 * into the window, or passed a file with them. by_dma: it did so only by DMA. If the bytes
	 * arrived in another way, `err` has the reason. */
	bool by_window, by_dma;
	/* Result of a fill: number of bytes that the storage had in memory of its own, from which
	 * the CPU has copied them. So they have one DRAM pass and one CPU copy more. */
	uint64_t kept;
	struct pst_err err; /* reason and text of the error if `result` is negative */
	void (*done)(struct pst_io *io);
	struct pst_io *next; /* used by the storage while in flight, then by the lane */
	_Alignas(8) unsigned char priv[PST_IO_PRIV]; /* the storage's state */
};

/* The functions of a kind of storage. */
struct pst_storage_ops {
	const char *name;
	/* Returns whether this kind of storage opens the URL. */
	bool (*match)(const char *url);

	/* Opens a storage: fills st->priv and st->facts. `fd` is the caller's descriptor, or -1 if
	 * the function shall open `url`. */
	int (*open)(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err);
	void (*close)(struct penstock_storage *st);

	/* Start an asynchronous transfer, whose completion is reported by done(): fill moves bytes
	 * into memory, drain moves bytes out of memory, and sync makes drained bytes survive a
	 * power cut. If one of them returns an error, it never calls done(). */
	int (*fill)(struct pst_io *io);
	int (*drain)(struct pst_io *io);
	int (*sync)(struct pst_io *io);
	/* Optional, for storages whose transfers may take long. Called when the application has
	 * cancelled the request that the transfer belongs to, or when the request's deadline has
	 * passed. The storage either completes the transfer early with -ECANCELED, and does not
	 * touch its memory afterwards, or lets it run. The function is called on the lane's thread,
	 * perhaps more than once. Another thread may have completed the transfer already. So before
	 * the function uses the struct, it must check that the transfer is still in flight. The
	 * function must never block. */
	void (*cancel)(struct pst_io *io);

	/* Allocates a window of at least `len` bytes in the memory of `dev`, or in host memory if
	 * `dev` is NULL. Not NULL if facts.windows is set. */
	int (*window_open)(struct penstock_storage *st, struct penstock_device *dev, size_t len,
			   struct pst_window **out, struct pst_err *err);
	/* Returns 0 if the storage's server (the far side) can access windows in the memory of
	 * `dev`, or -errno. The function may make a test transfer, and block. Later, a transfer
	 * through such a window can still fail with -EOPNOTSUPP, before any byte of it is used. Not
	 * NULL if facts.windows is set. If it returns 0 for writes, `placed` is not NULL, and the
	 * storage may keep the device open until it closes. */
	int (*windows_reach)(struct penstock_storage *st, struct penstock_device *dev,
			     enum penstock_op op, struct pst_err *err);
	/* Ends what a drain with PST_IO_PLACE began: the `len` bytes at offset `off` have been
	 * copied to the memory that the drain found or, if `copied` is false, will not be. `len` is
	 * the drain's result, which may be less than the drain asked for. The drain itself fails
	 * with -EOPNOTSUPP if the bytes must be drained from host memory instead. `placed` never
	 * blocks, and calls no device. */
	int (*placed)(struct penstock_storage *st, uint64_t off, uint64_t len, bool copied,
		      struct pst_err *err);

	/* Optional. Core calls these three functions only while no request is in flight, and they
	 * may block. commit publishes the written bytes, abort discards them, length returns the
	 * current length. While commit and abort wait for a server, they end early if the deadline
	 * in `opts` passes or the caller sets the cancel flag in it. Core has checked both before
	 * the call. */
	int (*commit)(struct penstock_storage *st, const struct penstock_end_opts *opts,
		      struct pst_err *err);
	int (*abort)(struct penstock_storage *st, const struct penstock_end_opts *opts,
		     struct pst_err *err);
	int (*length)(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

	/* Optional. Returns whether the range is in the page cache. If the answer is PST_MIXED, the
	 * caller queries a shorter range. If the answer is PST_UNKNOWN, the function stores the
	 * reason in `why`. The function makes one quick system call. */
	enum pst_residency (*residency)(struct penstock_storage *st, uint64_t off, uint64_t len,
					enum penstock_why *why);

	/* Optional, for canaries, which compare bytes that were transferred by DMA with the stored
	 * bytes. Finds an extent that contains written bytes at or after offset *off, and sets *off
	 * and *len to it. A hole, an unwritten extent and inline data do not count. Returns
	 * -ENODATA if there is no such extent. */
	int (*written)(struct penstock_storage *st, uint64_t *off, uint64_t *len);
	/* Optional. Returns a number that changes whenever bytes of the storage may have been
	 * written. The function makes one quick system call. */
	uint64_t (*stamp)(struct penstock_storage *st);
};

/* ---- device ----------------------------------------------------------------- */

/* Facts that a device reports when it is opened. */
struct pst_device_facts {
	bool cpu_addressable; /* the CPU may load and store at its addresses */
	bool is_host;	      /* ordinary host memory: transfers need no staging */
	/* The device can register a read-only file mapping and copy from it. */
	bool reads_page_cache;
	bool peer_pages;    /* its memory has pages (struct page), so O_DIRECT can use it */
	bool stream_memops; /* stream_write and stream_wait can be used */
	/* The longest copy to the device, in bytes, that does not delay copies of other streams
	 * while it waits in its own stream. 0 if every copy may delay them. */
	uint32_t copy_free_max;
	uint32_t mem_align;	   /* address alignment for DMA by another PCI device */
	unsigned lanes_best;	   /* preferred number of worker threads; 0 if none */
	int numa;		   /* NUMA node; -1 if unknown */
	char bdf[16];		   /* PCI address; "" if there is none */
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
	struct penstock_device_opts opts; /* the caller's options, with copies of the strings */
	const struct pst_device_hooks *hooks;
	unsigned index; /* index in the process's table of devices */
	/* Serial number of the device in this process. No later device gets the same one, even if
	 * it gets the same index. */
	uint64_t serial;
	unsigned generation; /* fork generation of the process that opened it (fork.h) */
	/* Number of openers, guarded by the lock of the table of devices. It is 0 while the device
	 * stays open only because captured CUDA graphs use it.
	 */
	unsigned refs;
	char name[32];
	/* The device's pump, which is the set of its worker threads (lanes). NULL until the pump is
	 * started. */
	_Atomic(struct pst_pump *) pump;
	/* Number of requests with segments on this device that another device's worker threads
	 * carry. */
	_Atomic unsigned guests;
	/* Number of requests of this device that are captured in CUDA graphs. While it is not 0,
	 * the device stays open. */
	_Atomic unsigned graphs;
	/* Only core/base/device_sync.c uses the next three members. */
	_Atomic unsigned streams_waiting; /* number of streams that wait for requests */
	/* Number of running driver calls that wait for all streams of the device. */
	_Atomic unsigned syncs;
	/* time in ns before which no further stream may start to wait for a request */
	_Atomic uint64_t sync_first_ns;
	/* memory that core/base/scratch.c has left allocated for the next test transfer, or NULL */
	_Atomic(void *) scratch;
	/* Number of bytes of page cache that path "mapped" has registered with this device's
	 * driver. */
	_Atomic uint64_t page_cache;
};

/* A device's memory to which a pointer belongs. The function classify of the device's backend fills
 * it. */
struct pst_memory {
	uint64_t base, len; /* address and length of its allocation; len is 0 if they are unknown */
	/* Unique number of the allocation, so that a later allocation at this address differs;
	 * 0 if unknown. */
	uint64_t id;
	/* The memory may move between host and device, so no other PCI device may access it. */
	bool managed;
};

/* A rectangle to copy: `rows` rows of row_len bytes. A pitch is the distance from row to row; it is
 * ignored for a single row. */
struct pst_rect {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch;
	uint64_t row_len, rows;
	bool unsure; /* the host memory may be unmapped, so check it before the CPU copies */
	/* A lane's staging memory is registered with the driver in one or two pieces. This is the
	 * index of the piece that contains the copy's host memory. The driver refuses a copy that
	 * spans two pieces. */
	unsigned piece;
	/* Both addresses are memory of the copier's device. Such a copy uses a queue of the device
	 * that an application's stream may delay (tests/standin/README.md). So each copier makes
	 * either only such copies or only others. */
	bool within;
	/* If `refused` is not NULL, the copier may delay the copy until record() is called, so that
	 * it can submit many copies at once. If the driver then refuses the copy, the copier stores
	 * the error in *refused, before query() reports the ticket as done. */
	int *refused;
};

/* A sequence of operations that are queued on a stream between stream_begin and stream_end of
 * struct pst_device_ops. */
struct pst_stream_seq {
	struct penstock_device *dev;
	void *stream;
	/* Identity of the stream. The handle of the per-thread default stream names another stream
	 * in each thread, so the handle does not identify a stream. */
	const void *id;
	/* Set by stream_idle. `asked`: the next two members are known. `idle`: the stream was idle.
	 * `reached`: it was idle, and no work of other streams can delay its next operation, so the
	 * stream had reached that operation already. */
	bool asked, idle, reached;
	/* The stream is being captured: each operation becomes a node of a graph, and runs whenever
	 * the graph is launched. Then `idle` and `reached` are false, and stream_copy must not be
	 * called. */
	bool capturing;
	bool copying;	   /* for the backend only: the stream may use a copy queue */
	uint64_t state[4]; /* the backend's state */
};

/* One copy that a GPU kernel executes, and a round, which is a range in a list of such copies. The
 * kernel (device/stream_copy.cu) contains both layouts. All addresses are in the device's address
 * space, which also contains pinned host memory. */
struct pst_stream_copy {
	uint64_t dst, src, dst_pitch, src_pitch, row_len, rows;
};
struct pst_stream_round {
	uint64_t first, count;
};

/*
 * A copier is the queue of one lane (a worker loop) for copies to and from one device. Only that
 * lane's thread uses it. Copies run in order. record() returns a ticket, which is a number. query()
 * reports whether every copy that was queued before this ticket is done (like cuEventRecord and
 * cuEventQuery).
 */
struct pst_copier;

/* Kinds of checksums that the device operation `sum` computes. */
enum pst_sum_kind { PST_SUM_CRC32C, PST_SUM_CRC64NVME, PST_SUM_KINDS };

/* A range of memory whose checksum the device operation `sum` computes. */
struct pst_sum {
	const void *ptr;
	uint64_t len; /* number of bytes, more than 0 */
	uint64_t raw; /* result: the raw CRC (common/crc32c.h, s3/crc.h) */
	/* For core, not for the backend: the range's device, and the index of the caller's
	 * element. */
	struct penstock_device *dev;
	unsigned index;
};

/* The functions of a kind of device. */
struct pst_device_ops {
	const char *name;
	/* Returns whether this backend opens the device with this name. */
	bool (*match)(const char *name);
	/* Opens the device. Core has set dev->name and dev->opts. */
	int (*open)(struct penstock_device *dev, struct pst_err *err);
	void (*close)(struct penstock_device *dev);
	/* Returns the number of devices of this kind. If the entry is NULL, "auto" never selects
	 * this kind. */
	int (*count)(void);
	bool numbered; /* devices have numbers, so "auto" selects NAME:0 instead of NAME */

	int (*alloc)(struct penstock_device *dev, size_t len, void **out, struct pst_err *err);
	int (*free)(struct penstock_device *dev, void *ptr, struct pst_err *err);
	/* Returns 1 and fills *out if ptr belongs to this device, else returns 0. It must be quick
	 * and thread-safe. */
	int (*classify)(struct penstock_device *dev, const void *ptr, struct pst_memory *out);

	/* Pin and unpin host memory, so that copies between it and any device of this kind run at
	 * full speed. `read_only` is true for a mapping that must not be written. host_register and
	 * host_unregister are NULL if copies need no pinned memory. */
	int (*host_register)(struct penstock_device *dev, void *host, size_t len, bool read_only,
			     struct pst_err *err);
	int (*host_unregister)(struct penstock_device *dev, void *host, struct pst_err *err);
	/* Optional. Returns whether `len` bytes of host memory are pinned, by host_register or by
	 * other code of the process. */
	bool (*host_pinned)(struct penstock_device *dev, const void *host, size_t len);

	/* Opens a copier. `tickets` is the expected number of tickets in flight. copier_open
	 * creates the driver's events for them in advance, because creating an event later could
	 * wait for streams. */
	int (*copier_open)(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			   struct pst_err *err);
	void (*copier_close)(struct pst_copier *copier);
	/* copy_in queues a copy from host to device memory, copy_out a copy from device to host
	 * memory. */
	int (*copy_in)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*copy_out)(struct pst_copier *copier, const struct pst_rect *rect);
	int (*record)(struct pst_copier *copier, uint64_t *ticket);
	/* Returns 1 if all copies before the ticket are done, 0 if not, or -errno. */
	int (*query)(struct pst_copier *copier, uint64_t ticket);
	/* Blocks until all copies before the ticket are done. */
	int (*wait)(struct pst_copier *copier, uint64_t ticket);

	/* Copies between two devices of this kind, and returns when the copy is done. If the
	 * function is NULL or returns -EXDEV, core copies through host memory. */
	int (*copy_peer)(struct penstock_device *dst, struct penstock_device *src,
			 const struct pst_rect *rect, struct pst_err *err);
	/* Optional. Export memory to another process, and import memory that another process has
	 * exported. */
	int (*export_memory)(struct penstock_device *dev, void *ptr, size_t len,
			     struct penstock_export *out, struct pst_err *err);
	int (*import_memory)(struct penstock_device *dev, const struct penstock_export *exported,
			     void **out, struct pst_err *err);
	/* Returns the number of bytes of exported memory. import_memory has checked that the
	 * allocation is at least as long. Not NULL if import_memory is not NULL. */
	uint64_t (*export_len)(const struct penstock_export *exported);
	/* Optional. Opens a dma-buf, a file descriptor with which other drivers access device
	 * memory, for the range of `len` bytes at `ptr`. Sets *off to the range's offset in the
	 * dma-buf. The caller closes *fd. */
	int (*dma_buf)(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off,
		       struct pst_err *err);

	/* Optional. Computes the checksums of ranges of this device's memory, and blocks until
	 * they are computed. Returns -EFAULT if the memory of a range is not mapped. If
	 * `unless_waiting` is true, returns -EAGAIN if a stream waits for a request: the
	 * computation could wait for this stream. A call without ranges only creates the objects
	 * that the kind needs. Without `unless_waiting`, this may wait until no stream waits for a
	 * request. */
	int (*sum)(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *sums,
		   unsigned count, bool unless_waiting, struct pst_err *err);

	/* Calls fn(arg), a function that uses a vendor's library, in the thread state that this
	 * library needs (a current CUDA context). Returns fn's result. */
	int (*inside)(struct penstock_device *dev, int (*fn)(void *arg), void *arg);

	/* Makes bytes that another PCI device wrote by DMA into this device's memory visible to
	 * later reads of that memory. A path that uses such DMA calls it before a chunk completes,
	 * unless a vendor's library does so itself. */
	int (*order_writes)(struct penstock_device *dev, struct pst_err *err);

	/*
	 * For stream-ordered requests. stream_begin prepares to queue operations on the caller's
	 * stream; after it has succeeded, the caller must call stream_end. In between, each of the
	 * other functions queues its operations. Operations run in order.
	 *
	 *	stream_idle	queues nothing. Returns whether the stream is idle, and sets the
	 *			members `idle` and `reached` of *seq. Queries a busy stream again
	 *			for up to `wait_ns` ns. After the first call, it returns the same
	 *			answer again, without a call of the driver.
	 *	stream_write	stores `value` to *word
	 *	stream_wait	waits until *word is at least `value`
	 *	stream_write_wait
	 *			does both: stores `value` to *word, then waits until *waited is at
	 *			least `least`. It needs fewer calls of the driver.
	 *	stream_copy	copies between registered host memory and device memory
	 *	stream_run	executes copies[round->first] and the following round->count - 1
	 *			copies. The device reads *round and the copies when the operation
	 *			runs. `len_bytes` is about the number of bytes, or more.
	 *	stream_count	sets *zero and *zero_too to 0, then adds 1 to *count. No addition is
	 *			lost if several streams of the device do so at once.
	 *
	 * The words, the rounds and the copies must be in host memory that host_register has
	 * pinned. A device without streams has NULL in all these entries.
	 */
	int (*stream_begin)(struct penstock_device *dev, void *stream, struct pst_stream_seq *seq,
			    struct pst_err *err);
	void (*stream_end)(struct pst_stream_seq *seq);
	bool (*stream_idle)(struct pst_stream_seq *seq, uint64_t wait_ns);
	int (*stream_write)(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			    struct pst_err *err);
	int (*stream_wait)(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			   struct pst_err *err);
	int (*stream_write_wait)(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
				 uint64_t *waited, uint64_t least, struct pst_err *err);
	int (*stream_copy)(struct pst_stream_seq *seq, const struct pst_rect *rect,
			   enum penstock_op op, struct pst_err *err);
	int (*stream_run)(struct pst_stream_seq *seq, const struct pst_stream_round *round,
			  const struct pst_stream_copy *copies, uint64_t len_bytes,
			  struct pst_err *err);
	int (*stream_count)(struct pst_stream_seq *seq, uint64_t *count, uint64_t *zero,
			    uint64_t *zero_too, struct pst_err *err);
	/* Arranges that gone(arg) is called once: when the graph into which the stream is being
	 * captured and all its executables have been destroyed, or when stream_tie fails. The call
	 * may come from a thread in which no function of the driver may be called. */
	int (*stream_tie)(struct pst_stream_seq *seq, void (*gone)(void *arg), void *arg,
			  struct pst_err *err);
	/* Optional. Creates in advance the objects that the stream functions above need, such as
	 * kernels. The function may wait until the device is idle, so it is called when the
	 * device's worker threads start. If it fails, the stream functions create these objects
	 * later. */
	void (*stream_prepare)(struct penstock_device *dev);
	/* Optional. Returns 0 if the device works, or -errno if it has failed for good, so that
	 * none of its streams will run again. It does not wait for a lock of the driver. */
	int (*alive)(struct penstock_device *dev);
};

/* ---- path ------------------------------------------------------------------- */

/* Constant properties of a path, which is a way for bytes between storage and device.
 * request/plan.c orders the paths of a request by these properties. */
struct pst_path_traits {
	bool reads, writes;
	bool uses_cache; /* the bytes pass through the page cache */
	/* The duration of the path's system call shows whether the bytes were in the page cache. */
	bool probes_residency;
	/* The duration of the path's function start() shows whether the bytes were in the page
	 * cache: start() is slow if they were not. */
	bool detects_cold;
	/* The path is used only if the caller names it. Only the last two paths in the table, null
	 * and fault, are of this kind. */
	bool by_name_only;
	/* start() completes the chunk before it returns. If chunk->lane is NULL, the calling thread
	 * runs the chunk without a lane, and start() does not call pst_chunk_done. */
	bool synchronous;
	bool needs_file;	    /* the path needs a storage with a file descriptor */
	enum penstock_class class_; /* the highest class that the path can meet on any route */
};

/* Facts that a path's probe found out about one route, which is a storage, a device and a
 * direction. */
struct pst_path_facts {
	enum penstock_class class_; /* the highest class that the path meets on this route */
	uint32_t off_align; /* alignment of a chunk's storage offset and length; 1 if none */
	uint32_t mem_align; /* alignment of a chunk's device address; 1 if none */
	/* A chunk must be inside one row of a segment, because the path moves bytes directly to or
	 * from the segment's buffer. */
	bool exact;
	bool slotted;	    /* a chunk must fit in one slot of staging memory */
	uint64_t chunk_max; /* maximum length of a chunk; a probe sets 0 for no limit */
	/* Approximate length of the first and the last chunks of a request. Chunks grow after the
	 * first ones and shrink before the last ones. 0 if all chunks may be chunk_max long. */
	uint64_t chunk_first;
	/* If true, the storage's preferred length of a system call (pst_io_size) limits the length
	 * of a chunk. */
	bool io_size;
	/* From this chunk length in bytes on, this path is at least as fast as every other path; 0
	 * for any length. */
	uint64_t chunk_quick;
	/* Maximum number of bytes that the path may leave pinned for the device, so that later
	 * reads need not pin them again; 0 if it leaves none pinned. */
	uint64_t held_max;
	unsigned lanes; /* number of worker threads for full speed; 0 if all are needed */
	/* 0 while the path can be used. When the path becomes unusable, the reason (enum
	 * penstock_why), and chunks then use the plan's next path. NULL if the path never becomes
	 * unusable. */
	const _Atomic unsigned *shut;
	/* Maximum length of a chunk while the request's other lanes carry chunks on the plan's next
	 * path. Needed for a path whose chunks occupy the device's driver when they start, so that
	 * other lanes' calls of the driver wait. 0 if the path is never used together with another
	 * one. */
	uint64_t mixed_max;
	/* True if the probe has found that the path is fast on this route. A plan lists slow paths
	 * last. */
	bool quick;
	/* For path "rdma": the storage's server can access windows (struct pst_window) in the
	 * device's memory. */
	bool device_windows;
	/* Text about the path, which penstock_explain and reports show if the path is used. "" if
	 * there is none. */
	char note[PENSTOCK_TEXT_MAX];
	/* If true, the library trusts the path only after a canary: a test transfer whose bytes the
	 * library compares with the stored bytes. */
	bool canary;
};

/* The functions of a path. */
struct pst_path_ops {
	const char *name;
	struct pst_path_traits traits;
	/* Finds out whether the path can be used on this route (a storage, a device and a
	 * direction). If it can, returns 0 and fills `facts`, and also fills `err` if the path does
	 * not meet its highest class on this route. If it cannot, returns -errno, and fills `err`
	 * with the reason and `fix` (PENSTOCK_TEXT_MAX bytes) with advice how to make the path
	 * usable. It may block. */
	int (*probe)(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		     char *fix);
	/* Optional, for a path that wraps another path. For example, path fault injects errors into
	 * another path. Parses the arguments (the text after '?' in the path that a request names)
	 * into the request's wrap_state. Core then calls start() of the wrapping path instead of
	 * start() of the wrapped path. chunk->path is still the index of the wrapped path. */
	int (*wrap)(const char *args, void *state, struct pst_err *err);
	/* Starts to move the chunk. After returning 0 the path calls pst_chunk_done exactly once,
	 * when the chunk completes or fails. The function returns -EAGAIN if no staging slot is
	 * free; the lane then tries again later. After any error the path must not call
	 * pst_chunk_done. */
	int (*start)(struct pst_chunk *chunk);
	/* Optional. lane_open and lane_close create and free the path's state for one lane (worker
	 * loop), in lane->path_state[index]. The lane calls idle() when it has nothing else to do.
	 * idle() releases resources that no request needs, and returns false when nothing is left
	 * to release. */
	int (*lane_open)(struct pst_lane *lane, unsigned index, struct pst_err *err);
	void (*lane_close)(struct pst_lane *lane, unsigned index);
	bool (*idle)(struct pst_lane *lane, unsigned index);
	/* Optional, for a path that leaves memory pinned for later chunks. Returns true if a chunk
	 * of these bytes would have to pin memory, and the path may pin no more on this lane. The
	 * lane then uses the plan's next path, without trying this one. */
	bool (*full)(struct pst_lane *lane, unsigned index, const struct pst_route *route,
		     uint64_t off, uint64_t len);
	/* Optional. Frees route->path_priv[index], which is the path's state for this pair of
	 * storage and device. */
	void (*route_close)(struct pst_route *route, unsigned index);
	/* Optional. Called when the storage `st` or the device `dev` is about to close; the other
	 * argument is NULL. The path drops what it caches about it on this lane. Returns a mask:
	 * the cache_bit of every storage for which the path still caches something on this lane. */
	uint64_t (*invalidate)(struct pst_lane *lane, unsigned index, struct penstock_storage *st,
			       const struct penstock_device *dev);
};

/*
 * A chunk: a contiguous range of one storage that moves as one unit between the storage and the
 * buffers of the segments that cover the range. A lane (a worker loop) allocates it from its pool.
 */
struct pst_chunk {
	struct pst_request *req;
	struct pst_lane *lane;
	struct pst_route *route;
	unsigned span;	   /* index of its span in the request */
	uint64_t off, len; /* offset and length in the storage */
	/* Number of bytes after the first `len` bytes that also belong to the chunk. chunk_continue
	 * moves them when the first ones are done. */
	uint64_t rest;
	uint8_t path;	   /* index in pst_paths */
	uint8_t tries;	   /* number of paths on which the chunk has failed */
	uint16_t tried;	   /* bit i is set if the chunk has failed on path i */
	uint8_t residency; /* enum pst_residency, set at the claim or by a probe */
	/* Whether the chunk's read brings its bytes into the page cache. This may be true although
	 * `residency` is PST_WARM: see cache_fill.h. */
	bool fills_cache;
	/* Number of bytes after the first `len` bytes that move too, to complete a block. Their
	 * memory is the spare memory (`room`) after the segment's buffer. */
	uint32_t pad;
	const char *engine; /* name of the engine that carried it; static */
	/* slot of the lane's staging memory that the chunk uses, or NULL */
	struct pst_slot *slot;
	/* staging memory for the chunk's bytes: its slot, or part of a stream-ordered request's
	 * stage */
	char *mem;
	/* number of bytes that the chunk has added to the storage's direct_bytes */
	uint64_t direct_bytes;
	struct pst_io io;
	bool io_started; /* `io` is in progress, so the storage owns it */
	/* For path "staged", which reads whole blocks: number of bytes in the slot before the
	 * chunk's first byte. */
	uint64_t mem_head;
	uint64_t moved;	     /* number of bytes delivered; less than `len` at the storage's end */
	uint64_t cpu_copied; /* number of bytes that the CPU has copied so far */
	/* Number of bytes that the chunk's transfers have written to host memory (DRAM) so far. */
	uint64_t dram_laid;
	uint64_t start_ns;
	/* The duration of the chunk's system call, or of the path's start(), is measured, because
	 * it shows whether the bytes were in the page cache. */
	bool timed;
	uint64_t timed_ns; /* start of that call in ns; 0: not running */
	/* A copier may delay copies to submit many at once. This is the error if the device then
	 * refused one of the chunk's copies, or 0. */
	int refused;
	/* number of copy queues that have not completed the chunk's copies yet */
	unsigned waits;
	/* The chunk's copies: host address and length of their bytes, the registered piece of
	 * staging memory that contains them, and the lane that queues the copies. */
	char *copy_base;
	uint64_t copy_len;
	unsigned copy_piece;
	struct pst_lane *copy_lane;
	/* If the chunk's memory is not a lane's staging memory: a number other than 0 and 1, used
	 * in place of copy_piece. A copier never joins copies from memory with different
	 * numbers. */
	unsigned own_piece;
	bool copy_within; /* copy_base is memory of the lane's device */
	struct pst_err err;
	/* If not NULL, pst_chunk_done calls it instead of completing the chunk. Path fault and
	 * canaries (test transfers) set it. */
	void (*on_done)(struct pst_chunk *chunk, int result);
	/* Function of the path, called when all copies of the chunk are done. */
	void (*after_copies)(struct pst_chunk *chunk, int result);
	void *priv; /* the path's state */
	/* next chunk in one of three lists: of free chunks, of chunks that wait for a slot, or of
	 * chunks that were passed to another lane */
	struct pst_chunk *next;
};

/* ---- engine ----------------------------------------------------------------- */

struct pst_engine; /* makes the system calls of one lane */

/* The functions of a kind of engine, which makes the system calls of one lane. Only the thread that
 * runs the lane calls them. */
struct pst_engine_ops {
	const char *name;
	/* Opens an engine for at most `depth` calls in flight. Another thread ends wait() by a
	 * write to the eventfd `wake_fd`. */
	int (*open)(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err);
	void (*close)(struct pst_engine *engine);
	/* Optional. Registers a piece of the lane's staging memory with the kernel, for calls whose
	 * `fixed` is true. The lane may register a second piece later. */
	int (*register_slots)(struct pst_engine *engine, void *base, size_t len,
			      struct pst_err *err);
	/* Submits a call. If it returns 0, poll() or wait() later calls done() of the call once,
	 * even if the engine fails meanwhile. Returns -EAGAIN if `depth` calls are in flight. */
	int (*submit)(struct pst_engine *engine, struct pst_call *call);
	/* Passes submitted calls to the kernel and reaps completed calls. Returns the number of
	 * completed calls. */
	int (*poll)(struct pst_engine *engine);
	/* Sleeps until a call completes, another thread writes to wake_fd, or timeout_us
	 * microseconds have passed (no limit if -1). It does not reap completed calls. The lane
	 * calls poll() for that, after it has cleared its mark that it is asleep. Otherwise a
	 * request that the lane itself completes would make it write to its own wake_fd. */
	void (*wait)(struct pst_engine *engine, int64_t timeout_us);
};

#endif
