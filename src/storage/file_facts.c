/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Determines the properties ("facts") of an open file: the alignment of O_DIRECT, whether O_DIRECT
 * reaches a drive, whether the block stack is on the allow-list, and which extents are written.
 * file.c and file_open.c call it. All facts are determined once, at open, except the written
 * extents and the stamp, a number that changes when the file is written.
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
#include "storage/blockstack_verdict.h"
#include "storage/file_facts.h"
#include "storage/file_state.h"

/* Preferred number of bytes of one system call. Shorter calls cost more calls for the same bytes.
 * With longer calls, fewer fit into the bytes that may be in flight, and a drive's queue runs
 * short. Measured on a virtio drive with 16 MiB in flight: 5.0 GB/s with calls of 512 KiB, 5.4 GB/s
 * with 1 MiB, 4.6 GB/s with 2 MiB. */
#define CALL_BYTES (1u << 20)
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x00001000u /* In Linux since 5.8. */
#endif
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000u /* In Linux since 6.1. */
#endif

/* The kernel's struct statx, with the two dio_ members that older headers lack. */
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

/* Alignment in bytes for O_DIRECT if the kernel reports none; no drive sold today needs more. */
#define ALIGN_UNKNOWN 4096u

/* Sets the alignment of O_DIRECT from statx if the kernel reports it, else to ALIGN_UNKNOWN.
 * Returns false if the file system has no O_DIRECT for this file. */
static bool dio_align_get(const struct statx_abi *stx, struct pst_storage_facts *facts)
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

/* Opens the file a second time by its name, for systems without /proc. Fails if the name belongs to
 * another file by now. */
static int direct_open_by_name(const struct pst_file *file, int flags)
{
	const char *name = file->temp ? file->temp : file->absolute ? file->absolute : file->path;
	int dir = file->temp ? file->dir : AT_FDCWD;
	int fd = name ? pst_openat_retry(dir, name, flags | O_NONBLOCK, 0) : -1;
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

static int direct_open(struct pst_file *file, struct pst_storage_facts *facts)
{
	char name[64];
	int flags = fcntl(file->fd, F_GETFL), fd;

	if (flags & O_DIRECT && file->fd_borrowed)
		return file->fd;
	flags = (flags & (O_ACCMODE | O_SYNC)) | O_DIRECT;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", file->fd);
	fd = pst_open_retry(name, flags, 0);
	if (fd < 0 && errno == ENOENT)
		fd = direct_open_by_name(file, flags);
	if (fd < 0)
		pst_fail_errno(&facts->why_direct, errno, PENSTOCK_WHY_NO_ODIRECT,
			       "opening it with O_DIRECT: %m");
	return fd;
}

/* Handles a caller's descriptor that has O_DIRECT and could not be reopened without it. Transfers
 * on it cannot use the page cache. So a read must cover all blocks that contain wanted bytes, and a
 * write of incomplete blocks is refused. */
static void borrowed_check(struct penstock_storage *st)
{
	struct pst_file *file = st->priv;

	st->facts.fd_blocks = file->fd_borrowed && st->facts.fd_direct == file->fd;
	if (st->facts.fd_blocks)
		st->facts.edge_align = st->facts.off_align;
}

/* Returns true if the file system keeps its files in memory only. There O_DIRECT succeeds, although
 * no drive moves the bytes: the CPU copies them. */
static bool mount_is_memory(const struct pst_mount *mount)
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

/* Returns true if the page cache of the file system uses large folios (runs of many pages), which
 * depends on the kernel's version. Registering or mapping a large folio takes a fraction of the
 * time that its pages would take one by one. */
static bool fs_has_large_folios(enum pst_fs fs)
{
	return (fs == PST_FS_EXT4 && kernel_has(6, 16)) || (fs == PST_FS_XFS && kernel_has(5, 18));
}

/* Returns true if an error of syncfs always means lost data. It does on ext4 and xfs since kernel
 * 5.8. Since that version, syncfs reports write-back errors, and on these two file systems it
 * reports no other errors. */
static bool fs_tells_loss(enum pst_fs fs)
{
	return (fs == PST_FS_EXT4 || fs == PST_FS_XFS) && kernel_has(5, 8);
}

/* Block stacks that were read in the last RECENT_NS nanoseconds. They are kept because some
 * programs open a file for each operation, and reading a stack takes about 90 system calls. The
 * stack below a mount does not change in one second. Besides, an open file never reads its stack
 * again, however long it stays open. */
#define RECENT_MAX 4u
#define RECENT_NS 1000000000u

static struct recent_stack {
	struct pst_blockstack_in in;
	struct pst_blockstack stack;
	uint64_t read_ns; /* Time when the stack was read; 0 if the entry is unused. */
} recents[RECENT_MAX];
/* Locked only by trylock, because in a forked child the lock may stay locked forever: another
 * thread of the parent may have held it at the fork. */
static pthread_mutex_t recent_lock = PTHREAD_MUTEX_INITIALIZER;

static bool stack_in_equal(const struct pst_blockstack_in *a, const struct pst_blockstack_in *b)
{
	return a->major == b->major && a->minor == b->minor && a->is_block == b->is_block &&
	       a->fs_magic == b->fs_magic && a->mount_id == b->mount_id;
}

static bool recent_get(const struct pst_blockstack_in *in, struct pst_blockstack *stack)
{
	uint64_t now = pst_now_ns();
	bool found = false;

	if (pthread_mutex_trylock(&recent_lock))
		return false;
	for (unsigned i = 0; i < RECENT_MAX && !found; i++) {
		found = recents[i].read_ns && now - recents[i].read_ns < RECENT_NS &&
			stack_in_equal(&recents[i].in, in);
		if (found)
			*stack = recents[i].stack;
	}
	pthread_mutex_unlock(&recent_lock);
	return found;
}

static void recent_put(const struct pst_blockstack_in *in, const struct pst_blockstack *stack)
{
	struct recent_stack *oldest = &recents[0];

	if (pthread_mutex_trylock(&recent_lock))
		return;
	for (unsigned i = 1; i < RECENT_MAX; i++)
		if (recents[i].read_ns < oldest->read_ns)
			oldest = &recents[i];
	*oldest = (struct recent_stack){*in, *stack, pst_now_ns()};
	pthread_mutex_unlock(&recent_lock);
}

static void stack_read(const char *root, const struct pst_file *file, const struct statx_abi *stx,
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
	if (*root || !recent_get(&in, stack)) {
		/* After an error the stack is marked incomplete, and an incomplete stack never
		 * counts as direct. */
		(void)pst_blockstack_read(root, &in, stack);
		if (!*root && stack->complete)
			recent_put(&in, stack);
	}
}

static void drives_copy(const struct pst_blockstack *stack, struct pst_storage_facts *facts)
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

static int facts_find(struct penstock_storage *st, const char *root, struct pst_blockstack *stack,
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
		return pst_fail_errno(err, errno, pst_why_from_errno(errno), "statx: %m");
	if (ioctl(file->fd, FS_IOC_GETFLAGS, &inode_flags))
		/* The file system does not know this ioctl, so only statx's attributes are used. */
		inode_flags = 0;
	stack_read(root, file, &stx, stack);
	facts->fd = file->fd;
	facts->chunk_best = CALL_BYTES;
	facts->mappable = !file->is_block;
	facts->edge_align = (uint32_t)sysconf(_SC_PAGESIZE);
	if (!file->is_block && stx.blksize > facts->edge_align && stx.blksize <= 1 << 20 &&
	    !(stx.blksize & (stx.blksize - 1)))
		facts->edge_align = stx.blksize;
	pst_blockstack_text(stack, facts->text, sizeof(facts->text));
	file->overlay = stack->mount.fs == PST_FS_OVERLAY;
	facts->mapped_quick = fs_has_large_folios(stack->mount.fs);
	/* False for a caller's descriptor: the kernel reports a loss of data only once to each
	 * descriptor, and the caller may already have received that report. */
	file->tells_loss = !file->is_block && !file->fd_borrowed && fs_tells_loss(stack->mount.fs);
	facts->listed =
		pst_blockstack_direct_ok(stack, why, sizeof(why)) &&
		pst_blockstack_inode_ok(stx.attributes, (uint32_t)inode_flags, why, sizeof(why));
	if (mount_is_memory(&stack->mount))
		pst_fail(&facts->why_direct, PENSTOCK_WHY_NOT_REAL, "%s is memory: %s", facts->text,
			 penstock_why_text(PENSTOCK_WHY_NOT_REAL));
	else if (dio_align_get(&stx, facts))
		facts->fd_direct = file->fd_direct = direct_open(file, facts);
	if (facts->fd_direct < 0)
		facts->listed = false;
	else if (!facts->listed)
		pst_fail(&facts->why_direct, PENSTOCK_WHY_NOT_LISTED, "%s", why);
	drives_copy(stack, facts);
	borrowed_check(st);
	return 0;
}

int pst_file_facts(struct penstock_storage *st, const char *root, struct pst_err *err)
{
	/* Allocated, because the struct has 10 KiB and the stack of the calling thread may have
	 * only 64 KiB. */
	struct pst_blockstack *stack = malloc(sizeof(*stack));
	int ret = stack ? facts_find(st, root, stack, err)
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

	if (file->is_block) { /* Every block of a block device counts as written. */
		if (*off >= file->block_length)
			return -ENODATA;
		*len = file->block_length - *off;
		return 0;
	}
	if (fstat(file->fd, &stat)) /* The file may have grown since it was opened. */
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
			/* The last extent may end beyond the end of the file. */
			if (end > length)
				*len = length > *off ? length - *off : 0;
			return *len ? 0 : -ENODATA;
		}
		if (u.map.fm_extents[i - 1].fe_flags & FIEMAP_EXTENT_LAST)
			return -ENODATA;
		*off = u.map.fm_extents[i - 1].fe_logical + u.map.fm_extents[i - 1].fe_length;
	}
}

/* Minimum age in ns of a modification time that pst_file_stamp relies on. File times are only as
 * fine as the kernel's tick, and a direct write sets the time when it starts. So if the
 * modification time is younger than this, another write may leave it unchanged. */
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
