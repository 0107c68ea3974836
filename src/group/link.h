/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between rank 0 and another rank of a group (processes that load a model together), over a
 * SOCK_SEQPACKET socket. Used by join.c, which creates the sockets, and by barrier.c.
 */
#ifndef PST_GROUP_LINK_H
#define PST_GROUP_LINK_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "penstock_weights.h"

#define PST_PACKET_MAGIC 0x70677233u
/* Sequence number of a packet that says that its sender closes the group. */
#define PST_SEQ_LEFT UINT64_MAX
#define PST_MESSAGE_MAX 49152u /* Maximum length in bytes of the message in a packet. */
/* A descriptor was sent, but this process already has as many descriptors as it may open. */
#define PST_FD_LOST (-EMFILE)

/*
 * The first part of every packet. A rank sends a packet when it arrives at a barrier; the
 * packet has the rank's status. Rank 0 sends a packet with the status of all ranks.
 */
struct pst_packet {
	uint32_t magic, len; /* len: number of message bytes after this struct. */
	uint64_t seq;	     /* Number of the barrier; 1 stands for the joining. */
	uint64_t at_ms;	     /* Time at which the rank arrived, in ms. */
	uint32_t rank;
	uint32_t lost; /* 1 if `rank` is lost, so that every later barrier fails. */
	int32_t code;
	uint32_t why;
	char text[PENSTOCK_TEXT_MAX];
};

/* The message of a packet, which follows its struct pst_packet. */
struct pst_message {
	unsigned char *bytes;
	size_t len;
	/* Descriptor that came with the packet; -1 if none came, PST_FD_LOST if it was lost. */
	int fd;
};

/* The connection to another rank. */
struct pst_link {
	/* `sock` and `pidfd` are -1 if they are not open. pidfd refers to the rank's process; it is
	 * open only if that process has a pid in this process's pid namespace. */
	int sock, pidfd;
	pid_t pid;
	bool closed; /* Whether the rank has sent PST_SEQ_LEFT. */
};
#define PST_LINK_NONE ((struct pst_link){-1, -1, 0, false})

/* Returns the current time of CLOCK_MONOTONIC in milliseconds. */
uint64_t pst_group_now_ms(void);
/* Returns a timeout for poll(2) that ends at `until_ms` or after a minute, whichever is earlier.
 * Returns 0 if `until_ms` has passed, and -1 (no limit) if it is UINT64_MAX. */
int pst_group_ms_until(uint64_t until_ms);

/*
 * Waits with poll(2) for events, for at most `ms` milliseconds. `count` is at most PST_WAIT_MAX.
 * Entries with a negative descriptor are skipped, and do not count towards RLIMIT_NOFILE. Returns
 * the number of entries with events, or -errno.
 */
#define PST_WAIT_MAX (2 * PENSTOCK_GROUP_MAX + 1)
int pst_group_wait_fds(struct pollfd *fds, unsigned count, int ms);

/* Sends a packet, followed by a message unless `message` is NULL. Waits until the socket has
 * room. Returns 0, -ETIMEDOUT, or the error that ended the connection. */
int pst_link_send(const struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		  const struct pst_message *message);
/*
 * Waits for a packet. message->bytes must have room for PST_MESSAGE_MAX bytes. Returns 1, -EPIPE,
 * -ETIMEDOUT, or another error if it cannot wait. If `until_ms` is 0, does not wait, and returns 0
 * if there is no packet.
 */
int pst_link_receive(struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		     struct pst_message *message);
/* Copies the struct pst_packet of the next packet, but leaves the packet in the socket. Returns
 * false if there is no packet. */
bool pst_link_peek(const struct pst_link *link, struct pst_packet *packet);
/* Closes the connection if it is open. */
void pst_link_close(struct pst_link *link);
/* Writes the reason why a connection ended to `text`, for example "it closed the group" or "its
 * process 17 was killed by signal 9 (Killed)". May wait 2 s for the process to exit. */
void pst_link_death_reason(const struct pst_link *link, char *text, size_t size);

#endif
