/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fake_card.h. One lock protects all state. It is also held while the bytes of a
 * transfer are copied. */
#include "fake_inside.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>

struct fake_card fake_card;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate = PTHREAD_COND_INITIALIZER;
static unsigned next_key = 0x1234;
static struct mr *mrs;
static struct qp *qps; /* list of the queue pairs that no connection manager connects */
static uint32_t next_qpn = 0x100;
const struct fake_dc *fake_dc;
static struct ibv_device device = {.name = "fake0"};

/* ---- common ---- */

bool fails(int code)
{
	fake_card.calls++;
	if (fake_card.calls != fake_card.fail_at)
		return false;
	errno = code;
	return true;
}

void *object_new(size_t len)
{
	void *object = fails(ENOMEM) ? NULL : calloc(1, len);

	fake_card.live += object != NULL;
	return object;
}

void object_free(void *object)
{
	fake_card.live--;
	free(object);
}

void wake(int fd)
{
	ssize_t n = write(fd, "x", 1);

	assert(n == 1);
	(void)n;
}

void unwake(int fd)
{
	char byte;
	ssize_t n = read(fd, &byte, 1);

	assert(n == 1);
	(void)n;
}

/* ---- queues ---- */

static struct ibv_comp_channel *comp_channel_new(void)
{
	struct comp_channel *c = object_new(sizeof(*c));
	int fds[2];

	if (!c)
		return NULL;
	if (pipe2(fds, O_CLOEXEC)) {
		object_free(c);
		return NULL;
	}
	c->base.fd = fds[0];
	c->write_fd = fds[1];
	return &c->base;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *card)
{
	(void)card;
	LOCKED(struct ibv_comp_channel *, comp_channel_new());
}

static int destroy_comp_channel(struct ibv_comp_channel *base)
{
	pthread_mutex_lock(&fake_lock);
	close(base->fd);
	close(((struct comp_channel *)base)->write_fd);
	object_free(base);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static struct ibv_cq *cq_new(struct ibv_comp_channel *channel, void *user)
{
	struct cq *cq = object_new(sizeof(*cq));

	if (!cq)
		return NULL;
	cq->base.context = &fake_context;
	cq->base.channel = channel;
	cq->base.cq_context = user;
	return &cq->base;
}

static struct ibv_cq *create_cq(struct ibv_context *card, int count, void *user,
				struct ibv_comp_channel *channel, int vector)
{
	assert(card == &fake_context && count > 0 && !vector);
	LOCKED(struct ibv_cq *, cq_new(channel, user));
}

static int destroy_cq(struct ibv_cq *cq)
{
	pthread_mutex_lock(&fake_lock);
	object_free(cq);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

/* The library uses one completion queue for each channel and ignores *cq, so this function stores
 * the address of an empty queue. */
static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
	static struct ibv_cq none;

	unwake(channel->fd);
	*cq = &none;
	*user = NULL;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned count)
{
	(void)cq;
	assert(count == 1);
}

static int poll_cq(struct ibv_cq *base, int max, struct ibv_wc *out)
{
	struct cq *cq = (struct cq *)base;
	int ret = 0;

	assert(max == 1);
	pthread_mutex_lock(&fake_lock);
	if (cq->count && fails(EIO)) {
		ret = -1;
	} else if (cq->count) {
		*out = cq->done[0];
		memmove(cq->done, cq->done + 1, --cq->count * sizeof(*out));
		ret = 1;
	}
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

static int req_notify_cq(struct ibv_cq *base, int solicited)
{
	assert(!solicited);
	pthread_mutex_lock(&fake_lock);
	((struct cq *)base)->armed = true;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static int qp_new(struct id *id, struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct qp *qp = object_new(sizeof(*qp));

	assert(attr->qp_type == IBV_QPT_RC && attr->send_cq && attr->cap.max_send_wr);
	if (!qp)
		return -1;
	qp->base.context = &fake_context;
	qp->base.pd = pd;
	qp->base.send_cq = attr->send_cq;
	qp->base.state = IBV_QPS_RTS;
	qp->id = id;
	id->base.qp = &qp->base;
	return 0;
}

int fake_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	LOCKED(int, qp_new((struct id *)id, pd, attr));
}

void fake_destroy_qp(struct rdma_cm_id *id)
{
	pthread_mutex_lock(&fake_lock);
	object_free(id->qp);
	id->qp = NULL;
	pthread_mutex_unlock(&fake_lock);
}

uint32_t qpn_next(void)
{
	return next_qpn++;
}

/* Checks that a change of a queue pair's state has all attributes that libibverbs requires. */
static int qp_change(struct qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	if (attr->qp_state == IBV_QPS_ERR) {
		assert(mask == IBV_QP_STATE);
		fake_card.stops++;
	} else if (fails(EINVAL)) {
		return EINVAL;
	} else if (attr->qp_state == IBV_QPS_INIT) {
		assert(mask ==
		       (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		assert(qp->base.state == IBV_QPS_RESET && attr->port_num == FAKE_PORT);
		qp->access = attr->qp_access_flags;
	} else if (attr->qp_state == IBV_QPS_RTR) {
		assert(mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		assert(qp->base.state == IBV_QPS_INIT && attr->path_mtu == IBV_MTU_4096);
		assert(attr->ah_attr.is_global && attr->ah_attr.grh.sgid_index == FAKE_GID_INDEX);
		qp->far_qpn = attr->dest_qp_num;
		qp->far_gid = attr->ah_attr.grh.dgid;
		qp->receive_psn = attr->rq_psn;
	} else {
		assert(attr->qp_state == IBV_QPS_RTS && qp->base.state == IBV_QPS_RTR);
		assert(mask == (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
		qp->send_psn = attr->sq_psn;
	}
	qp->base.state = attr->qp_state;
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int ret;

	pthread_mutex_lock(&fake_lock);
	if (!fake_dc || !fake_dc->change(qp, attr, mask, &ret))
		ret = qp_change((struct qp *)qp, attr, mask);
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

static struct ibv_qp *plain_qp_new(struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct qp *qp = object_new(sizeof(*qp));

	assert(attr->qp_type == IBV_QPT_RC && attr->send_cq == attr->recv_cq);
	if (!qp)
		return NULL;
	qp->base.context = &fake_context;
	qp->base.pd = pd;
	qp->base.send_cq = qp->base.recv_cq = attr->send_cq;
	qp->base.qp_num = qpn_next();
	qp->base.state = IBV_QPS_RESET;
	qp->next = qps;
	qps = qp;
	return &qp->base;
}

static struct ibv_qp *create_plain_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	LOCKED(struct ibv_qp *, plain_qp_new(pd, attr));
}

static int destroy_plain_qp(struct ibv_qp *base)
{
	struct qp **at = &qps;
	int ret = 0;

	pthread_mutex_lock(&fake_lock);
	if (fake_dc && fake_dc->destroy(base, &ret)) {
		pthread_mutex_unlock(&fake_lock);
		return ret;
	}
	if (fake_card.destroy_fail) {
		fake_card.destroy_fail--;
		ret = EBUSY;
	} else {
		while (&(*at)->base != base)
			at = &(*at)->next;
		*at = (*at)->next;
		object_free(base);
	}
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR ? "retry exceeded" : "another status";
}

/* ---- the card ---- */

/* Returns a list with one card, or with none if the test has set fake_card.missing. The list ends
 * with NULL. */
static struct ibv_device **get_device_list(int *count)
{
	static struct ibv_device *list[2];

	assert(!count);
	list[0] = fake_card.missing ? NULL : &device;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	(void)list;
}

static struct ibv_context *device_open(void)
{
	if (fails(EACCES))
		return NULL;
	fake_card.live++;
	return &fake_context;
}

static struct ibv_context *open_device(struct ibv_device *card)
{
	assert(card == &device);
	LOCKED(struct ibv_context *, device_open());
}

static int close_device(struct ibv_context *card)
{
	assert(card == &fake_context);
	pthread_mutex_lock(&fake_lock);
	fake_card.live--;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static int query_port(struct ibv_context *card, uint8_t port, struct _compat_ibv_port_attr *out)
{
	assert(card == &fake_context && port == FAKE_PORT);
	((struct ibv_port_attr *)out)->active_mtu = IBV_MTU_4096;
	((struct ibv_port_attr *)out)->lid = 0x17;
	LOCKED(int, fails(EIO) ? EIO : 0);
}

/* Returns two entries with the card's address: one of RoCE v1, and then the one of RoCE v2. */
static ssize_t query_gid_table(struct ibv_context *card, struct ibv_gid_entry *out, size_t max,
			       uint32_t flags, size_t size)
{
	assert(card == &fake_context && max > 2 && !flags && size == sizeof(*out));
	for (unsigned i = 0; i < 2; i++) {
		out[i] = (struct ibv_gid_entry){.gid_index = i ? FAKE_GID_INDEX : 0,
						.port_num = FAKE_PORT,
						.gid_type = i ? IBV_GID_TYPE_ROCE_V2
							      : IBV_GID_TYPE_ROCE_V1};
		out[i].gid.raw[10] = out[i].gid.raw[11] = 0xff;
		inet_pton(AF_INET, "127.0.0.1", out[i].gid.raw + 12);
	}
	return 2;
}

/* ---- memory ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *card)
{
	(void)card;
	LOCKED(struct ibv_pd *, object_new(sizeof(struct ibv_pd)));
}

static bool pd_used(const struct ibv_pd *pd)
{
	const struct mr *mr = mrs;

	while (mr && mr->base.pd != pd)
		mr = mr->next;
	return mr;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	int ret;

	pthread_mutex_lock(&fake_lock);
	ret = pd_used(pd) ? EBUSY : 0;
	if (!ret)
		object_free(pd);
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

static struct ibv_mr *mr_new(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	struct mr *mr = object_new(sizeof(*mr));

	if (!mr)
		return NULL;
	mr->base.pd = pd;
	mr->base.addr = addr;
	mr->base.length = len;
	mr->base.lkey = mr->base.rkey = next_key += 0x101;
	if (access & REMOTE && fake_card.same_key)
		mr->base.lkey = mr->base.rkey = fake_card.same_key;
	mr->iova = iova;
	mr->access = access;
	mr->next = mrs;
	mrs = mr;
	if (access & REMOTE) {
		fake_card.regions++;
		fake_card.iova = iova;
		fake_card.len = len;
		fake_card.access = access;
	}
	return &mr->base;
}

static struct ibv_mr *reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
				  int access)
{
	struct ibv_mr *mr = NULL;

	assert(len);
	pthread_mutex_lock(&fake_lock);
	errno = access & REMOTE ? fake_card.reg_errno : fake_card.local_errno;
	if (!errno)
		mr = mr_new(pd, addr, len, iova, access);
	pthread_mutex_unlock(&fake_lock);
	return mr;
}

/* The stand-in driver exports a dma-buf as a memfd. This function maps the memfd, in place of the
 * registration that a real card makes. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, size_t len, uint64_t iova,
				    int fd, int access)
{
	struct mr *mr = NULL;
	char *mapped;

	assert(off % 4096 == iova % 4096);
	pthread_mutex_lock(&fake_lock);
	fake_card.dmabufs++;
	errno = fake_card.dmabuf_errno;
	mapped = errno ? MAP_FAILED
		       : mmap(NULL, off + len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped != MAP_FAILED)
		mr = (struct mr *)mr_new(pd, mapped + off, len, iova, access);
	if (mr) {
		mr->mapped = mapped;
		mr->mapped_len = off + len;
	} else if (mapped != MAP_FAILED) {
		munmap(mapped, off + len);
	}
	pthread_mutex_unlock(&fake_lock);
	return mr ? &mr->base : NULL;
}

static int dereg_mr(struct ibv_mr *base)
{
	struct mr *mr = (struct mr *)base, **at = &mrs;
	int ret = 0;

	pthread_mutex_lock(&fake_lock);
	if (fake_card.dereg_fail && mr->access & REMOTE) {
		fake_card.dereg_fail--;
		ret = EBUSY;
	} else {
		while (*at != mr)
			at = &(*at)->next;
		*at = mr->next;
		if (mr->mapped)
			munmap(mr->mapped, mr->mapped_len);
		object_free(mr);
	}
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

/* ---- address handles and receive queues ---- */

static struct ibv_ah *ah_new(const struct ibv_ah_attr *attr)
{
	assert(attr->is_global && attr->port_num == FAKE_PORT &&
	       attr->grh.sgid_index == FAKE_GID_INDEX);
	return object_new(sizeof(struct ibv_ah));
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)pd;
	LOCKED(struct ibv_ah *, ah_new(attr));
}

static int destroy_ah(struct ibv_ah *ah)
{
	pthread_mutex_lock(&fake_lock);
	object_free(ah);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	(void)pd;
	assert(attr->attr.max_wr);
	LOCKED(struct ibv_srq *, object_new(sizeof(struct ibv_srq)));
}

static int destroy_srq(struct ibv_srq *srq)
{
	pthread_mutex_lock(&fake_lock);
	object_free(srq);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static struct ibv_qp_ex *qp_to_qp_ex(struct ibv_qp *qp)
{
	return fake_dc ? fake_dc->extended(qp) : NULL;
}

/* ---- transfers ---- */

char *memory_find(const struct ibv_pd *pd, uint32_t key, uint64_t at, size_t len, int access)
{
	for (const struct mr *mr = mrs; mr; mr = mr->next)
		if (mr->base.pd == pd && mr->base.rkey == key)
			return (mr->access & access) == access && at >= mr->iova &&
					       len <= mr->base.length &&
					       at - mr->iova <= mr->base.length - len
				       ? (char *)mr->base.addr + (at - mr->iova)
				       : NULL;
	return NULL;
}

void complete(struct ibv_cq *base, struct ibv_wc wc)
{
	struct cq *cq = (struct cq *)base;

	assert(cq->count < CQ_MAX);
	cq->done[cq->count++] = wc;
	if (!cq->armed)
		return;
	cq->armed = false;
	wake(((struct comp_channel *)base->channel)->write_fd);
}

/* Returns the other side of a queue pair that was connected by the numbers of both queue pairs (not
 * by librdmacm). Returns NULL if there is none. */
static struct qp *far_find(const struct qp *qp)
{
	for (struct qp *far = qps; far; far = far->next)
		if (far->base.qp_num == qp->far_qpn)
			return far->far_qpn == qp->base.qp_num &&
					       far->receive_psn == qp->send_psn &&
					       (far->base.state == IBV_QPS_RTR ||
						far->base.state == IBV_QPS_RTS)
				       ? far
				       : NULL;
	return NULL;
}

/* Carries out a write with immediate data. */
static enum ibv_wc_status write_with_cookie(struct qp *qp, const struct ibv_send_wr *wr)
{
	const struct ibv_sge *sge = wr->sg_list;
	struct qp *far = far_find(qp);
	char *mine = memory_find(qp->base.pd, sge->lkey, sge->addr, sge->length, 0), *theirs;

	assert(mine && wr->num_sge == 1 && wr->send_flags == IBV_SEND_SIGNALED);
	if (qp->base.state != IBV_QPS_RTS)
		return IBV_WC_WR_FLUSH_ERR;
	if (!far)
		return IBV_WC_RETRY_EXC_ERR;
	if (!far->receives)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	theirs = memory_find(far->base.pd, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, sge->length,
			     IBV_ACCESS_REMOTE_WRITE);
	if (!theirs || !(far->access & IBV_ACCESS_REMOTE_WRITE)) {
		far->base.state = IBV_QPS_ERR;
		return IBV_WC_REM_ACCESS_ERR;
	}
	memcpy(theirs, mine, sge->length);
	far->receives--;
	fake_card.transfers++;
	fake_card.longest = fake_card.longest < sge->length ? sge->length : fake_card.longest;
	if (!fake_card.silent)
		complete(far->base.recv_cq, (struct ibv_wc){.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
							    .wc_flags = IBV_WC_WITH_IMM,
							    .byte_len = sge->length,
							    .imm_data = wr->imm_data});
	return IBV_WC_SUCCESS;
}

static int receive(struct qp *qp, const struct ibv_recv_wr *wr)
{
	assert(!qp->id && !wr->num_sge && !qp->receives && qp->base.state != IBV_QPS_RESET);
	if (fails(ENOMEM))
		return ENOMEM;
	qp->receives++;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	*bad = wr;
	LOCKED(int, receive((struct qp *)qp, wr));
}

static enum ibv_wc_status transfer(struct ibv_qp *base, const struct ibv_send_wr *wr)
{
	const struct id *peer = ((struct qp *)base)->id->peer;
	const bool write = wr->opcode == IBV_WR_RDMA_WRITE;
	const struct ibv_sge *sge = wr->sg_list;
	char *mine = memory_find(base->pd, sge->lkey, sge->addr, sge->length,
				 write ? 0 : IBV_ACCESS_LOCAL_WRITE);
	char *theirs;

	assert(write || wr->opcode == IBV_WR_RDMA_READ);
	assert(mine && wr->num_sge == 1 && wr->send_flags == IBV_SEND_SIGNALED);
	if (base->state == IBV_QPS_ERR || !((struct qp *)base)->id->connected)
		return IBV_WC_WR_FLUSH_ERR;
	if (!peer->base.qp || peer->base.qp->state == IBV_QPS_ERR)
		return IBV_WC_RETRY_EXC_ERR;
	theirs = memory_find(peer->base.qp->pd, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr,
			     sge->length, write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
	if (!theirs)
		return IBV_WC_REM_ACCESS_ERR;
	memcpy(write ? theirs : mine, write ? mine : theirs, sge->length);
	fake_card.transfers++;
	fake_card.longest = fake_card.longest < sge->length ? sge->length : fake_card.longest;
	return IBV_WC_SUCCESS;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	enum ibv_wc_status status;

	if (fails(ENOMEM))
		return ENOMEM;
	while (fake_card.gate && fake_card.transfers >= fake_card.gate)
		pthread_cond_wait(&gate, &fake_lock);
	if (fake_card.hold)
		return 0;
	status = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? write_with_cookie((struct qp *)qp, wr)
							  : transfer(qp, wr);
	complete(qp->send_cq, (struct ibv_wc){.status = status, .opcode = IBV_WC_RDMA_WRITE});
	if (status != IBV_WC_SUCCESS)
		qp->state = IBV_QPS_ERR;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr;
	LOCKED(int, post(qp, wr));
}

struct ibv_context fake_context = {
	.device = &device,
	.ops = {.poll_cq = poll_cq,
		.req_notify_cq = req_notify_cq,
		.post_send = post_send,
		.post_recv = post_recv},
};

/* ---- control by tests ---- */

static const char *get_device_name(struct ibv_device *card)
{
	return card->name;
}

#define FAKE_MEMBER(member, symbol) .member = fake_##member,
const struct pst_verbs fake_verbs = {.alloc_pd = alloc_pd,
				     .dealloc_pd = dealloc_pd,
				     .reg_mr_iova = reg_mr_iova,
				     .dereg_mr = dereg_mr,
				     .create_cq = create_cq,
				     .destroy_cq = destroy_cq,
				     .create_comp_channel = create_comp_channel,
				     .destroy_comp_channel = destroy_comp_channel,
				     .get_cq_event = get_cq_event,
				     .ack_cq_events = ack_cq_events,
				     .modify_qp = modify_qp,
				     .wc_status_str = wc_status_str,
				     .get_device_name = get_device_name,
				     .get_device_list = get_device_list,
				     .free_device_list = free_device_list,
				     .open_device = open_device,
				     .close_device = close_device,
				     .query_port = query_port,
				     .query_gid_table = query_gid_table,
				     .create_ah = create_ah,
				     .destroy_ah = destroy_ah,
				     .create_srq = create_srq,
				     .destroy_srq = destroy_srq,
				     .qp_to_qp_ex = qp_to_qp_ex,
				     .create_plain_qp = create_plain_qp,
				     .destroy_plain_qp = destroy_plain_qp,
				     .reg_dmabuf_mr = reg_dmabuf_mr,
				     PST_VERBS_CM(FAKE_MEMBER)};

const struct pst_verbs *__wrap_pst_verbs_get(struct pst_err *err);
const struct pst_verbs *__wrap_pst_verbs_get(struct pst_err *err)
{
	if (!fake_card.missing)
		return &fake_verbs;
	pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "no fake card");
	return NULL;
}

void fake_card_lock(void)
{
	pthread_mutex_lock(&fake_lock);
}

void fake_card_unlock(void)
{
	pthread_mutex_unlock(&fake_lock);
}

void fake_card_reset(void)
{
	pthread_mutex_lock(&fake_lock);
	assert(!fake_card.live);
	fake_card = (struct fake_card){0};
	pthread_mutex_unlock(&fake_lock);
}

void fake_card_gate(unsigned transfers)
{
	pthread_mutex_lock(&fake_lock);
	fake_card.gate = transfers;
	pthread_cond_broadcast(&gate);
	pthread_mutex_unlock(&fake_lock);
}

void fake_card_forget(void)
{
	while (mrs) {
		struct mr *mr = mrs;
		struct ibv_pd *pd = mr->base.pd;

		mrs = mr->next;
		object_free(mr);
		if (!pd_used(pd))
			object_free(pd);
	}
}
