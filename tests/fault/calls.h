/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injects failures into system calls of the library. The linker puts the wrappers of calls.c
 * before libc and liburing (--wrap, see meson.build), so that the library under test is the one
 * that is shipped. One kind of call is armed at a time. Its n-th call after that fails, or
 * moves fewer bytes. Without arming, all calls pass through unchanged.
 */
#ifndef PENSTOCK_FAULT_CALLS_H
#define PENSTOCK_FAULT_CALLS_H

#include <stdbool.h>
#include <stdint.h>

enum calls_kind {
	CALLS_FILL,  /* pread and preadv, or a read of io_uring */
	CALLS_DRAIN, /* pwrite and pwritev, or a write of io_uring */
	CALLS_SYNC,  /* fdatasync */
	CALLS_FSYNC, /* fsync of files and directories */
	CALLS_OPEN,  /* open, openat */
	CALLS_LIST,  /* opendir, fdopendir */
	CALLS_READ,  /* read, of files that are no storage: sysfs, eventfds */
	CALLS_STAT,  /* fstat, lstat */
	CALLS_STATX, /* statx, and below it cachestat: both through syscall() */
	CALLS_CACHESTAT,
	CALLS_IOCTL,
	CALLS_FALLOCATE,
	CALLS_TRUNCATE,
	CALLS_RENAME,
	CALLS_MADVISE,
	CALLS_EVENTFD,
	CALLS_THREAD,	/* pthread_create */
	CALLS_SETUP,	/* io_uring_setup */
	CALLS_REGISTER, /* io_uring_register */
	CALLS_ENTER,	/* io_uring_enter */
	CALLS_KINDS
};

/* How a call fails: an errno, or one of these values. Most apply only to CALLS_FILL and
 * CALLS_DRAIN. */
#define CALLS_SHORT (-1) /* moves about half of the bytes, in whole blocks for O_DIRECT */
#define CALLS_EMPTY (-2) /* moves no bytes and returns 0 */
/* CALLS_FILL reports success, but no byte has arrived (CALLS_LIE), or all but the last 8. */
#define CALLS_LIE (-3)
#define CALLS_LIE_END (-4) /* plain calls only */
#define CALLS_LIE_LEN 8u
/* Delays a call through the page cache, or a CALLS_MADVISE, by CALLS_LATE_US. */
#define CALLS_LATE (-5)
#define CALLS_LATE_US 20000
#define CALLS_OTHER (-6) /* CALLS_STAT returns another file's inode number */
/* CALLS_FILL moves no byte and blocks until calls_release allows it. Plain calls only. */
#define CALLS_HANG (-7)

void calls_arm(enum calls_kind kind, unsigned nth, int how);
/* The same for the n-th call and all later ones. */
void calls_arm_onwards(enum calls_kind kind, unsigned nth, int how);
/* Disarms: all calls pass through again. Returns how many calls were hit. */
unsigned calls_disarm(void);
/* Lets the first `count` calls that were hit since arming continue. The others stay blocked,
 * even after calls_disarm. */
void calls_release(unsigned count);
/* Waits until `count` calls were hit. Returns false after a minute. */
bool calls_await_hits(unsigned count);
/* Since arming: the number of calls of the kind, and whether the last hit was an O_DIRECT call. */
unsigned calls_counted(void);
bool calls_hit_direct(void);

/* Since arming: the number of io_uring calls that used registered buffers. */
unsigned calls_fixed_count(void);

/* Called by calls_uring.c for each such call. */
void calls_count_fixed(void);
/* Counts a call and returns its injected outcome, 0 for none. Also called by calls_uring.c. */
int calls_next_outcome(enum calls_kind kind, int fd);
/* Returns how many of `len` bytes a short call moves. */
uint64_t calls_short_len(int fd, uint64_t len);
/* Returns the name of a kind, for messages. */
const char *calls_name(enum calls_kind kind);

#endif
