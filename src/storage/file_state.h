/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an open file, and the state of one transfer of its bytes. file.c and file_*.c share
 * these structs. No other file may include this header, except tests.
 */
#ifndef PST_STORAGE_FILE_STATE_H
#define PST_STORAGE_FILE_STATE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "core/ops.h"

struct pst_file {
	/* Descriptor for calls through the page cache; -1 before the file is open. */
	int fd;
	int fd_direct; /* Descriptor with O_DIRECT; -1 if there is none. */
	/* True if fd is a duplicate of the caller's descriptor and shares its flags. */
	bool fd_borrowed;
	/* Whether fd has O_APPEND, so that every write goes to the end of the file. */
	bool appends;
	bool created; /* Whether the open created the file, so that an abort removes it. */
	bool replace; /* Whether the file gets its final name only at commit. */
	bool renamed; /* Whether the file has been renamed to its final name. */
	bool committed;
	bool aborted; /* Whether the file was aborted, so that a commit fails. */
	/* Length that the caller gave when it created the file; 0 if the caller gave none. */
	uint64_t length;
	/* Offset after the last byte that was written, including padding. */
	_Atomic uint64_t written_end;
	bool is_block;
	uint64_t block_length;
	char *path; /* Path that the caller gave; NULL if the caller gave a descriptor. */
	/* Absolute form of `path` if it is relative and could be made absolute, else NULL. */
	char *absolute;
	/* Descriptor of the directory of a file that the open created; -1 if there is none. Thus
	 * the file can be removed or renamed even after the directory was renamed. */
	int dir;
	/* Name that the file has in `dir` until commit; NULL if the file is not replaced. */
	char *temp;
	/* Whether the file has no name yet: it was created by O_TMPFILE, and `temp` is unused so
	 * far. */
	bool nameless;
	/* Permission bits that the file gets at commit if it replaces another file. */
	unsigned mode;
	/* Whether the file gets the owner and group of the file that it replaces. */
	bool keeps_owner;
	uid_t owner;
	gid_t group;
	/* 0 if cachestat works, else the errno with which it failed. */
	_Atomic int cachestat_error;
	/* Whether the file is on overlayfs, where cachestat always reports 0 pages. */
	bool overlay;
	_Atomic bool error_lock; /* Spin lock that file_sync.c takes to change errors_seen. */
	/* Number of write-back errors of the file that the kernel has reported to the library. */
	_Atomic unsigned errors_seen;
	/* Value that errors_seen had when syncfs last proved that no data was lost. */
	_Atomic unsigned errors_forgiven;
	/* errno of the first sync that reported lost data; 0 if none did. */
	_Atomic int lost_errno;
	/* True if the kernel and the file system make syncfs fail only if the page cache has lost
	 * data. */
	bool tells_loss;
	/* For file_gate.c: a number that identifies the file, and the length in bytes of a place. A
	 * place is a range in which direct and cached writes must not run at the same time. */
	uint64_t place_key, place_bytes;
};

/* State of one transfer of the storage named "file", stored in io->priv. */
struct pst_file_io {
	struct pst_call call;
	unsigned tries; /* Number of consecutive calls that moved nothing. */
	/* Value of the file's errors_seen when the write started or was last repeated
	 * (file_sync.c). */
	unsigned errors;
	unsigned remade; /* Number of times that the write was repeated (file_sync.c). */
	/* Whether file_gate.c counts this write as in flight, so that other writes may wait for
	 * it. */
	bool held;
	/* The transfer's own io->done, stored here while the write waits at the gate
	 * (file_gate.c). */
	void (*then)(struct pst_io *io);
};
_Static_assert(sizeof(struct pst_file_io) <= PST_IO_PRIV, "room");

static inline struct pst_file_io *pst_file_io(struct pst_io *io)
{
	return (struct pst_file_io *)(void *)io->priv;
}

/* Opens a path. Repeats the call if a signal interrupts it, which happens on network file
 * systems. */
static inline int pst_open_retry(const char *path, int flags, unsigned mode)
{
	int fd;

	do
		fd = open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}

/* Opens a path relative to the directory `dir`. Repeats openat(2) if a signal interrupts it. */
static inline int pst_openat_retry(int dir, const char *path, int flags, unsigned mode)
{
	int fd;

	do
		fd = openat(dir, path, flags | O_CLOEXEC | O_NOCTTY, mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}

#endif
