/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of librdmacm (the RDMA connection manager) for the fake network card of
 * fake_card.h. */
#include "fake_inside.h"

#include <arpa/inet.h>
#include <fcntl.h>

static struct id *ids;
static unsigned next_port = 40000;

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

struct rdma_event_channel *fake_create_event_channel(void)
{
	LOCKED(struct rdma_event_channel *, channel_new());
}

void fake_destroy_event_channel(struct rdma_event_channel *base)
{
	struct channel *c = (struct channel *)base;

	pthread_mutex_lock(&fake_lock);
	assert(!c->events);
	close(c->base.fd);
	close(c->write_fd);
	object_free(c);
	pthread_mutex_unlock(&fake_lock);
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
	/* The receiver gets PRIVATE_MAX bytes: the private data, padded with zeros. */
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

int fake_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
	LOCKED(int, event_pop((struct channel *)base, out));
}

int fake_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

const char *fake_event_str(enum rdma_cm_event_type type)
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

int fake_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user,
		   enum rdma_port_space ps)
{
	struct id *id;

	assert(ps == RDMA_PS_TCP && !user);
	pthread_mutex_lock(&fake_lock);
	id = id_new(channel);
	pthread_mutex_unlock(&fake_lock);
	*out = id ? &id->base : NULL;
	return id ? 0 : -1;
}

/* Ends the connection of `id`, an rdma_cm_id of the fake card. The caller holds fake_lock. */
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

int fake_disconnect(struct rdma_cm_id *base)
{
	pthread_mutex_lock(&fake_lock);
	part((struct id *)base);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int fake_destroy_id(struct rdma_cm_id *base)
{
	struct id *id = (struct id *)base, **at = &ids;
	struct channel *c = (struct channel *)base->channel;

	pthread_mutex_lock(&fake_lock);
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
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static unsigned port_of(const struct sockaddr *address)
{
	assert(address->sa_family == AF_INET);
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

int fake_bind_addr(struct rdma_cm_id *base, struct sockaddr *address)
{
	struct id *id = (struct id *)base;
	int ret = -1;

	pthread_mutex_lock(&fake_lock);
	if (fake_card.missing) {
		errno = ENODEV;
	} else if (!fails(EADDRINUSE)) {
		id->port = port_of(address) ? port_of(address) : next_port++;
		base->verbs = &fake_context;
		ret = 0;
	}
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

int fake_listen(struct rdma_cm_id *base, int backlog)
{
	int ret;

	pthread_mutex_lock(&fake_lock);
	ret = fails(EBUSY) || backlog < 1 ? -1 : 0;
	((struct id *)base)->listening = !ret;
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

__be16 fake_get_src_port(struct rdma_cm_id *base)
{
	return htons((uint16_t)((struct id *)base)->port);
}

static int resolve(struct id *id, enum rdma_cm_event_type type)
{
	if (fake_card.missing)
		errno = ENODEV;
	if (fake_card.missing || fails(EHOSTUNREACH))
		return -1;
	id->base.verbs = &fake_context;
	event_push(id, type, NULL, 0);
	return 0;
}

int fake_resolve_addr(struct rdma_cm_id *base, struct sockaddr *src, struct sockaddr *dst,
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

int fake_resolve_route(struct rdma_cm_id *base, int timeout_ms)
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
	child->base.verbs = &fake_context;
	child->peer = id;
	id->peer = child;
	event_push(child, RDMA_CM_EVENT_CONNECT_REQUEST, param->private_data,
		   param->private_data_len);
	return 0;
}

int fake_connect(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	LOCKED(int, request((struct id *)base, param));
}

static int established(struct id *id, const struct rdma_conn_param *param)
{
	if (fails(EINVAL))
		return -1;
	/* If the peer has closed its id, the call succeeds without an effect. */
	if (!id->peer)
		return 0;
	id->connected = id->peer->connected = true;
	event_push(id, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	event_push(id->peer, RDMA_CM_EVENT_ESTABLISHED, param->private_data,
		   param->private_data_len);
	return 0;
}

int fake_accept(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	LOCKED(int, established((struct id *)base, param));
}

int fake_reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
	struct id *id = (struct id *)base;

	pthread_mutex_lock(&fake_lock);
	if (id->peer) {
		event_push(id->peer, RDMA_CM_EVENT_REJECTED, data, len);
		id->peer->peer = NULL;
		id->peer = NULL;
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

/* ---- control by tests ---- */

void fake_card_remove(void)
{
	pthread_mutex_lock(&fake_lock);
	for (struct id *id = ids; id; id = id->next)
		if (id->listening)
			event_push(id, RDMA_CM_EVENT_DEVICE_REMOVAL, NULL, 0);
	pthread_mutex_unlock(&fake_lock);
}
