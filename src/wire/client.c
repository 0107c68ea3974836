/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the client half of S3 over RDMA: buffers, windows with their tokens, and the thread
 * that serves the connections of all transports. src/object and storage/object_window.c call these
 * functions. No byte may get into a window after pst_wire_release has returned.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/fork.h"
#include "s3/crc.h"
#include "s3/judge.h"
#include "wire/client.h"
#include "wire/common.h"
#include "wire/handover.h"
#include "wire/holders.h"
#include "wire/listeners.h"
#include "wire/memory.h"
#include "wire/nics.h"
#include "wire/transports.h"

#define SLOTS PENSTOCK_OBJECT_WINDOWS_MAX
#define ID_MASK ((UINT64_C(1) << 52) - 1) /* 52 bits, so that an id plus a length never overflows */
#define FENCE_MS 2000

/* ---- windows ---- */

enum pst_wire_status pst_wire_find(struct pst_wire_client *client, uint64_t id,
				   const unsigned char cap[PST_TOKEN_CAP], enum penstock_op op,
				   uint64_t off, uint64_t len, struct pst_wire_grant **out)
{
	struct pst_wire_grant *g = &client->grants[id % SLOTS];
	bool right = pst_wire_same_cap(g->cap, cap);

	if (g->id != id || !g->ops || !right) {
		atomic_fetch_add(&client->counts.wrong_cap, 1);
		return PST_WIRE_REFUSED;
	}
	if (!g->live) {
		atomic_fetch_add(&client->counts.late, 1);
		return PST_WIRE_REFUSED;
	}
	if ((op != g->op && !client->opts.either_way) || off > g->len || len > g->len - off) {
		atomic_fetch_add(&client->counts.out_of_window, 1);
		return PST_WIRE_OUTSIDE;
	}
	*out = g;
	return PST_WIRE_OK;
}

bool pst_wire_enter(struct pst_wire_client *client, struct pst_wire_grant *grant, uint64_t id)
{
	bool live;

	pthread_mutex_lock(&client->lock);
	live = grant->live && grant->id == id;
	grant->users += live;
	pthread_mutex_unlock(&client->lock);
	return live;
}

/* Ends one transfer's access to the memory of a grant's window. The caller holds client->lock. */
static void grant_unuse(struct pst_wire_client *client, struct pst_wire_grant *grant)
{
	if (!--grant->users && !grant->live)
		pthread_cond_broadcast(&client->idle);
}

void pst_wire_leave(struct pst_wire_client *client, struct pst_wire_grant *grant)
{
	pthread_mutex_lock(&client->lock);
	grant_unuse(client, grant);
	pthread_mutex_unlock(&client->lock);
}

void pst_wire_conn_ungrant(struct pst_wire_conn *conn)
{
	struct pst_wire_grant *grant = conn->grant;

	conn->grant = NULL;
	if (grant)
		grant_unuse(conn->client, grant);
}

/* Appends a grant (the record of a window) to the end of the list of free grants, whose first
 * element is used next. So a released grant keeps its id for as long as possible. A transfer with
 * that id that comes too late is then recognised as late. */
static void slot_return(struct pst_wire_client *client, struct pst_wire_grant *g)
{
	g->next = NULL;
	*client->free_end = g;
	client->free_end = &g->next;
}

static int cut_fail(struct pst_err *err)
{
	return pst_fail_errno(err, EIO, PENSTOCK_WHY_DEADLINE,
			      "a release has cut off a server from the buffer: its other windows "
			      "are lost, and it has no new ones; use a new buffer");
}

/* Takes a grant (the record of a window) from the free list, gives it an id that no earlier window
 * had, and counts it in buffer->windows. Transfers are refused until the member `live` is set.
 * Returns NULL if no grant is free. */
static struct pst_wire_grant *slot_take(struct pst_wire_buffer *buffer,
					const unsigned char cap[PST_TOKEN_CAP], struct pst_err *err)
{
	struct pst_wire_client *client = buffer->client;
	struct pst_wire_grant *g;

	pthread_mutex_lock(&client->lock);
	g = buffer->cut ? NULL : client->free;
	if (buffer->cut)
		cut_fail(err);
	else if (!g)
		pst_fail(err, PENSTOCK_WHY_FULL, "the client has %u windows", SLOTS);
	if (g) {
		client->free = g->next;
		if (!client->free)
			client->free_end = &client->free;
		g->id = (g->id + SLOTS) & ID_MASK;
		memcpy(g->cap, cap, sizeof(g->cap));
		g->buffer = buffer;
		g->ops = NULL;
		g->bound = NULL;
		g->mem = NULL;
		g->file = -1;
		atomic_store(&g->settled, false);
		g->users = 0;
		buffer->windows++;
	}
	pthread_mutex_unlock(&client->lock);
	return g;
}

/* Selects the first transport that can serve the window, and prepares the window for it. Returns 0
 * or -errno. */
static int transport_select(struct pst_wire_grant *g, struct pst_err *err)
{
	struct pst_wire_client *c = g->buffer->client;
	unsigned char order[PST_WIRE_LISTENERS_MAX];
	unsigned count = pst_wire_nic_order(g, order);
	int ret = 0;

	if (g->buffer->takes_files) {
		g->listener = &c->listeners[0];
		return pst_wire_client_takes_files(c)
			       ? 0
			       : pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
					  "%s, the preferred transport, passes no files",
					  g->listener->ops->name);
	}
	for (unsigned i = 0; i < count; i++) {
		g->listener = &c->listeners[order[i]];
		if ((g->buffer->direct && !g->listener->ops->direct) ||
		    !g->listener->ops->fits(g->listener, g->buffer, g->off))
			continue;
		ret = g->listener->ops->bind ? g->listener->ops->bind(g, err) : 0;
		if (!ret)
			return 0;
		pst_wire_nic_failed_bind(g, err);
	}
	if (!ret && g->buffer->direct)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"no transport of this client accesses the GPU's memory: shm1 needs "
				"a driver that exports memory, rc1 a network card");
	return ret ? ret
		   : pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
			      "no transport can serve the range: shm1 needs memory of "
			      "penstock_object_alloc and an offset that is a multiple of 4096");
}

/* The range of a window: `len` bytes at offset `off` of a buffer or, if the window takes a file, at
 * the address `mem`. */
struct range {
	uint64_t off, len;
	unsigned char *mem;
};

static int grant_open(struct pst_wire_buffer *buffer, enum penstock_op op,
		      const struct range *range, struct pst_wire_grant **out, struct pst_err *err)
{
	struct pst_wire_client *client = buffer->client;
	struct pst_wire_grant *g;
	struct pst_token token;
	unsigned char cap[PST_TOKEN_CAP];
	int ret = pst_wire_random(cap, sizeof(cap), err);

	if (ret)
		return ret;
	g = slot_take(buffer, cap, err);
	if (!g)
		return err->code;
	/* No other thread reads these members before `live` is set, so the lock is not needed. */
	g->op = op;
	g->off = range->off;
	g->len = range->len;
	g->mem = range->mem;
	g->wrong_user = atomic_load(&client->counts.wrong_user);
	ret = transport_select(g, err);
	pthread_mutex_lock(&client->lock);
	if (ret) {
		buffer->windows--;
		slot_return(client, g);
	} else {
		g->ops = g->listener->ops;
		g->live = true;
	}
	pthread_mutex_unlock(&client->lock);
	if (ret)
		return ret;
	token = g->listener->token;
	token.base = g->id;
	token.size = range->len;
	g->ops->fill(g, &token);
	pst_token_print(&token, g->text);
	atomic_fetch_add(&client->counts.windows, 1);
	*out = g;
	return 0;
}

int pst_wire_window_open(struct pst_wire_buffer *buffer, enum penstock_op op, uint64_t off,
			 uint64_t len, struct pst_wire_grant **out, struct pst_err *err)
{
	const struct range range = {off, len, NULL};
	int ret = pst_fork_check(buffer->client->generation, err);

	if (ret)
		return ret;
	if (op != PENSTOCK_READ && op != PENSTOCK_WRITE)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "operation %d is unknown", op);
	if (off > buffer->len || len > buffer->len - off)
		return pst_fail_errno(err, ERANGE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the window ends beyond the buffer of %zu bytes",
				      buffer->len);
	return grant_open(buffer, op, &range, out, err);
}

int pst_wire_window_take(struct pst_wire_client *client, void *mem, uint64_t len,
			 struct pst_wire_grant **out, struct pst_err *err)
{
	const struct range range = {0, len, mem};
	int ret = pst_fork_check(client->generation, err);

	return ret ? ret : grant_open(&client->anywhere, PENSTOCK_READ, &range, out, err);
}

void pst_wire_window_info(const struct pst_wire_grant *grant,
			  struct penstock_object_window_info *out)
{
	out->transport = grant->ops->name;
	out->token = grant->text;
	out->encrypted = grant->ops->encrypted;
	out->on_host = grant->ops->on_host;
	out->address = grant->listener->nic.address;
	out->why = grant->why;
}

enum penstock_op pst_wire_window_op(const struct pst_wire_grant *grant)
{
	return grant->op;
}

/* Computes the CRC of the window's bytes, and compares it with the CRC in the server's response. If
 * they differ, the verdict becomes PENSTOCK_OBJECT_RESEND. */
static void window_check(struct pst_wire_grant *grant, struct penstock_object_verdict *verdict)
{
	const struct pst_wire_buffer *b = grant->buffer;
	const char *reason = NULL;

	/* Transports with ops->checked never have windows in memory of a GPU, so the test of
	 * `b->dev` is only a precaution. */
	if (!verdict->has_crc64 || b->dev) {
		reason = "the server did not send x-amz-rdma-checksum, which this transport needs";
		verdict->remember = 1;
	} else if (verdict->bytes > grant->len ||
		   ~pst_crc_raw(PST_CRC64NVME, UINT64_MAX, b->ptr + grant->off, verdict->bytes) !=
			   verdict->crc64) {
		reason = "the bytes in the window are not those of x-amz-rdma-checksum";
		atomic_fetch_add(&b->client->counts.bad_checksum, 1);
	}
	if (!reason)
		return;
	verdict->next = PENSTOCK_OBJECT_RESEND;
	verdict->bytes = 0;
	snprintf(verdict->text, sizeof(verdict->text), "%s", reason);
}

/* Waits until no transfer accesses the window, but at most fence_ms milliseconds if the transport
 * can cut servers off. The caller holds client->lock. Returns 0 or -ETIMEDOUT. */
static int wait_for_users(struct pst_wire_client *client, struct pst_wire_grant *grant)
{
	struct timespec until;
	int ret = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += client->opts.fence_ms / 1000;
	until.tv_nsec += client->opts.fence_ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	while (grant->users && !ret) {
		if (grant->ops->cut)
			ret = pthread_cond_timedwait(&client->idle, &client->lock, &until);
		else
			pthread_cond_wait(&client->idle, &client->lock);
	}
	return grant->users ? -ETIMEDOUT : 0;
}

void pst_wire_judge(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict)
{
	if (grant->ops->judge)
		grant->ops->judge(grant, reply, verdict);
	else
		pst_judge(grant->op, grant->len, reply, verdict);
	if (verdict->next == PENSTOCK_OBJECT_DONE && grant->buffer->takes_files)
		pst_wire_handover_copy(grant, verdict);
	if (verdict->next == PENSTOCK_OBJECT_DONE && grant->ops->checked)
		window_check(grant, verdict);
	pst_wire_nic_judge(grant, verdict);
	if (grant->ops->explain && !verdict->remember &&
	    (verdict->next == PENSTOCK_OBJECT_RESEND || verdict->next == PENSTOCK_OBJECT_BODY))
		grant->ops->explain(grant, verdict);
	/* With a status of 4xx, the server refuses the request before the first byte moves. So no
	 * transfer can be in progress after it. */
	atomic_store(&grant->settled,
		     verdict->next == PENSTOCK_OBJECT_DONE ||
			     (verdict->next == PENSTOCK_OBJECT_ERROR && reply->status / 100 == 4));
}

void pst_wire_unsettle(struct pst_wire_grant *grant)
{
	atomic_store(&grant->settled, false);
}

unsigned pst_wire_window_cards(const struct pst_wire_grant *grant)
{
	return pst_wire_nic_count(grant);
}

unsigned pst_wire_window_card(const struct pst_wire_grant *grant)
{
	return (unsigned)(grant->listener - grant->buffer->client->listeners);
}

bool pst_wire_window_is_dma(const struct pst_wire_grant *grant)
{
	return grant->ops->dma;
}

/* Makes the client refuse further transfers of the window. The caller holds client->lock. */
static void grant_close(struct pst_wire_grant *grant)
{
	if (grant->live && grant->users && grant->ops->revoke)
		grant->ops->revoke(grant);
	grant->live = false;
}

bool pst_wire_revoke(struct pst_wire_grant *grant)
{
	struct pst_wire_client *client = grant->buffer->client;
	bool idle;

	if (pst_fork_check(client->generation, &(struct pst_err){0}))
		return true;
	pthread_mutex_lock(&client->lock);
	grant_close(grant);
	idle = !grant->users && !grant->buffer->holder_count;
	pthread_mutex_unlock(&client->lock);
	return idle;
}

int pst_wire_release(struct pst_wire_grant *grant, struct pst_err *err)
{
	struct pst_wire_client *client = grant->buffer->client;
	bool lost;
	int ret = 0, unbound = 0, file;

	/* In a forked child, the sockets belong to the parent. A message on them would end a
	 * transfer of the parent. */
	if (pst_fork_check(client->generation, &(struct pst_err){0}))
		return 0;
	/* The lock is not held here, because unbind may take as long as a system call for each page
	 * of the window. */
	if (grant->bound)
		unbound = grant->ops->unbind(grant, err);
	grant->bound = NULL;
	pthread_mutex_lock(&client->lock);
	if (unbound == -ETIMEDOUT) {
		grant->buffer->stuck = true;
		atomic_fetch_add(&client->counts.stuck, 1);
	}
	grant_close(grant);
	ret = wait_for_users(client, grant);
	lost = grant->buffer->cut;
	if (ret) {
		grant->buffer->cut = true;
		atomic_fetch_add(&client->counts.cut_off, 1);
		ret = grant->ops->cut(grant, err);
	}
	if (!ret && !lost)
		ret = pst_wire_holders_wait(grant->buffer, err);
	/* If the release of another window of the buffer has cut a server off, pages of the buffer
	 * were replaced. This window's server may have written to the old pages, so its bytes may
	 * be lost. */
	if (lost && !ret)
		ret = cut_fail(err);
	file = pst_wire_handover_take(grant);
	/* The free grant keeps its id and capability, so that a transfer that comes too late is
	 * recognised. */
	grant->buffer->windows--;
	slot_return(client, grant);
	pthread_mutex_unlock(&client->lock);
	pst_wire_handover_close(file);
	return unbound ? unbound : ret;
}

/* ---- buffers ---- */

/* Adds a buffer to the client's list, and gives it ids. */
static int buffer_add(struct pst_wire_buffer *b, struct pst_err *err)
{
	struct pst_wire_client *client = b->client;
	int ret = 0;

	pthread_mutex_lock(&client->lock);
	if (client->buffer_count >= PST_WIRE_BUFFERS_MAX) {
		ret = pst_fail(err, PENSTOCK_WHY_FULL, "the client has %u buffers",
			       PST_WIRE_BUFFERS_MAX);
	} else {
		client->buffer_count++;
		/* A buffer has two ids for servers: `id` and the next number. One is for servers
		 * that read the memory, and one is for servers that write it. */
		client->next_buffer += 2;
		b->id = client->next_buffer;
		b->next = client->buffers;
		client->buffers = b;
	}
	pthread_mutex_unlock(&client->lock);
	return ret;
}

int pst_wire_buffer_open(struct pst_wire_client *client, struct penstock_device *dev, void *ptr,
			 size_t len, struct pst_wire_buffer **out, struct pst_err *err)
{
	struct pst_wire_buffer *b = calloc(1, sizeof(*b));
	int ret = 0;

	if (!b)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a buffer");
	*b = (struct pst_wire_buffer){.client = client,
				      .dev = dev,
				      .ptr = ptr,
				      .len = len,
				      .fd = -1,
				      .read_fd = -1,
				      .exported = PENSTOCK_EXPORT_INIT};
	if (dev && client->devices && client->devices->serial)
		b->serial = client->devices->serial(dev);
	if (!len)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "a buffer needs at least one byte");
	else if (!ptr)
		ret = pst_wire_memory_alloc(b, err);
	if (ret) {
		b->mapped = 0;
		pst_wire_memory_free(b);
		return ret;
	}
	ret = buffer_add(b, err);
	if (ret)
		pst_wire_memory_free(b);
	else
		*out = b;
	return ret;
}

/* Removes a buffer from the client's list, and calls the function `drop` of each transport, which
 * tells servers to forget the buffer. The caller holds client->lock. */
static void buffer_unlist(struct pst_wire_client *client, struct pst_wire_buffer *buffer)
{
	struct pst_wire_buffer **at = &client->buffers;

	while (*at != buffer)
		at = &(*at)->next;
	*at = buffer->next;
	client->buffer_count--;
	client->retired_count -= buffer->retired;
	for (unsigned i = 0; i < client->listener_count; i++)
		if (client->listeners[i].ops->drop)
			client->listeners[i].ops->drop(buffer);
}

/* Finds a retired buffer of this device whose servers have all ended, removes it from the client's
 * list and returns it. Returns NULL if there is none; does not wait. Buffers of other devices stay
 * in the list, because those devices may have been closed. */
static struct pst_wire_buffer *retired_take(struct pst_wire_client *client,
					    const struct penstock_device *dev, uint64_t serial)
{
	struct pst_wire_buffer *b;

	pthread_mutex_lock(&client->lock);
	b = client->retired_count ? client->buffers : NULL;
	while (b && !(b->retired && b->dev == dev && b->serial == serial &&
		      pst_wire_holders_gone(b)))
		b = b->next;
	if (b)
		buffer_unlist(client, b);
	pthread_mutex_unlock(&client->lock);
	if (b)
		b->stuck = false;
	return b;
}

int pst_wire_buffer_adopt(struct pst_wire_client *client, const struct pst_wire_memory *memory,
			  struct pst_wire_buffer **out, struct pst_err *err)
{
	struct pst_wire_buffer *b = calloc(1, sizeof(*b));
	int ret;

	if (!b)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a buffer");
	*b = (struct pst_wire_buffer){.client = client,
				      .dev = memory->dev,
				      .ptr = memory->ptr,
				      .len = memory->len,
				      .mapped = memory->len,
				      .fd = memory->fd,
				      .read_fd = memory->read_fd,
				      .exported = memory->exported,
				      .shared = true};
	ret = buffer_add(b, err);
	if (ret)
		free(b);
	else
		*out = b;
	return ret;
}

int pst_wire_buffer_close(struct pst_wire_buffer *buffer, struct pst_err *err)
{
	struct pst_wire_client *client = buffer->client;
	struct penstock_device *dev = buffer->dev;
	const uint64_t serial = buffer->serial;
	struct pst_wire_buffer *old;
	unsigned windows;
	bool stuck;

	if (pst_fork_check(client->generation, &(struct pst_err){0}))
		return 0;
	pthread_mutex_lock(&client->lock);
	windows = buffer->windows;
	stuck = buffer->stuck;
	if (!windows && stuck && !buffer->retired) {
		buffer->retired = true;
		client->retired_count++;
	}
	if (!windows && !stuck)
		buffer_unlist(client, buffer);
	pthread_mutex_unlock(&client->lock);
	if (windows)
		return pst_fail_errno(err, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u windows of the buffer are open: release them first",
				      windows);
	if (!stuck)
		pst_wire_memory_free(buffer);
	while (dev && (old = retired_take(client, dev, serial)))
		pst_wire_memory_free(old);
	return 0;
}

void pst_wire_buffer_direct(struct pst_wire_buffer *buffer)
{
	buffer->direct = true;
}

void *pst_wire_buffer_ptr(const struct pst_wire_buffer *buffer)
{
	return buffer->ptr;
}

struct penstock_device *pst_wire_buffer_device(const struct pst_wire_buffer *buffer)
{
	return buffer->dev;
}

bool pst_wire_buffer_is_cut(struct pst_wire_buffer *buffer)
{
	struct pst_wire_client *client = buffer->client;
	bool is_cut;

	pthread_mutex_lock(&client->lock);
	is_cut = buffer->cut;
	pthread_mutex_unlock(&client->lock);
	return is_cut;
}

bool pst_wire_buffer_is_held(struct pst_wire_buffer *buffer)
{
	struct pst_wire_client *client = buffer->client;
	bool is_held;

	pthread_mutex_lock(&client->lock);
	is_held = buffer->stuck || (buffer->holder_count && !pst_wire_holders_gone(buffer));
	pthread_mutex_unlock(&client->lock);
	return is_held;
}

/* ---- the thread ---- */

int pst_wire_conn_wait(struct pst_wire_conn *conn, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = conn};

	if (conn->events == events)
		return 0;
	conn->events = events;
	return epoll_ctl(conn->client->epoll, EPOLL_CTL_MOD, conn->fd, &event) ? -errno : 0;
}

static void conn_close(struct pst_wire_conn *conn)
{
	struct pst_wire_client *client = conn->client;
	struct pst_wire_conn **at = &client->conns;

	pthread_mutex_lock(&client->lock);
	if (conn->grant && conn->ops->lost)
		conn->ops->lost(conn);
	pst_wire_conn_ungrant(conn);
	while (*at != conn)
		at = &(*at)->next;
	*at = conn->next;
	client->conn_count--;
	pthread_mutex_unlock(&client->lock);
	conn->ops->close(conn);
	close(conn->fd);
	free(conn);
}

/* Shuts down the connection that has been idle for the longest time, to make room for a new
 * connection. So connections that send nothing cannot keep servers out. epoll then reports the end
 * of the connection, and the thread frees it. */
static void conn_evict(struct pst_wire_client *client)
{
	struct pst_wire_conn *oldest = NULL;

	for (struct pst_wire_conn *conn = client->conns; conn; conn = conn->next)
		if (!conn->grant && (!oldest || conn->last_ms < oldest->last_ms))
			oldest = conn;
	if (oldest)
		shutdown(oldest->fd, SHUT_RDWR);
}

static void conn_accept(struct pst_wire_client *client, const struct pst_wire_listener *listener)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct pst_wire_conn *conn;
	int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return;
	conn = calloc(1, listener->ops->conn_size);
	if (!conn) {
		close(fd);
		return;
	}
	conn->client = client;
	conn->ops = listener->ops;
	conn->fd = fd;
	conn->events = EPOLLIN;
	conn->last_ms = pst_wire_now_ms();
	event.data.ptr = conn;
	pthread_mutex_lock(&client->lock);
	if (client->conn_count >= PST_WIRE_CONNS_MAX)
		conn_evict(client);
	conn->next = client->conns;
	client->conns = conn;
	client->conn_count++;
	pthread_mutex_unlock(&client->lock);
	if (epoll_ctl(client->epoll, EPOLL_CTL_ADD, fd, &event) || conn->ops->accept(conn) < 0)
		conn_close(conn);
}

static void listener_event(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	if (listener->ops->event)
		listener->ops->event(client, listener);
	else
		conn_accept(client, listener);
}

/* Calls the function `progress` of each transport that has one. Returns the maximum time in ms for
 * which the thread may wait for events; -1 if there is no limit. */
static int listeners_progress(struct pst_wire_client *client)
{
	int wait = -1;

	for (unsigned i = 0; i < client->listener_count; i++) {
		struct pst_wire_listener *listener = &client->listeners[i];
		int ms = listener->ops->progress ? listener->ops->progress(listener) : -1;

		if (ms >= 0 && (wait < 0 || ms < wait))
			wait = ms;
	}
	return wait;
}

static void *client_run(void *arg)
{
	struct pst_wire_client *client = arg;
	struct epoll_event events[16];

	for (;;) {
		int n = epoll_wait(client->epoll, events, 16, listeners_progress(client));

		if (n < 0 && errno != EINTR)
			return NULL;
		for (int i = 0; i < n; i++) {
			unsigned char *at = events[i].data.ptr;
			unsigned char *first = (unsigned char *)client->listeners;
			struct pst_wire_conn *conn = events[i].data.ptr;

			if (at == (unsigned char *)client)
				return NULL;
			if (at >= first && at < first + sizeof(client->listeners)) {
				listener_event(client, (struct pst_wire_listener *)at);
				continue;
			}
			conn->last_ms = pst_wire_now_ms();
			if (conn->ops->ready(conn) < 0)
				conn_close(conn);
		}
	}
}

/* ---- open and close ---- */

static int client_slots(struct pst_wire_client *c, struct pst_err *err)
{
	uint64_t start;
	int ret = pst_wire_random(&start, sizeof(start), err);

	if (ret)
		return ret;
	c->grants = calloc(SLOTS, sizeof(*c->grants));
	if (!c->grants)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for windows");
	c->free_end = &c->free;
	for (unsigned i = 0; i < SLOTS; i++) {
		c->grants[i].id = ((start & ID_MASK) / SLOTS * SLOTS + i) & ID_MASK;
		c->grants[i].file = -1;
		slot_return(c, &c->grants[i]);
	}
	return 0;
}

/* Copies the caller's options into the client, because the caller may free its strings after the
 * open. */
static int client_options(struct pst_wire_client *c, const struct penstock_object_client_opts *opts,
			  struct pst_err *err)
{
	unsigned *users = NULL;

	c->opts = *opts;
	c->opts.users = NULL;
	if (!c->opts.fence_ms)
		c->opts.fence_ms = FENCE_MS;
	if (opts->user_count > 1024 || (opts->user_count && !opts->users))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%u users are not possible",
				opts->user_count);
	if (opts->user_count) {
		users = malloc(opts->user_count * sizeof(*users));
		if (!users)
			return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory");
		memcpy(users, opts->users, opts->user_count * sizeof(*users));
	}
	c->opts.users = users;
	return 0;
}

int pst_wire_client_open(const struct penstock_object_client_opts *opts,
			 const struct pst_wire_devices *devices, unsigned omit,
			 struct pst_wire_client **out, struct pst_err *err)
{
	struct pst_wire_client *c = calloc(1, sizeof(*c));
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
	int ret;

	if (!c)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a client");
	pthread_mutex_init(&c->lock, NULL);
	pst_cond_init(&c->idle);
	c->devices = devices;
	c->omit = omit;
	c->anywhere =
		(struct pst_wire_buffer){.client = c, .fd = -1, .read_fd = -1, .takes_files = true};
	c->generation = pst_fork_generation();
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->stop = eventfd(0, EFD_CLOEXEC);
	ret = client_options(c, opts, err);
	if (!ret &&
	    (c->epoll < 0 || c->stop < 0 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->stop, &event)))
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	if (!ret)
		ret = client_slots(c, err);
	if (!ret)
		ret = pst_wire_listeners_open(c, err);
	if (!ret) {
		int code = pst_thread_start(&c->thread, client_run, c);

		c->running = !code;
		if (code)
			ret = pst_fail_errno(err, code, PENSTOCK_WHY_NO_MEMORY, "thread: %s",
					     strerror(code));
	}
	if (ret)
		pst_wire_client_close(c);
	else
		*out = c;
	return ret;
}

void pst_wire_client_close(struct pst_wire_client *c)
{
	const uint64_t one = 1;

	if (c->running && write(c->stop, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(c->thread, NULL);
	/* The caller may have left windows open. Ends their registrations with network cards, and
	 * closes the files that servers have passed. */
	for (unsigned i = 0; c->grants && i < SLOTS; i++) {
		if (c->grants[i].bound)
			c->grants[i].ops->unbind(&c->grants[i], &(struct pst_err){0});
		pst_wire_handover_close(pst_wire_handover_take(&c->grants[i]));
	}
	for (unsigned i = 0; i < c->listener_count; i++)
		pst_wire_listener_close(c, &c->listeners[i]);
	while (c->conns)
		conn_close(c->conns);
	while (c->buffers) {
		struct pst_wire_buffer *next = c->buffers->next;

		pst_wire_memory_free(c->buffers);
		c->buffers = next;
	}
	if (c->epoll >= 0)
		close(c->epoll);
	if (c->stop >= 0)
		close(c->stop);
	pthread_cond_destroy(&c->idle);
	pthread_mutex_destroy(&c->lock);
	free((void *)c->opts.users);
	free(c->grants);
	free(c);
}

bool pst_wire_client_takes_files(const struct pst_wire_client *c)
{
	return c->listener_count && c->listeners[0].ops->takes_files;
}

bool pst_wire_client_is_dma(const struct pst_wire_client *c)
{
	bool dma = true;

	for (unsigned i = 0; i < c->listener_count; i++)
		dma &= c->listeners[i].ops->dma;
	return dma;
}

void pst_wire_client_info(struct pst_wire_client *c, struct penstock_object_client_info *out)
{
	out->windows = atomic_load(&c->counts.windows);
	out->bytes = atomic_load(&c->counts.bytes);
	out->late = atomic_load(&c->counts.late);
	out->wrong_cap = atomic_load(&c->counts.wrong_cap);
	out->wrong_user = atomic_load(&c->counts.wrong_user);
	out->out_of_window = atomic_load(&c->counts.out_of_window);
	out->bad_checksum = atomic_load(&c->counts.bad_checksum);
	out->malformed = atomic_load(&c->counts.malformed);
	out->cut_off = atomic_load(&c->counts.cut_off);
	out->stuck = atomic_load(&c->counts.stuck);
}
