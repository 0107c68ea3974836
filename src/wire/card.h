/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An RDMA network card without a connection manager: finds the card that has an address, registers
 * memory, and connects queue pairs whose numbers both sides learn in another way. Called by the
 * transports hipobj-rc-v2 and DC_V1; rc1 registers memory by it, too.
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
	union ibv_gid gid; /* of RoCE v2: the address */
	uint8_t port, gid_index;
	uint16_t lid;
	enum ibv_mtu mtu;
};

/* Writes the GID of RoCE v2 for a numeric address. Returns false if it is not numeric. */
bool pst_card_gid(const char *address, union ibv_gid *out);
/* Opens the card that has the address. Returns 0 or a negative errno; after an error, there is
 * nothing to close. `transport` is a name for messages. */
int pst_card_open(struct pst_card *card, const char *transport, const char *address,
		  struct pst_err *err);
void pst_card_close(struct pst_card *card);

/* ---- memory ---- */

/* Returns the address of a window in the card's view. Its offset in the page is that of the memory;
 * the rest hides where the memory is. It is random, because a card may give the key of a region
 * that has ended to the next one: a late transfer by an older token must not fit. */
uint64_t pst_card_address(const struct pst_wire_grant *grant);
/* Registers the memory of a window, which has at least one byte. `access` is that of libibverbs.
 * Memory of a GPU is registered by a dma-buf, or else by the kernel's module for peer memory.
 * Returns NULL with the reason. */
struct ibv_mr *pst_card_register(const struct pst_verbs *v, struct ibv_pd *pd, const char *card,
				 const struct pst_wire_grant *grant, int access,
				 struct pst_err *err);
/* Makes bytes that the card has written to a window visible. Returns 0 or a negative errno, which
 * is not -ETIMEDOUT: the card does not access the window any more. */
int pst_card_order(const struct pst_wire_grant *grant, struct pst_err *err);

/* ---- queues ---- */

/* A completion queue for which a thread can wait. All members are 0 if it is not open. */
struct pst_card_queue {
	const struct pst_verbs *v;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	bool armed; /* the next completion makes `events` readable */
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

/* The other side of a queue pair. */
struct pst_card_far {
	union ibv_gid gid;
	uint16_t lid;
	uint32_t qpn, psn;
};

/* Creates a queue pair of a reliable connection, with room for one request in each direction.
 * `access` is what the other side may do with memory of the protection domain. */
struct ibv_qp *pst_card_pair_open(const struct pst_card *card, struct ibv_pd *pd, struct ibv_cq *cq,
				  unsigned access, struct pst_err *err);
/* Allocates a protection domain. */
struct ibv_pd *pst_card_domain(const struct pst_card *card, struct pst_err *err);
/* Connects a queue pair, which sends packets from number `psn` on. */
int pst_card_pair_connect(const struct pst_card *card, struct ibv_qp *qp,
			  const struct pst_card_far *far, uint32_t psn, struct pst_err *err);
/* Fills the address of the other side. */
void pst_card_way(const struct pst_card *card, const union ibv_gid *gid, uint16_t lid,
		  struct ibv_ah_attr *out);

#endif
