/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends one request at a time over a connection and receives the response: see http_conn.h. Body
 * bytes go from the socket, or from libssl, straight into the call's memory.
 */
#include "io/http_conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Default times in seconds. */
#define CONNECT_S 5
#define PATIENCE_S 30
#define SLOW_S 10
/* Maximum number of receives of a connection before the reactor handles the other connections. */
#define RECEIVES_MAX 8
/* Maximum number of pieces of the call's memory that one system call fills. */
#define PIECES_MAX 64
/* If a text body has more bytes than are kept, up to this many of them are read and dropped, so
 * that the connection can be used again. If it has still more, the connection is closed. */
#define TEXT_SKIP_MAX (1u << 20)

/* Closes the socket. Removes its number from the struct first: another thread may fork at any time,
 * and the child then closes all descriptors that it finds in connections. After the close, the
 * number may belong to another file. */
static void conn_fd_close(struct pst_http_conn *conn)
{
	int fd = conn->fd;

	conn->fd = -1;
	if (fd >= 0)
		close(fd);
}

int pst_http_conn_open(struct pst_http_conn *conn, const struct sockaddr *address,
		       socklen_t address_len)
{
	int one = 1;

	conn->state = PST_CONN_CONNECTING;
	conn->wants_write = true;
	conn->watches_write = false;
	conn->reused = false;
	conn->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (conn->fd < 0)
		return -errno;
	if (!conn->buf)
		conn->buf = malloc(PST_HTTP_HEAD_MAX);
	if (!conn->buf) {
		conn_fd_close(conn);
		return -ENOMEM;
	}
	/* Without this, the last segment of a request could wait for an acknowledgement. */
	setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(conn->fd, address, address_len) && errno != EINPROGRESS) {
		int ret = -errno;

		conn_fd_close(conn);
		return ret;
	}
	return 0;
}

void pst_http_conn_close(struct pst_http_conn *conn)
{
	pst_tls_close(conn->tls);
	conn->tls = NULL;
	conn_fd_close(conn);
	free(conn->request.at);
	conn->request = (struct pst_text){NULL, 0, 0, false};
	free(conn->buf);
	conn->buf = NULL;
}

bool pst_http_conn_has_surplus(const struct pst_http_conn *conn)
{
	char byte;

	if (conn->tls && pst_tls_has_more(conn->tls))
		return true;
	return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

void pst_http_conn_give(struct pst_http_conn *conn, struct pst_http_call *call, uint64_t now_ns)
{
	conn->call = call;
	conn->sent = conn->have = 0;
	conn->moved = conn->mark_moved = 0;
	conn->mark_ns = conn->began_ns = now_ns;
	conn->usable = conn->repeat = false;
	conn->chunks = (struct pst_http_chunks){0};
	conn->request.len = 0;
	conn->request.failed = false;
	call->ops->write_head(call, &conn->request);
	call->got_before = call->got;
	call->text.len = 0;
	memset(&call->head, 0, sizeof(call->head));
	if (conn->state == PST_CONN_IDLE) {
		conn->state = PST_CONN_SENDING;
		conn->wants_write = false;
	}
}

/* ---- failures ---- */

__attribute__((format(printf, 3, 4))) static enum pst_http_end
conn_broken(struct pst_http_conn *conn, int code, const char *fmt, ...)
{
	char what[128];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	pst_fail_errno(&conn->call->err, code, PENSTOCK_WHY_IO_ERROR, "%s %s",
		       pst_path_tail(conn->host), what);
	conn->usable = false;
	return PST_HTTP_BROKEN;
}

/* Ends an attempt whose connection the server has closed or reset. */
static enum pst_http_end conn_ended(struct pst_http_conn *conn, int code)
{
	conn->usable = false;
	/* A server may close an idle connection at any time, also while a request is on its way. So
	 * if a reused connection ends before the first byte of a response, the server may have
	 * closed it before it got the request. */
	if (conn->reused && conn->state <= PST_CONN_HEAD && !conn->have)
		return PST_HTTP_STALE;
	if (!code || code == -ECONNRESET || code == -EPIPE)
		return conn_broken(conn, ECONNRESET, "closed the connection %s",
				   conn->state < PST_CONN_BODY ? "without an answer"
							       : "in the middle of a body");
	return conn_broken(conn, -code, "cannot be reached: %s", strerror(-code));
}

/* ---- bytes ---- */

/* Sets the entries of `iov` to the part of the call's memory that is not filled yet: at most `most`
 * bytes, in at most PIECES_MAX pieces. Returns the number of pieces. */
static unsigned body_iov(const struct pst_http_call *call, uint64_t most,
			 struct iovec iov[PIECES_MAX])
{
	uint64_t skip = call->got;
	unsigned count = 0;

	for (unsigned i = 0; i < call->in_count && most && count < PIECES_MAX; i++) {
		uint64_t len = call->in[i].iov_len;

		if (skip >= len) {
			skip -= len;
			continue;
		}
		len = len - skip < most ? len - skip : most;
		iov[count++] = (struct iovec){(char *)call->in[i].iov_base + skip, (size_t)len};
		most -= len;
		skip = 0;
	}
	return count;
}

/* Receives up to `len` bytes. Returns 0 at the end of the connection, or -errno. */
static ssize_t conn_receive(struct pst_http_conn *conn, void *bytes, size_t len)
{
	ssize_t n = conn->tls ? pst_tls_read(conn->tls, bytes, len)
			      : recv(conn->fd, bytes, len, MSG_DONTWAIT);

	if (conn->tls)
		conn->wants_write = n == -EAGAIN && pst_tls_wants_write(conn->tls);
	else if (n < 0)
		n = -errno;
	if (n > 0)
		conn->moved += (uint64_t)n;
	return n;
}

/* Receives body bytes into the call's memory. With SO_RCVLOWAT of 128 KiB, the thread would wake up
 * less often. But over loopback that saved only 0 to 10 % of the thread's CPU time, less than the
 * variation between runs. */
static ssize_t conn_receive_body(struct pst_http_conn *conn)
{
	struct iovec iov[PIECES_MAX];
	unsigned count = body_iov(conn->call, conn->left, iov);
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count};
	ssize_t n;

	if (!count)
		return -EOVERFLOW;
	if (conn->tls)
		return conn_receive(conn, iov[0].iov_base, iov[0].iov_len);
	n = recvmsg(conn->fd, &msg, MSG_DONTWAIT);
	if (n > 0)
		conn->moved += (uint64_t)n;
	return n < 0 ? -errno : n;
}

/* ---- the states ---- */

static enum pst_http_end conn_connect(struct pst_http_conn *conn)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(int), peer_len = sizeof(peer);
	int code = 0;

	getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &code, &len);
	if (code) {
		pst_fail_errno(&conn->call->err, code, PENSTOCK_WHY_IO_ERROR,
			       "%s does not accept connections: %s", pst_path_tail(conn->host),
			       strerror(code));
		return PST_HTTP_REFUSED;
	}
	if (getpeername(conn->fd, (struct sockaddr *)&peer, &peer_len))
		return PST_HTTP_RUNNING; /* not connected yet */
	conn->wants_write = false;
	conn->state = PST_CONN_SENDING;
	if (!conn->tls_context)
		return PST_HTTP_RUNNING;
	conn->tls = pst_tls_open(conn->tls_context, conn->fd, conn->host);
	if (!conn->tls) {
		pst_fail(&conn->call->err, PENSTOCK_WHY_NO_MEMORY, "no memory for TLS");
		return PST_HTTP_FAILED;
	}
	conn->state = PST_CONN_SHAKING;
	return PST_HTTP_RUNNING;
}

static enum pst_http_end conn_shake(struct pst_http_conn *conn)
{
	int ret = pst_tls_shake(conn->tls, &conn->call->err);

	conn->wants_write = ret == -EAGAIN && pst_tls_wants_write(conn->tls);
	if (ret == -EAGAIN)
		return PST_HTTP_RUNNING;
	if (ret)
		return ret == -EKEYREJECTED ? PST_HTTP_FAILED : PST_HTTP_REFUSED;
	conn->state = PST_CONN_SENDING;
	return PST_HTTP_RUNNING;
}

/* Sends the next bytes of the request. Returns the number of bytes, or -errno. */
static ssize_t conn_send_some(struct pst_http_conn *conn)
{
	const struct pst_http_call *call = conn->call;
	uint64_t head_len = conn->request.len;
	uint64_t head = conn->sent < head_len ? head_len - conn->sent : 0;
	uint64_t body_at = conn->sent > head_len ? conn->sent - head_len : 0;
	struct iovec iov[2] = {
		{conn->request.at + conn->sent, (size_t)head},
		{(char *)(uintptr_t)call->out + body_at, (size_t)(call->out_len - body_at)}};
	struct msghdr msg = {.msg_iov = head ? iov : iov + 1, .msg_iovlen = head ? 2 : 1};
	ssize_t n;

	if (conn->tls)
		return pst_tls_write(conn->tls, msg.msg_iov->iov_base, msg.msg_iov->iov_len);
	if (head && !call->out_len)
		msg.msg_iovlen = 1;
	n = sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n < 0 ? -errno : n;
}

static enum pst_http_end conn_head(struct pst_http_conn *conn, uint64_t now_ns);

static enum pst_http_end conn_send(struct pst_http_conn *conn, uint64_t now_ns)
{
	uint64_t total = conn->request.len + conn->call->out_len;

	if (conn->request.failed) {
		pst_fail(&conn->call->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
		return PST_HTTP_FAILED;
	}
	while (conn->sent < total) {
		ssize_t n = conn_send_some(conn);

		if (n > 0) {
			conn->sent += (uint64_t)n;
			conn->moved += (uint64_t)n;
			continue;
		}
		conn->wants_write = n == -EAGAIN;
		if (conn->tls && n == -EAGAIN)
			conn->wants_write = pst_tls_wants_write(conn->tls);
		if (n == -EINTR)
			continue;
		if (n == -EAGAIN && conn->tls)
			return PST_HTTP_RUNNING;
		if (n != -EAGAIN && n != -EPIPE && n != -ECONNRESET)
			return conn_ended(conn, (int)n);
		/* A server that refuses a request may answer before it has the whole body, and
		 * then close the connection. */
		return conn_head(conn, now_ns);
	}
	conn->wants_write = false;
	conn->state = PST_CONN_HEAD;
	conn->began_ns = now_ns;
	return PST_HTTP_RUNNING;
}

/* Takes `len` bytes of a text body from the start of conn->buf. */
static enum pst_http_end conn_text_take(struct pst_http_conn *conn, size_t len)
{
	struct pst_text *text = &conn->call->text;
	enum pst_http_end end = conn->repeat ? PST_HTTP_AGAIN : PST_HTTP_DONE;
	size_t max = conn->call->text_max ? conn->call->text_max : PST_HTTP_TEXT_MAX;
	size_t bytes = len;
	bool ended = false;

	if (conn->call->head.chunked) {
		long taken = pst_http_chunks_take(&conn->chunks, conn->buf, len, &bytes, &ended);

		if (taken < 0)
			return conn_broken(conn, EBADMSG, "sent a malformed chunked body");
		if ((size_t)taken < len)
			/* surplus bytes would count as the next response */
			conn->usable = false;
	} else if (conn->left != UINT64_MAX) {
		if (bytes > conn->left) {
			bytes = (size_t)conn->left;
			conn->usable = false;
		}
		conn->left -= bytes;
		ended = !conn->left;
	}
	if (text->len < max)
		pst_text_put(text, conn->buf, bytes < max - text->len ? bytes : max - text->len);
	if (!ended && conn->moved > max + TEXT_SKIP_MAX + conn->sent) {
		conn->usable = false;
		return end;
	}
	return ended ? end : PST_HTTP_RUNNING;
}

/* Copies body bytes that arrived with the head into the call's memory. */
static enum pst_http_end conn_body_first(struct pst_http_conn *conn, const char *bytes, size_t len)
{
	struct iovec iov[PIECES_MAX];
	unsigned count;

	if (len > conn->left) {
		len = (size_t)conn->left;
		conn->usable = false;
	}
	while ((count = body_iov(conn->call, len, iov))) {
		for (unsigned i = 0; i < count; i++) {
			memcpy(iov[i].iov_base, bytes, iov[i].iov_len);
			bytes += iov[i].iov_len;
			len -= iov[i].iov_len;
			conn->copied += iov[i].iov_len;
			conn->call->got += iov[i].iov_len;
			conn->left -= iov[i].iov_len;
		}
	}
	return conn->left ? PST_HTTP_RUNNING : PST_HTTP_DONE;
}

/* Begins to receive the body, after the head of `head_len` bytes. */
static enum pst_http_end conn_body_begin(struct pst_http_conn *conn, size_t head_len)
{
	struct pst_http_call *call = conn->call;
	const struct pst_http_head *head = &call->head;
	size_t more = conn->have - head_len;
	enum pst_http_verdict verdict = call->ops->judge(call);
	bool none = call->no_body || head->status == 204 || head->status == 304;

	conn->usable = head->keeps && conn->sent == conn->request.len + call->out_len;
	/* The server has sent more bytes than its response has. On this connection, the next call
	 * would take them for its own response. */
	if (more && (none || (head->has_length && !head->length)))
		conn->usable = false;
	if (verdict == PST_HTTP_FAIL) {
		conn->usable = false;
		return PST_HTTP_FAILED;
	}
	conn->left = none ? 0 : head->has_length ? head->length : UINT64_MAX;
	conn->repeat = verdict == PST_HTTP_RETRY;
	if (verdict == PST_HTTP_BODY) {
		if (head->chunked || !head->has_length || head->length > call->in_len - call->got)
			return conn_broken(conn, EBADMSG, "sent a body of unknown length");
		conn->state = PST_CONN_BODY;
		if (!conn->left)
			return PST_HTTP_DONE;
		return conn_body_first(conn, conn->buf + head_len, more);
	}
	conn->state = PST_CONN_TEXT;
	conn->usable &= none || head->chunked || head->has_length;
	if (none || (!head->chunked && !conn->left))
		return conn->repeat ? PST_HTTP_AGAIN : PST_HTTP_DONE;
	memmove(conn->buf, conn->buf + head_len, more);
	return conn_text_take(conn, more);
}

/* Parses what has arrived of the head. */
static enum pst_http_end conn_head_take(struct pst_http_conn *conn, uint64_t now_ns)
{
	for (;;) {
		struct pst_http_head *head = &conn->call->head;
		long len = pst_http_head_parse(conn->buf, conn->have, head);
		enum pst_http_end end;

		if (len < 0) {
			memset(head, 0, sizeof(*head));
			return conn_broken(conn, EBADMSG, "sent a malformed answer");
		}
		if (!len)
			return PST_HTTP_RUNNING;
		if (head->status >= 200) {
			end = conn_body_begin(conn, (size_t)len);
			conn->mark_ns = now_ns;
			conn->mark_moved = conn->moved;
			return end;
		}
		/* an interim response, such as 100, precedes the final response */
		conn->have -= (size_t)len;
		memmove(conn->buf, conn->buf + len, conn->have);
	}
}

static enum pst_http_end conn_head(struct pst_http_conn *conn, uint64_t now_ns)
{
	enum pst_http_end end;

	/* With TLS, libssl may already have received the rest of the head. Then the socket does not
	 * become readable, so read until libssl has no more bytes. */
	do {
		size_t room = PST_HTTP_HEAD_MAX - conn->have;
		ssize_t n = conn_receive(conn, conn->buf + conn->have,
					 room < PST_HTTP_FIRST ? room : PST_HTTP_FIRST);

		if (n == -EAGAIN || n == -EINTR)
			return PST_HTTP_RUNNING;
		if (n <= 0)
			return conn_ended(conn, (int)n);
		conn->have += (size_t)n;
		end = conn_head_take(conn, now_ns);
	} while (conn->tls && end == PST_HTTP_RUNNING && conn->state <= PST_CONN_HEAD);
	return end;
}

static enum pst_http_end conn_body(struct pst_http_conn *conn)
{
	for (unsigned i = 0; i < RECEIVES_MAX || conn->tls; i++) {
		ssize_t n = conn_receive_body(conn);

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			return PST_HTTP_RUNNING;
		if (n <= 0)
			return conn_ended(conn, (int)n);
		conn->call->got += (uint64_t)n;
		conn->left -= (uint64_t)n;
		if (!conn->left)
			return PST_HTTP_DONE;
	}
	return PST_HTTP_RUNNING;
}

static enum pst_http_end conn_text(struct pst_http_conn *conn)
{
	for (;;) {
		ssize_t n = conn_receive(conn, conn->buf, PST_HTTP_HEAD_MAX);
		enum pst_http_end end;

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			return PST_HTTP_RUNNING;
		if (!n && conn->left == UINT64_MAX && !conn->call->head.chunked)
			return conn->repeat ? PST_HTTP_AGAIN : PST_HTTP_DONE;
		if (n <= 0)
			return conn_ended(conn, (int)n);
		end = conn_text_take(conn, (size_t)n);
		if (end != PST_HTTP_RUNNING)
			return end;
	}
}

enum pst_http_end pst_http_conn_run(struct pst_http_conn *conn, uint64_t now_ns)
{
	for (;;) {
		enum pst_http_conn_state state = conn->state;
		enum pst_http_end end = PST_HTTP_RUNNING;

		if (state == PST_CONN_CONNECTING)
			end = conn_connect(conn);
		else if (state == PST_CONN_SHAKING)
			end = conn_shake(conn);
		else if (state == PST_CONN_SENDING)
			end = conn_send(conn, now_ns);
		else if (state == PST_CONN_HEAD)
			end = conn_head(conn, now_ns);
		else if (state == PST_CONN_BODY)
			end = conn_body(conn);
		else if (state == PST_CONN_TEXT)
			end = conn_text(conn);
		if (end != PST_HTTP_RUNNING || conn->state == state)
			return end;
	}
}

enum pst_http_end pst_http_conn_check(struct pst_http_conn *conn, uint64_t now_ns)
{
	const struct pst_http_call *call = conn->call;
	unsigned slow_s = call->slow_s ? call->slow_s : SLOW_S;
	unsigned connect_s = call->slow_s ? call->slow_s : CONNECT_S;
	unsigned patience_s = call->patience_s ? call->patience_s : PATIENCE_S;
	/* The call may have begun after the clock was read for `now_ns`. */
	uint64_t since_ns = now_ns > conn->began_ns ? now_ns - conn->began_ns : 0;
	uint64_t moved = conn->moved - conn->mark_moved;

	if (conn->state <= PST_CONN_SHAKING) {
		if (since_ns < connect_s * 1000000000ull)
			return PST_HTTP_RUNNING;
		conn_broken(conn, ETIMEDOUT,
			    conn->state == PST_CONN_SHAKING
				    ? "finished no TLS handshake within %u s"
				    : "accepted no connection within %u s",
			    connect_s);
		return PST_HTTP_REFUSED;
	}
	if (conn->state == PST_CONN_HEAD)
		return since_ns < patience_s * 1000000000ull
			       ? PST_HTTP_RUNNING
			       : conn_broken(conn, ETIMEDOUT, "gave no answer within %u s",
					     patience_s);
	/* A server may take its time for a text, such as the result of a long operation, but it
	 * must send some bytes. */
	if (conn->state == PST_CONN_TEXT)
		slow_s = patience_s;
	if (now_ns < conn->mark_ns + slow_s * 1000000000ull)
		return PST_HTTP_RUNNING;
	if (conn->state == PST_CONN_TEXT ? !moved : moved < (uint64_t)PST_HTTP_SLOW * slow_s)
		return conn_broken(conn, ETIMEDOUT, "moved only %llu bytes in %u s",
				   (unsigned long long)moved, slow_s);
	conn->mark_ns = now_ns;
	conn->mark_moved = conn->moved;
	return PST_HTTP_RUNNING;
}
