/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport hipobj-rc-v2 (s3/hipobj.h). A PREPARE request opens a session. It
 * has a queue pair, connected to the client's, and memory for all bytes of its transfer. GET: moves
 * copy the bytes into this memory, and then one RDMA write with the session's cookie sends all of
 * them. It must be a single write, because clients count the bytes of the write that has the
 * cookie. PUT: one such write of the client fills the memory. server.c calls the functions
 * `prepare`, `ready` and `forget` on any thread. Moves run on the thread of a channel (worker
 * thread).
 *
 * Limits: SESSIONS_MAX sessions, and opts.staging_max bytes of memory for all of them. For a PUT,
 * the memory is registered so that only the session's client can write it. For a GET, it is
 * registered without remote access. A session's queue pair is destroyed before its memory is freed,
 * so the card writes no freed memory.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "s3/hipobj.h"
#include "wire/card.h"
#include "wire/common.h"

#define SESSIONS_MAX 256
/* maximum number of addresses of this host, and so of network cards, that sessions use */
#define CARDS_MAX 16
#define CQ_ENTRIES 4
/* Rate in bytes a second from which a session's time limit follows: timeout_ms plus the time that
 * its bytes take at this rate. A client that does nothing can keep a channel waiting until then. */
#define SLOW (4u << 20)
#define ADDRESS_MASK ((UINT64_C(1) << 62) - PST_WIRE_ALIGN) /* random bits of an address */
/* value of a token's `transport` for a reliable connection */
#define RC 1

struct card {
	struct pst_card inner;
	struct pst_token_place at; /* address of this host that the card has */
};

/* The state that all sessions of a server share. The last user frees it: a session that ends, or
 * the server when it closes. */
struct house {
	pthread_mutex_t lock; /* protects the members below */
	unsigned users;	      /* number of sessions, plus 1 while the server is open */
	uint64_t staged;      /* bytes of memory that all sessions have */
	struct card cards[CARDS_MAX];
	unsigned card_count;
};

struct session {
	struct house *house;
	const struct pst_card *card;
	/* for this session only, so that other clients cannot access its memory */
	struct ibv_pd *pd;
	struct pst_card_queue queue;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *mem;
	enum penstock_op op;
	/* done: number of bytes of the transfer that earlier moves have handled */
	uint64_t len, done;
	uint32_t cookie, far_qpn;
	bool ready, arrived;  /* arrived: the client's write of a PUT is complete */
	uint64_t here;	      /* address of `mem` for RDMA accesses */
	uint64_t far_address; /* address of the client's memory, for a GET */
	uint32_t far_key;
};

/* ---- what sessions share ---- */

static struct house *house_get(struct pst_wire_server *server)
{
	struct house *house;

	pthread_mutex_lock(&server->lock);
	house = server->state[PST_TOKEN_HIPOBJ_RC_V2];
	if (!house) {
		house = calloc(1, sizeof(*house));
		if (house) {
			pthread_mutex_init(&house->lock, NULL);
			house->users = 1;
		}
		server->state[PST_TOKEN_HIPOBJ_RC_V2] = house;
	}
	pthread_mutex_unlock(&server->lock);
	return house;
}

static void house_put(struct house *house, uint64_t staged)
{
	unsigned users;

	pthread_mutex_lock(&house->lock);
	house->staged -= staged;
	users = --house->users;
	pthread_mutex_unlock(&house->lock);
	if (users)
		return;
	for (unsigned i = 0; i < house->card_count; i++)
		pst_card_close(&house->cards[i].inner);
	pthread_mutex_destroy(&house->lock);
	free(house);
}

static void hipobj_end(struct pst_wire_server *server)
{
	struct house *house = server->state[PST_TOKEN_HIPOBJ_RC_V2];

	if (house)
		house_put(house, 0);
	server->state[PST_TOKEN_HIPOBJ_RC_V2] = NULL;
}

/* Reserves a session and `len` bytes of memory for it. Returns -EAGAIN if another session must end
 * first. */
static int house_reserve(struct house *house, const struct pst_wire_server *server, uint64_t len,
			 struct pst_err *err)
{
	int ret = 0;

	if (len > server->opts.staging_max)
		return pst_fail_errno(err, EFBIG, PENSTOCK_WHY_FULL,
				      "the transfer is longer than the %llu bytes for sessions",
				      (unsigned long long)server->opts.staging_max);
	pthread_mutex_lock(&house->lock);
	if (house->users > SESSIONS_MAX)
		ret = pst_fail(err, PENSTOCK_WHY_FULL, "there are %u sessions", SESSIONS_MAX);
	else if (len > server->opts.staging_max - house->staged)
		ret = pst_fail(err, PENSTOCK_WHY_FULL,
			       "the memory of other sessions leaves no room for %llu bytes",
			       (unsigned long long)len);
	if (!ret) {
		house->users++;
		house->staged += len;
	}
	pthread_mutex_unlock(&house->lock);
	return ret;
}

/* Returns the card with the address `at` of this host, from which the client is reached. Opens the
 * card if needed. The caller holds house->lock. */
static const struct pst_card *card_find(struct house *house, const struct pst_token_place *at,
					struct pst_err *err)
{
	struct card *card;

	for (unsigned i = 0; i < house->card_count; i++)
		if (!strcmp(house->cards[i].at.address, at->address))
			return &house->cards[i].inner;
	if (house->card_count == CARDS_MAX) {
		pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_FULL,
			       "sessions use %u addresses of this host", CARDS_MAX);
		return NULL;
	}
	card = &house->cards[house->card_count];
	if (pst_card_open(&card->inner, PST_HIPOBJ, at->address, err)) {
		err->code = -EOPNOTSUPP;
		return NULL;
	}
	card->at = *at;
	house->card_count++;
	return &card->inner;
}

/* ---- sessions ---- */

static void session_close(struct session *s)
{
	const uint64_t len = s->len;
	struct house *house = s->house;

	if (s->qp)
		s->card->v->destroy_plain_qp(s->qp);
	if (s->card)
		pst_card_queue_close(&s->queue);
	if (s->mr)
		s->card->v->dereg_mr(s->mr);
	if (s->pd)
		s->card->v->dealloc_pd(s->pd);
	if (s->mem)
		munmap(s->mem, len);
	free(s);
	house_put(house, len);
}

static void hipobj_forget(struct pst_wire_remote *remote)
{
	session_close(remote->state);
	remote->state = NULL;
}

/* Allocates and registers the memory of a session. The pages are new, so that a client cannot read
 * the bytes of another session. */
static int memory_open(struct session *s, struct pst_err *err)
{
	const int access =
		s->op == PENSTOCK_READ ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	void *mem = mmap(NULL, s->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ret = pst_wire_random(&s->here, sizeof(s->here), err);

	if (mem == MAP_FAILED)
		return pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for a session: %m");
	s->mem = mem;
	if (ret)
		return ret;
	/* gives the client a random address instead of the address in this process */
	s->here = (s->here & ADDRESS_MASK) + PST_WIRE_ALIGN;
	s->pd = pst_card_domain(s->card, err);
	if (!s->pd)
		return err->code;
	s->mr = s->card->v->reg_mr_iova(s->pd, mem, s->len, s->here, access);
	if (!s->mr)
		return pst_fail_errno(err, EOPNOTSUPP,
				      errno == ENOMEM ? PENSTOCK_WHY_MEMLOCK
						      : pst_why_from_errno(errno),
				      "%s cannot register %llu bytes for a session: %m%s",
				      s->card->name, (unsigned long long)s->len,
				      errno == ENOMEM ? ": raise RLIMIT_MEMLOCK" : "");
	return 0;
}

/* Posts the receive that the client's RDMA write with the cookie consumes. Without it, the card
 * would refuse the write. */
static int receive_post(struct session *s, struct pst_err *err)
{
	struct ibv_recv_wr wr = {.num_sge = 0}, *bad;
	int code = ibv_post_recv(s->qp, &wr, &bad);

	return code ? pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_IO_ERROR, "ibv_post_recv: %s",
				     strerror(code))
		    : 0;
}

/* Connects the session's queue pair to the client's. Stores in *pairing the values that the client
 * needs to use the session. */
static int session_open(struct session *s, const struct pst_token *token,
			struct penstock_object_pairing *pairing, struct pst_err *err)
{
	struct pst_card_far far = {
		.lid = token->hipobj.lid, .qpn = token->hipobj.qpn, .psn = pairing->psn};
	struct pst_token own = {.kind = PST_TOKEN_HIPOBJ_RC_V2, .size = s->len};
	char text[PST_TOKEN_MAX + 1];
	uint32_t psn;
	int ret = memory_open(s, err);

	if (!ret)
		ret = pst_wire_random(&psn, sizeof(psn), err);
	if (!ret)
		ret = pst_card_queue_open(&s->queue, s->card, CQ_ENTRIES, err);
	if (ret)
		return ret;
	psn = psn % PST_HIPOBJ_PSN_MAX + 1;
	s->qp = pst_card_pair_open(s->card, s->pd, s->queue.cq,
				   s->op == PENSTOCK_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0, err);
	if (!s->qp)
		return err->code;
	memcpy(&far.gid, token->hipobj.gid, sizeof(far.gid));
	ret = pst_card_pair_connect(s->card, s->qp, &far, psn, err);
	if (!ret && s->op == PENSTOCK_WRITE)
		ret = receive_post(s, err);
	if (ret)
		return ret;
	own.hipobj.transport = RC;
	own.hipobj.qpn = s->qp->qp_num;
	own.hipobj.port = s->card->port;
	own.hipobj.lid = s->card->lid;
	memcpy(own.hipobj.gid, &s->card->gid, sizeof(own.hipobj.gid));
	if (s->op == PENSTOCK_WRITE) {
		own.base = s->here;
		own.hipobj.rkey = s->mr->rkey;
	}
	pst_token_print(&own, text);
	memcpy(pairing->token, text, sizeof(pairing->token));
	pairing->server_psn = psn;
	pairing->qpn = s->qp->qp_num;
	pairing->address = own.base;
	pairing->key = own.hipobj.rkey;
	return 0;
}

/* Checks that the client's address in the token is the address from which the HTTP request came.
 * Stores this address in *out. */
static int client_check(const struct pst_wire_server *server, const struct pst_token *token,
			const struct penstock_object_peer *peer, struct pst_token_place *out,
			struct pst_err *err)
{
	if (token->hipobj.transport != RC || !token->hipobj.qpn || token->hipobj.qpn > 0xffffff)
		return pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED,
				      "the token has no queue pair of a reliable connection");
	pst_wire_gid_place(token->hipobj.gid, out);
	return pst_wire_admit_place(server, PST_HIPOBJ, out, peer, err);
}

static int hipobj_prepare(struct pst_wire_server *server, struct pst_wire_remote *remote,
			  const struct penstock_object_peer *peer,
			  struct penstock_object_pairing *pairing, struct pst_err *err)
{
	struct pst_token_place client, own;
	struct house *house = house_get(server);
	struct session *s;
	int ret = house ? client_check(server, &remote->token, peer, &client, err)
			: pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a session");

	if (!ret && (!pairing->length || !pairing->psn || pairing->psn > PST_HIPOBJ_PSN_MAX))
		ret = pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED,
				     "the length is 0, or the PSN is not between 1 and %u",
				     PST_HIPOBJ_PSN_MAX);
	if (!ret && pairing->length > PST_HIPOBJ_LEN_MAX)
		ret = pst_fail_errno(err, EFBIG, PENSTOCK_WHY_BAD_ARGUMENT,
				     "the protocol moves at most %d bytes at a time",
				     PST_HIPOBJ_LEN_MAX);
	if (!ret)
		ret = pst_wire_route(&client, &own, err);
	if (!ret)
		ret = house_reserve(house, server, pairing->length, err);
	if (ret)
		return ret;
	s = calloc(1, sizeof(*s));
	if (!s) {
		house_put(house, pairing->length);
		return pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for a session");
	}
	s->house = house;
	s->op = pairing->op;
	s->len = pairing->length;
	s->cookie = pairing->cookie;
	s->far_qpn = remote->token.hipobj.qpn;
	pthread_mutex_lock(&house->lock);
	s->card = card_find(house, &own, err);
	pthread_mutex_unlock(&house->lock);
	ret = s->card ? session_open(s, &remote->token, pairing, err) : err->code;
	if (ret)
		session_close(s);
	else
		remote->state = s;
	return ret;
}

static int hipobj_ready(struct pst_wire_remote *remote, uint32_t qpn, uint64_t address,
			uint32_t key, struct pst_err *err)
{
	struct session *s = remote->state;

	if (qpn && qpn != s->far_qpn)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"queue pair %u is not that of the token", qpn);
	if (s->op == PENSTOCK_READ && (!address || address > UINT64_MAX - (s->len - 1)))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the client's memory has no valid address");
	if (s->ready)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "the transfer has begun");
	s->far_address = address;
	s->far_key = key;
	s->ready = true;
	return 0;
}

/* Declines every token that comes with a GET or PUT. This transport needs a PREPARE request first,
 * because only a READY request shows that the client is ready. */
static int hipobj_admit(const struct pst_wire_server *server, const struct pst_token *token,
			const struct penstock_object_peer *peer, struct pst_err *err)
{
	(void)server;
	(void)token;
	(void)peer;
	return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
			"a token of hipobj-rc-v2 needs a session: POST /.hipobj-rc/prepare");
}

/* ---- moves ---- */

/* Waits for the card's report about all bytes of the session. The card reports no progress before
 * that. So the time limit is that of all bytes, also if the move has only some of them. */
static int report_wait(struct pst_wire_channel *channel, struct session *s, struct ibv_wc *wc,
		       struct pst_err *err)
{
	const struct penstock_object_server_opts *o = &channel->server->opts;
	const uint64_t limit_ms = o->timeout_ms + s->len * 1000 / SLOW;

	channel->silence_ms = limit_ms;
	if (channel->deadline_ms < pst_wire_now_ms() + limit_ms)
		channel->deadline_ms = pst_wire_now_ms() + limit_ms;
	return pst_card_queue_wait(&s->queue, channel, wc, err);
}

/* Sends all bytes to the client by one RDMA write, and waits until it is complete. */
static int get_send(struct pst_wire_channel *channel, struct session *s, struct pst_err *err)
{
	struct ibv_sge sge = {s->here, (uint32_t)s->len, s->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = htobe32(s->cookie)},
			   *bad;
	struct ibv_wc wc;
	int ret;

	wr.wr.rdma.remote_addr = s->far_address;
	wr.wr.rdma.rkey = s->far_key;
	ret = ibv_post_send(s->qp, &wr, &bad);
	if (ret)
		return pst_fail_errno(err, EPIPE, PENSTOCK_WHY_IO_ERROR, "ibv_post_send: %s",
				      strerror(ret));
	ret = report_wait(channel, s, &wc, err);
	if (ret)
		return ret;
	return wc.status == IBV_WC_SUCCESS ? 0 : pst_card_status_fail(s->card->v, wc.status, err);
}

/* Waits until the client's RDMA write is complete, and checks its length and its cookie. */
static int put_receive(struct pst_wire_channel *channel, struct session *s, struct pst_err *err)
{
	struct ibv_wc wc;
	int ret = report_wait(channel, s, &wc, err);

	if (ret)
		return ret;
	if (wc.status != IBV_WC_SUCCESS)
		return pst_card_status_fail(s->card->v, wc.status, err);
	if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc.wc_flags & IBV_WC_WITH_IMM))
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client sent a message instead of a write");
	if (be32toh(wc.imm_data) != s->cookie)
		return pst_fail_errno(err, EACCES, PENSTOCK_WHY_NO_PERMISSION,
				      "the client's write has the cookie of another session");
	if (wc.byte_len != s->len)
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client wrote %u bytes instead of %llu", wc.byte_len,
				      (unsigned long long)s->len);
	s->arrived = true;
	return 0;
}

static int hipobj_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		       struct pst_wire_move *move, struct pst_err *err)
{
	struct session *s = move->remote->state;
	const bool get = move->op == PENSTOCK_READ;
	int ret = 0;

	(void)peer;
	if (!s->ready || move->op != s->op || move->off != s->done || !move->len)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"moves of a session have its operation, and cover its bytes in "
				"their order");
	if (!get && !s->arrived)
		ret = put_receive(channel, s, err);
	if (!ret)
		ret = pst_wire_stage(channel, move, 0, s->mem + s->done, move->len, get, err);
	if (!ret && get && s->done + move->len == s->len)
		ret = get_send(channel, s, err);
	/* After an error, `done` becomes the full length, so that the session accepts no further
	 * move. */
	s->done = ret ? s->len : s->done + move->len;
	return ret;
}

const struct pst_wire_server_ops pst_hipobj_server = {
	.kind = PST_TOKEN_HIPOBJ_RC_V2,
	.admit = hipobj_admit,
	.prepare = hipobj_prepare,
	.ready = hipobj_ready,
	.forget = hipobj_forget,
	.end = hipobj_end,
	.move = hipobj_move,
};
