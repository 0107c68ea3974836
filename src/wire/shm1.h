/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of transport shm1, between processes of one host, over a socket of type
 * SOCK_SEQPACKET in the abstract namespace. The client listens, and its tokens contain the socket's
 * name.
 *
 * For a move (a transfer of bytes), the server sends OPEN with the token's id and capability. The
 * client replies WINDOW, with the id of the window's memory and a range of it. If the server has
 * not mapped this memory yet, it sends WANT, and the client replies MEMORY with a file descriptor
 * (SCM_RIGHTS) or the GPU driver's handle. The server copies the bytes, and sends DONE. A release
 * of the window waits for DONE. The release sends REVOKE, after which the server stops copying and
 * sends DONE. With DROP, the client reports that it has freed memory.
 *
 * A window that takes a file (handover.h) needs one exchange only. OPEN then has a descriptor of
 * the object's file, and the client replies WINDOW. The client copies the bytes itself, and the
 * server sends no DONE.
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
	uint32_t op;			  /* in OPEN: enum penstock_op */
	uint32_t status;		  /* in WINDOW, MEMORY and DONE: enum pst_wire_status */
	/* In OPEN: range of the window. In WINDOW: range of the memory. In DONE: `len` is the
	 * number of bytes that have moved. */
	uint64_t off, len;
	/* In WINDOW, MEMORY and DROP: id and length in bytes of the memory. In OPEN with a file:
	 * `memory` is the offset of the first byte in the file. */
	uint64_t memory, memory_len;
	/* in MEMORY: 1 if `exported` describes memory of a GPU, 0 if the message has a file
	 * descriptor */
	uint32_t cuda;
	uint32_t spare;
	unsigned char exported[sizeof(((struct penstock_export *)0)->bytes)];
};

/* Sends a message without waiting, together with the descriptor `fd` unless it is negative. Returns
 * 0 or -errno. */
int pst_shm1_send(int sock, struct pst_shm1_message *message, int fd);
/* Receives a message without waiting. Returns 1 after success, 0 if no message has arrived, or a
 * negative errno if the connection has ended or the message is malformed. *fd receives the
 * message's descriptor, or -1. */
int pst_shm1_receive(int sock, struct pst_shm1_message *message, int *fd);
/* Stores in `out` the socket address of the client whose token contains `handle`. Returns its
 * length. */
unsigned pst_shm1_address(const char *handle, void *out);

#endif
