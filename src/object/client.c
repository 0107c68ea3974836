/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the client functions of penstock_object.h. A client is the process whose memory an
 * object server reads or writes. Each function checks its arguments, and then calls either the code
 * in src/wire, which serves the transfer in this process, or the client's plane. The plane is a
 * separate process that owns the network card and serves the transfers for this process
 * (plane_client.h).
 */
#include "object/client.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "object/memory.h"
#include "object/plane_client.h"
#include "object/request.h"
#include "wire/client.h"
#include "wire/exchange.h"

/* Links of a circular, doubly linked list. This struct is the first member of each buffer and
 * window, so that a pointer to it is also a pointer to the object. */
struct entry {
	struct entry *next, *before;
};

struct penstock_object_client {
	/* serves the transfers in this process; NULL if the client has a plane */
	struct pst_wire_client *wire;
	/* connection to the plane, the process that serves the transfers; NULL if the client has
	 * none */
	struct pst_plane_link *link;
	struct pst_ends ends; /* completed requests */
	struct pst_object_requests requests;
	/* fork generation when the client was opened; pst_fork_check compares it to detect a forked
	 * child */
	unsigned generation;
	/* protects `buffers` and `windows`; no other lock is taken while it is held */
	pthread_mutex_t lock;
	struct entry buffers, windows; /* heads of the lists of open objects */
};

/* A buffer of a client. If the client has a plane (the process that serves its transfers), `plane`
 * is set and `wire` is NULL. Without a plane, it is the other way round. */
struct penstock_object_buffer {
	struct entry entry;
	struct penstock_object_client *client;
	struct pst_wire_buffer *wire;
	struct pst_plane_buffer *plane;
};

struct penstock_object_window {
	struct entry entry;
	struct penstock_object_buffer *buffer;
	struct pst_object_target target; /* used if the client has no plane */
	/* The plane's reply to the opening of the window (object/plane_client.h). It is NULL if the
	 * client has no plane. A plane is a process that owns the network card, see
	 * penstock_object.h. */
	struct pst_plane_grant *plane;
	enum penstock_op op;
	_Atomic bool busy; /* true while an HTTP request that uses the window is in flight */
};

static void entry_add(struct penstock_object_client *client, struct entry *ring,
		      struct entry *entry)
{
	pthread_mutex_lock(&client->lock);
	entry->next = ring->next;
	entry->before = ring;
	ring->next->before = entry;
	ring->next = entry;
	pthread_mutex_unlock(&client->lock);
}

/* Removes `entry` from its list, and frees the object whose first member it is. */
static void entry_free(struct penstock_object_client *client, struct entry *entry)
{
	pthread_mutex_lock(&client->lock);
	entry->before->next = entry->next;
	entry->next->before = entry->before;
	pthread_mutex_unlock(&client->lock);
	free(entry);
}

/* ---- the client ---- */

/* Clears `busy` when the HTTP request that uses the window has completed, so that the application
 * may start the next one. */
static void window_idle(void *owner)
{
	struct penstock_object_window *window = owner;

	atomic_store(&window->busy, false);
}

static void target_idle(struct pst_object_target *target)
{
	window_idle((char *)target - offsetof(struct penstock_object_window, target));
}

/* Checks the options of a client that has a plane. The plane chooses the transports, addresses and
 * time limits, so the function fails if one of these options is set. */
static int check_defaults(const struct penstock_object_client_opts *o, struct pst_err *err)
{
	if (!o->transports && !o->address && !o->port && !o->user_count && !o->fence_ms &&
	    !o->dc_key && !o->ofi_provider && !o->either_way)
		return 0;
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"with a plane, only require_encryption and plane_ms can be set: give the "
			"other options to 'penstock plane'");
}

static int open_plane(struct penstock_object_client *client,
		      const struct penstock_object_client_opts *o, struct pst_err *err)
{
	struct pst_plane_link_opts opts = {.path = o->plane,
					   .role = PST_PLANE_CLIENT,
					   .require_encryption = o->require_encryption,
					   .timeout_ms = o->plane_ms,
					   .ends = &client->ends,
					   .idle = window_idle};
	int ret = check_defaults(o, err);

	return ret ? ret : pst_plane_link_open(&opts, &client->link, err);
}

static int open_wire(struct penstock_object_client *client,
		     const struct penstock_object_client_opts *o, struct pst_err *err)
{
	const struct pst_wire_devices *devices = pst_object_devices_open();
	int ret;

	if (!devices)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%s", penstock_errmsg());
	ret = pst_wire_client_open(o, devices, 0, &client->wire, err);
	if (ret)
		pst_object_devices_close();
	else
		pst_object_requests_open(&client->requests, &client->ends, devices);
	return ret;
}

int penstock_object_client_open(const struct penstock_object_client_opts *opts,
				struct penstock_object_client **out)
{
	struct penstock_object_client_opts o;
	struct penstock_object_client *client;
	struct pst_err err = {0};
	int ret;

	if (pst_struct_copy_in(&o, sizeof(o), opts, "the options", &err))
		return pst_err_publish(&err);
	if (!out)
		return pst_fail_null("out");
	client = calloc(1, sizeof(*client));
	if (!client)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a client");
	ret = pst_ends_open(&client->ends);
	if (ret) {
		free(client);
		return pst_fail_errno(NULL, ret, PENSTOCK_WHY_NO_FILES, "eventfd: %m");
	}
	ret = o.plane ? open_plane(client, &o, &err) : open_wire(client, &o, &err);
	if (ret) {
		pst_ends_close(&client->ends);
		free(client);
		return pst_err_publish(&err);
	}
	client->generation = pst_fork_generation();
	pthread_mutex_init(&client->lock, NULL);
	client->buffers.next = client->buffers.before = &client->buffers;
	client->windows.next = client->windows.before = &client->windows;
	*out = client;
	return 0;
}

void penstock_object_client_close(struct penstock_object_client *client)
{
	struct pst_err err;
	uint64_t until_ns = 0;

	/* In a forked child, the client belongs to the parent, and its thread does not run. So
	 * nothing is freed. */
	if (!client || pst_fork_check(client->generation, &err))
		return;
	if (client->link) {
		until_ns = pst_plane_link_until(client->link);
		/* The plane sees the end of the connection, and releases the windows. */
		pst_plane_link_close(client->link);
	} else {
		pst_object_requests_close(&client->requests);
		pst_wire_client_close(client->wire);
		pst_object_devices_close();
	}
	while (client->windows.next != &client->windows) {
		struct penstock_object_window *window = (void *)client->windows.next;

		free(window->plane);
		entry_free(client, &window->entry);
	}
	while (client->buffers.next != &client->buffers) {
		struct penstock_object_buffer *buffer = (void *)client->buffers.next;

		if (buffer->plane)
			pst_plane_buffer_free(buffer->plane, until_ns);
		entry_free(client, &buffer->entry);
	}
	pthread_mutex_destroy(&client->lock);
	pst_ends_close(&client->ends);
	free(client);
}

/* ---- buffers ---- */

static int buffer_open(struct penstock_object_client *client, struct penstock_device *dev,
		       void *ptr, size_t len, struct penstock_object_buffer **out)
{
	struct penstock_object_buffer *buffer;
	struct pst_err err = {0};
	int ret;

	if (!client || !out)
		return pst_fail_null(client ? "out" : "the client");
	if (pst_fork_check(client->generation, &err))
		return pst_err_publish(&err);
	if (client->link && ptr)
		return pst_fail_errno(NULL, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "a plane can use memory of penstock_object_alloc only");
	buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a buffer");
	buffer->client = client;
	dev = pst_object_device(dev);
	ret = client->link ? pst_plane_buffer_open(client->link, dev, len, &buffer->plane, &err)
			   : pst_wire_buffer_open(client->wire, dev, ptr, len, &buffer->wire, &err);
	if (ret) {
		free(buffer);
		return pst_err_publish(&err);
	}
	entry_add(client, &client->buffers, &buffer->entry);
	*out = buffer;
	return 0;
}

int penstock_object_alloc(struct penstock_object_client *client, struct penstock_device *dev,
			  size_t len, struct penstock_object_buffer **out)
{
	return buffer_open(client, dev, NULL, len, out);
}

int penstock_object_register(struct penstock_object_client *client, struct penstock_device *dev,
			     void *ptr, size_t len, struct penstock_object_buffer **out)
{
	return ptr ? buffer_open(client, dev, ptr, len, out) : pst_fail_null("the memory");
}

int pst_object_buffer_adopt(struct penstock_object_client *client, const struct pst_shared *shared,
			    struct penstock_object_buffer **out, struct pst_err *err)
{
	struct pst_wire_memory memory = {.dev = shared->dev,
					 .ptr = shared->ptr,
					 .len = shared->len,
					 .fd = shared->fd,
					 .read_fd = shared->read_fd,
					 .exported = shared->exported};
	struct penstock_object_buffer *buffer = calloc(1, sizeof(*buffer));
	int ret;

	if (!buffer)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a buffer");
	buffer->client = client;
	ret = pst_wire_buffer_adopt(client->wire, &memory, &buffer->wire, err);
	if (ret) {
		free(buffer);
		return ret;
	}
	entry_add(client, &client->buffers, &buffer->entry);
	*out = buffer;
	return 0;
}

bool pst_object_buffer_is_cut(const struct penstock_object_buffer *buffer)
{
	return pst_wire_buffer_is_cut(buffer->wire);
}

bool pst_object_buffer_is_held(const struct penstock_object_buffer *buffer)
{
	return pst_wire_buffer_is_held(buffer->wire);
}

void *penstock_object_ptr(const struct penstock_object_buffer *buffer)
{
	if (buffer)
		return buffer->plane ? buffer->plane->shared.ptr
				     : pst_wire_buffer_ptr(buffer->wire);
	pst_fail_null("the buffer");
	return NULL;
}

int penstock_object_unregister(struct penstock_object_buffer *buffer)
{
	struct pst_err err = {0};
	int ret;

	/* In a forked child, nothing is freed, because the buffer belongs to the parent. */
	if (!buffer || pst_fork_check(buffer->client->generation, &err))
		return 0;
	ret = buffer->plane ? pst_plane_buffer_close(buffer->plane, &err)
			    : pst_wire_buffer_close(buffer->wire, &err);
	if (ret)
		return pst_err_publish(&err);
	entry_free(buffer->client, &buffer->entry);
	return 0;
}

/* ---- windows ---- */

/* Opens a window without a plane. A window is a range of a buffer that a server may read or
 * write. */
static int window_open_wire(struct penstock_object_window *window, uint64_t off, uint64_t len,
			    struct pst_err *err)
{
	struct pst_wire_buffer *wire = window->buffer->wire;
	struct pst_object_target *target = &window->target;
	int ret = pst_wire_window_open(wire, window->op, off, len, &target->grant, err);

	target->buffer = wire;
	target->off = off;
	target->dev = pst_wire_buffer_device(wire);
	target->mem = (unsigned char *)pst_wire_buffer_ptr(wire) + off;
	target->len = len;
	target->op = window->op;
	target->idle = target_idle;
	return ret;
}

int penstock_object_window_open(struct penstock_object_buffer *buffer, enum penstock_op op,
				uint64_t off, uint64_t len, struct penstock_object_window **out)
{
	struct penstock_object_window *window;
	struct pst_err err = {0};
	int ret;

	if (!buffer || !out)
		return pst_fail_null(buffer ? "out" : "the buffer");
	if (pst_fork_check(buffer->client->generation, &err))
		return pst_err_publish(&err);
	window = calloc(1, sizeof(*window));
	if (!window)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	window->buffer = buffer;
	window->op = op;
	ret = buffer->plane
		      ? pst_plane_window_open(buffer->plane, op, off, len, &window->plane, &err)
		      : window_open_wire(window, off, len, &err);
	if (ret) {
		free(window);
		return pst_err_publish(&err);
	}
	entry_add(buffer->client, &buffer->client->windows, &window->entry);
	*out = window;
	return 0;
}

/* Returns true if the window has no token, the text that gives a server access to it. A window has
 * none if the client has a plane or the window is closed. Then *ret receives the error. */
static bool has_no_token(const struct penstock_object_window *window, int *ret)
{
	if (!window)
		*ret = pst_fail_null("the window");
	else if (window->plane)
		*ret = pst_fail_errno(NULL, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the plane keeps the token: use penstock_object_start");
	else if (!window->target.grant)
		*ret = pst_fail_errno(NULL, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW,
				      "a request with a body has closed the window to servers");
	else
		return false;
	return true;
}

int penstock_object_window_get_info(const struct penstock_object_window *window,
				    struct penstock_object_window_info *info)
{
	struct penstock_object_window_info found = {0};
	int ret;

	if (window && window->plane) {
		found.transport = window->plane->transport;
		found.token = "";
		found.encrypted = window->plane->encrypted;
		found.on_host = window->plane->on_host;
		found.address = found.why = "";
	} else if (has_no_token(window, &ret)) {
		return ret;
	} else {
		pst_wire_window_info(window->target.grant, &found);
	}
	return pst_struct_copy_out(info, &found, sizeof(found));
}

int penstock_object_headers(const struct penstock_object_window *window,
			    struct penstock_object_header *headers, unsigned max)
{
	struct penstock_object_window_info info;
	unsigned count = 2;
	int ret;

	if (!window || !headers)
		return pst_fail_null(window ? "the array of headers" : "the window");
	if (has_no_token(window, &ret))
		return ret;
	pst_wire_window_info(window->target.grant, &info);
	if (pst_wire_window_exchanges(window->target.grant))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"a window of %s needs the requests of penstock_object_exchange",
				info.transport);
	if (window->op == PENSTOCK_WRITE)
		count = 3;
	if (max < count)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the request has %u headers, but the array has %u places",
				      count, max);
	headers[0] = (struct penstock_object_header){"x-amz-rdma-token", info.token};
	headers[1] = (struct penstock_object_header){"x-amz-content-sha256", "UNSIGNED-PAYLOAD"};
	if (count == 3)
		headers[2] = (struct penstock_object_header){"content-length", "0"};
	return (int)count;
}

int penstock_object_exchange(struct penstock_object_window *window, enum penstock_object_step step,
			     const char *target, uint64_t offset, const char **path,
			     struct penstock_object_header *headers, unsigned max)
{
	const struct pst_wire_step s = {step, target, offset};
	struct penstock_object_header found[PENSTOCK_OBJECT_EXCHANGE_MAX];
	struct pst_err err = {0};
	int n;

	if (!window || !path || !headers)
		return pst_fail_null(!window ? "the window"
				     : !path ? "the path"
					     : "the array of headers");
	if (has_no_token(window, &n))
		return n;
	n = pst_wire_compose(window->target.grant, &s, path, found, &err);
	if (n < 0)
		return pst_err_publish(&err);
	if ((unsigned)n > max)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the request has %d headers, but the array has %u places", n,
				      max);
	memcpy(headers, found, (unsigned)n * sizeof(*headers));
	return n;
}

int penstock_object_paired(struct penstock_object_window *window,
			   const struct penstock_object_reply *reply,
			   struct penstock_object_verdict *verdict)
{
	struct penstock_object_verdict found = {.size = sizeof(found)};
	struct penstock_object_reply r;
	struct pst_err err = {0};
	int ret;

	if (!window || !reply)
		return pst_fail_null(window ? "the reply" : "the window");
	if (pst_struct_copy_in(&r, sizeof(r), reply, "the reply", &err))
		return pst_err_publish(&err);
	if (r.header_count && !r.headers)
		return pst_fail_null("the array of headers");
	if (has_no_token(window, &ret))
		return ret;
	if (pst_wire_paired(window->target.grant, &r, &found, &err))
		return pst_err_publish(&err);
	return pst_struct_copy_out(verdict, &found, sizeof(found));
}

int penstock_object_judge(const struct penstock_object_window *window,
			  const struct penstock_object_reply *reply,
			  struct penstock_object_verdict *verdict)
{
	struct penstock_object_verdict found = {.size = sizeof(found)};
	struct penstock_object_reply r;
	struct pst_err err;
	int ret;

	if (!window || !reply)
		return pst_fail_null(window ? "the reply" : "the window");
	if (has_no_token(window, &ret))
		return ret;
	if (pst_struct_copy_in(&r, sizeof(r), reply, "the reply", &err))
		return pst_err_publish(&err);
	if (r.header_count && !r.headers)
		return pst_fail_null("the array of headers");
	pst_wire_judge(window->target.grant, &r, &found);
	return pst_struct_copy_out(verdict, &found, sizeof(found));
}

int penstock_object_release(struct penstock_object_window *window)
{
	struct pst_err err = {0};
	int ret;

	if (!window || pst_fork_check(window->buffer->client->generation, &err))
		return 0;
	if (atomic_load(&window->busy))
		return pst_fail_errno(NULL, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "a request of the window is in flight: wait for its end");
	if (window->plane)
		ret = pst_plane_release(window->plane, &err);
	else if (window->target.grant)
		ret = pst_wire_release(window->target.grant, &err);
	else
		ret = window->target.released;
	if (ret == -EBUSY)
		return pst_err_publish(&err);
	entry_free(window->buffer->client, &window->entry);
	if (ret && !err.code)
		return pst_fail_errno(NULL, ret, PENSTOCK_WHY_DEADLINE,
				      "a request could not close the window to a server");
	return ret ? pst_err_publish(&err) : 0;
}

/* ---- requests ---- */

/* Starts an HTTP GET or PUT whose bytes move through the window. The caller has set
 * window->busy. */
static int start(struct penstock_object_window *window,
		 const struct penstock_object_request *request, struct pst_err *err)
{
	struct pst_end *end;
	int ret;

	if (!window->plane)
		return pst_object_request_start(&window->buffer->client->requests, &window->target,
						request, err);
	end = calloc(1, sizeof(*end));
	if (!end)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	end->owner = window;
	ret = pst_plane_start(window->plane, request, end, err);
	if (ret)
		free(end);
	return ret;
}

int penstock_object_start(struct penstock_object_window *window,
			  const struct penstock_object_request *request)
{
	struct penstock_object_request r;
	struct pst_err err = {0};

	if (!window || !request)
		return pst_fail_null(window ? "the request" : "the window");
	if (pst_struct_copy_in(&r, sizeof(r), request, "the request", &err) ||
	    pst_fork_check(window->buffer->client->generation, &err))
		return pst_err_publish(&err);
	if (!r.bucket || !r.key)
		return pst_fail_null(r.bucket ? "the key" : "the bucket");
	if (atomic_exchange(&window->busy, true))
		return pst_fail_errno(NULL, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the window has a request in flight");
	if (!start(window, &r, &err))
		return 0;
	atomic_store(&window->busy, false);
	return pst_err_publish(&err);
}

int penstock_object_client_wait(struct penstock_object_client *client,
				struct penstock_object_end *ends, unsigned max, int timeout_ms)
{
	struct pst_err err = {0};
	struct pst_end *list;
	int count = 0;

	if (!client || (max && !ends))
		return pst_fail_null(client ? "the array of completions" : "the client");
	if (pst_fork_check(client->generation, &err))
		return pst_err_publish(&err);
	list = pst_ends_take(&client->ends, max, timeout_ms);
	while (list) {
		struct pst_end *next = list->next;

		ends[count++] = list->request;
		free(list);
		list = next;
	}
	return count;
}

void pst_object_client_cancel(struct penstock_object_client *client)
{
	pst_object_requests_cancel(&client->requests);
}

int penstock_object_client_fd(struct penstock_object_client *client)
{
	return client ? client->ends.event : pst_fail_null("the client");
}

int penstock_object_client_get_info(const struct penstock_object_client *client,
				    struct penstock_object_client_info *info)
{
	struct penstock_object_client_info found = {0};
	struct pst_err err = {0};

	if (!client)
		return pst_fail_null("the client");
	if (!client->link)
		pst_wire_client_info(client->wire, &found);
	else if (pst_plane_client_info(client->link, &found, &err))
		return pst_err_publish(&err);
	return pst_struct_copy_out(info, &found, sizeof(found));
}
