/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements listeners.h. A transport that works only on one host (shm1) listens once. Every other
 * transport listens at each of the client's addresses, with one listener per address.
 */
#include "wire/listeners.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/base/log.h"
#include "wire/transports.h"

/* The transport that pst_wire_each currently passes to listener_open. Its error is stored here,
 * because the next transport may still succeed. */
struct opening {
	struct pst_wire_client *client;
	struct pst_err *err;
	/* whether the caller has named the transports; the open then fails if this transport
	 * fails */
	bool alone;
	const struct pst_wire_client_ops *ops;
	unsigned found; /* number of listeners that this transport has opened */
	/* name of a transport that is left out because the caller has not named it; NULL: none */
	const char *unnamed;
};

void pst_wire_listener_close(struct pst_wire_client *c, struct pst_wire_listener *listener)
{
	if (listener->state && listener->ops->unlisten)
		listener->ops->unlisten(c, listener);
	if (listener->fd >= 0)
		close(listener->fd);
}

/* Makes the transport listen at one address, or at its default if `address` is NULL. `several` is
 * true if the client has other addresses, too. */
static int listen_at(struct opening *o, const char *address, bool several)
{
	struct pst_wire_client *c = o->client;
	struct pst_wire_listener *listener = &c->listeners[c->listener_count];
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};
	const char *all = c->opts.address;
	int ret;

	if (c->listener_count == PST_WIRE_LISTENERS_MAX)
		return pst_fail(o->err, PENSTOCK_WHY_BAD_ARGUMENT, "too many addresses");
	*listener = (struct pst_wire_listener){.ops = o->ops, .fd = -1};
	if (several && c->devices && c->devices->nic_find)
		c->devices->nic_find(address, &listener->nic);
	c->opts.address = address;
	ret = o->ops->listen(c, listener, o->err);
	c->opts.address = all;
	if (!ret && epoll_ctl(c->epoll, EPOLL_CTL_ADD, listener->fd, &event))
		ret = pst_fail_errno(o->err, errno, PENSTOCK_WHY_IO_ERROR, "epoll: %m");
	if (ret) {
		pst_wire_listener_close(c, listener);
		return ret;
	}
	c->listener_count++;
	o->found++;
	return 0;
}

/* Makes the transport listen at all addresses of the client. If there are several, it is enough
 * that one works: the others may belong to cards that are down. */
static int listen_everywhere(struct opening *o)
{
	const char *list = o->client->opts.address;
	bool several = list && strchr(list, ',');
	unsigned count = 0;
	int ret = 0;

	if (o->ops->on_host || !several)
		return listen_at(o, list, false);
	for (const char *at = list; *at;) {
		char address[PST_TOKEN_ADDRESS_MAX + 1];
		size_t len = strcspn(at, ",");
		int code;

		if (len >= sizeof(address) || count++ == PST_WIRE_NICS_MAX)
			return pst_fail(o->err, PENSTOCK_WHY_BAD_ARGUMENT,
					"%.60s: want numeric addresses, at most %u", at,
					PST_WIRE_NICS_MAX);
		memcpy(address, at, len);
		address[len] = '\0';
		code = listen_at(o, address, true);
		/* Fails at once if the text is not an address, because that is a mistake of the
		 * caller. */
		if (code == -EINVAL)
			return code;
		if (code)
			pst_log(PST_LOG_INFO, "object", "%s does not use address %s: %s",
				o->ops->name, address, o->err->text);
		ret = code ? code : ret;
		at += len + (at[len] == ',');
	}
	return o->found ? 0 : ret;
}

static int listener_open(void *user, unsigned index)
{
	struct opening *o = user;
	struct pst_wire_client *c = o->client;
	int ret;

	o->ops = pst_wire_transports[index].client;
	o->found = 0;
	for (unsigned i = 0; i < c->listener_count; i++)
		if (c->listeners[i].ops == o->ops)
			return 0;
	if (c->omit & PST_WIRE_OMIT_ON_HOST && o->ops->on_host) {
		pst_fail(o->err, PENSTOCK_WHY_UNSUPPORTED,
			 "%s works only if the server is on this host", o->ops->name);
		return 0;
	}
	if (c->opts.require_encryption && !o->ops->encrypted && !o->ops->on_host) {
		pst_fail(o->err, PENSTOCK_WHY_REQUIRE,
			 "%s does not encrypt bytes that leave the host", o->ops->name);
		return 0;
	}
	if (c->opts.either_way && !o->ops->either_way) {
		pst_fail(o->err, PENSTOCK_WHY_UNSUPPORTED,
			 "%s has no windows that servers may both read and write", o->ops->name);
		return 0;
	}
	if (c->omit & PST_WIRE_OMIT_SLOW && o->ops->slow && !o->alone) {
		o->unnamed = o->ops->name;
		return 0;
	}
	ret = listen_everywhere(o);
	return o->alone ? ret : 0;
}

int pst_wire_listeners_open(struct pst_wire_client *c, struct pst_err *err)
{
	struct opening o = {.client = c, .err = err, .alone = c->opts.transports != NULL};
	int ret = pst_wire_each(c->opts.transports, listener_open, &o, err);
	struct pst_err refused;

	if (ret)
		return ret;
	if (c->listener_count)
		return 0;
	if (!err->code)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "no transport is left");
	/* The error says why the last transport was left out. */
	refused = *err;
	return pst_fail_errno(err, EOPNOTSUPP, refused.why, "no transport is left: %.160s%s%s%s",
			      refused.text, o.unnamed ? "; " : "", o.unnamed ? o.unnamed : "",
			      o.unnamed ? ", slower than HTTP, must be named" : "");
}
