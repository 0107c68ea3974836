/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between rank 0 and another rank of a group, over a SOCK_SEQPACKET socket. Used by
 * join.c, which makes the sockets, and by barrier.c.
 */
#ifndef PST_GROUP_LINK_H
#define PST_GROUP_LINK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "penstock_weights.h"

#define PST_PACKET_MAGIC 0x70677233u
#define PST_SEQ_LEFT UINT64_MAX /* The seq of a packet whose sender closes the group. */
#define PST_MESSAGE_MAX 49152u	/* Bytes of the message in one packet. */
#define PST_FD_LOST (-EMFILE)	/* A descriptor was sent, but this process is at its limit. */

/*
 * The head of every packet. A rank sends it to report that it arrived at a barrier and with
 * which status; rank 0 sends it to report the status of all.
 */
struct pst_packet {
	uint32_t magic, len; /* len: bytes of the message behind the head. */
	uint64_t seq;	     /* The barrier's number; 1: joining. */
	uint64_t at_ms;	     /* When the rank arrived. */
	uint32_t rank;
	uint32_t lost; /* 1: `rank` is lost, and every later barrier fails. */
	int32_t code;
	uint32_t why;
	char text[PENSTOCK_TEXT_MAX];
};

/* The part of a packet behind its head. */
struct pst_message {
	unsigned char *bytes;
	size_t len;
	int fd; /* -1: no descriptor came; or PST_FD_LOST. */
};

/* A connection to another rank. */
struct pst_link {
	int sock, pidfd; /* -1: none. pidfd: the rank's process, if it has a pid here. */
	pid_t pid;
	bool closed; /* The rank sent PST_SEQ_LEFT. */
};
#define PST_LINK_NONE ((struct pst_link){-1, -1, 0, false})

/* Returns the time of CLOCK_MONOTONIC in milliseconds. */
uint64_t pst_group_now_ms(void);
/* Returns the timeout for poll(2) that lasts until `until_ms`: 0 if that has passed, a minute at
 * most; -1 (no limit) for UINT64_MAX. */
int pst_group_ms_until(uint64_t until_ms);

/* Sends a packet, with a message unless that is NULL, and waits until the socket has room.
 * Returns 0, -ETIMEDOUT, or the error that ended the connection. */
int pst_link_send(const struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		  const struct pst_message *message);
/*
 * Waits for a packet. message->bytes has room for PST_MESSAGE_MAX bytes. Returns 1, -EPIPE or
 * -ETIMEDOUT; with until_ms 0 it does not wait and returns 0 if there is no packet.
 */
int pst_link_receive(struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		     struct pst_message *message);
/* Copies the head of the next packet, which stays in the socket. Returns false if there is none. */
bool pst_link_peek(const struct pst_link *link, struct pst_packet *packet);
/* Closes the connection, if there is one. */
void pst_link_close(struct pst_link *link);
/* Writes why a connection ended: "it closed the group", "its process 17 was killed by signal 9
 * (Killed)". May wait 2 s for the process to end. */
void pst_link_death_reason(const struct pst_link *link, char *text, size_t size);

#endif
