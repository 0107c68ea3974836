/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An RDMA network card that is used without a connection manager. Finds the card that has an
 * address, registers memory, and connects queue pairs whose numbers both sides have learnt by HTTP.
 * Called by the transports hipobj-rc-v2 and DC_V1. Transport rc1 uses it to register memory.
 */
#ifndef PST_WIRE_CARD_H
#define PST_WIRE_CARD_H

#include "wire/transport.h"
#include "wire/verbs.h"

/* The port of a card that has an address. */
struct pst_card {
	const struct pst_verbs *v;
	const char *name;
	struct ibv_context *context;
	union ibv_gid gid; /* GID of the address, for RoCE v2 */
	uint8_t port, gid_index;
	uint16_t lid;
	enum ibv_mtu mtu;
};

/* Writes the RoCE v2 GID of a numeric address. Returns false if the text is not a numeric
 * address. */
bool pst_card_gid(const char *address, union ibv_gid *out);
/* Opens the card that has the address. Returns 0 or a negative errno; after an error, there is
 * nothing to close. `transport` is a name for messages. */
int pst_card_open(struct pst_card *card, const char *transport, const char *address,
		  struct pst_err *err);
void pst_card_close(struct pst_card *card);

/* ---- memory ---- */

/* Returns the address by which the card and the server name a window. Its offset within the page is
 * that of the memory. The other bits are random, for two reasons: they hide the real address, and a
 * card may give the key of a deregistered region to a new one. A late transfer with an old token
 * then has a wrong address. */
uint64_t pst_card_address(const struct pst_wire_grant *grant);
/* Registers the memory of a window, which has at least one byte. `access` is that of libibverbs.
 * Memory of a GPU is registered by a dma-buf, or else by the kernel's module for peer memory.
 * Returns NULL with the reason. */
struct ibv_mr *pst_card_register(const struct pst_verbs *v, struct ibv_pd *pd, const char *card,
				 const struct pst_wire_grant *grant, int access,
				 struct pst_err *err);
/* Makes bytes that the card has written to a window visible to the CPU and the GPU. Returns 0 or a
 * negative errno. The errno is never -ETIMEDOUT, because the card does not access the window any
 * more. */
int pst_card_order(const struct pst_wire_grant *grant, struct pst_err *err);

/* ---- queues ---- */

/* A completion queue for which a thread can wait. All members are 0 if it is not open. */
struct pst_card_queue {
	const struct pst_verbs *v;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	bool armed; /* whether the next completion makes `events` readable */
};

int pst_card_queue_open(struct pst_card_queue *queue, const struct pst_card *card, int entries,
			struct pst_err *err);
void pst_card_queue_close(struct pst_card_queue *queue);
/* Waits for the next completion, whatever its status, for a channel of a server. Returns 0 or a
 * negative errno. */
int pst_card_queue_wait(struct pst_card_queue *queue, const struct pst_wire_channel *channel,
			struct ibv_wc *out, struct pst_err *err);
/* Returns the error for a completion that failed. */
int pst_card_status_fail(const struct pst_verbs *v, enum ibv_wc_status status, struct pst_err *err);

/* The queue pair at the other side of a connection: address and numbers. */
struct pst_card_far {
	union ibv_gid gid;
	uint16_t lid;
	uint32_t qpn, psn;
};

/* Creates a queue pair for a reliable connection, with space for one request in each direction.
 * `access` tells what the other side may do with memory of the protection domain. */
struct ibv_qp *pst_card_pair_open(const struct pst_card *card, struct ibv_pd *pd, struct ibv_cq *cq,
				  unsigned access, struct pst_err *err);
/* Allocates a protection domain. */
struct ibv_pd *pst_card_domain(const struct pst_card *card, struct pst_err *err);
/* Connects a queue pair. Its first packet has the sequence number `psn`. */
int pst_card_pair_connect(const struct pst_card *card, struct ibv_qp *qp,
			  const struct pst_card_far *far, uint32_t psn, struct pst_err *err);
/* Fills *out with the address of the other side's port. */
void pst_card_way(const struct pst_card *card, const union ibv_gid *gid, uint16_t lid,
		  struct ibv_ah_attr *out);

#endif
