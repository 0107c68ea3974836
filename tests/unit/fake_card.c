/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fake_card.h. One lock protects all data, including the copies that stand for
 * transfers. */
#include "fake_card.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PRIVATE_MAX 56
#define CQ_MAX 64
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct fake_card fake_card;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate = PTHREAD_COND_INITIALIZER;
static unsigned next_port = 40000, next_key = 0x1234;

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
	struct id *id;
};

struct mr {
	struct ibv_mr base;
	struct mr *next;
	uint64_t iova;
	int access;
	/* mapping of the dma-buf; NULL if the region is not one of a dma-buf */
	void *mapped;
	size_t mapped_len;
};

static struct id *ids;
static struct mr *mrs;
static struct ibv_device device = {.name = "fake0"};
static struct ibv_context context;

/* ---- common ---- */

/* Counts a call of the card. Returns true if the test wants this call to fail. */
static bool fails(int code)
{
	fake_card.calls++;
	if (fake_card.calls != fake_card.fail_at)
		return false;
	errno = code;
	return true;
}

/* Allocates an object. Returns NULL if the test wants this call to fail. */
static void *object_new(size_t len)
{
	void *object = fails(ENOMEM) ? NULL : calloc(1, len);

	fake_card.live += object != NULL;
	return object;
}

static void object_free(void *object)
{
	fake_card.live--;
	free(object);
}

#define LOCKED(type, expression)     \
	pthread_mutex_lock(&lock);   \
	type result = (expression);  \
	pthread_mutex_unlock(&lock); \
	return result

static void wake(int fd)
{
	ssize_t n = write(fd, "x", 1);

	assert(n == 1);
	(void)n;
}

static void unwake(int fd)
{
	char byte;
	ssize_t n = read(fd, &byte, 1);

	assert(n == 1);
	(void)n;
}

/* ---- events ---- */

static struct rdma_event_channel *channel_new(void)
{
	struct channel *c = object_new(sizeof(*c));
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

static struct rdma_event_channel *create_event_channel(void)
{
	LOCKED(struct rdma_event_channel *, channel_new());
}

static void destroy_event_channel(struct rdma_event_channel *base)
{
	struct channel *c = (struct channel *)base;

	pthread_mutex_lock(&lock);
	assert(!c->events);
	close(c->base.fd);
	close(c->write_fd);
	object_free(c);
	pthread_mutex_unlock(&lock);
}

static void event_push(struct id *id, enum rdma_cm_event_type type, const void *data, size_t len)
{
	struct channel *c = (struct channel *)id->base.channel;
	struct event *event = calloc(1, sizeof(*event)), **at = &c->events;

	assert(event && len <= PRIVATE_MAX);
	event->base.id = &id->base;
	event->base.event = type;
	if (data)
		memcpy(event->data, data, len);
	/* Private data is padded with zeros. */
	event->base.param.conn.private_data = event->data;
	event->base.param.conn.private_data_len = PRIVATE_MAX;
	while (*at)
		at = &(*at)->next;
	*at = event;
	wake(c->write_fd);
}

static int event_pop(struct channel *c, struct rdma_cm_event **out)
{
	struct event *event = c->events;

	if (!event) {
		errno = EAGAIN;
		return -1;
	}
	if (fails(EIO))
		return -1;
	c->events = event->next;
	unwake(c->base.fd);
	*out = &event->base;
	return 0;
}

static int get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
	LOCKED(int, event_pop((struct channel *)base, out));
}

static int ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

static const char *event_str(enum rdma_cm_event_type type)
{
	return type == RDMA_CM_EVENT_REJECTED ? "rejected" : "another event";
}

/* ---- connections ---- */

static struct id *id_new(struct rdma_event_channel *channel)
{
	struct id *id = object_new(sizeof(*id));

	if (id) {
		id->base.channel = channel;
		id->next = ids;
		ids = id;
	}
	return id;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user,
		     enum rdma_port_space ps)
{
	struct id *id;

	assert(ps == RDMA_PS_TCP && !user);
	pthread_mutex_lock(&lock);
	id = id_new(channel);
	pthread_mutex_unlock(&lock);
	*out = id ? &id->base : NULL;
	return id ? 0 : -1;
}

/* Ends the connection of an id. The caller holds the lock. */
static void part(struct id *id)
{
	struct id *peer = id->peer;

	if (!peer)
		return;
	if (peer->connected)
		event_push(peer, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	id->peer = peer->peer = NULL;
	id->connected = peer->connected = false;
}

static int disconnect(struct rdma_cm_id *base)
{
	pthread_mutex_lock(&lock);
	part((struct id *)base);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int destroy_id(struct rdma_cm_id *base)
{
	struct id *id = (struct id *)base, **at = &ids;
	struct channel *c = (struct channel *)base->channel;

	pthread_mutex_lock(&lock);
	assert(!base->qp);
	part(id);
	for (struct event **event = &c->events; *event;) {
		struct event *gone = *event;

		if (gone->base.id != base) {
			event = &gone->next;
			continue;
		}
		*event = gone->next;
		unwake(c->base.fd);
		free(gone);
	}
	while (*at != id)
		at = &(*at)->next;
	*at = id->next;
	object_free(id);
	pthread_mutex_unlock(&lock);
	return 0;
}

static unsigned port_of(const struct sockaddr *address)
{
	assert(address->sa_family == AF_INET);
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

static int bind_addr(struct rdma_cm_id *base, struct sockaddr *address)
{
	struct id *id = (struct id *)base;
	int ret = -1;

	pthread_mutex_lock(&lock);
	if (fake_card.missing) {
		errno = ENODEV;
	} else if (!fails(EADDRINUSE)) {
		id->port = port_of(address) ? port_of(address) : next_port++;
		base->verbs = &context;
		ret = 0;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

static int listen_at(struct rdma_cm_id *base, int backlog)
{
	int ret;

	pthread_mutex_lock(&lock);
	ret = fails(EBUSY) || backlog < 1 ? -1 : 0;
	((struct id *)base)->listening = !ret;
	pthread_mutex_unlock(&lock);
	return ret;
}

static __be16 get_src_port(struct rdma_cm_id *base)
{
	return htons((uint16_t)((struct id *)base)->port);
}

static int resolve(struct id *id, enum rdma_cm_event_type type)
{
	if (fake_card.missing)
		errno = ENODEV;
	if (fake_card.missing || fails(EHOSTUNREACH))
		return -1;
	id->base.verbs = &context;
	event_push(id, type, NULL, 0);
	return 0;
}

static int resolve_addr(struct rdma_cm_id *base, struct sockaddr *src, struct sockaddr *dst,
			int timeout_ms)
{
	assert(!src && timeout_ms > 0);
	((struct id *)base)->dst_port = port_of(dst);
	if (fake_card.lost && ((const unsigned char *)dst)[7] == fake_card.lost) {
		errno = EHOSTUNREACH;
		return -1;
	}
	LOCKED(int, resolve((struct id *)base, RDMA_CM_EVENT_ADDR_RESOLVED));
}

static int resolve_route(struct rdma_cm_id *base, int timeout_ms)
{
	assert(timeout_ms > 0);
	LOCKED(int, resolve((struct id *)base, RDMA_CM_EVENT_ROUTE_RESOLVED));
}

static int request(struct id *id, const struct rdma_conn_param *param)
{
	struct id *listener = ids, *child;

	if (fails(ENOMEM))
		return -1;
	while (listener && !(listener->listening && listener->port == id->dst_port))
		listener = listener->next;
	child = listener ? id_new(listener->base.channel) : NULL;
	if (!child) {
		event_push(id, RDMA_CM_EVENT_REJECTED, NULL, 0);
		return 0;
	}
	child->base.verbs = &context;
	child->peer = id;
	id->peer = child;
	event_push(child, RDMA_CM_EVENT_CONNECT_REQUEST, param->private_data,
		   param->private_data_len);
	return 0;
}

static int connect_to(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	LOCKED(int, request((struct id *)base, param));
}

static int established(struct id *id, const struct rdma_conn_param *param)
{
	if (fails(EINVAL))
		return -1;
	/* The other side may have disconnected meanwhile. */
	if (!id->peer)
		return 0;
	id->connected = id->peer->connected = true;
	event_push(id, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	event_push(id->peer, RDMA_CM_EVENT_ESTABLISHED, param->private_data,
		   param->private_data_len);
	return 0;
}

static int accept_one(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	LOCKED(int, established((struct id *)base, param));
}

static int reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
	struct id *id = (struct id *)base;

	pthread_mutex_lock(&lock);
	if (id->peer) {
		event_push(id->peer, RDMA_CM_EVENT_REJECTED, data, len);
		id->peer->peer = NULL;
		id->peer = NULL;
	}
	pthread_mutex_unlock(&lock);
	return 0;
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
	pthread_mutex_lock(&lock);
	close(base->fd);
	close(((struct comp_channel *)base)->write_fd);
	object_free(base);
	pthread_mutex_unlock(&lock);
	return 0;
}

static struct ibv_cq *cq_new(struct ibv_comp_channel *channel, void *user)
{
	struct cq *cq = object_new(sizeof(*cq));

	if (!cq)
		return NULL;
	cq->base.context = &context;
	cq->base.channel = channel;
	cq->base.cq_context = user;
	return &cq->base;
}

static struct ibv_cq *create_cq(struct ibv_context *card, int count, void *user,
				struct ibv_comp_channel *channel, int vector)
{
	assert(card == &context && count > 0 && !vector);
	LOCKED(struct ibv_cq *, cq_new(channel, user));
}

static int destroy_cq(struct ibv_cq *cq)
{
	pthread_mutex_lock(&lock);
	object_free(cq);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The library uses one completion queue for each channel, and ignores the queue that this function
 * could return. */
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
	pthread_mutex_lock(&lock);
	if (cq->count && fails(EIO)) {
		ret = -1;
	} else if (cq->count) {
		*out = cq->done[0];
		memmove(cq->done, cq->done + 1, --cq->count * sizeof(*out));
		ret = 1;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

static int req_notify_cq(struct ibv_cq *base, int solicited)
{
	assert(!solicited);
	pthread_mutex_lock(&lock);
	((struct cq *)base)->armed = true;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int qp_new(struct id *id, struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct qp *qp = object_new(sizeof(*qp));

	assert(attr->qp_type == IBV_QPT_RC && attr->send_cq && attr->cap.max_send_wr);
	if (!qp)
		return -1;
	qp->base.context = &context;
	qp->base.pd = pd;
	qp->base.send_cq = attr->send_cq;
	qp->base.state = IBV_QPS_RTS;
	qp->id = id;
	id->base.qp = &qp->base;
	return 0;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	LOCKED(int, qp_new((struct id *)id, pd, attr));
}

static void destroy_qp(struct rdma_cm_id *id)
{
	pthread_mutex_lock(&lock);
	object_free(id->qp);
	id->qp = NULL;
	pthread_mutex_unlock(&lock);
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	assert(mask == IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR);
	pthread_mutex_lock(&lock);
	qp->state = IBV_QPS_ERR;
	fake_card.stops++;
	pthread_mutex_unlock(&lock);
	return 0;
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR ? "retry exceeded" : "another status";
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

	pthread_mutex_lock(&lock);
	ret = pd_used(pd) ? EBUSY : 0;
	if (!ret)
		object_free(pd);
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_lock(&lock);
	errno = access & REMOTE ? fake_card.reg_errno : fake_card.local_errno;
	if (!errno)
		mr = mr_new(pd, addr, len, iova, access);
	pthread_mutex_unlock(&lock);
	return mr;
}

/* The stand-in driver exports a dma-buf as a memfd. Maps it in place of the registration. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, size_t len, uint64_t iova,
				    int fd, int access)
{
	struct mr *mr = NULL;
	char *mapped;

	assert(off % 4096 == iova % 4096);
	pthread_mutex_lock(&lock);
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
	pthread_mutex_unlock(&lock);
	return mr ? &mr->base : NULL;
}

static int dereg_mr(struct ibv_mr *base)
{
	struct mr *mr = (struct mr *)base, **at = &mrs;
	int ret = 0;

	pthread_mutex_lock(&lock);
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
	pthread_mutex_unlock(&lock);
	return ret;
}

/* ---- transfers ---- */

/* Returns the address of the memory that an RDMA access names. Returns NULL if no region allows the
 * access. */
static char *memory_find(const struct ibv_pd *pd, uint32_t key, uint64_t at, size_t len, int access)
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
	struct cq *cq = (struct cq *)qp->send_cq;
	enum ibv_wc_status status;

	if (fails(ENOMEM))
		return ENOMEM;
	while (fake_card.gate && fake_card.transfers >= fake_card.gate)
		pthread_cond_wait(&gate, &lock);
	if (fake_card.hold)
		return 0;
	status = transfer(qp, wr);
	assert(cq->count < CQ_MAX);
	cq->done[cq->count++] = (struct ibv_wc){.status = status};
	if (status != IBV_WC_SUCCESS)
		qp->state = IBV_QPS_ERR;
	if (cq->armed) {
		cq->armed = false;
		wake(((struct comp_channel *)cq->base.channel)->write_fd);
	}
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr;
	LOCKED(int, post(qp, wr));
}

static struct ibv_context context = {
	.device = &device,
	.ops = {.poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_send = post_send},
};

/* ---- control by tests ---- */

static const char *get_device_name(struct ibv_device *card)
{
	return card->name;
}

const struct pst_verbs fake_verbs = {
	.alloc_pd = alloc_pd,
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
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.create_event_channel = create_event_channel,
	.destroy_event_channel = destroy_event_channel,
	.create_id = create_id,
	.destroy_id = destroy_id,
	.bind_addr = bind_addr,
	.listen = listen_at,
	.accept = accept_one,
	.reject = reject,
	.connect = connect_to,
	.disconnect = disconnect,
	.resolve_addr = resolve_addr,
	.resolve_route = resolve_route,
	.get_cm_event = get_cm_event,
	.ack_cm_event = ack_cm_event,
	.event_str = event_str,
	.create_qp = create_qp,
	.destroy_qp = destroy_qp,
	.get_src_port = get_src_port,
};

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
	pthread_mutex_lock(&lock);
}

void fake_card_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void fake_card_reset(void)
{
	pthread_mutex_lock(&lock);
	assert(!fake_card.live);
	fake_card = (struct fake_card){0};
	pthread_mutex_unlock(&lock);
}

void fake_card_gate(unsigned transfers)
{
	pthread_mutex_lock(&lock);
	fake_card.gate = transfers;
	pthread_cond_broadcast(&gate);
	pthread_mutex_unlock(&lock);
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

void fake_card_remove(void)
{
	pthread_mutex_lock(&lock);
	for (struct id *id = ids; id; id = id->next)
		if (id->listening)
			event_push(id, RDMA_CM_EVENT_DEVICE_REMOVAL, NULL, 0);
	pthread_mutex_unlock(&lock);
}
