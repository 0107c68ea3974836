/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements card.h. A network card is found by its table of GIDs (global identifiers): with RoCE
 * v2, each IP address of the card's network interface is a GID. The functions have no static state.
 */
#include "wire/card.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "wire/common.h"

#define GIDS_MAX 256
#define PAGE_MASK ((uintptr_t)PST_WIRE_PAGE - 1)
/* Random bits of the address of a window. The lower bits are 0, which preserves the alignment of
 * huge pages. The upper bits are 0, so that the end of a window cannot overflow. */
#define RANDOM_MASK ((UINT64_C(1) << 62) - PST_WIRE_ALIGN)
/* If a packet is not acknowledged within 4.096 us << TIMEOUT, which is 134 ms, it is sent again, up
 * to RETRIES times. */
#define TIMEOUT 15
#define RETRIES 7
#define HOPS_MAX 64
/* Code for 0.64 ms. If a message arrives and no receive is posted for it, the sender's card waits
 * for this time before it sends the message again. */
#define RNR_TIMER 12

/* ---- finding a card ---- */

bool pst_card_gid(const char *address, union ibv_gid *out)
{
	memset(out, 0, 10);
	out->raw[10] = out->raw[11] = 0xff;
	return inet_pton(AF_INET, address, out->raw + 12) == 1 ||
	       inet_pton(AF_INET6, address, out->raw) == 1;
}

/* Searches the GID in the GID table of an open card. If found, stores its port and index. */
static bool gid_find(struct pst_card *card, const union ibv_gid *gid)
{
	struct ibv_gid_entry entries[GIDS_MAX];
	ssize_t n =
		card->v->query_gid_table(card->context, entries, GIDS_MAX, 0, sizeof(entries[0]));

	for (ssize_t i = 0; i < n; i++)
		if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    !memcmp(&entries[i].gid, gid, sizeof(*gid)) &&
		    entries[i].gid_index <= UINT8_MAX && entries[i].port_num <= UINT8_MAX) {
			card->gid = *gid;
			card->gid_index = (uint8_t)entries[i].gid_index;
			card->port = (uint8_t)entries[i].port_num;
			return true;
		}
	return false;
}

/* Opens a device if one of its GIDs is `gid`. */
static bool device_open(struct pst_card *card, struct ibv_device *device, const union ibv_gid *gid)
{
	card->context = card->v->open_device(device);
	if (!card->context)
		return false;
	if (gid_find(card, gid)) {
		card->name = card->v->get_device_name(device);
		return true;
	}
	card->v->close_device(card->context);
	card->context = NULL;
	return false;
}

/* Reads the attributes of the card's port: MTU and LID. */
static int port_open(struct pst_card *card, struct pst_err *err)
{
	struct ibv_port_attr port;

	/* In an older libibverbs this struct is shorter, and query_port fills only the members of
	 * the shorter struct. */
	memset(&port, 0, sizeof(port));
	if (card->v->query_port(card->context, card->port, (struct _compat_ibv_port_attr *)&port))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_DEVICE,
				      "%s does not describe its port %u", card->name, card->port);
	card->mtu = port.active_mtu;
	card->lid = port.lid;
	return 0;
}

int pst_card_open(struct pst_card *card, const char *transport, const char *address,
		  struct pst_err *err)
{
	struct ibv_device **devices;
	union ibv_gid gid;
	int ret;

	memset(card, 0, sizeof(*card));
	card->v = pst_verbs_get(err);
	if (!card->v)
		return err->code;
	if (!card->v->query_gid_table)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "%s needs libibverbs of rdma-core 32 or later", transport);
	if (!pst_card_gid(address, &gid))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%.60s is not a numeric address",
				address);
	devices = card->v->get_device_list(NULL);
	for (unsigned i = 0; devices && devices[i] && !card->context; i++)
		device_open(card, devices[i], &gid);
	if (devices)
		card->v->free_device_list(devices);
	if (!card->context)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
				"no RDMA network card has the address %s with RoCE v2, which %s "
				"needs",
				address, transport);
	ret = port_open(card, err);
	if (ret)
		pst_card_close(card);
	return ret;
}

void pst_card_close(struct pst_card *card)
{
	if (card->context)
		card->v->close_device(card->context);
	card->context = NULL;
}

/* ---- memory ---- */

uint64_t pst_card_address(const struct pst_wire_grant *grant)
{
	uint64_t random;

	memcpy(&random, grant->cap, sizeof(random));
	return (random & RANDOM_MASK) | (((uintptr_t)grant->buffer->ptr + grant->off) & PAGE_MASK);
}

static struct ibv_mr *register_fail(const char *card, const struct pst_wire_grant *g, int code,
				    struct pst_err *err)
{
	if (code == ENOMEM)
		pst_fail_errno(err, code, PENSTOCK_WHY_MEMLOCK,
			       "%s cannot pin %llu bytes: raise RLIMIT_MEMLOCK", card,
			       (unsigned long long)g->len);
	else
		pst_fail_errno(err, code, pst_why_from_errno(code),
			       "%s cannot register %llu bytes: %s", card,
			       (unsigned long long)g->len, strerror(code));
	return NULL;
}

/* Registers memory of a GPU with the network card, as a dma-buf. If that is not possible, registers
 * the memory by its address, which needs the kernel module for peer memory. */
static struct ibv_mr *register_device(const struct pst_verbs *v, struct ibv_pd *pd,
				      const char *card, const struct pst_wire_grant *g, int access,
				      struct pst_err *err)
{
	const struct pst_wire_devices *devices = g->buffer->client->devices;
	unsigned char *ptr = g->buffer->ptr + g->off;
	struct ibv_mr *mr = NULL;
	char why[100];
	uint64_t off;
	int fd;

	if (!v->reg_dmabuf_mr) {
		snprintf(why, sizeof(why), "libibverbs is older than 34");
	} else if (devices->dma_buf(g->buffer->dev, ptr, g->len, &fd, &off)) {
		snprintf(why, sizeof(why), "%.99s", penstock_errmsg());
	} else {
		mr = v->reg_dmabuf_mr(pd, off, g->len, pst_card_address(g), fd, access);
		snprintf(why, sizeof(why), "%s", strerror(errno));
		close(fd);
	}
	if (!mr)
		mr = v->reg_mr_iova(pd, ptr, g->len, pst_card_address(g), access);
	if (!mr)
		pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
			       "%s cannot access the GPU's memory: as dma-buf: %s; as peer memory "
			       "(module nvidia_peermem): %s; use a buffer in host memory",
			       card, why, strerror(errno));
	return mr;
}

struct ibv_mr *pst_card_register(const struct pst_verbs *v, struct ibv_pd *pd, const char *card,
				 const struct pst_wire_grant *grant, int access,
				 struct pst_err *err)
{
	struct ibv_mr *mr;

	if (grant->buffer->dev)
		return register_device(v, pd, card, grant, access, err);
	mr = v->reg_mr_iova(pd, grant->buffer->ptr + grant->off, grant->len,
			    pst_card_address(grant), access);
	return mr ? mr : register_fail(card, grant, errno, err);
}

int pst_card_order(const struct pst_wire_grant *grant, struct pst_err *err)
{
	const struct pst_wire_buffer *buffer = grant->buffer;

	if (!buffer->dev || grant->op != PENSTOCK_READ ||
	    !buffer->client->devices->order_writes(buffer->dev))
		return 0;
	return pst_fail_errno(err, EIO, PENSTOCK_WHY_DEVICE_ERROR,
			      "the bytes in the GPU's memory may be older ones: %.150s",
			      penstock_errmsg());
}

/* ---- queues ---- */

int pst_card_queue_open(struct pst_card_queue *queue, const struct pst_card *card, int entries,
			struct pst_err *err)
{
	memset(queue, 0, sizeof(*queue));
	queue->v = card->v;
	queue->events = card->v->create_comp_channel(card->context);
	if (queue->events)
		queue->cq = card->v->create_cq(card->context, entries, NULL, queue->events, 0);
	if (queue->cq)
		return 0;
	pst_fail_errno(err, errno, pst_why_from_errno(errno), "%s has no completion queue left: %m",
		       card->name);
	pst_card_queue_close(queue);
	return err->code;
}

void pst_card_queue_close(struct pst_card_queue *queue)
{
	if (queue->cq)
		queue->v->destroy_cq(queue->cq);
	if (queue->events)
		queue->v->destroy_comp_channel(queue->events);
	queue->cq = NULL;
	queue->events = NULL;
}

/* Waits until the completion queue's event channel is readable. */
static int queue_sleep(struct pst_card_queue *queue, const struct pst_wire_channel *channel,
		       struct pst_err *err)
{
	struct ibv_cq *cq;
	void *context;
	int ret = pst_wire_wait_fd(channel, queue->events->fd, POLLIN);

	if (ret)
		return pst_fail_errno(err, -ret, pst_why_from_errno(ret),
				      "the client's network card: %s", strerror(-ret));
	if (queue->v->get_cq_event(queue->events, &cq, &context))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_IO_ERROR, "ibv_get_cq_event: %m");
	queue->v->ack_cq_events(cq, 1);
	queue->armed = false;
	return 0;
}

int pst_card_queue_wait(struct pst_card_queue *queue, const struct pst_wire_channel *channel,
			struct ibv_wc *out, struct pst_err *err)
{
	int n;

	while ((n = ibv_poll_cq(queue->cq, 1, out)) == 0) {
		int ret;

		/* Polls once more after requesting an event, because a completion before the
		 * request causes no event. */
		if (!queue->armed) {
			ret = ibv_req_notify_cq(queue->cq, 0);
			queue->armed = !ret;
			if (ret)
				return pst_fail_errno(err, ret, PENSTOCK_WHY_IO_ERROR,
						      "ibv_req_notify_cq: %s", strerror(ret));
			continue;
		}
		ret = queue_sleep(queue, channel, err);
		if (ret)
			return ret;
	}
	return n < 0 ? pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR, "ibv_poll_cq failed") : 0;
}

int pst_card_status_fail(const struct pst_verbs *v, enum ibv_wc_status status, struct pst_err *err)
{
	int code = EIO;

	if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR)
		return pst_fail_errno(
			err, EACCES, PENSTOCK_WHY_NO_PERMISSION,
			"the client's network card has refused the access: the token "
			"is wrong or released, or does not allow range and direction");
	/* These states mean that the client has closed the connection, or does not reply. */
	if (status == IBV_WC_WR_FLUSH_ERR)
		code = EPIPE;
	else if (status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR)
		code = ECONNRESET;
	return pst_fail_errno(err, code, PENSTOCK_WHY_IO_ERROR, "the client's connection: %s",
			      v->wc_status_str(status));
}

/* ---- queue pairs ---- */

void pst_card_way(const struct pst_card *card, const union ibv_gid *gid, uint16_t lid,
		  struct ibv_ah_attr *out)
{
	*out = (struct ibv_ah_attr){
		.grh = {.dgid = *gid, .sgid_index = card->gid_index, .hop_limit = HOPS_MAX},
		.is_global = 1,
		.dlid = lid,
		.port_num = card->port,
	};
}

struct ibv_pd *pst_card_domain(const struct pst_card *card, struct pst_err *err)
{
	struct ibv_pd *pd = card->v->alloc_pd(card->context);

	if (!pd)
		pst_fail_errno(err, errno, pst_why_from_errno(errno),
			       "%s has no protection domain left: %m", card->name);
	return pd;
}

struct ibv_qp *pst_card_pair_open(const struct pst_card *card, struct ibv_pd *pd, struct ibv_cq *cq,
				  unsigned access, struct pst_err *err)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = card->port, .qp_access_flags = access};
	struct ibv_qp *qp = card->v->create_plain_qp(pd, &attr);
	int code = qp ? 0 : errno;

	if (qp)
		code = card->v->modify_qp(qp, &init,
					  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						  IBV_QP_ACCESS_FLAGS);
	if (!code)
		return qp;
	if (qp)
		card->v->destroy_plain_qp(qp);
	pst_fail_errno(err, code, pst_why_from_errno(code), "%s has no queue pair left: %s",
		       card->name, strerror(code));
	return NULL;
}

int pst_card_pair_connect(const struct pst_card *card, struct ibv_qp *qp,
			  const struct pst_card_far *far, uint32_t psn, struct pst_err *err)
{
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR,
				      .path_mtu = card->mtu,
				      .dest_qp_num = far->qpn,
				      .rq_psn = far->psn,
				      .max_dest_rd_atomic = 1,
				      .min_rnr_timer = RNR_TIMER};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
				   .sq_psn = psn,
				   .max_rd_atomic = 1,
				   .timeout = TIMEOUT,
				   .retry_cnt = RETRIES,
				   .rnr_retry = RETRIES};
	int code;

	pst_card_way(card, &far->gid, far->lid, &receive.ah_attr);
	code = card->v->modify_qp(qp, &receive,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	if (!code)
		code = card->v->modify_qp(qp, &send,
					  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						  IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						  IBV_QP_MAX_QP_RD_ATOMIC);
	return code ? pst_fail_errno(err, EOPNOTSUPP, pst_why_from_errno(code),
				     "%s cannot connect its queue pair: %s", card->name,
				     strerror(code))
		    : 0;
}
