/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock.h - bytes from storage into device memory, and back, by the most
 * direct path that the machine has, with a report of the path they took.
 *
 * This header is the manual; the pages of penstock(3) are made from it. A newcomer
 * reads it top to bottom:
 *
 *	struct penstock_storage *st;
 *	struct penstock_device *gpu;
 *	void *buf;
 *
 *	penstock_open("/data/model.safetensors", NULL, &st);
 *	penstock_device_open("auto", NULL, &gpu);
 *	penstock_alloc(gpu, len, &buf);
 *	n = penstock_read(st, gpu, buf, len, 0);
 *
 * CONVENTIONS, which hold for every function below unless it says otherwise:
 *
 * Errors	>= 0 is success, < 0 is -errno. The sentence that says what failed
 *		and what to do is penstock_errmsg(), kept per thread; a request
 *		keeps its own in its report. Outputs are written on success only.
 * Units	lengths, offsets and pitches are bytes; *_ms is milliseconds, *_us
 *		microseconds, *_ns nanoseconds of CLOCK_MONOTONIC.
 * Ownership	what a function returns through `out` belongs to the caller until
 *		the named close or free. Strings passed in are copied.
 *		close(NULL) and free(NULL) do nothing.
 * Threads	storages and devices may be used by any number of threads at once, a
 *		queue as penstock_queue_open says. Closing must be the last use.
 * Blocking	functions marked "may block" do I/O, probe or wait. All others
 *		return at once; on an open queue with prepared routes they neither
 *		allocate, lock, log nor call the kernel, except to wake a thread.
 * Log		warnings go to standard error, a line each; PENSTOCK_LOG in the
 *		environment asks for less or more, see penstock(1).
 * fork		a child may not use what the parent opened (-EOWNERDEAD; closing it
 *		touches nothing of the parent's). It may open its own.
 * Structs	that begin with `size` are initialised by their *_INIT macro or, where
 *		there is none, by zeros and `size`; fields are only ever appended, and
 *		zero means the default. A larger size than the library knows is taken
 *		if what it does not know is zero, else it is -E2BIG; an unknown flag
 *		is -EINVAL. In arrays of them the first element's size is the stride.
 *		Of a struct to be filled in, `size` bytes at most are written.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_VERSION_MAJOR 0
#define PENSTOCK_VERSION_MINOR 1
#define PENSTOCK_VERSION_PATCH 0

#define PENSTOCK_API __attribute__((visibility("default")))

/* Limits. What exceeds one is refused with -E2BIG or -EINVAL, never cut. */
#define PENSTOCK_PATHS_MAX 16	    /* rows of a report */
#define PENSTOCK_SEGS_MAX 65536	    /* segments of one request, upper bound */
#define PENSTOCK_REQUESTS_MAX 65536 /* requests of one queue, upper bound */
#define PENSTOCK_TEXT_MAX 240	    /* a sentence with its NUL */

/* The version of the library that is loaded, "0.1.0"; the macros are those of the one
 * that was built against. Static. */
PENSTOCK_API const char *penstock_version(void);

/*
 * REASONS. Why a path was not taken, or why a request failed: a code for
 * programs, a short name for JSON, a sentence for people. `penstock explain`
 * and `penstock check` print the same names and sentences. The list only ever
 * grows at its end, so codes keep their numbers.
 *
 *   X(code, "name", "sentence")
 */
#define PENSTOCK_WHY_LIST(X)                                                                   \
	X(NONE, "none", "nothing stands against it")                                           \
	X(CHOSEN_OTHER, "not-needed", "a path that serves this better was open")               \
	X(NOT_READ, "no-reads", "this path cannot read")                                       \
	X(NOT_WRITE, "reads-only", "this path only reads")                                     \
	X(NO_FD, "no-descriptor", "the storage has no file descriptor")                        \
	X(NO_ODIRECT, "no-o-direct", "the file cannot be opened with O_DIRECT")                \
	X(NOT_REAL, "o-direct-not-real", "O_DIRECT succeeds here but the CPU still copies")    \
	X(NOT_LISTED, "not-on-allow-list",                                                     \
	  "the block stack is not known to move data without the CPU")                         \
	X(UNALIGNED, "unaligned", "offset, length or address is not aligned")                  \
	X(NO_PEER_PAGES, "no-peer-pages",                                                      \
	  "the device memory has no pages that a drive's DMA can reach")                       \
	X(NO_P2PDMA, "no-p2pdma", "the kernel has no user-space PCI P2PDMA")                   \
	X(NO_ROUTE, "no-pcie-route",                                                           \
	  "the kernel sees no permitted PCIe route between drive and device")                  \
	X(CANARY, "canary-failed",                                                             \
	  "a trial transfer reported success but the bytes did not arrive")                    \
	X(UNPROVEN, "unproven", "no written extent was there to prove it on")                  \
	X(FIRST_WRITE, "unproven-until-first-write",                                           \
	  "unproven until the first write, which is read back as its proof")                   \
	X(HOST_ONLY, "host-only", "this path ends in host memory only")                        \
	X(DEVICE_ONLY, "device-only", "this path does not exist for host memory")              \
	X(NOT_MAPPABLE, "not-mappable", "the storage cannot be mapped")                        \
	X(NO_READONLY_REG, "no-read-only-registration",                                        \
	  "the device cannot register read-only host memory")                                  \
	X(NOT_QUICK, "slow-here", "it would be slower than the path taken")                    \
	X(COLD, "not-cached", "the bytes are not in the page cache")                           \
	X(WARM, "cached", "the bytes are in the page cache")                                   \
	X(RESIDENCY_EPERM, "residency-not-allowed",                                            \
	  "this user may not ask what the page cache holds of this file")                      \
	X(RESIDENCY_BLIND, "residency-blind",                                                  \
	  "this file system does not say what the page cache holds")                           \
	X(RESIDENCY_NONE, "residency-unsupported",                                             \
	  "the kernel has no way to ask what the page cache holds")                            \
	X(REQUIRE, "class-required", "the required class forbids it")                          \
	X(NOT_BUILT, "not-built", "this build was made without it")                            \
	X(NO_URING, "no-io-uring", "io_uring is refused here")                                 \
	X(NO_FIXED, "no-registered-buffers", "the ring could not be registered with io_uring") \
	X(MEMLOCK, "memlock", "RLIMIT_MEMLOCK is too small to pin the ring")                   \
	X(NO_DRIVER, "no-driver", "the device's driver library is missing")                    \
	X(NO_DEVICE, "no-device", "there is no such device")                                   \
	X(REOPEN, "reopen-refused",                                                            \
	  "the descriptor could not be opened again, it is used as it is")                     \
	X(SHRANK, "file-shrank", "the file became shorter while it was read")                  \
	X(STALE, "file-changed", "the file changed under a kept registration")                 \
	X(SHORT_IO, "short-transfer", "the storage moved fewer bytes than asked")              \
	X(IO_ERROR, "io-error", "the storage reported an error")                               \
	X(NO_SPACE, "no-space", "the storage is full")                                         \
	X(DEVICE_ERROR, "device-error", "the device reported an error")                        \
	X(NO_MEMORY, "no-memory", "memory could not be had")                                   \
	X(CANCELLED, "cancelled", "the caller cancelled it")                                   \
	X(DEADLINE, "deadline", "its deadline passed")                                         \
	X(BAD_ARGUMENT, "bad-argument", "an argument makes no sense")                          \
	X(NOT_FOUND, "not-found", "there is no such storage")                                  \
	X(NO_PERMISSION, "no-permission", "permission was denied")                             \
	X(BAD_KIND, "wrong-kind", "this kind of storage cannot be used")                       \
	X(FULL, "full", "every place is taken, harvest completions first")                     \
	X(UNSUPPORTED, "unsupported", "this backend cannot do that")                           \
	X(INJECTED, "injected", "a fault was injected on purpose")                             \
	X(MALFORMED, "malformed", "the data are not what their format says")                   \
	X(HELD, "holds-all-it-may",                                                            \
	  "as much of the page cache as may be is registered until files close")               \
	X(READ_ONLY, "read-only", "the file system is mounted read-only")                      \
	X(NO_FILES, "too-many-open-files", "no more files may be open")

enum penstock_why {
#define PENSTOCK_WHY_ENUM(code, name, text) PENSTOCK_WHY_##code,
	PENSTOCK_WHY_LIST(PENSTOCK_WHY_ENUM)
#undef PENSTOCK_WHY_ENUM
};

/* Short name and sentence of a reason. Static; "unknown" out of range. */
PENSTOCK_API const char *penstock_why_name(unsigned why);
PENSTOCK_API const char *penstock_why_text(unsigned why);

/*
 * The sentence for the last failure on this thread, and its reason; valid until
 * this thread's next failing call. Never NULL.
 */
PENSTOCK_API const char *penstock_errmsg(void);
PENSTOCK_API enum penstock_why penstock_errwhy(void);

/*
 * Leaves a sentence and its reason as this thread's last, for what is built on this
 * library, and returns -|code|. %m is strerror(code).
 */
PENSTOCK_API int penstock_fail(int code, enum penstock_why why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- what callers choose -------------------------------------------------- */

/* Which way the bytes go: from storage to memory, or back. */
enum penstock_op { PENSTOCK_READ = 0, PENSTOCK_WRITE = 1 };

/*
 * The class that a caller may require. It holds as this kernel sees the machine:
 * a guest cannot look behind its virtual drives.
 */
enum penstock_class {
	PENSTOCK_ANY = 0,	  /* whatever works */
	PENSTOCK_NO_CPU_COPY = 1, /* DMA engines only, staging allowed */
	PENSTOCK_DIRECT = 2,	  /* the drive's or NIC's DMA writes the destination */
};

/* What to favour where several paths of the class would do. */
enum penstock_effort {
	PENSTOCK_THRIFTY = 0, /* the least CPU for the bytes */
	PENSTOCK_FAST = 1,    /* the most bytes a second */
};

/* ---- storage: where the bytes are ----------------------------------------- */

struct penstock_storage;

/* penstock_storage_opts.flags */
/* Open for reading and writing. */
#define PENSTOCK_O_WRITE 0x1u
/* Create it if missing; implies O_WRITE. */
#define PENSTOCK_O_CREATE 0x2u
/* A new object that takes the name's place at penstock_commit, all or nothing: until then it
 * is not seen, and close without commit drops it. A process that is killed leaves
 * .NAME.penstock-*. A symbolic link to a file is replaced, not what it leads to; but a block
 * device, or a link to one, is written in place, and what is neither is refused. */
#define PENSTOCK_O_REPLACE 0x4u
/* The caller promises that the bytes do not change while it is open: registrations are kept. */
#define PENSTOCK_O_IMMUTABLE 0x8u
/* Refuse a symbolic link as the last part. */
#define PENSTOCK_O_NOFOLLOW 0x10u

struct penstock_storage_opts {
	size_t size;
	unsigned flags;	      /* PENSTOCK_O_*; 0: what is there, for reading only */
	unsigned mode;	      /* permission bits of what is created, & ~umask; 0: with
			       * PENSTOCK_O_REPLACE those and the owner of what is
			       * replaced, as far as the caller may, else 0666 */
	uint64_t length;      /* of what is created: space is reserved at once, and the
			       * committed length is exactly this; 0: as written.
			       * Ignored for what exists and is not replaced */
	const char *sys_root; /* a directory that stands for /sys and /proc when facts
			       * are read (captured machines); NULL: the real ones */
};
#define PENSTOCK_STORAGE_OPTS_INIT                                  \
	{                                                           \
		sizeof(struct penstock_storage_opts), 0, 0, 0, NULL \
	}

/*
 * Opens what `url` names: "/path", "file:///path" (as it stands, no %XX), a block device,
 * or "mem:SIZE[KiB|MiB|GiB|TiB][?seed=N]" (bytes made from the seed, the same each
 * time; writes are kept until it is closed, and nothing longer: who asks that for
 * something durable gets the answer of a file, to try programs with, and no more). A
 * relative path is that of the working directory at this moment, also for commit and abort
 * (but where the two together are too long for a path). May block. -ENOENT, -EISDIR, -ESPIPE
 * (pipe, socket, a file of /proc or /sys), -EACCES, -EROFS, -EMFILE, -EINVAL, -ENOSPC. Close
 * with penstock_close.
 */
PENSTOCK_API int penstock_open(const char *url, const struct penstock_storage_opts *opts,
			       struct penstock_storage **out);

/*
 * The same for a descriptor of the caller's, which stays the caller's and is
 * never changed: it is opened again through /proc/self/fd, device and inode
 * compared, with its O_SYNC or O_DSYNC; where that is refused a duplicate is used as it
 * is, and the storage's text says so. With O_DIRECT it then takes writes of whole blocks
 * only, with O_APPEND none at all: those are refused (-EOPNOTSUPP). It may be written where
 * the descriptor may; PENSTOCK_O_WRITE refuses one that may not. The storage keeps the file:
 * the caller may close the descriptor before it. penstock_close ends the process's fcntl(2)
 * record locks on the file, as closing any descriptor of it does. -EBADF, and as
 * penstock_open. May block.
 */
PENSTOCK_API int penstock_open_fd(int fd, const struct penstock_storage_opts *opts,
				  struct penstock_storage **out);

/*
 * Ends the writing of a storage: cuts what was opened with a length to that and, with
 * `durable`, returns only when data and name survive a power cut. For PENSTOCK_O_REPLACE it
 * also puts it in its place. Reading and writing may go on after it, and nothing is cut off
 * any more. Once data could not be brought to the drive, no commit of this open can be
 * durable: the kernel has given those bytes up, so open it anew and write again. -EBUSY
 * while a request is in flight. May block.
 */
PENSTOCK_API int penstock_commit(struct penstock_storage *st, int durable);

/* Gives up what was written: what this open created and no commit has put there is
 * removed, and can then not be committed (-ESTALE); what was there before keeps the
 * bytes that were written to it. -EBUSY while a request is in flight. May block. */
PENSTOCK_API int penstock_abort(struct penstock_storage *st);

/*
 * Waits for the storage's requests in flight, aborts an uncommitted
 * PENSTOCK_O_REPLACE, cuts an uncommitted PENSTOCK_O_CREATE with a length to what this open
 * has written of it, and frees it. May block. Where path "mapped" has read it, the lanes that
 * did must come by, and one of them may hang in a call for another storage: then this waits
 * for it, and so do penstock_device_open and _close. The page cache that path "mapped"
 * registered for it is let go afterwards, on a thread of the library: the driver waits with
 * that for what the application has given the device so far, and with other copies for that,
 * as with cuMemFree.
 */
PENSTOCK_API void penstock_close(struct penstock_storage *st);

/* The length in bytes as it is when asked, or -errno. The file system is asked: may
 * block. */
PENSTOCK_API int64_t penstock_storage_length(struct penstock_storage *st);

struct penstock_storage_info {
	size_t size;
	uint64_t length;      /* when it was opened */
	const char *kind;     /* "file", "mem" */
	const char *text;     /* "ext4 on nvme0n1p1 on nvme0n1 (nvme, pcie)" */
	uint32_t off_align;   /* offsets and lengths that direct paths take */
	uint32_t mem_align;   /* addresses that direct paths take */
	uint32_t edge_align;  /* unaligned writes are cut here */
	unsigned drive_count; /* drives beneath, 0: not known */
};
/* Facts of a storage; the strings live as long as it. */
PENSTOCK_API int penstock_storage_get_info(const struct penstock_storage *st,
					   struct penstock_storage_info *info);

/* ---- device: where they land ---------------------------------------------- */

struct penstock_device;

struct penstock_device_opts {
	size_t size;
	unsigned lanes;	      /* threads of its pump, at most 32; 0: chosen from CPUs and
			       * kind */
	size_t ring_bytes;    /* pinned staging memory of all lanes; 0: chosen */
	size_t slot_bytes;    /* one staging slot, a power of two from 64 KiB to 1 GiB; 0:
			       * chosen. The ring holds two for each lane at least */
	const char *engine;   /* "auto", "uring" or "threads"; NULL: auto */
	const char *sys_root; /* as in penstock_storage_opts */
};
#define PENSTOCK_DEVICE_OPTS_INIT                                        \
	{                                                                \
		sizeof(struct penstock_device_opts), 0, 0, 0, NULL, NULL \
	}

/*
 * Opens "host", "cuda:N", "peermem:DDDD:BB:DD.F" or "auto" (the first GPU, else
 * host). A device is one per process: a second open returns the same one, its
 * options are ignored, and the return value is 1. Threads, pinned memory and, where
 * none is active, the GPU's primary context are made at its first use: alloc,
 * penstock_prepare or a first submit. May block. -ENODEV, -EINVAL, -EOPNOTSUPP (a PCI
 * device that lends no memory), -EACCES.
 */
PENSTOCK_API int penstock_device_open(const char *name, const struct penstock_device_opts *opts,
				      struct penstock_device **out);

/* Drops one reference; the last waits for the device's requests in flight and stops the
 * pump, and waits for lanes of other devices that have copied to this one, also if one hangs
 * in a call. What was allocated on it is freed before. May block. */
PENSTOCK_API void penstock_device_close(struct penstock_device *dev);

/* The name of a device, "cuda:0" also for what was opened as "auto". Lives as long as
 * the device. */
PENSTOCK_API const char *penstock_device_name(const struct penstock_device *dev);

struct penstock_device_info {
	size_t size;
	const char *name;    /* "cuda:0" */
	const char *text;    /* "NVIDIA H200, 140 GiB" */
	const char *bdf;     /* PCI address, "" for none */
	int numa;	     /* node, -1: not known */
	int cpu_addressable; /* the CPU may load and store at its addresses */
	unsigned lanes;	     /* of its pump, 0: not started */
	uint64_t ring_bytes; /* staging memory, pinned as it is needed; 0: not started */
};
/* Facts of a device; the strings live as long as it. */
PENSTOCK_API int penstock_device_get_info(const struct penstock_device *dev,
					  struct penstock_device_info *info);

/*
 * The device, among those open in this process, on which `ptr` lies; host memory
 * that no device knows is "host" if that is open. No reference is taken. -ENODEV.
 */
PENSTOCK_API int penstock_device_of(const void *ptr, struct penstock_device **out);

/*
 * Device memory, `len` bytes aligned to at least 4096, holding anything. -ENOMEM, -EINVAL
 * (no bytes). Freed by penstock_free, with no request in flight on them, which takes what
 * penstock_alloc or penstock_import_memory of the same device gave, and nothing else. May
 * block.
 */
PENSTOCK_API int penstock_alloc(struct penstock_device *dev, size_t len, void **out);
PENSTOCK_API int penstock_free(struct penstock_device *dev, void *ptr);

/*
 * Copies between memory of any two open devices (peer to peer where it is open,
 * else through host memory): for each of `count` entries rows x row_len bytes;
 * rows 0 or 1: plain, pitches ignored. Returns when all are there. May block.
 */
struct penstock_copy_args {
	size_t size;
	struct penstock_device *dst_dev;
	void *dst;
	uint64_t dst_pitch;
	struct penstock_device *src_dev;
	const void *src;
	uint64_t src_pitch;
	uint64_t row_len;
	uint64_t rows;
};
PENSTOCK_API int penstock_copy(const struct penstock_copy_args *copies, unsigned count);

/*
 * Memory for another process: a piece of device memory as plain bytes that a process
 * of this user on this machine can turn into an address, which counts as memory of
 * `dev` there; it may lie on another GPU if `dev` reaches that (else -EXDEV), and no
 * context is made there. The exporter keeps the memory until the last importer has called
 * penstock_free on what it imported. -EOPNOTSUPP: the device's memory cannot be shared
 * so. May block.
 */
struct penstock_export {
	size_t size;
	int fd; /* -1: nothing more to pass. Else it goes along by SCM_RIGHTS, the
		 * importer puts here what it received, and each side closes its own
		 * behind the import */
	unsigned char bytes[192];
};
#define PENSTOCK_EXPORT_INIT                        \
	{                                           \
		sizeof(struct penstock_export), -1, \
		{                                   \
			0                           \
		}                                   \
	}
PENSTOCK_API int penstock_export_memory(struct penstock_device *dev, void *ptr, size_t len,
					struct penstock_export *out);
PENSTOCK_API int penstock_import_memory(struct penstock_device *dev,
					const struct penstock_export *exported, void **out);

/*
 * Pins host memory of the caller for faster copies, until unregister, which takes the
 * same address and comes before the memory is freed. Never done behind the caller's back;
 * 0 where the device needs none. -EEXIST: a part of it is pinned already; -ENOENT: it is
 * not. May block.
 */
PENSTOCK_API int penstock_register(struct penstock_device *dev, void *host, size_t len);
PENSTOCK_API int penstock_unregister(struct penstock_device *dev, void *host);

/* ---- route: what may carry bytes between the two --------------------------- */

/*
 * Makes the route now: starts the device's pump, opens its lanes and a place for a
 * caller's thread, probes every path and runs the canary, so that the first request does
 * not, nor the first one-call read. Without it, the
 * first submit that meets the pair does this and is slow. On a GPU the lanes' streams are
 * made here, and for every sixteenth or so the driver waits until the context is idle:
 * prepare before the device is busy, and not while work on it waits for this thread. A
 * path that found nothing written to be proven on, as in an empty file, is tried again by
 * the first submit behind a change of the file, which may be slow too; where that has
 * found nothing eight times, only after a millisecond, then two, up to a second. May block.
 */
PENSTOCK_API int penstock_prepare(struct penstock_storage *st, struct penstock_device *dev,
				  enum penstock_op op);

/* What penstock_explain found, one row a path, most direct first. Set `size`, the
 * rest is filled in. */
struct penstock_explain_path {
	const char *name;
	int usable;		   /* 1: would work; 0: would not */
	enum penstock_class meets; /* the highest class that it meets here */
	int proven;		   /* 1: by canary; 0: not needed; -1: not yet */
	enum penstock_why why;	   /* why it is not the one taken */
	char text[PENSTOCK_TEXT_MAX];
	char fix[PENSTOCK_TEXT_MAX]; /* what would make it possible, "" if it is */
};
struct penstock_explanation {
	size_t size;
	int taken;		 /* index of the path for the range asked, -1: refused */
	int cold, warm, unknown; /* the path for chunks of each residency, or -1 */
	int resident;		 /* 1 yes, 0 no, -1 unknown, of the range asked */
	enum penstock_why resident_why;
	const char *engine;
	enum penstock_why engine_why; /* why not the first engine */
	char engine_text[PENSTOCK_TEXT_MAX];
	char storage_text[PENSTOCK_TEXT_MAX]; /* as in penstock_storage_info */
	char device_text[PENSTOCK_TEXT_MAX];
	unsigned path_count;
	struct penstock_explain_path paths[PENSTOCK_PATHS_MAX];
};
struct penstock_req;

/*
 * Fills `out` for a request like `req`, of which its storage, first segment, op, require
 * and effort are looked at: what the plan says, also if a path is named. None of its bytes
 * is moved; the read canary runs into scratch memory, a write is unproven until the first.
 * May block.
 */
PENSTOCK_API int penstock_explain(const struct penstock_req *req, struct penstock_explanation *out);

/* ---- requests -------------------------------------------------------------- */

/*
 * One piece of a request: `rows` rows of `row_len` bytes, row i at storage
 * offset `off + i * pitch` and at `buf + buf_off + i * buf_pitch`. rows = 0
 * means 1, whose pitches are not looked at; those of several are at least row_len.
 * row_len = 0 is a piece of nothing. A segment that begins inside or right behind
 * what its predecessors in the list cover is read together with them, each byte once,
 * and then cut apart: the same range with several buffers is several destinations,
 * interleaved columns are shards of one matrix. Rows of one segment alone are read
 * with the gaps between them when a gap is under 4096 bytes or no longer than a row,
 * else row by row. In a write no storage byte may occur twice (-EINVAL), whatever the
 * order of the segments; rows may lie between another's.
 */
struct penstock_seg {
	void *buf;		     /* on any open device; the caller's, in use until
				      * the completion is harvested */
	struct penstock_device *dev; /* where buf lies; NULL: found from the pointer,
				      * which costs a lock and a driver call */
	uint64_t buf_off;
	uint64_t off;
	uint64_t row_len;
	uint64_t rows;
	uint64_t pitch;
	uint64_t buf_pitch;
	uint64_t room; /* bytes behind the last row that the library may overwrite
			* (reads) or read (writes), so that an unaligned tail can go
			* by a direct path; 0: none */
	struct penstock_storage *storage; /* NULL or the request's; another is refused
					   * with -EOPNOTSUPP */
};

struct penstock_done;
struct penstock_queue;
/* What is told of a completion as it is harvested, on the thread that harvests. */
typedef void penstock_done_fn(const struct penstock_done *done);

/*
 * Values that a stream-ordered request reads when the stream reaches it, and
 * where it leaves its result: each NULL (taken from the request) or an address in
 * host memory. None is touched once the stream has gone on. They apply to
 * segment 0.
 */
struct penstock_late {
	size_t size;
	const uint64_t *row_len; /* at most the segment's row_len */
	const uint64_t *off;
	const uint64_t *buf_off; /* with what is moved inside of buf_len, else -EINVAL */
	int64_t *result;	 /* bytes or -errno, stored before the stream goes on */
	uint64_t buf_len;	 /* of the memory at buf; 0: to the end of its allocation, if the
				  * device knows it */
};

/* penstock_req.flags */
/* A write completes when it survives a power cut, which nothing in a mem: storage does;
 * where the kernel has lost bytes of the storage, all durable requests that were under way
 * say so. */
#define PENSTOCK_R_DURABLE 0x1u
/* Fewer bytes than asked is an error (-ENODATA). */
#define PENSTOCK_R_EXACT 0x2u
/* With stream: no completion is listed, the result goes to late->result and the place frees
 * itself. */
#define PENSTOCK_R_DETACHED 0x4u
/* Nobody vouches for host memory of this request: where the CPU is to copy, it is looked at
 * first, and what is not there or may not be touched is -EFAULT and no signal. Costs a system
 * call for each piece of a segment. Always so where a segment names no device. */
#define PENSTOCK_R_UNSURE 0x8u

/* What is asked of a storage: pieces to be moved as one, and under which conditions. */
struct penstock_req {
	size_t size;
	struct penstock_storage *storage;
	const struct penstock_seg *segs; /* copied by submit */
	unsigned seg_count;
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned flags;			  /* PENSTOCK_R_* */
	int priority;			  /* -4 to 3, higher goes first, always; within one, as
					   * submitted */
	uint64_t deadline_ns;		  /* CLOCK_MONOTONIC; 0: none. If a chunk has not started by
					   * then the request ends with -ETIME, when those that have
					   * are done; report->bytes tells how far it came */
	const char *path;		  /* only this path ("staged"), for tests and benchmarks;
					   * NULL: the plan decides. It must meet `require`.
					   * "fault[:PATH]?eio=N&...": see FAULTS in penstock(1) */
	void *user;			  /* handed back */
	penstock_done_fn *done;		  /* called inside penstock_poll and penstock_wait */
	void *stream;			  /* a CUstream of segment 0's device: the request starts
					   * when the work queued on it before is done, and what
					   * is queued after waits for it. NULL: not ordered; the
					   * default streams go by their handles 1 (legacy) and 2
					   * (per thread). Capturing: -EOPNOTSUPP. Until it has
					   * ended no thread may free memory of the device or end
					   * a registration by the driver's own calls: those wait
					   * for the stream and let nobody copy meanwhile, for
					   * ever. penstock_free and _unregister wait before, and
					   * submitting waits for one that is under way. A single
					   * byte that is to go to the device alone (a segment, a
					   * row or a file of one) is refused meanwhile: -EBUSY */
	const struct penstock_late *late; /* copied by submit; needs stream */
	size_t seg_size; /* stride of segs, which may lie in structs of the caller's;
			  * 0: sizeof(struct penstock_seg) of 0.1. What is behind a
			  * segment is not looked at: fields that a later version
			  * appends take a flag, which this one refuses */
};
#define PENSTOCK_REQ_INIT                                                                \
	{                                                                                \
		sizeof(struct penstock_req), NULL, NULL, 0, PENSTOCK_READ, PENSTOCK_ANY, \
			PENSTOCK_THRIFTY, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0       \
	}

/* What happened to the bytes of one request, counted chunk by chunk. The library sets
 * all of it, `size` too. */
struct penstock_report_path {
	const char *name;
	uint64_t bytes;	       /* that this path carried */
	enum penstock_why why; /* why it carried none, or not all */
	const char *text;      /* lives as long as the report */
	uint64_t reserved[2];
};
struct penstock_report {
	size_t size;
	int64_t result; /* as in penstock_done */
	uint64_t bytes; /* of the storage, moved, each once; also after a failure */
	uint64_t start_ns, end_ns;
	const char *path; /* the one that carried most */
	const char *engine;
	enum penstock_why engine_why; /* why not a better one */
	uint64_t cpu_copied;	      /* bytes that a CPU copied; / bytes = CPU copies */
	uint64_t dram_laid;	      /* bytes laid down in host memory on the way, the
				       * destination not counted; / bytes = DRAM passes */
	uint64_t chunks;
	uint64_t retries;      /* chunks moved to another path, or started again */
	enum penstock_why why; /* of a failure */
	char text[PENSTOCK_TEXT_MAX];
	unsigned path_count;
	struct penstock_report_path paths[PENSTOCK_PATHS_MAX];
	uint64_t stop_off; /* lowest storage offset whose bytes did not arrive, by
			    * failure or end; UINT64_MAX: none is known */
};
#define PENSTOCK_REPORT_INIT                                                                     \
	{                                                                                        \
		sizeof(struct penstock_report), 0, 0, 0, 0, NULL, NULL, PENSTOCK_WHY_NONE, 0, 0, \
			0, 0, PENSTOCK_WHY_NONE, "", 0,                                          \
			{{NULL, 0, PENSTOCK_WHY_NONE, NULL, {0, 0}}}, 0                          \
	}

/* A completion: how a request ended. */
struct penstock_done {
	uint64_t id; /* from penstock_submit */
	void *user;
	int64_t result; /* bytes of all segments that lie before the first byte which
			 * the storage did not have, each destination counted; or
			 * -errno: -ECANCELED, -ETIME, -EOPNOTSUPP (class), -EIO ... */
	const struct penstock_report *report; /* until the next penstock_poll or _wait */
};

struct penstock_queue_opts {
	size_t size;
	unsigned requests_max; /* in flight or unharvested; 0: 256 */
	unsigned segs_max;     /* of one request; 0: 1024. Their product at most 16 Mi
				* (-E2BIG); memory is touched only as it is used */
	/*
	 * NULL: the devices' lanes do the work, on threads of their own. A device: the
	 * queue gets a lane without a thread there, and requests for that device of at
	 * most PENSTOCK_OWN_LANE_MAX bytes make progress only inside penstock_submit,
	 * _poll and _wait of this queue. No thread is woken for them, which saves most
	 * of the time and CPU of a small read. All calls but penstock_cancel must then
	 * come from the thread that opened the queue (-EPERM). Longer requests, those in
	 * stream order and those with parts on other devices go to the devices' lanes. The
	 * device stays open until the queue is closed. As long as a stream waits for a
	 * request on it, opening and closing the queue wait, too.
	 */
	struct penstock_device *own_lane;
};
#define PENSTOCK_QUEUE_OPTS_INIT                               \
	{                                                      \
		sizeof(struct penstock_queue_opts), 0, 0, NULL \
	}
#define PENSTOCK_OWN_LANE_MAX (1u << 20)

/*
 * A submission and completion list. It owns no pinned memory, but 16 MiB and two of the
 * device's slots if it has a lane of its own. One thread at a time may submit, one (the
 * same or another) may harvest, any may cancel. Inside a callback submit and cancel are
 * allowed, the rest is -EDEADLK, and closing it does nothing but log. May block.
 */
PENSTOCK_API int penstock_queue_open(const struct penstock_queue_opts *opts,
				     struct penstock_queue **out);

/*
 * Cancels what is in flight, waits for what of it has begun, fires nothing more. May block; a
 * queue with a lane of its own waits for its thread if another closes it with requests in
 * flight.
 */
PENSTOCK_API void penstock_queue_close(struct penstock_queue *q);

/*
 * An eventfd that is readable while completions are there: poll it, then call
 * penstock_poll. The queue's; do not close or read it. It does not tell of a deadline that
 * passed while all that could begin the request hang in calls for others: poll then.
 * -EOPNOTSUPP: it has a lane of its own.
 */
PENSTOCK_API int penstock_queue_fd(struct penstock_queue *q);

/*
 * Hands in `count` requests and returns how many were taken, from the front: the
 * rest did not fit (-EAGAIN if none did) or the first of them is faulty (its
 * error if none was taken; submit again from there to learn it). Requests that ended
 * early while lanes hang take places until those come back: when there are as many as
 * requests_max, -EAGAIN too, after a second. Each one taken completes exactly once. ids[i],
 * if ids is not NULL, names request i; an id is not used again.
 * May block at the first meeting of a storage and a device, see penstock_prepare.
 * -EINVAL, -EOVERFLOW (offsets end behind 2^63), -E2BIG, -EBADF (a write to what was
 * opened for reading), -ENODEV (memory on no open device), -EOPNOTSUPP (no path of the
 * required class, or none that a descriptor's flags leave: nothing moved).
 */
PENSTOCK_API int penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs,
				 unsigned count, uint64_t *ids);

/*
 * Harvests up to `max` completions without waiting, of one call no more than requests_max;
 * returns how many. `done` may be NULL for callers that use callbacks only, and `max` 0
 * then: all that are there; an entry with a callback is listed too.
 */
PENSTOCK_API int penstock_poll(struct penstock_queue *q, struct penstock_done *done, unsigned max);

/*
 * The same, but waits until at least `min` (or requests_max) are there, nothing is in
 * flight any more, or timeout_ns has passed (-1: none). May block.
 */
PENSTOCK_API int penstock_wait(struct penstock_queue *q, struct penstock_done *done, unsigned min,
			       unsigned max, int64_t timeout_ns);

/*
 * Asks that a request end early: what has not begun never does, what has begun is
 * called back where its storage can do that (files cannot) and awaited where not. It
 * still completes exactly once, with -ECANCELED or as if nothing had been asked, and
 * its memory is the library's until then. -ENOENT: no such request, or already
 * harvested.
 */
PENSTOCK_API int penstock_cancel(struct penstock_queue *q, uint64_t id);

/*
 * The one-call forms: submit and wait over the same code. Return bytes moved
 * (fewer than asked only by a read, at the end of the storage) or -errno. What a read
 * asked for behind that end may hold anything then. A write behind the end makes a file
 * longer; of a block device or mem: it is -ENOSPC. Errors of a refusal are those of
 * penstock_submit. `dev` NULL: found from the pointer. May block.
 */
PENSTOCK_API int64_t penstock_read(struct penstock_storage *st, struct penstock_device *dev,
				   void *buf, size_t len, uint64_t off);
PENSTOCK_API int64_t penstock_write(struct penstock_storage *st, struct penstock_device *dev,
				    const void *buf, size_t len, uint64_t off);

/*
 * Any request but a stream-ordered one, and its report if `report` is not NULL: as much of
 * it as its `size` says (start from PENSTOCK_REPORT_INIT) is written, also when the request
 * failed; nothing when it was refused. The texts in it stay valid while its storage and
 * device are open, `text` itself is the caller's copy. Returns as penstock_read does,
 * -errno of a refusal or of the failure. May block.
 */
PENSTOCK_API int64_t penstock_transfer(const struct penstock_req *req,
				       struct penstock_report *report);

/* ---- looking from outside -------------------------------------------------- */

/*
 * Writes the machine's topology (NUMA nodes, GPUs, drives, NICs, how near they are
 * to each other) to descriptor `fd`, as a table or as JSON. sys_root as in
 * penstock_storage_opts. May block.
 */
PENSTOCK_API int penstock_topo(const char *sys_root, int json, int fd);

/*
 * Writes the counters of process `pid` of the same user (0: this one) to `fd`, as a
 * table or as JSON. -ESRCH: no such process, or it does not use Penstock. May block.
 */
PENSTOCK_API int penstock_stats(int pid, int json, int fd);

/*
 * Leaves a sentence that penstock_stats shows of this process, for what is built on this
 * library: why it refused something, say. The last 8 are kept, one that is said again is
 * counted; a long one is cut. Any thread; does not block.
 */
PENSTOCK_API void penstock_stats_note(const char *text);

#ifdef __cplusplus
}
#endif
#endif
