/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the tenants (other processes) in the role of a client: opens windows in a tenant's memory,
 * and sends GET and PUT requests with the access keys of the plane. A tenant can use only its own
 * windows, and only the buckets that the plane's options permit.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "object/client.h"
#include "tenant.h"

/* A request of a tenant that is in flight. */
struct flight {
	bool busy;
	enum penstock_op op;
	uint64_t user; /* value from the tenant's message START */
};

struct client {
	struct penstock_object_client *client;
	struct pl_table windows;
	struct flight *flights; /* array of `in_flight_max` elements */
};

struct window {
	struct penstock_object_window *inner;
	struct pl_memory *memory;
	enum penstock_op op;
};

static int open_client(struct pl_tenant *tenant, const struct pst_plane_hello *hello,
		       struct pst_err *err)
{
	const struct pl_options *o = tenant->plane->options;
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct client *c = calloc(1, sizeof(*c));
	int ret;

	if (!c || pl_table_open(&c->windows, o->windows_max)) {
		free(c);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "the plane has no memory left");
	}
	c->flights = calloc(o->in_flight_max, sizeof(*c->flights));
	opts.transports = o->transports;
	opts.address = o->address;
	opts.require_encryption = o->require_encryption || hello->require_encryption;
	opts.users = o->server_users;
	opts.user_count = o->server_user_count;
	ret = c->flights ? penstock_object_client_open(&opts, &c->client)
			 : penstock_fail(-ENOMEM, PENSTOCK_WHY_NO_MEMORY, "no memory is left");
	if (ret) {
		pl_fail_public(ret, err);
		pl_table_close(&c->windows);
		free(c->flights);
		free(c);
		return ret;
	}
	tenant->state = c;
	return 0;
}

/* ---- windows ---- */

static int window_open(struct pl_tenant *tenant, const struct pst_plane_window *message,
		       struct pst_plane_answer *answer, struct pst_err *err)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pl_memory *memory = pl_table_find(&tenant->memories, message->memory);
	struct client *c = tenant->state;
	struct window *w;
	int ret;

	if (!memory)
		return pl_fail_name(tenant, "memory", err);
	if (c->windows.count == c->windows.max)
		return pl_fail_limit(tenant, PL_LIMIT_WINDOWS, c->windows.max, "windows", err);
	w = calloc(1, sizeof(*w));
	if (!w)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "the plane has no memory left");
	w->memory = memory;
	w->op = (enum penstock_op)message->op;
	ret = penstock_object_window_open(memory->buffer, w->op, message->off, message->len,
					  &w->inner);
	if (ret) {
		free(w);
		return pl_fail_public(ret, err);
	}
	answer->id = pl_table_add(&c->windows, w);
	if (!answer->id) {
		/* The token has not been sent to a server yet, so the window can be released at
		 * once. */
		penstock_object_release(w->inner);
		free(w);
		return pst_fail(err, PENSTOCK_WHY_IO_ERROR,
				"the plane has no number for the window");
	}
	memory->users++;
	penstock_object_window_get_info(w->inner, &info);
	answer->encrypted = info.encrypted;
	answer->on_host = info.on_host;
	strncpy(answer->transport, info.transport, sizeof(answer->transport) - 1);
	return 0;
}

/* Closes a window. Returns -EBUSY while a request uses it. Sets *cut if a server may still access
 * the window's pages. */
static int window_free(struct pl_tenant *tenant, struct window *w, bool *cut, struct pst_err *err)
{
	int ret = penstock_object_release(w->inner);

	if (ret)
		pl_fail_public(ret, err);
	if (ret == -EBUSY)
		return ret;
	/* If a server may still access the old pages, the tenant must replace its own mapping of
	 * them. Only the tenant itself can do that, so `cut` is part of the answer. */
	*cut = ret || pst_object_buffer_is_cut(w->memory->buffer);
	if (*cut)
		pl_count(&tenant->plane->counts.cut_off);
	w->memory->users--;
	free(w);
	return ret;
}

static int window_release(struct pl_tenant *tenant, uint64_t id, struct pst_plane_answer *answer,
			  struct pst_err *err)
{
	struct client *c = tenant->state;
	struct window *w = pl_table_find(&c->windows, id);
	bool cut = false;
	int ret;

	if (!w)
		return pl_fail_name(tenant, "a window", err);
	ret = window_free(tenant, w, &cut, err);
	if (ret == -EBUSY)
		return ret;
	pl_table_remove(&c->windows, id);
	answer->cut = cut;
	return ret;
}

/* ---- requests ---- */

/* Returns whether a list of names, separated by commas, contains `name`. */
static bool list_has(const char *list, const char *name)
{
	size_t len = strlen(name);

	while (list && *list) {
		size_t n = strcspn(list, ",");

		if (n == len && !strncmp(list, name, n))
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}

static int policy_check(struct pl_tenant *tenant, const struct pst_plane_start *start,
			enum penstock_op op, struct pst_err *err)
{
	const struct pl_options *o = tenant->plane->options;
	bool bucket = !o->buckets || list_has(o->buckets, start->bucket);

	if (bucket && !(o->read_only && op == PENSTOCK_WRITE))
		return 0;
	pl_count(&tenant->plane->counts.refused_policy);
	return pst_fail(err, PENSTOCK_WHY_NO_PERMISSION, "the plane does not permit %s (option %s)",
			bucket ? "to write objects" : "this bucket",
			bucket ? "--read-only" : "--buckets");
}

static int request_start(struct pl_tenant *tenant, const struct pst_plane_start *start,
			 struct pst_err *err)
{
	struct penstock_object_request request = PENSTOCK_OBJECT_REQUEST_INIT;
	struct client *c = tenant->state;
	struct window *w = pl_table_find(&c->windows, start->window);
	unsigned i = 0;
	int ret;

	if (!w)
		return pl_fail_name(tenant, "a window", err);
	ret = policy_check(tenant, start, w->op, err);
	if (!ret)
		ret = pl_begin(tenant, err);
	if (ret)
		return ret;
	while (c->flights[i].busy) /* pl_begin has checked that one element is free */
		i++;
	c->flights[i] = (struct flight){true, w->op, start->user};
	request.bucket = start->bucket;
	request.key = start->key;
	request.off = start->off;
	request.if_match = start->if_match[0] ? start->if_match : NULL;
	request.flags = start->flags;
	request.user = i;
	ret = penstock_object_start(w->inner, &request);
	if (!ret)
		return 0;
	c->flights[i].busy = false;
	pl_end(tenant);
	return pl_fail_public(ret, err);
}

static void request_count(struct pl_counts *counts, const struct penstock_object_end *end, bool put)
{
	enum pl_outcome outcome = end->result < 0		      ? PL_FAILED
				  : end->next == PENSTOCK_OBJECT_DONE ? PL_BY_WINDOW
								      : PL_BY_BODY;

	pl_count(&counts->requests[put][outcome]);
	if (end->result > 0)
		atomic_fetch_add(&counts->bytes[put][outcome], (uint64_t)end->result);
}

static int client_forward(struct pl_tenant *tenant)
{
	struct client *c = tenant->state;
	struct penstock_object_end ends[8];
	int n = penstock_object_client_wait(c->client, ends, 8, 0), ret = 0;

	for (int i = 0; i < n && !ret; i++) {
		struct pst_plane_message message = {.kind = PST_PLANE_ENDED};
		struct flight *flight = &c->flights[ends[i].user];

		request_count(&tenant->plane->counts, &ends[i], flight->op == PENSTOCK_WRITE);
		message.ended.end = ends[i];
		message.ended.end.user = flight->user;
		flight->busy = false;
		pl_end(tenant);
		ret = pl_send(tenant, &message);
	}
	return ret;
}

static int client_handle(struct pl_tenant *tenant, const struct pst_plane_message *message,
			 struct pst_plane_message *answer, struct pst_err *err)
{
	switch (message->kind) {
	case PST_PLANE_WINDOW:
		return window_open(tenant, &message->window, &answer->answer, err);
	case PST_PLANE_RELEASE:
		return window_release(tenant, message->name.id, &answer->answer, err);
	case PST_PLANE_START:
		return request_start(tenant, &message->start, err);
	default:
		return -EPROTO;
	}
}

/* ---- the table ---- */

static int client_fd(struct pl_tenant *tenant)
{
	const struct client *c = tenant->state;

	return penstock_object_client_fd(c->client);
}

static int client_memory_take(struct pl_tenant *tenant, struct pl_memory *memory,
			      struct pst_err *err)
{
	const struct client *c = tenant->state;

	return pst_object_buffer_adopt(c->client, &memory->shared, &memory->buffer, err);
}

/* Frees a tenant's memory, whose windows have been released before. */
static void client_memory_free(struct pl_tenant *tenant, struct pl_memory *memory)
{
	const bool held = pst_object_buffer_is_held(memory->buffer);

	(void)tenant;
	penstock_object_unregister(memory->buffer);
	/* If a server may still access memory of a GPU, the memory's lease lasts until this process
	 * ends. */
	if (!held)
		pst_shared_release(&memory->shared);
}

static void client_counts(struct pl_tenant *tenant, struct pst_plane_counts *out)
{
	const struct client *c = tenant->state;

	out->client.size = sizeof(out->client);
	penstock_object_client_get_info(c->client, &out->client);
}

static void client_stop(struct pl_tenant *tenant)
{
	struct client *c = tenant->state;
	struct pl_counts *counts = &tenant->plane->counts;
	unsigned count = c->windows.count;
	struct pst_err err = {0};
	struct window *w;

	pst_object_client_cancel(c->client);
	while ((w = pl_table_pop(&c->windows))) {
		bool cut = false;

		if (window_free(tenant, w, &cut, &err))
			pst_log(PST_LOG_WARN, "plane", "a window of process %d: %s",
				tenant->process, err.text);
	}
	if (!count)
		return;
	pl_count(&counts->lost);
	atomic_fetch_add(&counts->lost_windows, count);
	pst_log(PST_LOG_INFO, "plane", "process %d of user %u ended with %u open windows",
		tenant->process, tenant->user, count);
}

static void client_close(struct pl_tenant *tenant)
{
	struct client *c = tenant->state;

	penstock_object_client_close(c->client);
	pl_table_close(&c->windows);
	free(c->flights);
	free(c);
}

const struct pl_role pl_client = {
	.name = "client",
	.open = open_client,
	.fd = client_fd,
	.forward = client_forward,
	.handle = client_handle,
	.memory_take = client_memory_take,
	.memory_free = client_memory_free,
	.counts = client_counts,
	.stop = client_stop,
	.close = client_close,
};
