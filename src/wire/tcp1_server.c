/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport tcp1: connects to the client, and sends commands. server.c calls
 * these functions on the thread of a channel, a worker thread of the server. Several commands are
 * in flight, so that the connection does not wait for each reply. A server connects only to the
 * address from which its HTTP request came, and sends nothing before the client's greeting. So a
 * token cannot make it attack other hosts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "wire/tcp1.h"
#include "wire/common.h"

/* Maximum number of WRITE commands without a reply. Until this number is reached, the server does
 * not read the replies, so they must fit in the socket's buffer. */
#define WRITES_MAX 64
#define READS_MAX 4 /* maximum number of READs without a reply */

struct tcp1_peer {
	struct pst_wire_peer peer;
	struct pst_token_place at;
	uint64_t seq;
};

/* ---- tokens ---- */

static int admit(const struct pst_wire_server *server, const struct pst_token *token,
		 const struct penstock_object_peer *peer, struct pst_err *err)
{
	return pst_wire_admit_place(server, "tcp1", &token->tcp.at, peer, err);
}

/* ---- sending and receiving ---- */

static int io_fail(int ret, struct pst_err *err)
{
	return pst_fail_errno(err, -ret, pst_why_from_errno(ret), "the client's connection: %s",
			      strerror(-ret));
}

/* Sends a command (iov[0]) and the bytes that follow it (iov[1]). */
static int send_all(struct pst_wire_channel *channel, int fd, struct iovec iov[2],
		    struct pst_err *err)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	while (iov[0].iov_len || iov[1].iov_len) {
		ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		int ret = n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;

		if (n < 0 && !ret)
			ret = pst_wire_wait_fd(channel, fd, POLLOUT);
		if (ret)
			return io_fail(ret, err);
		for (unsigned i = 0; i < 2 && n > 0; i++) {
			size_t used = (size_t)n < iov[i].iov_len ? (size_t)n : iov[i].iov_len;

			iov[i].iov_base = (char *)iov[i].iov_base + used;
			iov[i].iov_len -= used;
			n -= (ssize_t)used;
		}
	}
	return 0;
}

static int receive_all(struct pst_wire_channel *channel, int fd, void *out, size_t len,
		       struct pst_err *err)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = recv(fd, (char *)out + at, len - at, MSG_DONTWAIT);
		int ret = n > 0 ? 0 : !n ? -EPIPE : -errno;

		if (ret == -EAGAIN || ret == -EINTR)
			ret = pst_wire_wait_fd(channel, fd, POLLIN);
		if (ret)
			return io_fail(ret, err);
		at += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* Receives the reply to the command `seq`. Fails if its status is not 0. */
static int receive_reply(struct pst_wire_channel *channel, int fd, uint64_t seq,
			 struct pst_tcp1_reply *reply, struct pst_err *err)
{
	unsigned char in[PST_TCP1_REPLY_LEN];
	int ret = receive_all(channel, fd, in, sizeof(in), err);

	if (ret)
		return ret;
	if (pst_tcp1_get_reply(in, reply) || reply->seq != seq)
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client sent a malformed reply");
	return reply->status ? pst_wire_status_fail(reply->status, err) : 0;
}

/* ---- moves ---- */

/* Returns the number of bytes that one command carries from offset `at` of the move (a transfer of
 * bytes) on. */
static uint32_t frame_len(const struct pst_wire_move *move, uint64_t at)
{
	uint64_t left = move->len - at;

	return (uint32_t)(left < PST_TCP1_FRAME_MAX ? left : PST_TCP1_FRAME_MAX);
}

/* Returns the address of a frame's bytes (those of one command) if they are contiguous in the
 * server's host memory, else NULL. */
static unsigned char *frame_at(const struct pst_wire_move *move, uint64_t at, uint32_t len)
{
	struct penstock_object_seg seg = pst_wire_seg_at(move, at, len);

	return !seg.dev && !seg.has_fd && seg.len == len ? seg.ptr : NULL;
}

static int send_command(struct pst_wire_channel *channel, struct tcp1_peer *t,
			const struct pst_wire_move *move, uint64_t at, void *bytes,
			struct pst_err *err)
{
	unsigned char out[PST_TCP1_COMMAND_LEN];
	struct pst_tcp1_command c = {.kind = bytes ? PST_TCP1_WRITE : PST_TCP1_READ,
				     .seq = ++t->seq,
				     .id = move->remote->token.base,
				     .off = move->off + at,
				     .len = frame_len(move, at)};
	struct iovec iov[2] = {{out, sizeof(out)}, {bytes, bytes ? c.len : 0}};

	memcpy(c.cap, move->remote->token.tcp.cap, sizeof(c.cap));
	if (bytes)
		c.crc = pst_crc32c_finish(pst_crc32c_raw(0, bytes, c.len), c.len);
	pst_tcp1_put_command(out, &c);
	return send_all(channel, t->peer.fd, iov, err);
}

/* Checks before each command that the move may continue: its deadline has not passed, and the
 * server is open. */
static int piece_begin(const struct pst_wire_channel *channel, struct pst_err *err)
{
	int ret = pst_wire_check(channel);

	return ret ? io_fail(ret, err) : 0;
}

/* Writes the bytes of a move to the client's window, with WRITE commands. */
static int write_window(struct pst_wire_channel *channel, struct tcp1_peer *t,
			const struct pst_wire_move *move, struct pst_err *err)
{
	const uint64_t first = t->seq + 1;
	uint64_t answered = 0, asked = 0;
	struct pst_tcp1_reply reply;

	for (uint64_t at = 0; at < move->len;) {
		uint32_t len = frame_len(move, at);
		unsigned char *bytes = frame_at(move, at, len);
		int ret = piece_begin(channel, err);

		if (!ret && !bytes)
			ret = pst_wire_stage(channel, move, at, channel->staging, len, true, err);
		if (!ret && asked - answered == WRITES_MAX)
			ret = receive_reply(channel, t->peer.fd, first + answered++, &reply, err);
		if (!ret)
			ret = send_command(channel, t, move, at, bytes ? bytes : channel->staging,
					   err);
		if (ret)
			return ret;
		asked++;
		at += len;
	}
	while (answered < asked) {
		int ret = receive_reply(channel, t->peer.fd, first + answered++, &reply, err);

		if (ret)
			return ret;
	}
	return 0;
}

/* Receives the reply to the READ command `seq`, and then the command's bytes, which belong at
 * offset `at` of the move. */
static int read_frame(struct pst_wire_channel *channel, struct tcp1_peer *t, uint64_t seq,
		      const struct pst_wire_move *move, uint64_t at, struct pst_err *err)
{
	uint32_t len = frame_len(move, at);
	unsigned char *bytes = frame_at(move, at, len), *to = bytes ? bytes : channel->staging;
	struct pst_tcp1_reply reply;
	int ret = receive_reply(channel, t->peer.fd, seq, &reply, err);

	if (!ret && reply.len != len)
		ret = pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				     "the client sent %u bytes instead of %u", reply.len, len);
	if (!ret)
		ret = receive_all(channel, t->peer.fd, to, len, err);
	if (!ret && pst_crc32c_finish(pst_crc32c_raw(0, to, len), len) != reply.crc)
		ret = pst_wire_status_fail(PST_WIRE_CHECKSUM, err);
	if (!ret && !bytes)
		ret = pst_wire_stage(channel, move, at, channel->staging, len, false, err);
	return ret;
}

/* Reads the bytes of a move from the client's window, with READ commands. */
static int read_window(struct pst_wire_channel *channel, struct tcp1_peer *t,
		       const struct pst_wire_move *move, struct pst_err *err)
{
	uint64_t asked = 0, seq = t->seq + 1;
	unsigned in_flight = 0;

	for (uint64_t at = 0; at < move->len; at += frame_len(move, at), seq++) {
		int ret = piece_begin(channel, err);

		for (; !ret && asked < move->len && in_flight < READS_MAX; in_flight++) {
			uint32_t len = frame_len(move, asked);

			ret = send_command(channel, t, move, asked, NULL, err);
			asked += len;
		}
		if (!ret)
			ret = read_frame(channel, t, seq, move, at, err);
		if (ret)
			return ret;
		in_flight--;
	}
	return 0;
}

static int tcp1_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		     struct pst_wire_move *move, struct pst_err *err)
{
	struct tcp1_peer *t = (struct tcp1_peer *)peer;

	return move->op == PENSTOCK_READ ? write_window(channel, t, move, err)
					 : read_window(channel, t, move, err);
}

/* ---- connection ---- */

static bool leads_to(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote)
{
	const struct tcp1_peer *t = (const struct tcp1_peer *)peer;

	return pst_wire_same_place(&t->at, &remote->token.tcp.at);
}

/* Connects to the client within the server's time limit. Returns 0 or -errno. */
static int dial(struct pst_wire_channel *channel, int fd, const struct pst_token *token)
{
	struct sockaddr_storage at;
	int code = 0, ret;
	socklen_t len = sizeof(code);

	ret = connect(fd, (struct sockaddr *)&at, pst_wire_sockaddr(&token->tcp.at, &at));
	if (!ret)
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	ret = pst_wire_wait_fd(channel, fd, POLLOUT);
	if (ret)
		return ret;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) ? -errno : -code;
}

static int tcp1_connect(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
			const struct pst_wire_remote *remote, struct pst_err *err)
{
	struct tcp1_peer *t = (struct tcp1_peer *)peer;
	const struct pst_token *token = &remote->token;
	char greeting[PST_TCP1_GREETING_LEN];
	const int on = 1;
	int ret;

	peer->fd = socket(token->tcp.at.v6 ? AF_INET6 : AF_INET,
			  SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (peer->fd < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "socket: %m");
	ret = dial(channel, peer->fd, token);
	if (!ret)
		ret = receive_all(channel, peer->fd, greeting, sizeof(greeting), err);
	if (ret || memcmp(greeting, PST_TCP1_GREETING, sizeof(greeting)))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "there is no client at %s port %u: %s", token->tcp.at.address,
				      token->tcp.at.port,
				      ret ? strerror(-ret) : "another program answers");
	setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	t->at = token->tcp.at;
	return 0;
}

static int tcp1_idle(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	(void)channel;
	(void)peer;
	/* Between two moves a client sends nothing. So this event means that the connection has
	 * ended, or that the client breaks the protocol. */
	return -EPIPE;
}

static void tcp1_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	(void)channel;
	(void)peer;
}

const struct pst_wire_server_ops pst_tcp1_server = {
	.kind = PST_TOKEN_TCP1,
	.peer_size = sizeof(struct tcp1_peer),
	.admit = admit,
	.leads_to = leads_to,
	.connect = tcp1_connect,
	.move = tcp1_move,
	.idle = tcp1_idle,
	.close = tcp1_close,
};
