/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake RDMA network card for tests of the transports that use one. It replaces the functions of
 * libibverbs and librdmacm (pst_verbs_get is wrapped by the linker), connects clients and servers
 * of one process, by librdmacm or by the numbers of queue pairs, and carries out RDMA reads and
 * writes by copies. Its address is 127.0.0.1. Like a card, it refuses accesses whose key, range,
 * direction or protection domain is wrong, and a memory region that has ended is not accessed any
 * more. It can fail on demand.
 */
#ifndef TEST_FAKE_CARD_H
#define TEST_FAKE_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/verbs.h"

struct fake_card {
	/* set by the test */
	unsigned fail_at; /* number of the call that fails next, counted from 1; 0: none */
	int reg_errno;	 /* errno with which windows in host memory cannot be registered; 0: none */
	int local_errno; /* the same for memory without remote access */
	int dmabuf_errno;      /* the same for a dma-buf */
	unsigned dereg_fail;   /* number of calls of dereg_mr that fail with EBUSY */
	unsigned destroy_fail; /* number of calls of ibv_destroy_qp that fail with EBUSY */
	bool silent;	       /* whether the receiver of a write with immediate data is not told */
	uint32_t same_key;     /* key of all memory with remote access; 0: each has its own */
	bool missing;	       /* whether there is no card */
	bool plain;	       /* whether the card has no dynamically connected transport */
	bool hold;	       /* whether transfers do not complete, as if the client were silent */
	unsigned gate;	       /* number of transfers after which the next one waits; 0: no limit */
	/* set by the card */
	unsigned calls; /* number of calls that can fail */
	unsigned live;	/* number of objects that were created and not destroyed */
	unsigned dmabufs, regions, transfers;
	unsigned longest; /* number of bytes of the longest transfer */
	unsigned stops;	  /* number of queue pairs that were stopped */
	/* the memory region that was registered last with remote access */
	uint64_t iova;
	size_t len;
	int access;
};
extern struct fake_card fake_card;

/* Sets all members to 0. No object may be left. */
void fake_card_reset(void);
/* Locks the card's members while threads use it. */
void fake_card_lock(void);
void fake_card_unlock(void);
/* Changes the gate while transfers wait. */
void fake_card_gate(unsigned transfers);
/* Frees memory regions and queue pairs that could not be ended, with their protection domains and
 * completion queues. */
void fake_card_forget(void);
/* Tells all listeners that the card is removed. */
void fake_card_remove(void);
/* The table of functions, for tests that connect without the library. */
extern const struct pst_verbs fake_verbs;

#endif
