/* SPDX-License-Identifier: Apache-2.0 */
/* What file.c (moving bytes) and file_open.c (opening and facts) share. */
#ifndef PST_STORAGE_FILE_H
#define PST_STORAGE_FILE_H

#include <sys/stat.h>

#include "core/ops.h"

struct pst_file {
	int fd;		  /* buffered; -1 before open */
	int fd_direct;	  /* O_DIRECT or -1 */
	bool fd_borrowed; /* it is a duplicate of the caller's, whose flags it has */
	bool appends;	  /* and writes behind the end, wherever it is told to */
	bool created;	  /* by this open: removed if it is aborted */
	bool replace;	  /* written under a name of its own until commit */
	bool placed;	  /* it has the name, durable or not yet */
	bool committed;
	bool given_up;		      /* the name is gone, nothing can be committed */
	uint64_t length;	      /* asked for at creation, 0: as written */
	_Atomic uint64_t written_end; /* behind the highest byte written, padding too */
	bool is_block;
	uint64_t block_length;
	char *path;	  /* NULL for a descriptor */
	char *whole;	  /* path from the root, if it was relative; NULL: path itself */
	char *temp;	  /* the name until commit, NULL: path itself */
	unsigned mode;	  /* of what replaces, from commit on: permission bits */
	bool keeps_owner; /* of what it replaces, these two: */
	uid_t owner;
	gid_t group;
	_Atomic int cachestat_error;	 /* 0: works, else the errno that says why not */
	bool overlay;			 /* cachestat answers 0 there */
	_Atomic bool looking;		 /* one at a time: file_sync.c */
	_Atomic unsigned marks;		 /* how often the kernel said that something was wrong */
	_Atomic unsigned forgiven;	 /* so many of them were no loss */
	_Atomic int lost;		 /* the errno of a sync that failed; 0: none has */
	bool tells_loss;		 /* syncfs knows of what the page cache has lost */
	uint64_t place_key, place_bytes; /* which file this is, and parts of it: file_gate.c */
};

/* A transfer of a file's, in the room of its io. */
struct pst_file_io {
	struct pst_call call;
	unsigned tries;		/* calls in a row that moved nothing */
	unsigned marks, remade; /* file_sync.c's: of the file when it began, how often since */
	bool held;		/* file_gate.c's: others wait for it */
	void (*then)(struct pst_io *io); /* file_gate.c's: its done, while it waits itself */
};
_Static_assert(sizeof(struct pst_file_io) <= PST_IO_PRIV, "room");

static inline struct pst_file_io *pst_file_io(struct pst_io *io)
{
	return (struct pst_file_io *)(void *)io->priv;
}

int pst_file_open(struct penstock_storage *st, const char *url, int fd,
		  const struct penstock_storage_opts *opts, struct pst_err *err);
void pst_file_close(struct penstock_storage *st);
int pst_file_commit(struct penstock_storage *st, bool durable, struct pst_err *err);
int pst_file_abort(struct penstock_storage *st, struct pst_err *err);
int pst_file_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

/* file_facts.c: what the file lies on. */
int pst_file_facts(struct penstock_storage *st, const char *root, struct pst_err *err);
/* A written extent, by FIEMAP. */
int pst_file_written(struct penstock_storage *st, uint64_t *off, uint64_t *len);
/* Another number when it may have more of them. */
uint64_t pst_file_stamp(struct penstock_storage *st);
/* What the page cache holds, by cachestat. */
enum pst_residency pst_file_residency(struct penstock_storage *st, uint64_t off, uint64_t len,
				      enum penstock_why *why);

/* file_sync.c: what a sync means. Direct writes: where one begins, and when it has ended:
 * 1: it has to be made again, -EIO: once too often. */
void pst_file_begin(struct pst_io *io);
int pst_file_remake(struct pst_io *io);
/* A sync failed with this errno. True: nothing is lost, it can be made again. May block. */
bool pst_file_forgive(struct pst_file *file, int code);
/* Else: bytes are lost that may be anybody's. */
void pst_file_lose(struct pst_file *file, int code);
/* Everything that was ever written is on the drive, or -errno. May block. */
int pst_file_settle(struct pst_file *file, struct pst_err *err);

/* file_gate.c: keeps a write apart from those that must not be on their way with it. */
void pst_gate_open(struct pst_file *file, const struct stat *stat);
/* True: it may begin. False: go_on is called on its lane as soon as it may, and what was
 * its done is in pst_file_io. */
bool pst_gate_enter(struct pst_io *io, void (*go_on)(struct pst_io *io));
/* It has ended, or has not begun after all. Nothing is done for others than writes. */
void pst_gate_leave(struct pst_io *io);

#endif
