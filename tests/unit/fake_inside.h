/* SPDX-License-Identifier: Apache-2.0 */
/* Types and functions that the files of the fake network card share: fake_card.c, fake_cm.c and
 * fake_mlx5.c. */
#ifndef TEST_FAKE_INSIDE_H
#define TEST_FAKE_INSIDE_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_card.h"

#define PRIVATE_MAX 56
#define CQ_MAX 64
#define FAKE_PORT 1
#define FAKE_GID_INDEX 3
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct event {
	struct rdma_cm_event base;
	struct event *next;
	char data[PRIVATE_MAX];
};

struct channel {
	struct rdma_event_channel base;
	struct event *events;
	int write_fd;
};

struct id {
	struct rdma_cm_id base;
	struct id *peer, *next;
	unsigned port, dst_port;
	bool listening, connected;
};

struct cq {
	struct ibv_cq base;
	struct ibv_wc done[CQ_MAX];
	unsigned count;
	bool armed;
};

struct comp_channel {
	struct ibv_comp_channel base;
	int write_fd;
};

struct qp {
	struct ibv_qp base;
	/* id of the connection manager that connects the queue pair. NULL if the queue pair is
	 * connected by numbers; the members far_qpn to far_gid then name the other side. */
	struct id *id;
	struct qp *next;
	uint32_t far_qpn, receive_psn, send_psn;
	union ibv_gid far_gid;
	/* access: IBV_ACCESS_* that the peer has; receives: number of posted receive requests */
	unsigned access, receives;
};

struct mr {
	struct ibv_mr base;
	struct mr *next;
	uint64_t iova;
	int access;
	void *mapped; /* mapping of the dma-buf; NULL: the memory has no dma-buf */
	size_t mapped_len;
};

/* A thread must hold this lock to access the members of fake_card, and to call the functions
 * below. */
extern pthread_mutex_t fake_lock;
extern struct ibv_context fake_context;

#define LOCKED(type, expression)          \
	pthread_mutex_lock(&fake_lock);   \
	type result = (expression);       \
	pthread_mutex_unlock(&fake_lock); \
	return result

/* Counts a call. Returns true, with errno = `code`, if this call must fail (fake_card.fail_at). */
bool fails(int code);
/* Allocates an object of the card. Returns NULL if this call must fail (fake_card.fail_at). */
void *object_new(size_t len);
void object_free(void *object);
void wake(int fd);
void unwake(int fd);

/* Appends a completion to a completion queue. */
void complete(struct ibv_cq *base, struct ibv_wc wc);
/* Returns the memory that an access with this key and range may use, or NULL if the card must
 * refuse the access. */
char *memory_find(const struct ibv_pd *pd, uint32_t key, uint64_t at, size_t len, int access);
/* Returns the number for the next queue pair. */
uint32_t qpn_next(void);
/* Functions of NVIDIA's dynamically connected transport (fake_mlx5.c), which only tests of DC_V1
 * link. `change` and `destroy` return whether the queue pair belongs to this transport. */
struct fake_dc {
	bool (*change)(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask, int *ret);
	bool (*destroy)(struct ibv_qp *qp, int *ret);
	struct ibv_qp_ex *(*extended)(struct ibv_qp *qp);
};
extern const struct fake_dc *fake_dc; /* NULL: none */

/* The functions of librdmacm, which fake_cm.c implements. */
#define FAKE_DECLARE(member, symbol) extern __typeof__(symbol) fake_##member;
PST_VERBS_CM(FAKE_DECLARE)
#undef FAKE_DECLARE

#endif
