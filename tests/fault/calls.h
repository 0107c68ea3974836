/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls of the library that fail when a test says so. The linker puts
 * calls.c in front of libc and liburing (--wrap, see meson.build), so that the
 * library itself is the one that is shipped. One kind of call is armed at a time;
 * its n-th call from there fails, or moves less than it was asked for. Without
 * being armed everything goes through untouched.
 */
#ifndef PENSTOCK_FAULT_CALLS_H
#define PENSTOCK_FAULT_CALLS_H

#include <stdbool.h>
#include <stdint.h>

enum calls_kind {
	CALLS_FILL,  /* pread and its like, or an io_uring's */
	CALLS_DRAIN, /* pwrite and its like */
	CALLS_SYNC,  /* fdatasync */
	CALLS_FSYNC, /* fsync, of files and directories */
	CALLS_OPEN,  /* open, openat */
	CALLS_LIST,  /* opendir, fdopendir */
	CALLS_READ,  /* read, of what is no storage: sysfs, eventfds */
	CALLS_STAT,  /* fstat, lstat */
	CALLS_STATX, /* and cachestat: through syscall() */
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

/* How it fails: an errno, or one of these, which only CALLS_FILL and _DRAIN know. */
#define CALLS_SHORT (-1) /* moves about half, whole blocks of it if O_DIRECT */
#define CALLS_EMPTY (-2) /* moves nothing and says so */
/* Of CALLS_FILL: success is said, and nothing has arrived, or not the last 8 bytes. */
#define CALLS_LIE (-3)
#define CALLS_LIE_END (-4) /* by plain calls only */
#define CALLS_LIE_LEN 8u
#define CALLS_LATE (-5) /* only what goes through the page cache, or a CALLS_MADVISE: so late */
#define CALLS_LATE_US 20000
#define CALLS_OTHER (-6) /* of CALLS_STAT: it is another file */
/* Of CALLS_FILL: nothing moves and it does not come back before calls_let says so. Plain
 * calls only. */
#define CALLS_HANG (-7)

void calls_arm(enum calls_kind kind, unsigned nth, int how);
/* The same, and all that follow. */
void calls_arm_onwards(enum calls_kind kind, unsigned nth, int how);
/* Lets everything through again; how many calls were hit. */
unsigned calls_disarm(void);
/* The first `count` calls that were hit since it was armed go on; the others hang, also when
 * it is disarmed. */
void calls_let(unsigned count);
/* Returns when `count` were hit; false after a minute. */
bool calls_await(unsigned count);
/* Since it was armed: calls of the kind, and whether the last hit was O_DIRECT. */
unsigned calls_seen(void);
bool calls_hit_direct(void);

/* Since it was armed: io_uring's calls into registered buffers. */
unsigned calls_fixed(void);

/* For calls_uring.c: one more of them. */
void calls_count_fixed(void);
/* For calls_uring.c: counts a call, and what it is to do: 0 what it says. */
int calls_turn(enum calls_kind kind, int fd);
/* How much of `len` a call that is short moves. */
uint64_t calls_short_of(int fd, uint64_t len);
/* The name of a kind, for messages. */
const char *calls_name(enum calls_kind kind);

#endif
