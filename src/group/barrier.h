/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers of a group, which is several processes (ranks) that load a model together. At a barrier
 * all ranks wait for each other, can exchange a few bytes, and learn whether a rank failed or is
 * lost. All ranks must call the functions marked "collective" in the same order. Only one thread of
 * a rank may call these functions at a time.
 * ARCHITECTURE.md, section Words, explains the project's words.
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
		int rank; /* First rank that is lost; -1 if no rank is. */
		int code;
		enum penstock_why why;
		char text[PENSTOCK_TEXT_MAX]; /* How the lost rank ended, as a sentence. */
	} lost;
	/* The load that this rank runs; NULL if there is none. While the rank waits, it calls the
	 * callback of the load's caller from time to time, so that the caller can cancel the
	 * load. */
	struct pst_load *progress;
	/* Result of a barrier that fails because a rank has already reported an error: early.seq is
	 * the number of this barrier. */
	struct pst_packet early;
	/* Id of the process that opened the group. Processes that it forks may not use the
	 * group. */
	pid_t pid;
	uint64_t seq; /* Number of the latest barrier, counted from 1. */
	char name[64];
	/* On rank 0: one connection for each rank. On other ranks: only links[0], to rank 0. */
	struct pst_link *links;
	struct pst_packet *packets; /* On rank 0: the last packet of each rank. */
	struct pst_message scratch; /* Buffer for messages that are discarded. */
	/* Messages for a barrier without an exchange: one element for each rank. All elements
	 * point to the scratch buffer. */
	struct pst_message *empty;
};

unsigned pst_group_rank(const struct penstock_group *g);
unsigned pst_group_size(const struct penstock_group *g);
const struct pst_group_settings *pst_group_get_settings(const struct penstock_group *g);
/* Returns 0 if this process opened the group; fails with -EOWNERDEAD in a process forked from
 * it. */
int pst_group_check_owner(const struct penstock_group *g);

/*
 * Waits until all ranks have arrived (collective). `status` is 0 or this rank's error, whose
 * message this thread must have set last. As soon as one rank arrives with an error, the call fails
 * on every rank with that error and the message "rank N: message". After a rank is lost, every
 * barrier fails.
 */
int pst_group_barrier(struct penstock_group *g, int status);

/* Fails if a rank is lost, if a rank has arrived at the next barrier with an error, or if this
 * rank's caller cancels its load. A rank calls this function from time to time while it waits
 * for something other than a barrier. If it fails, the next barrier fails too. Does not wait. */
int pst_group_poll(struct penstock_group *g);
/* Sets the load whose caller's callback is called while this rank waits. NULL ends these calls. */
void pst_group_set_progress(struct penstock_group *g, struct pst_load *load);
/* Calls the callback by which this rank's caller can cancel its load. Returns 0 or -ECANCELED. */
int pst_group_poll_caller(struct penstock_group *g);
/* Returns the time at which a wait until `until_ms` must be interrupted to call the caller's
 * callback. */
uint64_t pst_group_next_poll_ms(const struct penstock_group *g, uint64_t until_ms);

/*
 * A barrier at which each rank sends `len` bytes and a descriptor to all ranks (collective). `fd`
 * is -1 if there is no descriptor. `messages` has one element for each rank. The bytes in it stay
 * valid until pst_messages_free; the descriptors belong to the caller. The element of this rank
 * holds its own bytes and descriptor.
 */
int pst_group_exchange(struct penstock_group *g, int status, const void *bytes, size_t len, int fd,
		       struct pst_message *messages);
/* Frees the bytes of all messages, and closes their descriptors. */
void pst_messages_free(struct penstock_group *g, struct pst_message *messages);
/* Returns -EPROTO, with an error text which says that `rank` has sent an invalid message: no rank
 * of this version sends such a message. */
int pst_message_invalid(unsigned rank);

/*
 * Waits until all remaining ranks have arrived (collective). After this barrier no rank uses
 * memory that another rank shares. `done` tells whether the ranks' common work succeeded. If it
 * failed, the wait lasts at most a few seconds. Leaves this thread's error message unchanged.
 */
void pst_group_last_barrier(struct penstock_group *g, bool done);

#endif
