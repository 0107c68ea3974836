/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps files open between the transfers of a server. The data path "mapped" (src/path/mapped.c)
 * registers a file's page cache with the GPU's driver. A file that stays open is registered once,
 * not for each transfer. wire/ calls these functions through the table of functions in memory.c.
 * All servers of a process share the open files.
 *
 * A file is identified by its inode and its change time, which every write and truncation sets. A
 * file that changed in the last SETTLED_S seconds is not kept open: a second change within one tick
 * of the file system's clock would leave the change time as it is.
 *
 * Each open file reserves an amount of memory for its registrations: its length, within a limit.
 * The open files together reserve at most 1/SHARE of the machine's memory. After transfers of
 * MOVES_OF times its reserved bytes, a file is closed and opened again. This limits the
 * registrations of a file whose transfers never repeat a range. So all registrations together stay
 * below a quarter of the memory, which is the limit of the path "mapped".
 */
#include "object/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/ops.h"

#define FILES_MAX 64
#define SHARE 16      /* the open files reserve at most 1/SHARE of the machine's memory */
#define MOVES_OF 4    /* a file is closed after transfers of MOVES_OF times its reserved bytes */
#define IDLE_MS 10000 /* a file is closed after this time without a transfer */
#define CHECK_MS 1000 /* period in which pst_object_files_tidy checks for idle files */
#define SETTLED_S 2   /* a file that has changed within this time is not kept open */

struct file {
	dev_t device;
	ino_t inode;
	struct timespec changed;
	uint64_t length;
	uint64_t serial; /* serial number of the device that receives the bytes */
	int fd;		 /* a duplicate of the caller's descriptor */
	struct penstock_storage *st; /* the opened file; NULL while a thread opens it */
	bool used;
	bool doomed;	/* true if the file must be closed when no transfer uses it any more */
	unsigned users; /* moves in progress */
	uint64_t reserved, moved, used_ms;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER; /* signalled when file_open returns */
static struct file files[FILES_MAX];
static uint64_t reserved; /* bytes that all open files reserve */

static uint64_t now_ms(void)
{
	return pst_now_ns() / 1000000;
}

static uint64_t reserved_max(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / SHARE : 0;
}

/* ---- with the lock ---- */

static bool is_same(const struct file *file, const struct stat *stat,
		    const struct penstock_device *dev)
{
	return file->used && !file->doomed && file->device == stat->st_dev &&
	       file->inode == stat->st_ino && file->length == (uint64_t)stat->st_size &&
	       file->changed.tv_sec == stat->st_ctim.tv_sec &&
	       file->changed.tv_nsec == stat->st_ctim.tv_nsec && file->serial == dev->serial;
}

static struct file *file_find(const struct stat *stat, const struct penstock_device *dev)
{
	for (unsigned i = 0; i < FILES_MAX; i++)
		if (is_same(&files[i], stat, dev))
			return &files[i];
	return NULL;
}

/* Removes a file from the table `files`. After the caller has released the lock, it closes *st and
 * *fd. */
static void file_drop(struct file *file, struct penstock_storage **st, int *fd)
{
	*st = file->st;
	*fd = file->fd;
	reserved -= file->reserved;
	memset(file, 0, sizeof(*file));
}

/* Returns an unused entry of `files` for a file that reserves `bytes`. Returns NULL if there is
 * none. Then *victim receives the least recently used file, which the caller closes before it tries
 * again, or NULL if all files are in use. */
static struct file *place_find(uint64_t bytes, struct file **victim)
{
	struct file *free_place = NULL, *oldest = NULL;

	for (unsigned i = 0; i < FILES_MAX; i++) {
		struct file *file = &files[i];

		if (!file->used)
			free_place = file;
		else if (!file->users && (!oldest || file->used_ms < oldest->used_ms))
			oldest = file;
	}
	*victim = NULL;
	if (free_place && reserved + bytes <= reserved_max())
		return free_place;
	*victim = oldest;
	return NULL;
}

/* ---- without the lock ---- */

static void close_both(struct penstock_storage *st, int fd)
{
	penstock_close(st);
	if (fd >= 0)
		close(fd);
}

/* Returns true if the file may stay open after a transfer. It must be a regular file with a name
 * and bytes. Its last change must be long ago, so that any later change gives it another change
 * time. */
static bool may_keep(const struct stat *stat)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return S_ISREG(stat->st_mode) && stat->st_size > 0 && stat->st_nlink &&
	       now.tv_sec - stat->st_ctim.tv_sec > SETTLED_S;
}

/* Opens a file for an entry of `files` that the caller has reserved. */
static int file_open(int fd, int *own, struct penstock_storage **st)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	int ret;

	*own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (*own < 0)
		return penstock_fail(-errno, PENSTOCK_WHY_NO_FILES, "the object's file: %m");
	/* The flag lets later transfers use old registrations. That is safe, because file_get opens
	 * the file anew if its change time differs. */
	opts.flags = PENSTOCK_O_IMMUTABLE;
	ret = penstock_open_fd(*own, &opts, st);
	if (ret)
		close(*own);
	return ret;
}

/* Returns the file's entry in `files`, and opens the file if it has no entry. Returns NULL if the
 * file cannot be kept open. After the transfer the caller calls file_put. */
static struct file *file_get(int fd, const struct stat *stat, const struct penstock_device *dev)
{
	const uint64_t most = reserved_max() / 2, length = (uint64_t)stat->st_size;
	const uint64_t bytes = length < most ? length : most;
	struct penstock_storage *st = NULL;
	struct file *file, *victim = NULL;
	int own = -1, ret;

	pthread_mutex_lock(&lock);
	for (;;) {
		file = file_find(stat, dev);
		if (file && file->st) {
			file->users++;
			pthread_mutex_unlock(&lock);
			return file;
		}
		if (file) {
			pthread_cond_wait(&opened, &lock);
			continue;
		}
		file = place_find(bytes, &victim);
		if (file || !victim)
			break;
		file_drop(victim, &st, &own);
		pthread_mutex_unlock(&lock);
		close_both(st, own);
		pthread_mutex_lock(&lock);
	}
	if (file) {
		*file = (struct file){.device = stat->st_dev,
				      .inode = stat->st_ino,
				      .changed = stat->st_ctim,
				      .length = length,
				      .serial = dev->serial,
				      .fd = -1,
				      .used = true,
				      .users = 1,
				      .reserved = bytes,
				      .used_ms = now_ms()};
		reserved += bytes;
	}
	pthread_mutex_unlock(&lock);
	if (!file)
		return NULL;
	ret = file_open(fd, &own, &st);
	pthread_mutex_lock(&lock);
	if (ret) {
		reserved -= file->reserved;
		memset(file, 0, sizeof(*file));
		file = NULL;
	} else {
		file->st = st;
		file->fd = own;
	}
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&lock);
	return file;
}

/* Ends a transfer of `len` bytes of the file. A file whose transfer has failed is closed. */
static void file_put(struct file *file, uint64_t len, bool failed)
{
	struct penstock_storage *st = NULL;
	int fd = -1;

	pthread_mutex_lock(&lock);
	file->moved += len;
	file->used_ms = now_ms();
	file->doomed |= failed || file->moved / MOVES_OF >= file->reserved;
	if (!--file->users && file->doomed)
		file_drop(file, &st, &fd);
	pthread_mutex_unlock(&lock);
	close_both(st, fd);
}

static int move(struct penstock_storage *st, uint64_t off, struct penstock_device *dev, void *mem,
		uint64_t len, bool read_file)
{
	int64_t n = read_file ? penstock_read(st, dev, mem, len, off)
			      : penstock_write(st, dev, mem, len, off);

	if (n >= 0 && (uint64_t)n < len)
		return penstock_fail(-ENODATA, PENSTOCK_WHY_SHRANK,
				     "the object's file has become shorter");
	return n < 0 ? (int)n : 0;
}

int pst_object_file_io(int fd, uint64_t off, struct penstock_device *dev, void *mem, uint64_t len,
		       bool read_file)
{
	struct penstock_storage *st;
	struct file *file = NULL;
	struct stat stat;
	int ret;

	if (read_file && !fstat(fd, &stat) && may_keep(&stat))
		file = file_get(fd, &stat, dev);
	if (file) {
		ret = move(file->st, off, dev, mem, len, true);
		file_put(file, len, ret != 0);
		return ret;
	}
	ret = penstock_open_fd(fd, NULL, &st);
	if (ret)
		return ret;
	ret = move(st, off, dev, mem, len, read_file);
	penstock_close(st);
	return ret;
}

/* ---- closing ---- */

static bool is_stale(const struct file *file, uint64_t now)
{
	struct stat stat;

	/* A file without a name is stale, too: the file system frees its space only after it is
	 * closed. */
	return file->used && file->st && !file->users &&
	       (now >= file->used_ms + IDLE_MS || fstat(file->fd, &stat) || !stat.st_nlink);
}

int pst_object_files_tidy(void)
{
	static uint64_t checked_ms; /* time of the last check; protected by `lock` */
	uint64_t now = now_ms();
	bool any = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < FILES_MAX; i++) {
		struct penstock_storage *st;
		int fd;

		any |= files[i].used;
		if (now - checked_ms < CHECK_MS || !is_stale(&files[i], now))
			continue;
		file_drop(&files[i], &st, &fd);
		pthread_mutex_unlock(&lock);
		close_both(st, fd);
		pthread_mutex_lock(&lock);
	}
	if (now - checked_ms >= CHECK_MS)
		checked_ms = now;
	pthread_mutex_unlock(&lock);
	return any ? CHECK_MS : -1;
}

void pst_object_files_close(void)
{
	for (unsigned i = 0; i < FILES_MAX; i++) {
		struct penstock_storage *st;
		int fd;

		if (!files[i].used)
			continue;
		file_drop(&files[i], &st, &fd);
		close_both(st, fd);
	}
}

void pst_object_files_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&opened, NULL);
	for (unsigned i = 0; i < FILES_MAX; i++)
		if (files[i].used && files[i].fd >= 0)
			close(files[i].fd);
	memset(files, 0, sizeof(files));
	reserved = 0;
}
