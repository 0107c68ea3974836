/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes routes. A route is a storage, a device and a direction, with what the library knows about
 * each path between them. Making one starts the device's worker threads, lets every path probe the
 * storage and the device, runs test reads (canaries) and makes the plans. That is slow, and happens
 * once for each route. admit.c and the public calls get routes here. A path that could not be
 * tested because the storage had no written bytes is tested again when the storage has some. This
 * file must never move the caller's bytes.
 *
 * Lock order: route_lock, then the device table's lock (in pst_device_start).
 */
#include "core/route/route.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/route/canary.h"

static pthread_mutex_t route_lock = PTHREAD_MUTEX_INITIALIZER;

/* Pauses, in ns, between repeated tests of a path. A test searches the file for written bytes with
 * FIEMAP, which makes the file system write out the file's dirty pages. If each request ran such a
 * test while another program writes the file, each request would cause a write-out. So a pause
 * follows each repeated test that found no written bytes. Only the first RETESTS_FREE repeated
 * tests are without a pause, so that an empty file gets the path soon after its first write. The
 * first pause is PAUSE_NS. Each later pause is twice as long as the one before, up to
 * PAUSE_MAX_NS. */
#define RETESTS_FREE 8
#define PAUSE_NS 1000000u
#define PAUSE_MAX_NS 1000000000u

/* Initialises the lock again in a forked child, where pst_fork_hook runs this function. Another
 * thread of the parent may have held the lock at the fork. */
static void route_lock_reset(void)
{
	pthread_mutex_init(&route_lock, NULL);
}

__attribute__((constructor)) static void route_hook_fork(void)
{
	pst_fork_hook(route_lock_reset);
}

/* Probes path i: finds out whether it can be used on this route. If the probe sets facts.canary,
 * also tests the path by a read whose bytes are compared. */
static void route_probe_path(struct pst_route *route, unsigned i)
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
		/* Paths of writes are tested later: verify_write reads back the first chunk that
		 * the path has written to each drive. */
		state->proven = -1;
}

static void route_make_plans(struct pst_route *route)
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

static uint64_t storage_stamp(struct penstock_storage *st)
{
	return st->ops->stamp ? st->ops->stamp(st) : 0;
}

/* Returns whether path i could not be tested because the storage had no written bytes. */
static bool path_is_unproven(const struct pst_route *route, unsigned i)
{
	return !route->paths[i].usable && route->paths[i].err.why == PENSTOCK_WHY_UNPROVEN;
}

/* Probes the paths i for which marked[i] is true, or all paths if `marked` is NULL. Returns how
 * many of the probed paths could not be tested because the storage had no written bytes. */
static unsigned route_probe_paths(struct pst_route *route, const bool *marked)
{
	unsigned unproven = 0;

	atomic_store_explicit(&route->stamp, storage_stamp(route->st), memory_order_relaxed);
	for (unsigned i = 0; i < pst_path_count; i++) {
		if (marked && !marked[i])
			continue;
		memset(&route->paths[i], 0, sizeof(route->paths[i]));
		route_probe_path(route, i);
		unproven += path_is_unproven(route, i);
	}
	route->unproven = unproven > 0;
	return unproven;
}

/* Logs the result of the probes, for users of programs that do not call penstock_explain. */
static void route_log(const struct pst_route *route)
{
	for (unsigned i = 0; i < pst_path_count; i++) {
		const struct pst_path_state *state = &route->paths[i];

		if (pst_paths[i]->wrap || pst_paths[i]->traits.synchronous)
			/* requests use this path only if they name it, so do not log its result */
			continue;
		pst_log(PST_LOG_DEBUG, pst_paths[i]->name, "%s %s %s %s: %s%s%s",
			route->op == PENSTOCK_READ ? "from" : "to",
			route->st->facts.text[0] ? route->st->facts.text : route->st->ops->name,
			route->op == PENSTOCK_READ ? "to" : "from", route->dev->name,
			state->usable ? "open" : "shut", state->err.code ? ", " : "",
			state->err.code ? state->err.text : "");
	}
}

/* Drops the storage's references to a route and to the older routes that this route has replaced.
 * No new request can use these routes. */
static void route_drop(struct pst_route *route)
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

static int route_create(struct penstock_storage *st, struct penstock_device *dev,
			enum penstock_op op, struct pst_route **out, struct pst_err *err)
{
	struct pst_route *route, *old;
	int ret = pst_device_start(dev, err);

	if (ret)
		return ret;
	route = calloc(1, sizeof(*route));
	if (!route)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a route");
	route->st = st;
	route->dev = dev;
	route->op = op;
	route->refs = 1;
	route->verify_write = pst_canary_write;
	route_probe_paths(route, NULL);
	route_make_plans(route);
	route_log(route);
	old = atomic_exchange_explicit(&st->routes[op][dev->index], route, memory_order_acq_rel);
	atomic_store_explicit(&st->route_serials[op][dev->index], dev->serial,
			      memory_order_release);
	if (old) /* it belonged to a closed device, whose index the new device has */
		route_drop(old);
	*out = route;
	return 0;
}

/* Called after a repeated test that found no written bytes in the storage. Sets the earliest time
 * of the next such test. */
static void route_pause(struct pst_route *route)
{
	if (++route->retests_failed <= RETESTS_FREE)
		return;
	route->retest_pause_ns = route->retest_pause_ns ? 2 * route->retest_pause_ns : PAUSE_NS;
	if (route->retest_pause_ns > PAUSE_MAX_NS)
		route->retest_pause_ns = PAUSE_MAX_NS;
	atomic_store_explicit(&route->retest_after_ns, pst_now_ns() + route->retest_pause_ns,
			      memory_order_relaxed);
}

/* Returns whether the pause after the last repeated test has not ended yet. */
static bool route_pauses(const struct pst_route *route)
{
	uint64_t until = atomic_load_explicit(&route->retest_after_ns, memory_order_relaxed);

	return until && pst_now_ns() < until;
}

/* Returns whether the paths that could not be tested should be tested again: the storage has
 * changed since the last test, and the pause after it has ended. Returns false while a stream waits
 * for a request, because a test allocates device memory and copies, which could wait for that
 * stream. */
static bool route_is_stale(const struct pst_route *route)
{
	return route->unproven && route->st->ops->stamp && !route_pauses(route) &&
	       !atomic_load_explicit(&route->dev->streams_waiting, memory_order_relaxed) &&
	       storage_stamp(route->st) !=
		       atomic_load_explicit(&route->stamp, memory_order_relaxed);
}

/* Tests again those paths of a route that could not be tested before. If some could be tested this
 * time, makes a new route that replaces the old one. Requests in flight keep the old route, which
 * is not freed before the storage closes. */
static void route_retest(struct pst_route *old, struct pst_route **out)
{
	struct pst_route *route = calloc(1, sizeof(*route));
	bool marked[PST_PATHS_MAX];
	unsigned before = 0;

	if (!route)
		/* Without memory, keep the old route. The next request tests the paths again. */
		return;
	route->st = old->st;
	route->dev = old->dev;
	route->op = old->op;
	route->refs = 1;
	route->verify_write = pst_canary_write;
	memcpy(route->paths, old->paths, sizeof(route->paths));
	memcpy(route->path_priv, old->path_priv, sizeof(route->path_priv));
	for (unsigned i = 0; i < pst_path_count; i++) {
		/* Do not copy write_drives, which starts at 0, so that writes to each drive are
		 * read back once more. A copy would miss drives that requests in flight add to the
		 * old route's write_drives later. */
		atomic_store(&route->write_proof[i], atomic_load(&old->write_proof[i]));
		marked[i] = path_is_unproven(old, i);
		before += marked[i];
		/* Free the state that the path's last probe made. No request uses it, because the
		 * path was not usable. */
		if (marked[i] && old->path_priv[i]) {
			pst_paths[i]->route_close(old, i);
			route->path_priv[i] = NULL;
		}
	}
	if (route_probe_paths(route, marked) == before) {
		for (unsigned i = 0; i < pst_path_count; i++)
			if (marked[i])
				old->path_priv[i] = route->path_priv[i];
		atomic_store_explicit(&old->stamp, atomic_load(&route->stamp),
				      memory_order_relaxed);
		route_pause(old);
		free(route);
		return;
	}
	route_make_plans(route);
	route_log(route);
	route->older = old;
	atomic_store_explicit(&old->st->routes[old->op][old->dev->index], route,
			      memory_order_release);
	*out = route;
}

int pst_route_make(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		   struct pst_route **out, struct pst_err *err)
{
	int ret = 0;

	*out = pst_route_find(st, dev, op);
	if (*out && !route_is_stale(*out))
		return 0;
	if (op == PENSTOCK_WRITE && st->facts.why_no_write.code) {
		*err = st->facts.why_no_write;
		return err->code;
	}
	if (op == PENSTOCK_WRITE && !st->facts.writable)
		return pst_fail_errno(err, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the storage was opened for reading only");
	pthread_mutex_lock(&route_lock);
	*out = pst_route_find(st, dev, op);
	if (!*out)
		ret = route_create(st, dev, op, out, err);
	else if (route_is_stale(*out))
		route_retest(*out, out);
	pthread_mutex_unlock(&route_lock);
	return ret;
}

const char *pst_route_why(const struct pst_route *route, enum penstock_class require)
{
	const bool is_file = route->st->facts.fd >= 0;
	const char *first = "";

	if (require == PENSTOCK_DIRECT && !is_file)
		return route->st->facts.why_direct.text;
	for (unsigned i = 0; i < pst_path_count && !pst_paths[i]->traits.by_name_only; i++) {
		const struct pst_path_state *state = &route->paths[i];

		if (pst_paths[i]->traits.class_ < require || !state->err.code)
			continue;
		/* The reasons of paths for files would not help. */
		if (pst_paths[i]->traits.needs_file && !is_file)
			continue;
		if (state->usable)
			return state->err.text;
		if (!first[0] && state->err.why != PENSTOCK_WHY_DEVICE_ONLY &&
		    state->err.why != PENSTOCK_WHY_HOST_ONLY)
			first = state->err.text;
	}
	return first;
}

void pst_routes_drop(struct penstock_storage *st)
{
	for (unsigned op = 0; op < 2; op++)
		for (unsigned d = 0; d < PST_DEVICES_MAX; d++) {
			struct pst_route *route = atomic_load(&st->routes[op][d]);

			if (!route)
				continue;
			atomic_store(&st->routes[op][d], NULL);
			route_drop(route);
		}
}
