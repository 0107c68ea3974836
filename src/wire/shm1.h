/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of transport shm1, between processes of one host, over a socket of type
 * SOCK_SEQPACKET in the abstract namespace. The client listens; the token has the socket's name.
 *
 * For a move, the server sends OPEN with the token's id and capability, and the client answers
 * WINDOW: which memory, and which range of it. If the server does not have this memory yet, it
 * sends WANT, and the client answers MEMORY with a descriptor (SCM_RIGHTS) or the driver's handle.
 * The server copies, and sends DONE. Until then, a release waits. It sends REVOKE; the server then
 * stops and sends DONE. DROP says that the client has freed some memory.
 */
#ifndef PST_WIRE_SHM1_H
#define PST_WIRE_SHM1_H

#include <stdbool.h>
#include <stdint.h>

#include "penstock.h"
#include "s3/token.h"

#define PST_SHM1_MAGIC 0x314d4853u /* "SHM1" */
#define PST_SHM1_NAME "penstock-window-"

enum pst_shm1_kind {
	PST_SHM1_OPEN = 1,
	PST_SHM1_WINDOW,
	PST_SHM1_WANT,
	PST_SHM1_MEMORY,
	PST_SHM1_DONE,
	PST_SHM1_REVOKE,
	PST_SHM1_DROP,
};

struct pst_shm1_message {
	uint32_t magic, kind;
	uint64_t id;			  /* id of the window */
	unsigned char cap[PST_TOKEN_CAP]; /* OPEN */
	uint32_t op;			  /* OPEN: enum penstock_op */
	uint32_t status;		  /* WINDOW, MEMORY, DONE: enum pst_wire_status */
	/* OPEN: range of the window. WINDOW: range of the memory. DONE: `len` is the number of
	 * bytes that have moved */
	uint64_t off, len;
	/* WINDOW, MEMORY, DROP: id and length of the memory */
	uint64_t memory, memory_len;
	uint32_t cuda; /* MEMORY: 1: `exported` describes memory of a GPU */
	uint32_t spare;
	unsigned char exported[sizeof(((struct penstock_export *)0)->bytes)];
};

/* Sends a message without waiting, together with the descriptor `fd` unless it is negative. Returns
 * 0 or -errno. */
int pst_shm1_send(int sock, struct pst_shm1_message *message, int fd);
/* Receives a message without waiting. Returns 1, 0 if there is none, or a negative errno if the
 * connection has ended or the message is malformed. *fd receives a descriptor, or -1. */
int pst_shm1_receive(int sock, struct pst_shm1_message *message, int *fd);
/* Fills in the address of the client whose token has this handle. Returns its length. */
unsigned pst_shm1_address(const char *handle, void *out);

#endif
