/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injects failures into system calls of the library. The linker puts the wrappers of calls.c
 * before libc and liburing (--wrap, see meson.build), so that the tests use the library's
 * unchanged code. One kind of call is armed at a time. The n-th call of that kind after the
 * arming fails, or moves fewer bytes. While no kind is armed, all calls pass through unchanged.
 */
#ifndef PENSTOCK_FAULT_CALLS_H
#define PENSTOCK_FAULT_CALLS_H

#include <stdbool.h>
#include <stdint.h>

enum calls_kind {
	CALLS_FILL,  /* pread and preadv, or a read through io_uring */
	CALLS_DRAIN, /* pwrite and pwritev, or a write through io_uring */
	CALLS_SYNC,  /* fdatasync */
	CALLS_FSYNC, /* fsync of files and directories */
	CALLS_OPEN,  /* open, openat */
	CALLS_LIST,  /* opendir, fdopendir */
	CALLS_READ,  /* read, on files that are not storages, such as sysfs files and eventfds */
	CALLS_STAT,  /* fstat, lstat */
	CALLS_STATX, /* statx; the library calls statx and cachestat through syscall() */
	CALLS_CACHESTAT,
	CALLS_IOCTL,
	CALLS_FALLOCATE,
	CALLS_TRUNCATE,
	CALLS_RENAME, /* renameat, linkat */
	CALLS_MADVISE,
	CALLS_EVENTFD,
	CALLS_THREAD,	/* pthread_create */
	CALLS_SETUP,	/* io_uring_setup */
	CALLS_REGISTER, /* io_uring_register */
	CALLS_ENTER,	/* io_uring_enter */
	CALLS_KINDS
};

/* How the armed call fails: an errno, or one of these negative values. Most of the negative
 * values apply only to CALLS_FILL and CALLS_DRAIN. */
#define CALLS_SHORT (-1) /* moves about half of the bytes, in whole blocks for O_DIRECT */
#define CALLS_EMPTY (-2) /* moves no bytes and returns 0 */
/* The read (CALLS_FILL) reports success although bytes have not arrived. CALLS_LIE: no byte has
 * arrived. CALLS_LIE_END: all bytes have arrived except the last CALLS_LIE_LEN. */
#define CALLS_LIE (-3)
#define CALLS_LIE_END (-4) /* plain calls only */
#define CALLS_LIE_LEN 8u
/* A call through the page cache, or one of kind CALLS_MADVISE, takes CALLS_LATE_US longer. */
#define CALLS_LATE (-5)
#define CALLS_LATE_US 20000
#define CALLS_OTHER (-6) /* the call (CALLS_STAT) returns the inode number of another file */
/* The read (CALLS_FILL) blocks and moves no byte until calls_release lets it continue. Only for
 * plain calls, not for io_uring. */
#define CALLS_HANG (-7)

void calls_arm(enum calls_kind kind, unsigned nth, int how);
/* Does the same as calls_arm, but all calls from the n-th on fail. */
void calls_arm_onwards(enum calls_kind kind, unsigned nth, int how);
/* Ends the injection, so that all calls pass through again. Returns how many calls got the injected
 * outcome since calls_arm. */
unsigned calls_disarm(void);
/* Lets the first `count` calls that CALLS_HANG blocks continue. The other blocked calls stay
 * blocked, even after calls_disarm. */
void calls_release(unsigned count);
/* Waits until `count` calls have got the injected outcome. Returns false if that takes more than
 * a minute. */
bool calls_await_hits(unsigned count);
/* Return facts since calls_arm: the number of calls of the armed kind, and whether the last call
 * that got the injected outcome was an O_DIRECT call. */
unsigned calls_counted(void);
bool calls_hit_direct(void);

/* Returns how many io_uring calls used registered buffers since calls_arm. */
unsigned calls_fixed_count(void);

/* Counts an io_uring call that uses a registered buffer. Only calls_uring.c calls this function. */
void calls_count_fixed(void);
/* Counts a call and returns its injected outcome, or 0 if the call must pass through. calls_uring.c
 * calls this function, too. */
int calls_next_outcome(enum calls_kind kind, int fd);
/* Returns how many of `len` bytes a call with the outcome CALLS_SHORT moves. */
uint64_t calls_short_len(int fd, uint64_t len);
/* Returns the name of a kind of call, for messages. */
const char *calls_name(enum calls_kind kind);

#endif
