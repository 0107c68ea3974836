/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packets between the ranks of a group and the socket that they go over: shared by
 * group_join.c, which makes the sockets, and group.c, which uses them.
 */
#ifndef PST_JOB_GROUP_LINK_H
#define PST_JOB_GROUP_LINK_H

#include <sys/types.h>

#include "job/group.h"

#define PST_NOTE_MAGIC 0x70677232u

/* In front of every packet. A rank's: it has come, and how; rank 0's: how all have. */
struct pst_note {
	uint32_t magic, len;
	uint64_t seq; /* of the meeting; 1: joining */
	uint32_t rank, gone;
	int32_t code;
	uint32_t why;
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_link {
	int sock, pidfd; /* -1: none; the process at the other end, where it has a number here */
};

struct penstock_group {
	unsigned rank, size, windows;
	int gone; /* the rank that has, -1: none */
	pid_t pid; /* a child of this process has no part in it */
	uint64_t window, seq;
	char name[64];
	struct pst_link *links; /* rank 0: of each, the others: [0] */
	struct pst_note *notes;
	struct pst_said spare, *nothing; /* a packet's bytes; of each rank, never any */
};

uint64_t pst_group_now_ms(void);

int pst_link_send(const struct pst_link *link, struct pst_note *note, const void *bytes,
		  size_t len, int fd);
/* Waits for a packet: 1, -EPIPE or -ETIMEDOUT. said->bytes has room for
 * PST_GROUP_SAY_MAX. */
int pst_link_await(const struct pst_link *link, uint64_t until_ms, struct pst_note *note,
		   struct pst_said *said);
void pst_link_close(struct pst_link *link);

#endif
