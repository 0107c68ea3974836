/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A route: one storage, one device and one direction, with the state of each path and a plan for
 * every class and effort. penstock_prepare or the first submit makes it. A route does not change
 * and stays in use until its storage closes, with one exception. If a path could not be tested
 * because the storage had no written bytes, a later request may test the path again and replace the
 * route by a new one. Reports point to texts in the route, so the route is freed only when no such
 * report exists any more.
 */
#ifndef PST_CORE_ROUTE_H
#define PST_CORE_ROUTE_H

#include <stdlib.h>

#include "core/ops.h"
#include "core/request/plan.h"

/* Returns the route between storage and device, or NULL if there is none. The route at this device
 * index may belong to a closed device, and another thread may free such a route at any time. So the
 * function compares the device's serial number before it reads the route. */
static inline struct pst_route *pst_route_find(struct penstock_storage *from,
					       const struct penstock_device *dev,
					       enum penstock_op op)
{
	if (atomic_load_explicit(&from->route_serials[op][dev->index], memory_order_acquire) !=
	    dev->serial)
		return NULL;
	return atomic_load_explicit(&from->routes[op][dev->index], memory_order_acquire);
}

/* Returns the existing route, or makes one. If the storage has changed and some paths of the route
 * could not be tested before, tests them again. Any thread may call it. It may block, and makes one
 * route at a time. */
int pst_route_make(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		   struct pst_route **out, struct pst_err *err);

/* Returns the route between storage and device for `op`. If there is none, makes one, which is
 * slow. Any thread may call it. */
static inline int pst_route_get(struct penstock_storage *from, struct penstock_device *dev,
				enum penstock_op op, struct pst_route **out, struct pst_err *err)
{
	*out = pst_route_find(from, dev, op);
	return *out && !(*out)->unproven ? 0 : pst_route_make(from, dev, op, out, err);
}

/* Returns a text that explains why no path of the route meets the class `require`. If a path is
 * usable but has a lower class, the text is the reason for that. Otherwise it is the reason why the
 * first path that suits the kinds of the storage and of the device (host or GPU) is unusable. The
 * text may be part of the route, so it is freed with the route. */
const char *pst_route_why(const struct pst_route *route, enum penstock_class require);

/* Drops the references of a closing storage to all its routes. */
void pst_routes_drop(struct penstock_storage *st);
/* Drops one reference. The last drop frees the route. */
static inline void pst_route_put(struct pst_route *route)
{
	if (atomic_fetch_sub_explicit(&route->refs, 1, memory_order_acq_rel) == 1)
		free(route);
}

#endif
