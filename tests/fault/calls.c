/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrapped functions of libc: see calls.h. Each asks whether it is its turn to
 * fail and else calls the real one. Linked into every test of this folder; must
 * never allocate or lock, because lanes call it.
 */
#include "calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static _Atomic int armed = -1; /* a kind */
static unsigned nth;
static bool onwards;
static int how;
static _Atomic unsigned seen, hits, fixed, let;
static _Atomic bool direct;

void calls_arm(enum calls_kind kind, unsigned n, int as)
{
	nth = n;
	onwards = false;
	how = as;
	atomic_store(&seen, 0);
	atomic_store(&hits, 0);
	atomic_store(&let, 0);
	atomic_store(&fixed, 0);
	atomic_store(&direct, false);
	atomic_store(&armed, (int)kind);
}

void calls_arm_onwards(enum calls_kind kind, unsigned n, int as)
{
	calls_arm(CALLS_KINDS, n, as);
	onwards = true;
	atomic_store(&armed, (int)kind);
}

unsigned calls_disarm(void)
{
	atomic_store(&armed, -1);
	return atomic_load(&hits);
}

void calls_let(unsigned count)
{
	atomic_store(&let, count);
}

bool calls_await(unsigned count)
{
	for (unsigned ms = 0; ms < 60000 && atomic_load(&hits) < count; ms++)
		usleep(1000);
	return atomic_load(&hits) >= count;
}

unsigned calls_seen(void)
{
	return atomic_load(&seen);
}

unsigned calls_fixed(void)
{
	return atomic_load(&fixed);
}

void calls_count_fixed(void)
{
	atomic_fetch_add(&fixed, 1);
}

bool calls_hit_direct(void)
{
	return atomic_load(&direct);
}

const char *calls_name(enum calls_kind kind)
{
	static const char *const names[CALLS_KINDS] = {
		"fill",	   "drain",   "sync",	   "fsync", "open",	 "list",     "read",
		"stat",	   "statx",   "cachestat", "ioctl", "fallocate", "truncate", "rename",
		"madvise", "eventfd", "thread",	   "setup", "register",	 "enter",
	};

	return names[kind];
}

static bool is_direct(int fd)
{
	return fd >= 0 && fcntl(fd, F_GETFL) & O_DIRECT;
}

int calls_turn(enum calls_kind kind, int fd)
{
	int saved = errno, as;
	unsigned turn, hit;

	if (atomic_load(&armed) != (int)kind)
		return 0;
	turn = atomic_fetch_add(&seen, 1) + 1;
	if (!nth || (onwards ? turn < nth : turn != nth))
		return 0;
	atomic_store(&direct, is_direct(fd));
	hit = atomic_fetch_add(&hits, 1) + 1;
	as = how;
	while (as == CALLS_HANG && atomic_load(&let) < hit)
		usleep(1000);
	errno = saved;
	return as;
}

uint64_t calls_short_of(int fd, uint64_t len)
{
	uint64_t half = len / 2;

	if (is_direct(fd))
		half = half >= 4096 ? half / 4096 * 4096 : len;
	return half ? half : len;
}

/* The turn of a call that only works or fails. */
static bool fails(enum calls_kind kind, int fd)
{
	int as = calls_turn(kind, fd);

	if (as > 0)
		errno = as;
	return as > 0;
}

/* ---- what moves bytes ---- */

/* True: the call ends here with *ret; else *len is what it is to move. */
static bool moves(enum calls_kind kind, int fd, size_t *len, ssize_t *ret)
{
	int as = calls_turn(kind, fd);

	if (as == CALLS_SHORT)
		*len = (size_t)calls_short_of(fd, *len);
	if (as == CALLS_LATE && !is_direct(fd))
		usleep(CALLS_LATE_US);
	if (as > 0)
		errno = as;
	*ret = as == CALLS_EMPTY ? 0 : as == CALLS_LIE ? (ssize_t)*len : -1;
	return as > 0 || as == CALLS_EMPTY || as == CALLS_LIE;
}

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	unsigned before = atomic_load(&hits);
	char end[CALLS_LIE_LEN];
	ssize_t ret;

	if (moves(CALLS_FILL, fd, &len, &ret))
		return ret;
	if (how != CALLS_LIE_END || atomic_load(&hits) == before || len < sizeof(end))
		return __real_pread64(fd, buf, len, off);
	memcpy(end, (char *)buf + len - sizeof(end), sizeof(end));
	ret = __real_pread64(fd, buf, len, off);
	memcpy((char *)buf + len - sizeof(end), end, sizeof(end));
	return ret;
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	ssize_t ret;

	return moves(CALLS_DRAIN, fd, &len, &ret) ? ret : __real_pwrite64(fd, buf, len, off);
}

ssize_t __real_preadv64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int count, off_t off)
{
	size_t len = iov->iov_len;
	ssize_t ret;

	if (moves(CALLS_FILL, fd, &len, &ret))
		return ret;
	return len == iov->iov_len ? __real_preadv64(fd, iov, count, off)
				   : __real_pread64(fd, iov->iov_base, len, off);
}

ssize_t __real_pwritev64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int count, off_t off)
{
	size_t len = iov->iov_len;
	ssize_t ret;

	if (moves(CALLS_DRAIN, fd, &len, &ret))
		return ret;
	return len == iov->iov_len ? __real_pwritev64(fd, iov, count, off)
				   : __real_pwrite64(fd, iov->iov_base, len, off);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	return fails(CALLS_SYNC, fd) ? -1 : __real_fdatasync(fd);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return fails(CALLS_FSYNC, fd) ? -1 : __real_fsync(fd);
}

/* ---- names and facts ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails(CALLS_OPEN, -1) ? -1 : __real_open64(path, flags, mode);
}

int __real_openat64(int dir, const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails(CALLS_OPEN, -1) ? -1 : __real_openat64(dir, path, flags, mode);
}

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
	return fails(CALLS_LIST, -1) ? NULL : __real_opendir(path);
}

DIR *__real_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd)
{
	return fails(CALLS_LIST, -1) ? NULL : __real_fdopendir(fd);
}

ssize_t __real_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len)
{
	return fails(CALLS_READ, -1) ? -1 : __real_read(fd, buf, len);
}

int __real_fstat64(int fd, struct stat *stat);
int __wrap_fstat64(int fd, struct stat *stat);
int __wrap_fstat64(int fd, struct stat *stat)
{
	int as = calls_turn(CALLS_STAT, -1), ret;

	if (as > 0)
		errno = as;
	ret = as > 0 ? -1 : __real_fstat64(fd, stat);
	if (as == CALLS_OTHER)
		stat->st_ino++;
	return ret;
}

int __real_lstat64(const char *path, struct stat *stat);
int __wrap_lstat64(const char *path, struct stat *stat);
int __wrap_lstat64(const char *path, struct stat *stat)
{
	return fails(CALLS_STAT, -1) ? -1 : __real_lstat64(path, stat);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
	va_list args;
	long a[6];

	va_start(args, number); /* as many as a system call can have: read, not used */
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if ((number == SYS_cachestat && fails(CALLS_CACHESTAT, -1)) ||
	    (number == SYS_statx && fails(CALLS_STATX, -1)))
		return -1;
	return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	return fails(CALLS_IOCTL, -1) ? -1 : __real_ioctl(fd, request, arg);
}

int __real_fallocate64(int fd, int mode, off_t off, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t off, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t off, off_t len)
{
	return fails(CALLS_FALLOCATE, -1) ? -1 : __real_fallocate64(fd, mode, off, len);
}

int __real_ftruncate64(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len)
{
	return fails(CALLS_TRUNCATE, -1) ? -1 : __real_ftruncate64(fd, len);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
	return fails(CALLS_RENAME, -1) ? -1 : __real_rename(from, to);
}

/* ---- what lanes are made of ---- */

int __real_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice)
{
	int as = calls_turn(CALLS_MADVISE, -1);

	if (as == CALLS_LATE)
		usleep(CALLS_LATE_US);
	if (as > 0)
		errno = as;
	return as > 0 ? -1 : __real_madvise(mem, len, advice);
}

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags)
{
	return fails(CALLS_EVENTFD, -1) ? -1 : __real_eventfd(value, flags);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg)
{
	int as = calls_turn(CALLS_THREAD, -1);

	return as ? as : __real_pthread_create(thread, attr, main, arg);
}
