/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport shm1: passes memory to those servers on the same host whose user is
 * permitted. If a server does not answer a release, this file ends its access to the memory.
 * client.c calls these functions. The client's lock is held while a message is handled. So either a
 * release sees that a server has a window open, or the server gets no reply to its OPEN.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/digits.h"
#include "wire/shm1.h"
#include "wire/client.h"
#include "wire/common.h"
#include "wire/handover.h"
#include "wire/holders.h"

struct shm1_conn {
	struct pst_wire_conn conn;
	bool watched; /* whether `pidfd` refers to the server's process */
	int pidfd;
};

static bool fits(const struct pst_wire_listener *listener, const struct pst_wire_buffer *buffer,
		 uint64_t off)
{
	(void)listener;
	/* A release may replace the pages of a window in host memory. So the window must begin at a
	 * page boundary, or other bytes of the page would be affected. */
	return buffer->shared && (buffer->dev || off % PST_WIRE_PAGE == 0);
}

static void fill(const struct pst_wire_grant *grant, struct pst_token *token)
{
	token->shm.cuda = grant->buffer->dev;
	token->shm.file = grant->buffer->takes_files;
	memcpy(token->shm.cap, grant->cap, sizeof(grant->cap));
}

/* Returns the id of the window's memory in messages. It differs for servers that read and for
 * servers that write, because they get different descriptors. */
static uint64_t memory_id(const struct pst_wire_grant *grant)
{
	return grant->buffer->id + (grant->op == PENSTOCK_READ);
}

/* ---- messages, with the lock ---- */

/* Takes the file that the server passes with OPEN. If the window keeps it, sets *fd to the window's
 * earlier file, or to -1. */
static enum pst_wire_status take_file(struct pst_wire_grant *g, const struct pst_shm1_message *open,
				      int *fd)
{
	/* The window's first bytes are those of the file's range. */
	return open->off ? PST_WIRE_OUTSIDE : pst_wire_handover_put(g, fd, open->memory, open->len);
}

static int send_window(struct pst_wire_conn *conn, const struct pst_shm1_message *open, int *fd)
{
	struct pst_shm1_message answer = {.kind = PST_SHM1_WINDOW, .id = open->id};
	struct pst_wire_grant *g = NULL;

	if (conn->grant)
		return -EPROTO;
	answer.status = pst_wire_find(conn->client, open->id, open->cap, open->op, open->off,
				      open->len, &g);
	/* A token of another transport must not give access by shm1. */
	if (answer.status == PST_WIRE_OK &&
	    (g->ops != conn->ops || !(g->buffer->shared || g->buffer->takes_files)))
		answer.status = PST_WIRE_REFUSED;
	if (answer.status == PST_WIRE_OK && g->buffer->takes_files) {
		answer.status = take_file(g, open, fd);
	} else if (answer.status == PST_WIRE_OK) {
		answer.memory = memory_id(g);
		answer.memory_len = g->buffer->mapped;
		answer.off = g->off + open->off;
		answer.len = open->len;
		g->users++;
		conn->grant = g;
	}
	return pst_shm1_send(conn->fd, &answer, -1);
}

/* Sends MEMORY, which passes the memory of the connection's open window to the server. */
static int send_memory(struct pst_wire_conn *conn)
{
	struct pst_shm1_message answer = {.kind = PST_SHM1_MEMORY};
	const struct pst_wire_grant *g = conn->grant;
	const struct pst_wire_buffer *b;

	if (!g)
		return -EPROTO;
	if (!g->live) {
		answer.status = PST_WIRE_REFUSED;
		return pst_shm1_send(conn->fd, &answer, -1);
	}
	b = g->buffer;
	answer.id = g->id;
	answer.memory = memory_id(g);
	answer.memory_len = b->mapped;
	answer.cuda = b->dev != NULL;
	if (b->dev) {
		memcpy(answer.exported, b->exported.bytes, sizeof(answer.exported));
		return pst_shm1_send(conn->fd, &answer, b->exported.fd);
	}
	return pst_shm1_send(conn->fd, &answer, g->op == PENSTOCK_READ ? b->fd : b->read_fd);
}

static int end_window(struct pst_wire_conn *conn, const struct pst_shm1_message *done)
{
	/* conn->grant is NULL if a release has ended this server's access by force. */
	if (!conn->grant || conn->grant->id != done->id)
		return -EPROTO;
	if (done->status == PST_WIRE_OK && done->len <= conn->grant->len)
		atomic_fetch_add(&conn->client->counts.bytes, done->len);
	pst_wire_conn_ungrant(conn);
	return 0;
}

/* Handles a message. *fd is the message's descriptor. The caller closes what *fd is after it. */
static int handle(struct pst_wire_conn *conn, const struct pst_shm1_message *message, int *fd)
{
	switch (message->kind) {
	case PST_SHM1_OPEN:
		return send_window(conn, message, fd);
	case PST_SHM1_WANT:
		return send_memory(conn);
	case PST_SHM1_DONE:
		return end_window(conn, message);
	default:
		return -EPROTO;
	}
}

static int ready(struct pst_wire_conn *conn)
{
	struct pst_wire_client *client = conn->client;
	struct pst_shm1_message message;
	int fd, ret = pst_shm1_receive(conn->fd, &message, &fd);

	if (ret > 0) {
		pthread_mutex_lock(&client->lock);
		ret = handle(conn, &message, &fd);
		pthread_mutex_unlock(&client->lock);
	}
	if (fd >= 0)
		close(fd);
	if (ret == -EPROTO)
		atomic_fetch_add(&client->counts.malformed, 1);
	return ret;
}

/* ---- release ---- */

/* Sends a message to the servers that have the window open, or to all if `grant` is NULL. */
static void tell(struct pst_wire_client *client, const struct pst_wire_grant *grant,
		 struct pst_shm1_message *message)
{
	for (struct pst_wire_conn *conn = client->conns; conn; conn = conn->next)
		if (conn->ops == &pst_shm1_client && (!grant || conn->grant == grant))
			/* The result is ignored: the send fails if the socket's queue is full,
			 * because the server does not read. A release waits for the server's answer
			 * to REVOKE. If there is none, it ends the connection (hang_up). */
			(void)pst_shm1_send(conn->fd, message, -1);
}

static void revoke_window(struct pst_wire_grant *grant)
{
	struct pst_shm1_message message = {.kind = PST_SHM1_REVOKE, .id = grant->id};

	tell(grant->buffer->client, grant, &message);
}

static void drop(struct pst_wire_buffer *buffer)
{
	struct pst_shm1_message message = {.kind = PST_SHM1_DROP, .memory = buffer->id};

	if (buffer->shared)
		tell(buffer->client, NULL, &message);
}

/* A connection has ended while its server has a window in GPU memory open. The server may access
 * the memory until its process ends, so its pidfd is recorded (holders.c). */
static void lost(struct pst_wire_conn *conn)
{
	struct shm1_conn *own = (struct shm1_conn *)conn;

	if (!conn->grant->buffer->dev)
		return;
	pst_wire_holders_add(conn->grant->buffer, own->watched ? own->pidfd : -1);
	own->watched = false;
}

/* Ends the connections of the servers that have the window open. Afterwards the client counts no
 * server as a user of the window. */
static void hang_up(struct pst_wire_grant *grant)
{
	for (struct pst_wire_conn *conn = grant->buffer->client->conns; conn; conn = conn->next)
		if (conn->grant == grant) {
			lost(conn);
			conn->grant = NULL;
			shutdown(conn->fd, SHUT_RDWR);
		}
	grant->users = 0;
}

/* Replaces the window's pages by private pages with the same contents. The server keeps the old
 * pages, which no other process uses. mremap(2) replaces all pages at once, so another thread never
 * finds a page missing. */
static int replace_pages(const struct pst_wire_grant *grant, struct pst_err *err)
{
	unsigned char *at = grant->buffer->ptr + grant->off, *fresh;
	size_t len = (grant->len + PST_WIRE_PAGE - 1) & ~(size_t)(PST_WIRE_PAGE - 1);

	fresh = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fresh == MAP_FAILED)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu fresh bytes: %m", len);
	memcpy(fresh, at, len);
	if (mremap(fresh, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "mremap: %m");
		munmap(fresh, len);
		return -ENOMEM;
	}
	return 0;
}

static int cut(struct pst_wire_grant *grant, struct pst_err *err)
{
	struct pst_wire_buffer *buffer = grant->buffer;
	int ret = 0;

	/* The buffer's memory cannot be passed to servers any more, because replaced pages are not
	 * in the memfd. */
	buffer->shared = false;
	if (grant->len)
		ret = buffer->dev ? -ETIMEDOUT : replace_pages(grant, err);
	hang_up(grant);
	if (!ret)
		return 0;
	if (buffer->dev && !buffer->stuck)
		atomic_fetch_add(&buffer->client->counts.stuck, 1);
	buffer->stuck = true;
	return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
			      "a server has not confirmed the end of its transfer, and may still "
			      "access the memory");
}

/* ---- connections ---- */

static bool user_allowed(const struct pst_wire_client *client, uid_t user)
{
	if (!user || user == geteuid())
		return true;
	for (unsigned i = 0; i < client->opts.user_count; i++)
		if (client->opts.users[i] == user)
			return true;
	return false;
}

static int shm1_accept(struct pst_wire_conn *conn)
{
	struct shm1_conn *own = (struct shm1_conn *)conn;
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return -errno;
	/* SO_PEERCRED reports pid 0 for a server in a PID namespace that is invisible here. Such a
	 * process cannot be watched. */
	if (conn->client->devices && peer.pid > 0)
		own->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	own->watched = own->pidfd > 0;
	if (user_allowed(conn->client, peer.uid))
		return 0;
	atomic_store(&conn->client->refused_user, peer.uid);
	atomic_fetch_add(&conn->client->counts.wrong_user, 1);
	return -EACCES;
}

/* A server whose user is not permitted may have tried to open another window of this client, if
 * both windows were open at the same time. The text then names the user of another server. */
static void explain(const struct pst_wire_grant *grant, struct penstock_object_verdict *verdict)
{
	struct pst_wire_client *client = grant->buffer->client;
	const size_t len = strlen(verdict->text);

	if (atomic_load(&client->counts.wrong_user) != grant->wrong_user)
		snprintf(verdict->text + len, sizeof(verdict->text) - len,
			 "; shm1 does not serve user %u: choose another transport, such as tcp1",
			 atomic_load(&client->refused_user));
}

static void shm1_close(struct pst_wire_conn *conn)
{
	const struct shm1_conn *own = (struct shm1_conn *)conn;

	if (own->watched)
		close(own->pidfd);
}

static int shm1_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		       struct pst_err *err)
{
	struct pst_token *token = &listener->token;
	struct sockaddr_un address;
	unsigned char name[16];
	unsigned len;
	int ret = pst_wire_host(token->shm.host, err);

	(void)client;
	if (!ret)
		ret = pst_wire_random(name, sizeof(name), err);
	if (ret)
		return ret;
	token->kind = PST_TOKEN_SHM1;
	pst_hex(name, sizeof(name), token->shm.handle);
	len = pst_shm1_address(token->shm.handle, &address);
	listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&address, len) ||
	    listen(listener->fd, 128))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "shm1 cannot listen: %m");
	return 0;
}

const struct pst_wire_client_ops pst_shm1_client = {
	.name = "shm1",
	.on_host = true,
	.direct = true,
	.takes_files = true,
	.conn_size = sizeof(struct shm1_conn),
	.listen = shm1_listen,
	.fits = fits,
	.fill = fill,
	.accept = shm1_accept,
	.ready = ready,
	.explain = explain,
	.lost = lost,
	.close = shm1_close,
	.revoke = revoke_window,
	.cut = cut,
	.drop = drop,
};
