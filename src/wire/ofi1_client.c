/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport ofi1: one endpoint of libfabric, and a registration of exactly the
 * bytes of each window. Called by client.c. The client's thread moves the bytes, with the state's
 * lock, so no byte moves while another thread holds the lock.
 *
 * If a registration ends, the provider still continues a transfer that it has begun. So a release
 * closes the endpoint, unless the response shows that the server has ended all transfers. The next
 * window opens another endpoint. Servers whose transfers are broken off see an error. A provider
 * that uses a network card needs no close: the card refuses the key of a registration that has
 * ended.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "wire/client.h"
#include "wire/common.h"
#include "wire/ofi.h"

#define WAIT_MS 50 /* maximum wait in ms while windows are open */
#define POLL_MS 1  /* maximum wait in ms if the provider has no descriptor to wait for */

/* The providers that are tried if the options name none. The provider that needs the least memory
 * comes first. */
static const char *const preferred[] = {"tcp", "net", "tcp;ofi_rxm"};

/* The state that all windows of a client share. The two descriptors never change. */
struct ofi1_state {
	pthread_mutex_t lock; /* protects all members */
	struct pst_ofi *ofi;
	bool card; /* whether a network card checks each access */
	/* descriptor of the listener: an epoll that waits for the endpoint's descriptor and for
	 * `wake` */
	int epoll;
	int wake; /* eventfd that wakes the thread when a window is opened */
	unsigned windows;
	/* number of the current endpoint; each new endpoint gets the next number */
	uint64_t endpoint;
	unsigned char name[PST_TOKEN_NAME_MAX];
	size_t name_len;
};

/* The state of one window. */
struct ofi1_window {
	struct pst_ofi_memory *memory; /* registration; NULL if the window has no bytes */
	uint64_t endpoint, base, key;
	unsigned char name[PST_TOKEN_NAME_MAX];
	size_t name_len;
};

/* ---- windows ---- */

static int endpoint_open(struct ofi1_state *s, struct pst_err *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	int ret = pst_ofi_endpoint_open(s->ofi, err);

	if (ret)
		return ret;
	ret = pst_ofi_name(s->ofi, s->name, &s->name_len, err);
	if (!ret && pst_ofi_fd(s->ofi) >= 0 &&
	    epoll_ctl(s->epoll, EPOLL_CTL_ADD, pst_ofi_fd(s->ofi), &event))
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	if (ret)
		pst_ofi_endpoint_close(s->ofi, &(struct pst_err){0});
	s->endpoint++;
	return ret;
}

/* Closes the endpoint, which breaks off all transfers. The caller holds s->lock. */
static int endpoint_close(struct ofi1_state *s, struct pst_err *err)
{
	if (pst_ofi_fd(s->ofi) >= 0)
		epoll_ctl(s->epoll, EPOLL_CTL_DEL, pst_ofi_fd(s->ofi), NULL);
	return pst_ofi_endpoint_close(s->ofi, err);
}

/* Registers the window's memory, and opens an endpoint if there is none. The caller holds
 * s->lock. */
static int window_register(struct ofi1_state *s, const struct pst_wire_grant *grant,
			   struct ofi1_window *w, struct pst_err *err)
{
	uint64_t key;
	int ret = pst_ofi_has_endpoint(s->ofi) ? 0 : endpoint_open(s, err);

	if (ret)
		return ret;
	/* The key is the first 64 bits of the window's random capability. The provider may use
	 * fewer bits of it. */
	memcpy(&key, grant->cap, sizeof(key));
	if (grant->len)
		ret = pst_ofi_register(s->ofi, grant->buffer->ptr + grant->off, grant->len,
				       grant->op, key, &w->memory, &w->base, &w->key, err);
	w->endpoint = s->endpoint;
	memcpy(w->name, s->name, s->name_len);
	w->name_len = s->name_len;
	s->windows += !ret;
	return ret;
}

static int ofi1_bind(struct pst_wire_grant *grant, struct pst_err *err)
{
	struct ofi1_state *s = grant->listener->state;
	struct ofi1_window *w = calloc(1, sizeof(*w));
	const uint64_t one = 1;
	int ret;

	if (!w)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	pthread_mutex_lock(&s->lock);
	ret = window_register(s, grant, w, err);
	pthread_mutex_unlock(&s->lock);
	if (ret) {
		free(w);
		return ret;
	}
	/* Wakes the client's thread. If the write fails because the counter is full, the eventfd is
	 * readable anyway. */
	if (write(s->wake, &one, sizeof(one)) < 0)
		errno = 0;
	grant->bound = w;
	return 0;
}

static int ofi1_unbind(struct pst_wire_grant *grant, struct pst_err *err)
{
	struct ofi1_state *s = grant->listener->state;
	struct ofi1_window *w = grant->bound;
	int ret = 0;

	pthread_mutex_lock(&s->lock);
	if (w->memory)
		ret = pst_ofi_unregister(w->memory, err);
	if ((ret || (!s->card && !atomic_load(&grant->settled))) && w->endpoint == s->endpoint &&
	    pst_ofi_has_endpoint(s->ofi)) {
		ret = endpoint_close(s, err);
		atomic_fetch_add(&grant->buffer->client->counts.cut_off, 1);
	}
	s->windows--;
	pthread_mutex_unlock(&s->lock);
	free(w);
	return ret;
}

static void ofi1_fill(const struct pst_wire_grant *grant, struct pst_token *token)
{
	const struct ofi1_window *w = grant->bound;

	token->base = w->base;
	token->ofi.key = w->key;
	token->ofi.name_len = w->name_len;
	memcpy(token->ofi.name, w->name, w->name_len);
}

static bool ofi1_fits(const struct pst_wire_listener *listener,
		      const struct pst_wire_buffer *buffer, uint64_t off)
{
	(void)listener;
	(void)off;
	/* The providers copy by the CPU, which cannot access memory of a GPU. So only host memory
	 * fits. */
	return !buffer->dev;
}

/* ---- the client's thread ---- */

static int ofi1_progress(struct pst_wire_listener *listener)
{
	struct ofi1_state *s = listener->state;
	struct pst_err ignored;
	int wait = -1;

	pthread_mutex_lock(&s->lock);
	if (pst_ofi_has_endpoint(s->ofi)) {
		/* A client starts no transfers itself. So an error here concerns a server's
		 * connection, and that server handles it. */
		pst_ofi_progress(s->ofi, &ignored);
		if (pst_ofi_fd(s->ofi) < 0)
			wait = s->windows ? POLL_MS : -1;
		else if (pst_ofi_may_wait(s->ofi))
			wait = s->windows ? WAIT_MS : -1;
		else
			wait = 0;
	}
	pthread_mutex_unlock(&s->lock);
	return wait;
}

static void ofi1_event(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	struct ofi1_state *s = listener->state;
	uint64_t count;

	(void)client;
	/* Only resets the eventfd. ofi1_progress, which the client's thread calls next, moves the
	 * bytes. */
	if (read(s->wake, &count, sizeof(count)) < 0)
		errno = 0;
}

/* ---- opening ---- */

static void state_close(struct ofi1_state *s)
{
	pst_ofi_close(s->ofi);
	if (s->epoll >= 0)
		close(s->epoll);
	if (s->wake >= 0)
		close(s->wake);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* Checks that libfabric ends a registration at the card when pst_ofi_unregister ends it. With its
 * cache, libfabric keeps the registration, which permits reads and writes by servers. */
static int cache_check(const char *provider, struct pst_err *err)
{
	const char *count = getenv("FI_MR_CACHE_MAX_COUNT");

	if (count && !strcmp(count, "0"))
		return 0;
	return pst_fail(
		err, PENSTOCK_WHY_UNSUPPORTED,
		"the provider %s keeps registrations of memory, so that servers could access "
		"windows that were released: set the environment variable "
		"FI_MR_CACHE_MAX_COUNT to 0",
		provider);
}

/* Opens the provider that `place` names, or else the first preferred one that works. */
static int provider_open(struct pst_ofi_place *place, struct ofi1_state *s, struct pst_err *err)
{
	const unsigned count = sizeof(preferred) / sizeof(preferred[0]);
	const struct pst_ofi_provider *known = NULL;
	int ret = -EOPNOTSUPP;

	if (place->provider && !(known = pst_ofi_known(place->provider)))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"ofi1 does not use the provider %.60s: see docs/object.md",
				place->provider);
	if (known) {
		s->card = known->card;
		ret = s->card ? cache_check(known->name, err) : 0;
		ret = ret ? ret : pst_ofi_open(place, &s->ofi, err);
		return ret ? ret : endpoint_open(s, err);
	}
	for (unsigned i = 0; i < count && ret; i++) {
		place->provider = preferred[i];
		ret = pst_ofi_open(place, &s->ofi, err);
		if (!ret)
			ret = endpoint_open(s, err);
		if (ret) {
			pst_ofi_close(s->ofi);
			s->ofi = NULL;
		}
	}
	return ret;
}

static int ofi1_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		       struct pst_err *err)
{
	struct pst_ofi_place place = {.address = client->opts.address ? client->opts.address
								      : "127.0.0.1",
				      .provider = client->opts.ofi_provider};
	unsigned char binary[16];
	struct epoll_event event = {.events = EPOLLIN};
	struct ofi1_state *s;
	int ret;

	if (!place.provider)
		place.provider = getenv("PENSTOCK_OFI_PROVIDER");
	place.v6 = inet_pton(AF_INET6, place.address, binary) == 1;
	if (!place.v6 && inet_pton(AF_INET, place.address, binary) != 1)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%.60s is not a numeric address",
				place.address);
	s = calloc(1, sizeof(*s));
	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for ofi1");
	pthread_mutex_init(&s->lock, NULL);
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->epoll < 0 || s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event))
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	else
		ret = provider_open(&place, s, err);
	if (ret) {
		state_close(s);
		return ret;
	}
	listener->fd = s->epoll;
	listener->state = s;
	listener->token.kind = PST_TOKEN_OFI1;
	snprintf(listener->token.ofi.provider, sizeof(listener->token.ofi.provider), "%s",
		 place.provider);
	return 0;
}

static void ofi1_unlisten(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	(void)client;
	state_close(listener->state);
	listener->state = NULL;
	listener->fd = -1;
}

const struct pst_wire_client_ops pst_ofi1_client = {
	.name = "ofi1",
	.named = true,
	.checked = true,
	.listen = ofi1_listen,
	.event = ofi1_event,
	.progress = ofi1_progress,
	.unlisten = ofi1_unlisten,
	.bind = ofi1_bind,
	.unbind = ofi1_unbind,
	.fits = ofi1_fits,
	.fill = ofi1_fill,
};
