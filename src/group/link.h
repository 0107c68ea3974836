/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packets between the ranks of a group and the socket that they go over, group_link.c:
 * shared by group_join.c, which makes the sockets, and group.c, which uses them.
 */
#ifndef PST_GROUP_LINK_H
#define PST_GROUP_LINK_H

#include <sys/types.h>

#include "group/group.h"

#define PST_NOTE_MAGIC 0x70677233u
#define PST_SEQ_LEFT UINT64_MAX

/* In front of every packet. A rank's: it has come, and how; rank 0's: how all have. */
struct pst_note {
	uint32_t magic, len;
	uint64_t seq;	/* of the meeting; 1: joining, PST_SEQ_LEFT: it closes the group */
	uint64_t at_ms; /* when the rank came */
	uint32_t rank, gone;
	int32_t code;
	uint32_t why;
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_link {
	int sock, pidfd; /* -1: none; the process at the other end, where it has a number here */
	pid_t pid;
	bool left; /* it said that it would close */
};
#define PST_LINK_NONE ((struct pst_link){-1, -1, 0, false})

struct penstock_group {
	unsigned rank, size;
	struct pst_group_how how;
	struct {
		int rank; /* which nobody can count on any more, -1: none */
		int code;
		enum penstock_why why;
		char text[PENSTOCK_TEXT_MAX]; /* what it did */
	} gone;
	struct pst_load *load; /* under way, whose caller may want no more of it; NULL: none */
	struct pst_note early; /* why a meeting that is still to come has failed already */
	pid_t pid;	       /* a child of this process has no part in it */
	uint64_t seq;
	char name[64];
	struct pst_link *links; /* rank 0: of each, the others: [0] */
	struct pst_note *notes;
	struct pst_said spare, *nothing; /* a packet's bytes; of each rank, never any */
};

uint64_t pst_group_now_ms(void);
/* For poll(2): 0 when it is late, some time at most; -1: UINT64_MAX, without end. */
int pst_group_left_ms(uint64_t until_ms);
/* Whether the caller of this rank wants no more of what it waits for: asked in between, by
 * who waits no longer than until pst_group_soon(). */
int pst_group_off(struct penstock_group *g);
uint64_t pst_group_soon(const struct penstock_group *g, uint64_t until_ms);

/* Waits for room: 0, -ETIMEDOUT, or what ended the link. */
int pst_link_send(const struct pst_link *link, uint64_t until_ms, struct pst_note *note,
		  const struct pst_said *said);
/* Waits for a packet: 1, -EPIPE or -ETIMEDOUT; until 0: 0, there is none.
 * said->bytes has room for PST_GROUP_SAY_MAX. */
int pst_link_await(struct pst_link *link, uint64_t until_ms, struct pst_note *note,
		   struct pst_said *said);
/* What the next packet begins with, which stays: false, there is none that says. */
bool pst_link_peek(const struct pst_link *link, struct pst_note *note);
void pst_link_close(struct pst_link *link);
/* What has become of the process at the other end of a link that ended: "it closed the
 * group", "its process 17 was killed by signal 9". */
void pst_link_obituary(const struct pst_link *link, char *text, size_t room);

#endif
