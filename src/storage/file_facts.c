/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file lies on: alignment of O_DIRECT, whether it is real, whether the block
 * stack beneath is on the allow-list, where the page cache has it, which extents
 * are written. Read once at open, except residency.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/stat.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "storage/blockstack.h"
#include "storage/file.h"

/* Of one system call: shorter ones cost more of them, longer ones leave a drive's queue
 * too short (virtio, 16 MiB in flight: 1 MiB 5.4 GB/s, 2 MiB 4.6, 512 KiB 5.0). */
#define CALL_BYTES (1u << 20)
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, every architecture */
#endif

struct cachestat_range_abi {
	uint64_t off, len;
};
struct cachestat_abi {
	uint64_t nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted;
};

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x00001000u /* Linux 5.8 */
#endif
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000u /* Linux 6.1 */
#endif

/* struct statx with the two fields that older headers lack. */
struct statx_abi {
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, spare0;
	uint64_t ino, size, blocks, attributes_mask;
	struct {
		int64_t sec;
		uint32_t nsec;
		int32_t pad;
	} times[4];
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t mnt_id;
	uint32_t dio_mem_align, dio_offset_align;
	uint64_t spare[12];
};
_Static_assert(sizeof(struct statx_abi) == 256, "struct statx is 256 bytes");

#define ALIGN_UNKNOWN 4096u /* no drive of today asks for more */

/* Alignment of O_DIRECT: from statx where the kernel tells, else a safe guess. */
static bool dio_align(const struct statx_abi *stx, struct pst_storage_facts *facts)
{
	facts->off_align = facts->mem_align = ALIGN_UNKNOWN;
	if (!(stx->mask & STATX_DIOALIGN))
		return true;
	if (!stx->dio_offset_align) {
		pst_fail(&facts->why_direct, PENSTOCK_WHY_NO_ODIRECT,
			 "the file system does not offer O_DIRECT for this file");
		return false;
	}
	facts->off_align = stx->dio_offset_align;
	facts->mem_align = stx->dio_mem_align;
	return true;
}

static int open_whole(const char *name, int flags)
{
	int fd;

	do
		fd = open(name, flags | O_CLOEXEC | O_NOCTTY);
	while (fd < 0 && errno == EINTR);
	return fd;
}

/* By its name, if that is still this file's: where there is no /proc. */
static int open_by_name(const struct pst_file *file, int flags)
{
	const char *name = file->temp ? file->temp : file->whole ? file->whole : file->path;
	int fd = name ? open_whole(name, flags | O_NONBLOCK) : -1;
	struct stat there, ours;

	if (fd >= 0 &&
	    (fstat(fd, &there) || fstat(file->fd, &ours) || there.st_dev != ours.st_dev ||
	     there.st_ino != ours.st_ino || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK))) {
		close(fd);
		fd = -1;
		errno = ENOENT;
	}
	return fd;
}

static int open_direct(struct pst_file *file, struct pst_storage_facts *facts)
{
	char name[64];
	int flags = fcntl(file->fd, F_GETFL), fd;

	if (flags & O_DIRECT && file->fd_borrowed)
		return file->fd;
	flags = (flags & (O_ACCMODE | O_SYNC)) | O_DIRECT;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", file->fd);
	fd = open_whole(name, flags);
	if (fd < 0 && errno == ENOENT)
		fd = open_by_name(file, flags);
	if (fd < 0)
		pst_fail_errno(&facts->why_direct, errno, PENSTOCK_WHY_NO_ODIRECT,
			       "opening it with O_DIRECT: %m");
	return fd;
}

/* A caller's descriptor that is O_DIRECT already, and could not be opened again, goes by
 * the page cache for nobody: reads take the blocks around what is wanted, writes are of
 * whole blocks or refused. */
static void check_borrowed(struct penstock_storage *st)
{
	struct pst_file *file = st->priv;

	st->facts.fd_blocks = file->fd_borrowed && st->facts.fd_direct == file->fd;
	if (st->facts.fd_blocks)
		st->facts.edge_align = st->facts.off_align;
}

/* O_DIRECT that succeeds and still is a CPU copy: nothing lies beneath. */
static bool is_memory(const struct pst_mount *mount)
{
	return mount->fs == PST_FS_TMPFS || mount->fs == PST_FS_RAMFS ||
	       (mount->fs == PST_FS_OVERLAY && !strcmp(mount->upper_fs, "tmpfs"));
}

static bool kernel_has(unsigned major_min, unsigned minor_min)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	if (uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		return false;
	return major > major_min || (major == major_min && minor >= minor_min);
}

/* File systems that keep large files in large folios, by the kernel's version: each
 * page that is registered or mapped then costs a fraction. */
static bool large_folios(enum pst_fs fs)
{
	return (fs == PST_FS_EXT4 && kernel_has(6, 16)) || (fs == PST_FS_XFS && kernel_has(5, 18));
}

/* syncfs gives errors of writing back since 5.8; these two leave it no others to give. */
static bool tells_loss(enum pst_fs fs)
{
	return (fs == PST_FS_EXT4 || fs == PST_FS_XFS) && kernel_has(5, 8);
}

/* What lay beneath a mount a moment ago still does: callers that open a file for each of
 * their operations ask for the same again and again, some 90 system calls each. A file
 * that stays open keeps what was read at its open for longer than that. */
#define RECENT_MAX 4u
#define RECENT_NS 1000000000u

static struct recent {
	struct pst_blockstack_in in;
	struct pst_blockstack stack;
	uint64_t read_ns; /* 0: none */
} recents[RECENT_MAX];
/* Never waited for: in the child of a fork it may be held by nobody who is there. */
static pthread_mutex_t recent_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_same(const struct pst_blockstack_in *a, const struct pst_blockstack_in *b)
{
	return a->major == b->major && a->minor == b->minor && a->is_block == b->is_block &&
	       a->fs_magic == b->fs_magic && a->mount_id == b->mount_id;
}

static bool recall(const struct pst_blockstack_in *in, struct pst_blockstack *stack)
{
	uint64_t now = pst_now_ns();
	bool found = false;

	if (pthread_mutex_trylock(&recent_lock))
		return false;
	for (unsigned i = 0; i < RECENT_MAX && !found; i++) {
		found = recents[i].read_ns && now - recents[i].read_ns < RECENT_NS &&
			is_same(&recents[i].in, in);
		if (found)
			*stack = recents[i].stack;
	}
	pthread_mutex_unlock(&recent_lock);
	return found;
}

static void remember(const struct pst_blockstack_in *in, const struct pst_blockstack *stack)
{
	struct recent *oldest = &recents[0];

	if (pthread_mutex_trylock(&recent_lock))
		return;
	for (unsigned i = 1; i < RECENT_MAX; i++)
		if (recents[i].read_ns < oldest->read_ns)
			oldest = &recents[i];
	*oldest = (struct recent){*in, *stack, pst_now_ns()};
	pthread_mutex_unlock(&recent_lock);
}

static void read_stack(const char *root, const struct pst_file *file, const struct statx_abi *stx,
		       struct pst_blockstack *stack)
{
	struct pst_blockstack_in in = {
		.major = file->is_block ? stx->rdev_major : stx->dev_major,
		.minor = file->is_block ? stx->rdev_minor : stx->dev_minor,
		.is_block = file->is_block,
		.mount_id = stx->mask & STATX_MNT_ID ? (int64_t)stx->mnt_id : -1,
	};
	struct statfs fs;

	if (fstatfs(file->fd, &fs) == 0)
		in.fs_magic = (uint64_t)fs.f_type & UINT32_MAX;
	if (*root || !recall(&in, stack)) {
		/* An error leaves a stack that is not complete, which is never direct. */
		(void)pst_blockstack_read(root, &in, stack);
		if (!*root && stack->complete)
			remember(&in, stack);
	}
}

static void take_drives(const struct pst_blockstack *stack, struct pst_storage_facts *facts)
{
	facts->drive_count =
		stack->drive_count < PST_DRIVES_MAX ? stack->drive_count : PST_DRIVES_MAX;
	for (unsigned i = 0; i < facts->drive_count; i++) {
		struct pst_drive *drive = &facts->drives[i];

		snprintf(drive->name, sizeof(drive->name), "%s", stack->drives[i].name);
		snprintf(drive->bdf, sizeof(drive->bdf), "%.15s", stack->drives[i].bdf);
		drive->numa = stack->drives[i].numa;
	}
	facts->stripe_len = stack->stripe_bytes;
}

static int find(struct penstock_storage *st, const char *root, struct pst_blockstack *stack,
		struct pst_err *err)
{
	struct pst_file *file = st->priv;
	struct pst_storage_facts *facts = &st->facts;
	struct statx_abi stx;
	char why[PENSTOCK_TEXT_MAX] = "";
	int inode_flags = 0;

	memset(&stx, 0, sizeof(stx));
	if (syscall(SYS_statx, file->fd, "", AT_EMPTY_PATH,
		    STATX_BASIC_STATS | STATX_DIOALIGN | STATX_MNT_ID, &stx))
		return pst_fail_errno(err, errno, pst_why_of_errno(errno), "statx: %m");
	if (ioctl(file->fd, FS_IOC_GETFLAGS, &inode_flags))
		inode_flags = 0; /* refused here: the attributes must do */
	read_stack(root, file, &stx, stack);
	facts->fd = file->fd;
	facts->chunk_best = CALL_BYTES;
	facts->mappable = !file->is_block;
	facts->edge_align = (uint32_t)sysconf(_SC_PAGESIZE);
	if (!file->is_block && stx.blksize > facts->edge_align && stx.blksize <= 1 << 20 &&
	    !(stx.blksize & (stx.blksize - 1)))
		facts->edge_align = stx.blksize;
	pst_blockstack_text(stack, facts->text, sizeof(facts->text));
	file->overlay = stack->mount.fs == PST_FS_OVERLAY;
	facts->mapped_quick = large_folios(stack->mount.fs);
	/* By a descriptor of our own: it says a loss once, and a caller may have asked. */
	file->tells_loss = !file->is_block && !file->fd_borrowed && tells_loss(stack->mount.fs);
	facts->listed =
		pst_blockstack_direct_ok(stack, why, sizeof(why)) &&
		pst_blockstack_inode_ok(stx.attributes, (uint32_t)inode_flags, why, sizeof(why));
	if (is_memory(&stack->mount))
		pst_fail(&facts->why_direct, PENSTOCK_WHY_NOT_REAL, "%s is memory: %s", facts->text,
			 penstock_why_text(PENSTOCK_WHY_NOT_REAL));
	else if (dio_align(&stx, facts))
		facts->fd_direct = file->fd_direct = open_direct(file, facts);
	if (facts->fd_direct < 0)
		facts->listed = false;
	else if (!facts->listed)
		pst_fail(&facts->why_direct, PENSTOCK_WHY_NOT_LISTED, "%s", why);
	take_drives(stack, facts);
	check_borrowed(st);
	return 0;
}

int pst_file_facts(struct penstock_storage *st, const char *root, struct pst_err *err)
{
	/* 10 KiB, and the caller's thread may have a stack of 64. */
	struct pst_blockstack *stack = malloc(sizeof(*stack));
	int ret = stack ? find(st, root, stack, err)
			: pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a storage");

	free(stack);
	return ret;
}

int pst_file_written(struct penstock_storage *st, uint64_t *off, uint64_t *len)
{
	const struct pst_file *file = st->priv;
	const uint32_t unwritten = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
				   FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_INLINE |
				   FIEMAP_EXTENT_DATA_TAIL | FIEMAP_EXTENT_UNWRITTEN |
				   FIEMAP_EXTENT_NOT_ALIGNED;
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + 16 * sizeof(struct fiemap_extent)];
	} u;
	struct stat stat;
	uint64_t length;

	if (file->is_block) { /* every block of a device is a written one */
		if (*off >= file->block_length)
			return -ENODATA;
		*len = file->block_length - *off;
		return 0;
	}
	if (fstat(file->fd, &stat)) /* it may have grown since it was opened */
		return -ENODATA;
	length = (uint64_t)stat.st_size;
	for (;;) {
		unsigned i;

		memset(&u, 0, sizeof(u));
		u.map.fm_start = *off;
		u.map.fm_length = FIEMAP_MAX_OFFSET - *off;
		u.map.fm_extent_count = 16;
		u.map.fm_flags = FIEMAP_FLAG_SYNC;
		if (ioctl(file->fd, FS_IOC_FIEMAP, &u.map) || !u.map.fm_mapped_extents)
			return -ENODATA;
		for (i = 0; i < u.map.fm_mapped_extents; i++) {
			const struct fiemap_extent *e = &u.map.fm_extents[i];
			uint64_t end = e->fe_logical + e->fe_length;

			if (e->fe_flags & unwritten || end <= *off)
				continue;
			*off = e->fe_logical > *off ? e->fe_logical : *off;
			*len = end - *off;
			if (end > length) /* the last block may reach past the end */
				*len = length > *off ? length - *off : 0;
			return *len ? 0 : -ENODATA;
		}
		if (u.map.fm_extents[i - 1].fe_flags & FIEMAP_EXTENT_LAST)
			return -ENODATA;
		*off = u.map.fm_extents[i - 1].fe_logical + u.map.fm_extents[i - 1].fe_length;
	}
}

/* Times of files are as coarse as the kernel's tick, and those of direct writes are of their
 * beginning: one that is younger tells nothing of what comes. */
#define SETTLED_NS 100000000

uint64_t pst_file_stamp(struct penstock_storage *st)
{
	const struct pst_file *file = st->priv;
	struct timespec now;
	struct stat stat;
	int64_t age;
	uint64_t stamp;

	if (file->is_block || fstat(file->fd, &stat))
		return 0;
	clock_gettime(CLOCK_REALTIME, &now);
	age = (now.tv_sec - stat.st_mtim.tv_sec) * 1000000000 + now.tv_nsec - stat.st_mtim.tv_nsec;
	stamp = (uint64_t)stat.st_mtim.tv_sec * 1000000000 + (uint64_t)stat.st_mtim.tv_nsec;
	stamp = (stamp * 31 + (uint64_t)stat.st_size) * 31 + (uint64_t)stat.st_blocks;
	return age >= 0 && age < SETTLED_NS ? stamp + pst_now_ns() : stamp;
}

/* Of a range, in the kernel's own size. */
static uint64_t pages_in(uint64_t off, uint64_t end)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return end > off ? (end + page - 1) / page - off / page : 0;
}

/* Behind the end there is nothing that could be missing: who asks for more than a file has,
 * as readers with a buffer do, is told of what it has. */
static uint64_t pages_there(const struct penstock_storage *st, uint64_t off, uint64_t end)
{
	const struct pst_file *file = st->priv;
	uint64_t length = file->block_length;
	struct stat stat;

	if (end <= st->facts.length)
		return pages_in(off, end);
	if (!file->is_block)
		length = fstat(file->fd, &stat) ? end : (uint64_t)stat.st_size; /* it may grow */
	return pages_in(off, end < length ? end : length);
}

enum pst_residency pst_file_residency(struct penstock_storage *st, uint64_t off, uint64_t len,
				      enum penstock_why *why)
{
	struct pst_file *file = st->priv;
	struct cachestat_range_abi range = {off, len};
	struct cachestat_abi stat;
	int refused = atomic_load_explicit(&file->cachestat_error, memory_order_relaxed);

	if (file->overlay || refused) {
		*why = file->overlay	  ? PENSTOCK_WHY_RESIDENCY_BLIND
		       : refused == EPERM ? PENSTOCK_WHY_RESIDENCY_EPERM
					  : PENSTOCK_WHY_RESIDENCY_NONE;
		return PST_UNKNOWN;
	}
	if (syscall(SYS_cachestat, file->fd, &range, &stat, 0)) {
		atomic_store_explicit(&file->cachestat_error, errno, memory_order_relaxed);
		return pst_file_residency(st, off, len, why);
	}
	if (stat.nr_cache >= pages_in(off, off + len) ||
	    stat.nr_cache >= pages_there(st, off, off + len))
		return PST_WARM;
	return stat.nr_cache ? PST_MIXED : PST_COLD;
}
