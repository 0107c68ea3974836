/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport tcp1: accepts connections of servers, and carries out their
 * commands. Only the client itself reads and writes its memory. So a server cannot get around the
 * limits or the release of a window. Each access to the memory is between pst_wire_enter and
 * pst_wire_leave, and never waits for the network. client.c calls these functions on the client's
 * thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "wire/tcp1.h"
#include "wire/client.h"
#include "wire/common.h"

/* Maximum number of bytes of one system call. It is low, so that a release, which waits for the
 * call, waits only briefly. */
#define STEP (256u << 10)
/* number of bytes after which the thread serves other connections */
#define BUDGET (1u << 20)

enum state {
	STATE_COMMAND, /* receives a command */
	STATE_BYTES,   /* receives the bytes of a WRITE */
	STATE_SEND,    /* sends `out`, and then the bytes that follow the reply to a READ */
};

struct tcp1_conn {
	struct pst_wire_conn conn;
	enum state state;
	unsigned char in[PST_TCP1_COMMAND_LEN];
	unsigned char out[PST_TCP1_REPLY_LEN];
	unsigned in_len, out_len, out_at;
	struct pst_tcp1_command command;
	enum pst_wire_status status;
	/* Window of the command. It may be accessed only after pst_wire_enter with command.id. */
	struct pst_wire_grant *target;
	/* true: the bytes go through `staging`, because the window is in memory of a GPU */
	bool staged;
	/* raw: CRC of the bytes so far; left: number of bytes still to receive or send */
	uint32_t raw, left;
	/* buffer of PST_TCP1_FRAME_MAX bytes, allocated when it is first needed; NULL before */
	unsigned char *staging;
};

/* ---- the window's memory ---- */

static unsigned char *memory_at(const struct tcp1_conn *t, uint64_t done)
{
	return t->target->buffer->ptr + t->target->off + t->command.off + done;
}

static bool enter(struct tcp1_conn *t)
{
	return pst_wire_enter(t->conn.client, t->target, t->command.id);
}

static void leave(struct tcp1_conn *t)
{
	pst_wire_leave(t->conn.client, t->target);
}

/* Refuses the command, because its window has been released. */
static void refuse_late(struct tcp1_conn *t)
{
	t->status = PST_WIRE_REFUSED;
	atomic_fetch_add(&t->conn.client->counts.late, 1);
}

static int staging_open(struct tcp1_conn *t)
{
	if (!t->staging)
		t->staging = malloc(PST_TCP1_FRAME_MAX);
	return t->staging ? 0 : -ENOMEM;
}

/* ---- replies ---- */

static void reply(struct tcp1_conn *t, uint32_t len, uint32_t crc)
{
	struct pst_tcp1_reply r = {t->status, t->command.seq, len, crc};

	pst_tcp1_put_reply(t->out, &r);
	t->out_at = 0;
	t->out_len = PST_TCP1_REPLY_LEN;
	t->left = len;
	t->state = STATE_SEND;
}

/* Completes a WRITE whose bytes have all arrived: checks them, and prepares the reply. */
static void write_end(struct tcp1_conn *t)
{
	struct pst_wire_client *client = t->conn.client;
	uint32_t len = t->command.len;

	if (t->status == PST_WIRE_OK && pst_crc32c_finish(t->raw, len) != t->command.crc) {
		t->status = PST_WIRE_CHECKSUM;
		atomic_fetch_add(&client->counts.bad_checksum, 1);
	} else if (t->status == PST_WIRE_OK && t->staged) {
		if (!enter(t)) {
			refuse_late(t);
		} else {
			if (pst_wire_copy(client->devices, t->target->buffer->dev, memory_at(t, 0),
					  NULL, t->staging, len))
				t->status = PST_WIRE_FAULT;
			leave(t);
		}
	}
	if (t->status == PST_WIRE_OK)
		atomic_fetch_add(&client->counts.bytes, len);
	reply(t, 0, 0);
}

/* Prepares the reply to a READ, and computes the checksum of its bytes. */
static void read_begin(struct tcp1_conn *t)
{
	const unsigned char *from = t->staging;
	uint32_t len = t->command.len, crc = 0;

	if (t->status == PST_WIRE_OK && !enter(t))
		refuse_late(t);
	if (t->status != PST_WIRE_OK) {
		reply(t, 0, 0);
		return;
	}
	if (!t->staged)
		from = memory_at(t, 0);
	else if (pst_wire_copy(t->conn.client->devices, NULL, t->staging, t->target->buffer->dev,
			       memory_at(t, 0), len))
		t->status = PST_WIRE_FAULT;
	if (t->status == PST_WIRE_OK)
		crc = pst_crc32c_finish(pst_crc32c_raw(0, from, len), len);
	leave(t);
	reply(t, t->status == PST_WIRE_OK ? len : 0, crc);
}

/* ---- the three states; each returns the number of bytes, 0 if it has to wait, or an error ---- */

static ssize_t received(ssize_t n)
{
	if (n > 0)
		return n;
	if (!n)
		return -EPIPE;
	return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

static ssize_t command_step(struct tcp1_conn *t)
{
	struct pst_wire_client *client = t->conn.client;
	ssize_t n = received(recv(t->conn.fd, t->in + t->in_len, sizeof(t->in) - t->in_len, 0));
	struct pst_tcp1_command *c = &t->command;

	if (n <= 0)
		return n;
	t->in_len += (unsigned)n;
	if (t->in_len < sizeof(t->in))
		return n;
	t->in_len = 0;
	if (pst_tcp1_get_command(t->in, c)) {
		atomic_fetch_add(&client->counts.malformed, 1);
		return -EPROTO;
	}
	pthread_mutex_lock(&client->lock);
	t->status = pst_wire_find(client, c->id, c->cap,
				  c->kind == PST_TCP1_WRITE ? PENSTOCK_READ : PENSTOCK_WRITE,
				  c->off, c->len, &t->target);
	t->staged = t->status == PST_WIRE_OK && t->target->buffer->dev;
	pthread_mutex_unlock(&client->lock);
	if (t->staged && staging_open(t))
		t->status = PST_WIRE_FAULT;
	t->raw = 0;
	t->left = c->len;
	if (c->kind == PST_TCP1_READ)
		read_begin(t);
	else if (!c->len)
		write_end(t);
	else
		t->state = STATE_BYTES;
	return n;
}

/* Receives bytes of a refused WRITE and drops them, so that the next command follows. */
static ssize_t discard(struct tcp1_conn *t, size_t max)
{
	unsigned char nowhere[16384];

	return received(
		recv(t->conn.fd, nowhere, max < sizeof(nowhere) ? max : sizeof(nowhere), 0));
}

static ssize_t bytes_step(struct tcp1_conn *t)
{
	size_t max = t->left < STEP ? t->left : STEP;
	uint32_t done = t->command.len - t->left;
	ssize_t n;

	if (t->status == PST_WIRE_OK && !t->staged && !enter(t))
		refuse_late(t);
	if (t->status != PST_WIRE_OK) {
		n = discard(t, max);
	} else {
		unsigned char *to = t->staged ? t->staging + done : memory_at(t, done);

		n = received(recv(t->conn.fd, to, max, 0));
		if (n > 0)
			t->raw = pst_crc32c_raw(t->raw, to, (size_t)n);
		if (!t->staged)
			leave(t);
	}
	if (n > 0)
		t->left -= (uint32_t)n;
	if (n > 0 && !t->left)
		write_end(t);
	return n;
}

static ssize_t sent(ssize_t n)
{
	if (n >= 0)
		return n;
	return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

static ssize_t send_step(struct tcp1_conn *t)
{
	size_t max = t->left < STEP ? t->left : STEP;
	uint32_t done = t->command.len - t->left;
	ssize_t n;

	if (t->out_at < t->out_len) {
		n = sent(send(t->conn.fd, t->out + t->out_at, t->out_len - t->out_at,
			      MSG_NOSIGNAL | (t->left ? MSG_MORE : 0)));
		t->out_at += n > 0 ? (unsigned)n : 0;
	} else if (t->staged) {
		n = sent(send(t->conn.fd, t->staging + done, max, MSG_NOSIGNAL));
		t->left -= n > 0 ? (uint32_t)n : 0;
	} else {
		if (!enter(t)) {
			/* The reply has already announced the number of bytes, but the window was
			 * released before all were sent. The rest cannot be sent, so the connection
			 * must end. */
			refuse_late(t);
			return -ECANCELED;
		}
		n = sent(send(t->conn.fd, memory_at(t, done), max, MSG_NOSIGNAL));
		leave(t);
		t->left -= n > 0 ? (uint32_t)n : 0;
	}
	if (n < 0)
		return n;
	if (t->out_at == t->out_len && !t->left) {
		if (t->command.kind == PST_TCP1_READ && t->status == PST_WIRE_OK)
			atomic_fetch_add(&t->conn.client->counts.bytes, t->command.len);
		t->state = STATE_COMMAND;
	}
	return n;
}

static int tcp1_ready(struct pst_wire_conn *conn)
{
	struct tcp1_conn *t = (struct tcp1_conn *)conn;
	size_t moved = 0;

	while (moved < BUDGET) {
		ssize_t n = t->state == STATE_COMMAND ? command_step(t)
			    : t->state == STATE_BYTES ? bytes_step(t)
						      : send_step(t);

		if (n < 0)
			return (int)n;
		if (!n)
			break;
		moved += (size_t)n;
	}
	return pst_wire_conn_wait(conn, t->state == STATE_SEND ? EPOLLOUT : EPOLLIN);
}

/* ---- connections ---- */

static int tcp1_accept(struct pst_wire_conn *conn)
{
	const int on = 1;

	setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	/* The send cannot block or be partial: the send buffer of a new connection is empty. */
	return send(conn->fd, PST_TCP1_GREETING, PST_TCP1_GREETING_LEN,
		    MSG_NOSIGNAL | MSG_DONTWAIT) == PST_TCP1_GREETING_LEN
		       ? 0
		       : -EPIPE;
}

static void tcp1_close(struct pst_wire_conn *conn)
{
	free(((struct tcp1_conn *)conn)->staging);
}

static int tcp1_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		       struct pst_err *err)
{
	struct pst_token_place *place = &listener->token.tcp.at;
	struct sockaddr_storage at;
	socklen_t len;
	const int on = 1;
	int ret = pst_wire_own_place(client, place, err);

	if (ret)
		return ret;
	len = pst_wire_sockaddr(place, &at);
	listener->fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener->fd >= 0 && client->opts.port)
		setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&at, len) ||
	    listen(listener->fd, 128) || getsockname(listener->fd, (struct sockaddr *)&at, &len))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "tcp1 cannot listen at %s: %m", place->address);
	listener->token.kind = PST_TOKEN_TCP1;
	place->port = ntohs(place->v6 ? ((struct sockaddr_in6 *)&at)->sin6_port
				      : ((struct sockaddr_in *)&at)->sin_port);
	return 0;
}

static bool tcp1_fits(const struct pst_wire_listener *listener,
		      const struct pst_wire_buffer *buffer, uint64_t off)
{
	(void)listener;
	(void)buffer;
	(void)off;
	return true;
}

static void tcp1_fill(const struct pst_wire_grant *grant, struct pst_token *token)
{
	memcpy(token->tcp.cap, grant->cap, sizeof(grant->cap));
}

const struct pst_wire_client_ops pst_tcp1_client = {
	.name = "tcp1",
	.slow = true, /* 0.15 to 0.6 of the speed of a body, see bench/README.md */
	.either_way = true,
	.conn_size = sizeof(struct tcp1_conn),
	.listen = tcp1_listen,
	.fits = tcp1_fits,
	.fill = tcp1_fill,
	.accept = tcp1_accept,
	.ready = tcp1_ready,
	.close = tcp1_close,
};
