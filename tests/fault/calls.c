/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrapped functions of libc, see calls.h. The library calls them. Each wrapper returns the
 * injected failure if its call is the one that must fail. Otherwise it calls the real function.
 * The wrappers must never allocate or lock, because lanes (the library's threads) call them.
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

/* the kind of call that fails next (the armed kind), -1 if none does */
static _Atomic int armed = -1;
static unsigned armed_nth;
static bool all_from_nth;
static int armed_outcome;
static _Atomic unsigned counted, hits, fixed, released;
static _Atomic bool hit_direct;

void calls_arm(enum calls_kind kind, unsigned n, int outcome)
{
	armed_nth = n;
	all_from_nth = false;
	armed_outcome = outcome;
	atomic_store(&counted, 0);
	atomic_store(&hits, 0);
	atomic_store(&released, 0);
	atomic_store(&fixed, 0);
	atomic_store(&hit_direct, false);
	atomic_store(&armed, (int)kind);
}

void calls_arm_onwards(enum calls_kind kind, unsigned n, int outcome)
{
	calls_arm(CALLS_KINDS, n, outcome);
	all_from_nth = true;
	atomic_store(&armed, (int)kind);
}

unsigned calls_disarm(void)
{
	atomic_store(&armed, -1);
	return atomic_load(&hits);
}

void calls_release(unsigned count)
{
	atomic_store(&released, count);
}

bool calls_await_hits(unsigned count)
{
	for (unsigned ms = 0; ms < 60000 && atomic_load(&hits) < count; ms++)
		usleep(1000);
	return atomic_load(&hits) >= count;
}

unsigned calls_counted(void)
{
	return atomic_load(&counted);
}

unsigned calls_fixed_count(void)
{
	return atomic_load(&fixed);
}

void calls_count_fixed(void)
{
	atomic_fetch_add(&fixed, 1);
}

bool calls_hit_direct(void)
{
	return atomic_load(&hit_direct);
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

int calls_next_outcome(enum calls_kind kind, int fd)
{
	int saved = errno, outcome;
	unsigned turn, hit;

	if (atomic_load(&armed) != (int)kind)
		return 0;
	turn = atomic_fetch_add(&counted, 1) + 1;
	if (!armed_nth || (all_from_nth ? turn < armed_nth : turn != armed_nth))
		return 0;
	atomic_store(&hit_direct, is_direct(fd));
	hit = atomic_fetch_add(&hits, 1) + 1;
	outcome = armed_outcome;
	while (outcome == CALLS_HANG && atomic_load(&released) < hit)
		usleep(1000);
	errno = saved;
	return outcome;
}

uint64_t calls_short_len(int fd, uint64_t len)
{
	uint64_t half = len / 2;

	if (is_direct(fd))
		half = half >= 4096 ? half / 4096 * 4096 : len;
	return half ? half : len;
}

/* Counts a call that cannot succeed partly. Returns true and sets errno if the call must fail. */
static bool call_fails(enum calls_kind kind, int fd)
{
	int outcome = calls_next_outcome(kind, fd);

	if (outcome > 0)
		errno = outcome;
	return outcome > 0;
}

/* ---- calls that move bytes ---- */

/* Decides the outcome of a read or write. Returns true if the wrapper must return *ret without a
 * real call. Otherwise the wrapper moves *len bytes. */
static bool move_is_faulty(enum calls_kind kind, int fd, size_t *len, ssize_t *ret)
{
	int outcome = calls_next_outcome(kind, fd);

	if (outcome == CALLS_SHORT)
		*len = (size_t)calls_short_len(fd, *len);
	if (outcome == CALLS_LATE && !is_direct(fd))
		usleep(CALLS_LATE_US);
	if (outcome > 0)
		errno = outcome;
	*ret = outcome == CALLS_EMPTY ? 0 : outcome == CALLS_LIE ? (ssize_t)*len : -1;
	return outcome > 0 || outcome == CALLS_EMPTY || outcome == CALLS_LIE;
}

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	unsigned before = atomic_load(&hits);
	char end[CALLS_LIE_LEN];
	ssize_t ret;

	if (move_is_faulty(CALLS_FILL, fd, &len, &ret))
		return ret;
	if (armed_outcome != CALLS_LIE_END || atomic_load(&hits) == before || len < sizeof(end))
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

	return move_is_faulty(CALLS_DRAIN, fd, &len, &ret) ? ret
							   : __real_pwrite64(fd, buf, len, off);
}

ssize_t __real_preadv64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int count, off_t off);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int count, off_t off)
{
	size_t len = iov->iov_len;
	ssize_t ret;

	if (move_is_faulty(CALLS_FILL, fd, &len, &ret))
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

	if (move_is_faulty(CALLS_DRAIN, fd, &len, &ret))
		return ret;
	return len == iov->iov_len ? __real_pwritev64(fd, iov, count, off)
				   : __real_pwrite64(fd, iov->iov_base, len, off);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	return call_fails(CALLS_SYNC, fd) ? -1 : __real_fdatasync(fd);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return call_fails(CALLS_FSYNC, fd) ? -1 : __real_fsync(fd);
}

/* ---- names and facts of files ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	return call_fails(CALLS_OPEN, -1) ? -1 : __real_open64(path, flags, mode);
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
	return call_fails(CALLS_OPEN, -1) ? -1 : __real_openat64(dir, path, flags, mode);
}

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
	return call_fails(CALLS_LIST, -1) ? NULL : __real_opendir(path);
}

DIR *__real_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd)
{
	return call_fails(CALLS_LIST, -1) ? NULL : __real_fdopendir(fd);
}

ssize_t __real_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len)
{
	return call_fails(CALLS_READ, -1) ? -1 : __real_read(fd, buf, len);
}

int __real_fstat64(int fd, struct stat *stat);
int __wrap_fstat64(int fd, struct stat *stat);
int __wrap_fstat64(int fd, struct stat *stat)
{
	int outcome = calls_next_outcome(CALLS_STAT, -1), ret;

	if (outcome > 0)
		errno = outcome;
	ret = outcome > 0 ? -1 : __real_fstat64(fd, stat);
	if (outcome == CALLS_OTHER)
		stat->st_ino++;
	return ret;
}

int __real_lstat64(const char *path, struct stat *stat);
int __wrap_lstat64(const char *path, struct stat *stat);
int __wrap_lstat64(const char *path, struct stat *stat)
{
	return call_fails(CALLS_STAT, -1) ? -1 : __real_lstat64(path, stat);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
	va_list args;
	long a[6];

	/* Reads six arguments, the most that a system call can have, although this call may have
	 * fewer. */
	va_start(args, number);
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if ((number == SYS_cachestat && call_fails(CALLS_CACHESTAT, -1)) ||
	    (number == SYS_statx && call_fails(CALLS_STATX, -1)))
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
	return call_fails(CALLS_IOCTL, -1) ? -1 : __real_ioctl(fd, request, arg);
}

int __real_fallocate64(int fd, int mode, off_t off, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t off, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t off, off_t len)
{
	return call_fails(CALLS_FALLOCATE, -1) ? -1 : __real_fallocate64(fd, mode, off, len);
}

int __real_ftruncate64(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len)
{
	return call_fails(CALLS_TRUNCATE, -1) ? -1 : __real_ftruncate64(fd, len);
}

int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return call_fails(CALLS_RENAME, -1) ? -1 : __real_renameat(from_dir, from, to_dir, to);
}

int __real_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int __wrap_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int __wrap_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	return call_fails(CALLS_RENAME, -1) ? -1 : __real_linkat(from_dir, from, to_dir, to, flags);
}

/* ---- calls that set up lanes ---- */

int __real_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice)
{
	int outcome = calls_next_outcome(CALLS_MADVISE, -1);

	if (outcome == CALLS_LATE)
		usleep(CALLS_LATE_US);
	if (outcome > 0)
		errno = outcome;
	return outcome > 0 ? -1 : __real_madvise(mem, len, advice);
}

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags)
{
	return call_fails(CALLS_EVENTFD, -1) ? -1 : __real_eventfd(value, flags);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg)
{
	int outcome = calls_next_outcome(CALLS_THREAD, -1);

	return outcome ? outcome : __real_pthread_create(thread, attr, main, arg);
}
