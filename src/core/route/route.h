/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A route: one storage, one device and one direction, with the state of each path and a plan for
 * every class and effort. penstock_prepare or the first submit makes it. It does not change and
 * stays in use until its storage closes, with one exception. If a path could not be tested
 * because the storage had no written bytes, a later request replaces the route. Reports contain
 * its texts, so it is freed only after the last such report.
 */
#ifndef PST_CORE_ROUTE_H
#define PST_CORE_ROUTE_H

#include <stdlib.h>

#include "core/ops.h"
#include "core/request/plan.h"

/* Finds the route of this device. NULL: none exists. It compares the serial number first, because
 * another thread may free the route of a closed device that had the same index. */
static inline struct pst_route *pst_route_find(struct penstock_storage *from,
					       const struct penstock_device *dev,
					       enum penstock_op op)
{
	if (atomic_load_explicit(&from->route_serials[op][dev->index], memory_order_acquire) !=
	    dev->serial)
		return NULL;
	return atomic_load_explicit(&from->routes[op][dev->index], memory_order_acquire);
}

/* Makes the route, or tests its unproven paths again if the storage has changed. May block. Any
 * thread; only one makes a route at a time. */
int pst_route_make(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		   struct pst_route **out, struct pst_err *err);

/* Finds the route, or makes it, which is slow. Any thread. */
static inline int pst_route_get(struct penstock_storage *from, struct penstock_device *dev,
				enum penstock_op op, struct pst_route **out, struct pst_err *err)
{
	*out = pst_route_find(from, dev, op);
	return *out && !(*out)->unproven ? 0 : pst_route_make(from, dev, op, out, err);
}

/* Returns why no path of the route meets a class: why a usable path misses it, else why the first
 * path that fits the device is shut. The text lives as long as the route. */
const char *pst_route_why(const struct pst_route *route, enum penstock_class require);

/* Drops every route of a storage that closes. */
void pst_routes_drop(struct penstock_storage *st);
/* Drops one reference. The last one frees the route. */
static inline void pst_route_put(struct pst_route *route)
{
	if (atomic_fetch_sub_explicit(&route->refs, 1, memory_order_acq_rel) == 1)
		free(route);
}

#endif
