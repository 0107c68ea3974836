/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making routes: start the pump, let every path probe the pair, run the canary
 * where success alone proves nothing, and lay down the plans. Slow, once a pair;
 * what it finds does not change until the storage is closed, but for what could not be
 * tried for want of bytes: that is tried when some have come, and the route made anew.
 * Lock order: route_lock, then the device table's (in pst_device_start_pump).
 */
#include "core/route/route.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"

static pthread_mutex_t route_lock = PTHREAD_MUTEX_INITIALIZER;

/* A trial that found nothing has the file system write out what it holds of the file
 * (FIEMAP), and beside somebody who writes it changes with each request. So many are free:
 * who finds a file empty, and reads it as soon as it is not, gets the path at once. After the
 * next one nothing is tried anew for so long, then for twice as long each time. */
#define VAIN_FREE 8
#define REST_NS 1000000u
#define REST_MAX_NS 1000000000u

static void probe_path(struct pst_route *route, unsigned i)
{
	struct pst_path_state *state = &route->paths[i];
	const struct pst_path_ops *ops = pst_paths[i];
	bool can = route->op == PENSTOCK_READ ? ops->traits.reads : ops->traits.writes;
	int ret;

	if (!can) {
		pst_fail(&state->err,
			 route->op == PENSTOCK_READ ? PENSTOCK_WHY_NOT_READ
						    : PENSTOCK_WHY_NOT_WRITE,
			 "%s",
			 penstock_why_text(route->op == PENSTOCK_READ ? PENSTOCK_WHY_NOT_READ
								      : PENSTOCK_WHY_NOT_WRITE));
		return;
	}
	ret = ops->probe(route, &state->facts, &state->err, state->fix);
	if (ret)
		return;
	state->usable = true;
	if (!state->facts.chunk_max)
		state->facts.chunk_max = UINT64_MAX / 4;
	if (!state->facts.canary)
		return;
	if (route->op == PENSTOCK_READ)
		pst_canary_read(route, i);
	else
		state->proven = -1; /* its first chunk is read back */
}

static void make_plans(struct pst_route *route)
{
	for (unsigned c = 0; c < PST_CLASSES; c++)
		for (unsigned e = 0; e < PST_EFFORTS; e++) {
			struct pst_plan_in in = {
				.op = route->op,
				.require = (enum penstock_class)c,
				.effort = (enum penstock_effort)e,
				.count = pst_path_count,
				.paths = pst_paths,
				.states = route->paths,
			};

			pst_plan_make(&in, &route->plans[c][e]);
		}
}

static uint64_t stamp_of(struct penstock_storage *st)
{
	return st->ops->stamp ? st->ops->stamp(st) : 0;
}

static bool is_unproven(const struct pst_route *route, unsigned i)
{
	return !route->paths[i].usable && route->paths[i].err.why == PENSTOCK_WHY_UNPROVEN;
}

/* Every path that is marked, or all. How many of them have had nothing to be tried on. */
static unsigned probe_paths(struct pst_route *route, const bool *marked)
{
	unsigned unproven = 0;

	atomic_store_explicit(&route->stamp, stamp_of(route->st), memory_order_relaxed);
	for (unsigned i = 0; i < pst_path_count; i++) {
		if (marked && !marked[i])
			continue;
		memset(&route->paths[i], 0, sizeof(route->paths[i]));
		probe_path(route, i);
		unproven += is_unproven(route, i);
	}
	route->unproven = unproven > 0;
	return unproven;
}

/* For who cannot ask penstock_explain: a program that somebody else wrote. */
static void tell(const struct pst_route *route)
{
	for (unsigned i = 0; i < pst_path_count; i++) {
		const struct pst_path_state *state = &route->paths[i];

		if (pst_paths[i]->wrap || pst_paths[i]->traits.at_once)
			continue; /* taken by name only */
		pst_log(PST_LOG_DEBUG, pst_paths[i]->name, "%s %s %s %s: %s%s%s",
			route->op == PENSTOCK_READ ? "from" : "to",
			route->st->facts.text[0] ? route->st->facts.text : route->st->ops->name,
			route->op == PENSTOCK_READ ? "to" : "from", route->dev->name,
			state->usable ? "open" : "shut", state->err.code ? ", " : "",
			state->err.code ? state->err.text : "");
	}
}

/* Nobody begins anything by it any more. What paths keep for the older ones is its too. */
static void drop(struct pst_route *route)
{
	struct pst_route *older = route->older;

	while (older) {
		struct pst_route *next = older->older;

		pst_route_put(older);
		older = next;
	}
	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->route_close)
			pst_paths[i]->route_close(route, i);
	pst_route_put(route);
}

static int make(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		struct pst_route **out, struct pst_err *err)
{
	struct pst_route *route, *old;
	int ret = pst_device_start_pump(dev, err);

	if (ret)
		return ret;
	route = calloc(1, sizeof(*route));
	if (!route)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a route");
	route->st = st;
	route->dev = dev;
	route->op = op;
	route->refs = 1;
	probe_paths(route, NULL);
	make_plans(route);
	tell(route);
	old = atomic_exchange_explicit(&st->routes[op][dev->index], route, memory_order_acq_rel);
	atomic_store_explicit(&st->route_serials[op][dev->index], dev->serial,
			      memory_order_release);
	if (old) /* of a device that has closed: its place in the table is another's now */
		drop(old);
	*out = route;
	return 0;
}

/* After a trial that found nothing. */
static void rest(struct pst_route *route)
{
	if (++route->vain <= VAIN_FREE)
		return;
	route->rest_ns = route->rest_ns ? 2 * route->rest_ns : REST_NS;
	if (route->rest_ns > REST_MAX_NS)
		route->rest_ns = REST_MAX_NS;
	atomic_store_explicit(&route->rests_ns, pst_now_ns() + route->rest_ns,
			      memory_order_relaxed);
}

static bool rests(const struct pst_route *route)
{
	uint64_t until = atomic_load_explicit(&route->rests_ns, memory_order_relaxed);

	return until && pst_now_ns() < until;
}

/* Did the storage change since a path had nothing to be tried on? Not asked while a stream
 * waits for a request of ours: a trial takes memory and copies. */
static bool is_behind(const struct pst_route *route)
{
	return route->unproven && route->st->ops->stamp && !rests(route) &&
	       !atomic_load_explicit(&route->dev->streams_waiting, memory_order_relaxed) &&
	       stamp_of(route->st) != atomic_load_explicit(&route->stamp, memory_order_relaxed);
}

/* Tries such paths again. The route that requests on their way have stays as it is, and as
 * long as its storage is open. */
static void prove(struct pst_route *old, struct pst_route **out)
{
	struct pst_route *route = calloc(1, sizeof(*route));
	bool marked[PST_PATHS_MAX];
	unsigned before = 0;

	if (!route)
		return; /* it goes on as it went, and the next request tries */
	route->st = old->st;
	route->dev = old->dev;
	route->op = old->op;
	route->refs = 1;
	memcpy(route->paths, old->paths, sizeof(route->paths));
	memcpy(route->path_priv, old->path_priv, sizeof(route->path_priv));
	for (unsigned i = 0; i < pst_path_count; i++) {
		/* Drives are read back from once more: of what the old one finds out from
		 * here on this one hears nothing. */
		atomic_store(&route->write_proof[i], atomic_load(&old->write_proof[i]));
		marked[i] = is_unproven(old, i);
		before += marked[i];
		if (marked[i] && old->path_priv[i]) { /* nobody goes by it: of its last trial */
			pst_paths[i]->route_close(old, i);
			route->path_priv[i] = NULL;
		}
	}
	if (probe_paths(route, marked) == before) {
		for (unsigned i = 0; i < pst_path_count; i++)
			if (marked[i])
				old->path_priv[i] = route->path_priv[i];
		atomic_store_explicit(&old->stamp, atomic_load(&route->stamp),
				      memory_order_relaxed);
		rest(old);
		free(route);
		return;
	}
	make_plans(route);
	tell(route);
	route->older = old;
	atomic_store_explicit(&old->st->routes[old->op][old->dev->index], route,
			      memory_order_release);
	*out = route;
}

/* The route of this very device, NULL: none yet. The number is looked at first: one of a
 * device that has closed is another thread's to free. */
static struct pst_route *find(struct penstock_storage *st, const struct penstock_device *dev,
			      enum penstock_op op)
{
	if (atomic_load_explicit(&st->route_serials[op][dev->index], memory_order_acquire) !=
	    dev->serial)
		return NULL;
	return atomic_load_explicit(&st->routes[op][dev->index], memory_order_acquire);
}

int pst_route_get(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		  struct pst_route **out, struct pst_err *err)
{
	int ret = 0;

	*out = find(st, dev, op);
	if (*out && !is_behind(*out))
		return 0;
	if (op == PENSTOCK_WRITE && st->facts.why_no_write.code) {
		*err = st->facts.why_no_write;
		return err->code;
	}
	if (op == PENSTOCK_WRITE && !st->facts.writable)
		return pst_fail_errno(err, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the storage was opened for reading only");
	pthread_mutex_lock(&route_lock);
	*out = find(st, dev, op);
	if (!*out)
		ret = make(st, dev, op, out, err);
	else if (is_behind(*out))
		prove(*out, out);
	pthread_mutex_unlock(&route_lock);
	return ret;
}

void pst_routes_forked(void)
{
	pthread_mutex_init(&route_lock, NULL);
}

const char *pst_route_why(const struct pst_route *route, enum penstock_class require)
{
	const char *first = "";

	for (unsigned i = 0; i < pst_path_count && !pst_paths[i]->traits.by_name_only; i++) {
		const struct pst_path_state *state = &route->paths[i];

		if (pst_paths[i]->traits.class_ < require || !state->err.code)
			continue;
		if (state->usable)
			return state->err.text;
		if (!first[0] && state->err.why != PENSTOCK_WHY_DEVICE_ONLY &&
		    state->err.why != PENSTOCK_WHY_HOST_ONLY)
			first = state->err.text;
	}
	return first;
}

void pst_route_put(struct pst_route *route)
{
	if (atomic_fetch_sub_explicit(&route->refs, 1, memory_order_acq_rel) == 1)
		free(route);
}

void pst_routes_drop(struct penstock_storage *st)
{
	for (unsigned op = 0; op < 2; op++)
		for (unsigned d = 0; d < PST_DEVICES_MAX; d++) {
			struct pst_route *route = atomic_load(&st->routes[op][d]);

			if (!route)
				continue;
			atomic_store(&st->routes[op][d], NULL);
			drop(route);
		}
}
