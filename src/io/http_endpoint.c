/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of endpoints, and the look-up of their addresses: see http_endpoint.h. A look-up may
 * take seconds, so the lock is not held meanwhile, and a reactor starts a separate thread for it.
 */
#include "io/http_endpoint.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/fork.h"

/* If the addresses of an endpoint are older than this, the next pst_endpoint_get looks them up
 * again. The names of object stores change their addresses within minutes, to spread the load. */
#define FRESH_NS 60000000000u
/* For this time after a failed connection to an address, new connections try that address last. */
#define FAILED_NS 60000000000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct pst_http_endpoint *) endpoints[PST_ENDPOINTS_MAX];

/* Runs in the child of a fork, which cannot use the parent's endpoints: a thread of the parent may
 * have held the locks. */
static void endpoints_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned i = 0; i < PST_ENDPOINTS_MAX; i++)
		atomic_store(&endpoints[i], NULL);
}

__attribute__((constructor)) static void endpoints_watch_fork(void)
{
	pst_fork_hook(endpoints_in_child);
}

/* Returns the endpoint with this number, or NULL if there are fewer. */
static struct pst_http_endpoint *endpoint_at(unsigned index)
{
	return index < PST_ENDPOINTS_MAX ? atomic_load(&endpoints[index]) : NULL;
}

static int addresses_look_up(struct pst_http_endpoint *endpoint, struct pst_err *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *list;
	char port[8];
	unsigned count = 0;
	int ret;

	snprintf(port, sizeof(port), "%u", endpoint->port);
	ret = getaddrinfo(endpoint->host, port, &hints, &list);
	if (ret) { /* AI_ADDRCONFIG fails without an interface besides loopback */
		hints.ai_flags = 0;
		ret = getaddrinfo(endpoint->host, port, &hints, &list);
	}
	if (ret)
		return pst_fail_errno(err, EHOSTUNREACH, PENSTOCK_WHY_NOT_FOUND,
				      "%s: %s: check the endpoint's name, or set another with "
				      "AWS_ENDPOINT_URL",
				      pst_path_tail(endpoint->host), gai_strerror(ret));
	pthread_mutex_lock(&lock);
	for (struct addrinfo *at = list; at && count < PST_ADDRESSES_MAX; at = at->ai_next) {
		if (at->ai_addrlen > sizeof(endpoint->addresses[0]))
			continue;
		memcpy(&endpoint->addresses[count], at->ai_addr, at->ai_addrlen);
		endpoint->address_lens[count++] = at->ai_addrlen;
	}
	endpoint->address_count = count;
	memset(endpoint->failed_ns, 0, sizeof(endpoint->failed_ns));
	endpoint->looked_up_ns = pst_now_ns();
	pthread_mutex_unlock(&lock);
	freeaddrinfo(list);
	return 0;
}

static void *refresh_run(void *arg)
{
	struct pst_http_endpoint *endpoint = arg;
	/* if the look-up fails, the old addresses stay, and the next failed connection starts
	 * another look-up */
	struct pst_err ignored;

	addresses_look_up(endpoint, &ignored);
	pthread_mutex_lock(&lock);
	endpoint->looking_up = false;
	pthread_mutex_unlock(&lock);
	return NULL;
}

void pst_endpoint_refresh(struct pst_http_endpoint *endpoint)
{
	pthread_t thread;
	bool start;

	pthread_mutex_lock(&lock);
	start = !endpoint->looking_up;
	endpoint->looking_up = true;
	pthread_mutex_unlock(&lock);
	if (!start)
		return;
	if (!pst_thread_start(&thread, refresh_run, endpoint)) {
		pthread_detach(thread);
		return;
	}
	pthread_mutex_lock(&lock);
	endpoint->looking_up = false;
	pthread_mutex_unlock(&lock);
}

unsigned pst_endpoint_address_first(struct pst_http_endpoint *endpoint)
{
	uint64_t now_ns = pst_now_ns();
	unsigned count, first, at;

	pthread_mutex_lock(&lock);
	count = endpoint->address_count ? endpoint->address_count : 1;
	first = endpoint->address_next % count;
	for (at = first; at < first + count; at++) {
		uint64_t failed_ns = endpoint->failed_ns[at % count];

		if (!failed_ns || now_ns > failed_ns + FAILED_NS)
			break;
	}
	at %= count; /* `at` is `first` again if all addresses have failed */
	endpoint->address_next = at + 1;
	pthread_mutex_unlock(&lock);
	return at;
}

unsigned pst_endpoint_address(struct pst_http_endpoint *endpoint, unsigned index,
			      struct sockaddr_storage *out, socklen_t *len)
{
	unsigned count;

	pthread_mutex_lock(&lock);
	count = endpoint->address_count;
	index = count ? index % count : 0;
	*out = endpoint->addresses[index];
	*len = endpoint->address_lens[index];
	pthread_mutex_unlock(&lock);
	return count;
}

unsigned pst_endpoint_address_failed(struct pst_http_endpoint *endpoint, unsigned index)
{
	unsigned count;

	pthread_mutex_lock(&lock);
	count = endpoint->address_count;
	if (count)
		endpoint->failed_ns[index % count] = pst_now_ns();
	pthread_mutex_unlock(&lock);
	return count;
}

static bool endpoint_is(const struct pst_http_endpoint *endpoint,
			const struct pst_http_endpoint_opts *opts)
{
	return endpoint->port == opts->port && endpoint->tls == opts->tls &&
	       endpoint->insecure == opts->insecure && !strcmp(endpoint->host, opts->host) &&
	       !strcmp(endpoint->ca_bundle, opts->ca_bundle ? opts->ca_bundle : "");
}

/* Returns the TLS context of an endpoint with the same certificates and options as `like`, or NULL
 * if there is none. */
static struct pst_tls_context *context_find(const struct pst_http_endpoint *like)
{
	const struct pst_http_endpoint *at;

	for (unsigned i = 0; (at = endpoint_at(i)); i++)
		if (at->tls && at->insecure == like->insecure &&
		    !strcmp(at->ca_bundle, like->ca_bundle))
			return at->tls_context;
	return NULL;
}

/* Frees an endpoint that is not in the table. */
static void endpoint_free(struct pst_http_endpoint *endpoint)
{
	if (!endpoint->shares_context)
		pst_tls_context_close(endpoint->tls_context);
	free(endpoint);
}

static int endpoint_new(const struct pst_http_endpoint_opts *opts, struct pst_http_endpoint **out,
			struct pst_err *err)
{
	struct pst_http_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	int ret = 0;

	if (!endpoint)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an endpoint");
	if ((size_t)snprintf(endpoint->host, sizeof(endpoint->host), "%s", opts->host) >=
		    sizeof(endpoint->host) ||
	    (size_t)snprintf(endpoint->ca_bundle, sizeof(endpoint->ca_bundle), "%s",
			     opts->ca_bundle ? opts->ca_bundle : "") >= sizeof(endpoint->ca_bundle))
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			       "the name of the endpoint or of its CA bundle is too long");
	endpoint->port = opts->port;
	endpoint->tls = opts->tls;
	endpoint->insecure = opts->insecure;
	endpoint->waiting_end = &endpoint->waiting;
	pst_http_limit_init(&endpoint->limit);
	if (opts->tls)
		endpoint->tls_context = context_find(endpoint);
	endpoint->shares_context = endpoint->tls_context;
	if (!ret && opts->tls && !endpoint->shares_context)
		ret = pst_tls_context_open(endpoint->ca_bundle, opts->insecure,
					   &endpoint->tls_context, err);
	if (!ret)
		ret = addresses_look_up(endpoint, err);
	if (ret) {
		endpoint_free(endpoint);
		return ret;
	}
	*out = endpoint;
	return 0;
}

/* Puts an endpoint into the table and stores it in *out. If another thread has put an equal one
 * there, stores that one, and frees `endpoint`. */
static int endpoint_add(struct pst_http_endpoint *endpoint,
			const struct pst_http_endpoint_opts *opts, struct pst_http_endpoint **out,
			struct pst_err *err)
{
	struct pst_http_endpoint *found = NULL;
	unsigned at = 0;

	pthread_mutex_lock(&lock);
	for (; at < PST_ENDPOINTS_MAX && endpoints[at] && !found; at++)
		if (endpoint_is(endpoints[at], opts))
			found = endpoints[at];
	if (!found && at < PST_ENDPOINTS_MAX) {
		atomic_store(&endpoints[at], endpoint);
		found = endpoint;
	}
	pthread_mutex_unlock(&lock);
	if (found != endpoint)
		endpoint_free(endpoint);
	if (!found)
		return pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_FULL,
				      "a process can use %u servers, and this is one more: address "
				      "the buckets of one server with path-style=1",
				      PST_ENDPOINTS_MAX);
	*out = found;
	return 0;
}

int pst_endpoint_get(const struct pst_http_endpoint_opts *opts, struct pst_http_endpoint **out,
		     struct pst_err *err)
{
	struct pst_http_endpoint *endpoint = NULL, *at;
	bool old = false;
	int ret;

	for (unsigned i = 0; (at = endpoint_at(i)) && !endpoint; i++)
		if (endpoint_is(at, opts))
			endpoint = at;
	if (endpoint) {
		pthread_mutex_lock(&lock);
		old = pst_now_ns() - endpoint->looked_up_ns > FRESH_NS;
		pthread_mutex_unlock(&lock);
		if (old)
			pst_endpoint_refresh(endpoint);
		*out = endpoint;
		return 0;
	}
	ret = endpoint_new(opts, &endpoint, err);
	return ret ? ret : endpoint_add(endpoint, opts, out, err);
}
