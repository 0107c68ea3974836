/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a group share: ranks that meet, tell each other a few bytes, and
 * learn which of them failed or has gone. Every call but pst_group_look and _apart is
 * collective: all ranks make it, in the same order. One thread at a time.
 */
#ifndef PST_GROUP_GROUP_H
#define PST_GROUP_GROUP_H

#include <errno.h>

#include "weights/weights.h"

#define PST_GROUP_MAX ((unsigned)PENSTOCK_GROUP_MAX)
#define PST_GROUP_WINDOWS_MAX 64u /* of each */
#define PST_GROUP_SAY_MAX 49152u  /* bytes that a rank says at once */
#define PST_FILES_TOLD 3072u	  /* one by one; the rest together */

struct penstock_group;

/* The settings of a group, with defaults filled in: rank 0's, which hold for all. */
struct pst_group_how {
	uint64_t window;
	uint32_t windows, stall_ms;
	uint32_t reads_max;   /* at one store at once, 0: no limit */
	uint32_t host, hosts; /* this one, of those that load the same at the same time */
	uint32_t delay_ms;    /* before it begins */
};

unsigned pst_group_rank(const struct penstock_group *g);
unsigned pst_group_size(const struct penstock_group *g);
const struct pst_group_how *pst_group_how(const struct penstock_group *g);
/* That this process has opened it, and not one that it forked off: 0. */
int pst_group_check_owner(const struct penstock_group *g);

/*
 * Returns on every rank when all have come: 0. Or as soon as one has come with status < 0:
 * its failure, whose sentence is that thread's last; the others are told "rank N: sentence",
 * also those that come later. After a rank has gone every call fails.
 */
int pst_group_meet(struct penstock_group *g, int status);

/* Between two meetings, of this rank alone: 0, or that one has gone, or failed before it came
 * to the next one, which all are told; that meeting ends the same. A rank that waits for
 * something else calls it now and then. Also that its own caller wants no more of the load:
 * it is to say so at the next meeting. */
int pst_group_look(struct penstock_group *g);
/* Whose caller is asked while this rank waits; NULL: nobody's. */
void pst_group_heed(struct penstock_group *g, struct pst_load *load);

/*
 * Meets, and hands each rank what the others say: `len` bytes and a descriptor or -1.
 * said[r] has room for `room` bytes, lens[r] says how many came, fds[r] is the
 * caller's then; its own are not among them.
 */
struct pst_said {
	unsigned char *bytes;
	size_t len;
	int fd; /* -1: none came; PST_FD_LOST: this process may have no more of them */
};
#define PST_FD_LOST (-EMFILE)
int pst_group_tell(struct penstock_group *g, int status, const void *bytes, size_t len, int fd,
		   struct pst_said *said);
/* Frees what pst_group_tell handed out, and closes the descriptors that are left. */
void pst_said_free(struct penstock_group *g, struct pst_said *said);
/* What a rank said cannot be: the failure. */
int pst_said_wrong(unsigned rank);

/* Waits until all that are left have come here: what one of them shares may be taken away
 * then. Some seconds at most if what they did together did not get done. Leaves this
 * thread's message as it is. */
void pst_group_part(struct penstock_group *g, bool done);

/* Returns what `work` does, or that the group has ended while it still works. Of this rank
 * alone. */
int pst_group_apart(struct penstock_group *g, struct penstock_weights *w,
		    int (*work)(struct penstock_weights *w, unsigned which), unsigned which);

/* That all ranks have the files that rank 0 has, by what is in them; `said` as
 * pst_group_tell has it, and given back. */
int pst_group_same(struct penstock_group *g, struct penstock_weights *w, struct pst_said *said);

/* The collective form of pst_load_move; `status` is how the rank has come so far. */
int pst_group_move(struct penstock_group *g, struct pst_load *load, struct pst_bits *bits,
		   int status);

#endif
