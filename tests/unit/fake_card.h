/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake RDMA network card for tests of the transports that use one. It replaces the functions of
 * libibverbs and librdmacm: the linker wraps pst_verbs_get. It connects clients and servers of one
 * process, by librdmacm or by the numbers of queue pairs, and executes RDMA reads and writes as
 * copies. Its address is 127.0.0.1. Like a real card, it refuses an access with a wrong key, range,
 * direction or protection domain, and an access to a deregistered memory region. Tests can make its
 * calls fail.
 */
#ifndef TEST_FAKE_CARD_H
#define TEST_FAKE_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/verbs.h"

struct fake_card {
	/* the test sets these members */
	/* the call that makes `calls` equal to this number fails; 0: no call fails */
	unsigned fail_at;
	/* errno of failed registrations of host memory for a window, which is memory that the peer
	 * may access; 0: they succeed */
	int reg_errno;
	int local_errno;       /* errno of registrations without remote access; 0: they succeed */
	int dmabuf_errno;      /* errno of registrations of a dma-buf; 0: they succeed */
	unsigned dereg_fail;   /* number of calls of dereg_mr that fail with EBUSY */
	unsigned destroy_fail; /* number of calls of ibv_destroy_qp that fail with EBUSY */
	bool silent; /* whether the receiver of a write with immediate data gets no completion */
	/* key of every region with remote access; 0: each region has its own key */
	uint32_t same_key;
	bool missing; /* whether there is no card */
	bool plain;   /* whether the card has no dynamically connected transport */
	/* last byte of the IPv4 address that no server can reach; 0: servers reach every address */
	unsigned char lost;
	bool hold;    /* whether transfers do not complete, as if the client were silent */
	/* number of transfers that complete before the next one is blocked; 0: no transfer is
	 * blocked */
	unsigned gate;
	/* the fake card sets these members */
	unsigned calls; /* number of calls that can fail */
	unsigned live;	/* number of objects that were created and not destroyed */
	unsigned dmabufs, regions, transfers;
	unsigned longest; /* number of bytes of the longest transfer */
	unsigned stops;	  /* number of queue pairs that were stopped */
	/* these members describe the region that was last registered with remote access */
	uint64_t iova;
	size_t len;
	int access;
};
extern struct fake_card fake_card;

/* Sets all members to 0. The caller must have destroyed all objects. */
void fake_card_reset(void);
/* Locks fake_card. The test calls it to access members while other threads use the card. */
void fake_card_lock(void);
void fake_card_unlock(void);
/* Sets fake_card.gate, and wakes the transfers that it has blocked. */
void fake_card_gate(unsigned transfers);
/* Frees the memory regions that could not be deregistered, and their protection domains. */
void fake_card_forget(void);
/* Reports to all listeners that the card was removed. */
void fake_card_remove(void);
/* The functions of the fake card, for tests that connect without the library. */
extern const struct pst_verbs fake_verbs;

#endif
