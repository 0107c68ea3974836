/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one open file and of one transfer of it. file.c and file_*.c share these structs;
 * no other file may include this header, except tests.
 */
#ifndef PST_STORAGE_FILE_STATE_H
#define PST_STORAGE_FILE_STATE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "core/ops.h"

struct pst_file {
	int fd;		  /* Buffered descriptor; -1 before open. */
	int fd_direct;	  /* O_DIRECT descriptor, or -1. */
	bool fd_borrowed; /* fd is a duplicate of the caller's and shares its flags. */
	bool appends;	  /* fd has O_APPEND: every write goes to the end of the file. */
	bool created;	  /* This open created the file; abort removes it. */
	bool replace;	  /* The file has a temporary name until commit. */
	bool renamed;	  /* The file has its final name, durable or not. */
	bool committed;
	bool aborted; /* The name is gone; commit fails. */
	/* Length that the caller gave at creation; 0: the file is as long as it is written. */
	uint64_t length;
	_Atomic uint64_t written_end; /* End of the highest byte written, padding included. */
	bool is_block;
	uint64_t block_length;
	char *path;	  /* NULL for a descriptor. */
	char *absolute;	  /* Absolute form of a relative path; NULL: use `path`. */
	char *temp;	  /* Temporary name until commit; NULL: none. */
	unsigned mode;	  /* Permission bits that a replacement gets at commit. */
	bool keeps_owner; /* A replacement gets `owner` and `group` of the file that it replaces. */
	uid_t owner;
	gid_t group;
	_Atomic int cachestat_error;  /* 0: cachestat works; else its errno. */
	bool overlay;		      /* On overlayfs cachestat always answers 0. */
	_Atomic bool error_lock;      /* Spin lock of the next member: file_sync.c. */
	_Atomic unsigned errors_seen; /* Write-back errors that the kernel has reported. */
	_Atomic unsigned
		errors_forgiven; /* errors_seen when syncfs last proved that no data was lost. */
	_Atomic int lost_errno;	 /* errno of a sync that lost data; 0: none did. */
	bool tells_loss;	 /* syncfs reports data that the page cache lost. */
	uint64_t place_key, place_bytes; /* File identity and length of a place: file_gate.c. */
};

/* A transfer of a file, kept in io->priv. */
struct pst_file_io {
	struct pst_call call;
	unsigned tries;	 /* Consecutive calls that moved nothing. */
	unsigned errors; /* errors_seen of the file when the transfer started: file_sync.c. */
	unsigned remade; /* Number of times that the write was repeated: file_sync.c. */
	bool held;	 /* The gate counts this write, and others may wait for it: file_gate.c. */
	void (*then)(struct pst_io *io); /* The io's own `done` while it waits: file_gate.c. */
};
_Static_assert(sizeof(struct pst_file_io) <= PST_IO_PRIV, "room");

static inline struct pst_file_io *pst_file_io(struct pst_io *io)
{
	return (struct pst_file_io *)(void *)io->priv;
}

/* Opens a path; repeats the call if a signal interrupts it, as network file systems allow. */
static inline int pst_open_retry(const char *path, int flags, unsigned mode)
{
	int fd;

	do
		fd = open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}

#endif
