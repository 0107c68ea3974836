/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An RDMA network card that is used without a connection manager. Finds the card that has an IP
 * address, registers memory, and connects queue pairs. Each side has received the number of the
 * other's queue pair by HTTP. The transports hipobj-rc-v2 and DC_V1 call these functions. Transport
 * rc1 uses them to register memory.
 */
#ifndef PST_WIRE_CARD_H
#define PST_WIRE_CARD_H

#include "wire/transport.h"
#include "wire/verbs.h"

/* An open RDMA network card, and the port that has the requested IP address. */
struct pst_card {
	const struct pst_verbs *v;
	const char *name;
	struct ibv_context *context;
	union ibv_gid gid; /* GID of the address, for RoCE v2 */
	uint8_t port, gid_index;
	uint16_t lid;
	enum ibv_mtu mtu;
};

/* Stores in `out` the RoCE v2 GID of a numeric IP address. Returns false if the text is not a
 * numeric address. */
bool pst_card_gid(const char *address, union ibv_gid *out);
/* Opens the card that has the IP address. Returns 0 or a negative errno. After an error, there is
 * nothing to close. Error messages contain `transport`. */
int pst_card_open(struct pst_card *card, const char *transport, const char *address,
		  struct pst_err *err);
void pst_card_close(struct pst_card *card);

/* ---- memory ---- */

/* Returns the address that stands for a window in its token and on the network. Its offset within
 * the page is that of the memory. The other bits are random, for two reasons. They hide the real
 * address. And a card may reuse the key of a deregistered region for a new region: a late transfer
 * with an old token then has a wrong address. */
uint64_t pst_card_address(const struct pst_wire_grant *grant);
/* Registers the memory of a window, which has at least one byte. `access` has flags of libibverbs.
 * Memory of a GPU is registered as a dma-buf, or else by the kernel's module for peer memory.
 * Returns NULL with the reason in `err`. */
struct ibv_mr *pst_card_register(const struct pst_verbs *v, struct ibv_pd *pd, const char *card,
				 const struct pst_wire_grant *grant, int access,
				 struct pst_err *err);
/* Makes bytes that the card has written to a window visible to the CPU and the GPU. Returns 0 or a
 * negative errno. The errno is never -ETIMEDOUT, which would mean that the card may still access
 * the window. */
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
/* Waits for the next completion, whatever its status. `channel` is the server's worker thread that
 * waits. Returns 0 or a negative errno. */
int pst_card_queue_wait(struct pst_card_queue *queue, const struct pst_wire_channel *channel,
			struct ibv_wc *out, struct pst_err *err);
/* Stores in *err the error for a failed completion. Returns its -errno. */
int pst_card_status_fail(const struct pst_verbs *v, enum ibv_wc_status status, struct pst_err *err);

/* Address and numbers of the queue pair at the other side of a connection. */
struct pst_card_far {
	union ibv_gid gid;
	uint16_t lid;
	uint32_t qpn, psn;
};

/* Creates a queue pair for a reliable connection, with space for one request in each direction.
 * `access` has the rights of the other side to memory of the protection domain. */
struct ibv_qp *pst_card_pair_open(const struct pst_card *card, struct ibv_pd *pd, struct ibv_cq *cq,
				  unsigned access, struct pst_err *err);
/* Allocates a protection domain. */
struct ibv_pd *pst_card_domain(const struct pst_card *card, struct pst_err *err);
/* Connects a queue pair to the one in *far. Its first packet has the sequence number `psn`. */
int pst_card_pair_connect(const struct pst_card *card, struct ibv_qp *qp,
			  const struct pst_card_far *far, uint32_t psn, struct pst_err *err);
/* Stores in *out the route to the other side's port, which has the given GID or LID. */
void pst_card_way(const struct pst_card *card, const union ibv_gid *gid, uint16_t lid,
		  struct ibv_ah_attr *out);

#endif
