/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of transports that have their own, instead of GET and PUT with a token. Implements a
 * part of client.h. Called by src/object, and by the storage of objects.
 */
#include "wire/client.h"

bool pst_wire_window_exchanges(const struct pst_wire_grant *grant)
{
	return grant->ops->compose;
}

bool pst_wire_window_is_bound(const struct pst_wire_grant *grant)
{
	return grant->bound;
}

int pst_wire_compose(struct pst_wire_grant *grant, const struct pst_wire_step *step,
		     const char **path, struct penstock_object_header *headers, struct pst_err *err)
{
	if (!grant->ops->compose)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a window of %s needs no exchange: send its token with the request",
				grant->ops->name);
	return grant->ops->compose(grant, step, path, headers, err);
}

int pst_wire_paired(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict, struct pst_err *err)
{
	if (!grant->ops->paired)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "a window of %s has no PREPARE",
				grant->ops->name);
	return grant->ops->paired(grant, reply, verdict, err);
}
