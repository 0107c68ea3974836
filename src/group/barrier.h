/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers of a group: all ranks wait for each other, may exchange a few bytes, and learn
 * which rank failed or is lost. All ranks call the functions named "collective" in the same
 * order. One thread of a rank at a time.
 */
#ifndef PST_GROUP_BARRIER_H
#define PST_GROUP_BARRIER_H

#include "group/link.h"
#include "group/settings.h"
#include "weights/move.h"

struct penstock_group {
	unsigned rank, size;
	struct pst_group_settings settings;
	struct {
		int rank; /* The first rank that is lost; -1: none. */
		int code;
		enum penstock_why why;
		char text[PENSTOCK_TEXT_MAX]; /* What happened to it. */
	} lost;
	struct pst_load *progress; /* Load whose caller is polled during waits; NULL: none. */
	struct pst_packet early;   /* Failure of the next barrier, known before it began. */
	pid_t pid;		   /* Process that opened the group; its children may not use it. */
	uint64_t seq;		   /* Number of the last barrier. */
	char name[64];
	struct pst_link *links;	    /* Of rank 0: one for each rank. Of others: links[0]. */
	struct pst_packet *packets; /* Of rank 0: the last packet of each rank. */
	struct pst_message scratch; /* Buffer for a message that is dropped. */
	struct pst_message *empty;  /* For each rank the scratch buffer. */
};

unsigned pst_group_rank(const struct penstock_group *g);
unsigned pst_group_size(const struct penstock_group *g);
const struct pst_group_settings *pst_group_get_settings(const struct penstock_group *g);
/* Returns 0 if this process opened the group, -EOWNERDEAD in a child that it forked. */
int pst_group_check_owner(const struct penstock_group *g);

/*
 * Waits until all ranks have arrived (collective). `status` is this rank's: 0, or an error whose
 * message is this thread's last. As soon as one rank arrives with an error, every rank fails
 * with it: "rank N: message". Once a rank is lost, every barrier fails.
 */
int pst_group_barrier(struct penstock_group *g, int status);

/* Fails if a rank is lost, if one has failed at the barrier to come, or if this rank's caller
 * cancels its load. A rank that waits for something else calls it now and then; the next barrier
 * has the same result. Does not wait. */
int pst_group_poll(struct penstock_group *g);
/* Sets the load whose caller is polled while this rank waits; NULL: none. */
void pst_group_set_progress(struct penstock_group *g, struct pst_load *load);
/* Polls this rank's caller; returns 0 or -ECANCELED. */
int pst_group_poll_caller(struct penstock_group *g);
/* Returns when a wait that may last until `until_ms` must be interrupted to poll the caller. */
uint64_t pst_group_next_poll_ms(const struct penstock_group *g, uint64_t until_ms);

/*
 * Barrier at which each rank sends `len` bytes and a descriptor (-1: none) to all (collective).
 * `messages` has an element for each rank: the bytes are valid until pst_messages_free, the
 * descriptors belong to the caller. This rank's own element has its own bytes and descriptor.
 */
int pst_group_exchange(struct penstock_group *g, int status, const void *bytes, size_t len, int fd,
		       struct pst_message *messages);
/* Frees the bytes, and closes the descriptors that are not -1. */
void pst_messages_free(struct penstock_group *g, struct pst_message *messages);
/* Fails with -EPROTO: a rank sent a message that no rank of this version sends. */
int pst_message_invalid(unsigned rank);

/*
 * Waits until all ranks that are left have arrived (collective): after it no rank uses the
 * memory that another one shares. Waits a few seconds at most unless `done`, which means that the
 * ranks' common work succeeded. Leaves this thread's message unchanged.
 */
void pst_group_last_barrier(struct penstock_group *g, bool done);

#endif
