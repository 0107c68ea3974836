/* SPDX-License-Identifier: Apache-2.0 */
/* Implements plane_message.h. Messages come from other processes, so they may contain any bytes. */
#include "object/plane_message.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/pass_fd.h"

#define HEAD offsetof(struct pst_plane_message, hello)
#define BODY(member) (HEAD + sizeof(((struct pst_plane_message *)0)->member))

static const struct {
	size_t len;
	bool from_plane;
} kinds[PST_PLANE_KINDS] = {
	[PST_PLANE_HELLO] = {BODY(hello), false},
	[PST_PLANE_FD] = {BODY(fd), false},
	[PST_PLANE_PING] = {HEAD, false},
	[PST_PLANE_INFO] = {HEAD, false},
	[PST_PLANE_MEMORY] = {BODY(memory), false},
	[PST_PLANE_MEMORY_CLOSE] = {BODY(name), false},
	[PST_PLANE_WINDOW] = {BODY(window), false},
	[PST_PLANE_RELEASE] = {BODY(name), false},
	[PST_PLANE_START] = {BODY(start), false},
	[PST_PLANE_RESOLVE] = {BODY(resolve), false},
	[PST_PLANE_FORGET] = {BODY(name), false},
	[PST_PLANE_MOVE] = {BODY(move), false},
	[PST_PLANE_WELCOME] = {BODY(welcome), true},
	[PST_PLANE_ANSWER] = {BODY(answer), true},
	[PST_PLANE_COUNTS] = {BODY(counts), true},
	[PST_PLANE_ENDED] = {BODY(ended), true},
	[PST_PLANE_MOVED] = {BODY(moved), true},
};

size_t pst_plane_len(unsigned kind)
{
	return kind < PST_PLANE_KINDS ? kinds[kind].len : 0;
}

/* Returns whether an array contains the NUL that ends its text. */
#define ENDS(text) (memchr((text), 0, sizeof(text)) != NULL)

static bool op_is_known(uint32_t op)
{
	return op == PENSTOCK_READ || op == PENSTOCK_WRITE;
}

/* Checks the key and the strings of a START message. A key of an object may contain any byte but
 * NUL, because it is sent as a string. */
static bool start_is_right(const struct pst_plane_start *start)
{
	return ENDS(start->bucket) && ENDS(start->if_match) &&
	       start->key_len <= PST_PLANE_KEY_MAX &&
	       strnlen(start->key, sizeof(start->key)) == start->key_len;
}

static bool move_is_right(const struct pst_plane_move *move)
{
	if (!op_is_known(move->op) || move->seg_count > PENSTOCK_OBJECT_SEGS_MAX)
		return false;
	for (uint32_t i = 0; i < move->seg_count; i++)
		if (move->segs[i].is_file > 1 || move->segs[i].slot >= PST_PLANE_SLOTS)
			return false;
	return true;
}

static bool resolve_is_right(const struct pst_plane_resolve *resolve)
{
	return ENDS(resolve->address) && resolve->has_address <= 1 && resolve->has_user <= 1 &&
	       resolve->token_len < sizeof(resolve->token);
}

static bool body_is_right(const struct pst_plane_message *m)
{
	switch (m->kind) {
	case PST_PLANE_FD:
		return m->fd.slot < PST_PLANE_SLOTS;
	case PST_PLANE_MEMORY:
		return m->memory.cuda <= 1 &&
		       (m->memory.cuda ? m->memory.fds <= 1 : m->memory.fds == 2);
	case PST_PLANE_WINDOW:
		return op_is_known(m->window.op);
	case PST_PLANE_START:
		return start_is_right(&m->start);
	case PST_PLANE_RESOLVE:
		return resolve_is_right(&m->resolve);
	case PST_PLANE_MOVE:
		return move_is_right(&m->move);
	case PST_PLANE_ANSWER:
		return ENDS(m->answer.transport) && ENDS(m->answer.text) && m->answer.result <= 0 &&
		       m->answer.why < PST_WHY_COUNT;
	case PST_PLANE_COUNTS:
		for (unsigned i = 0; i < PENSTOCK_OBJECT_TRANSPORTS_MAX; i++)
			if (!ENDS(m->counts.transports[i]))
				return false;
		return true;
	case PST_PLANE_ENDED:
		return ENDS(m->ended.end.transport) && ENDS(m->ended.end.etag) &&
		       ENDS(m->ended.end.text) && m->ended.why < PST_WHY_COUNT;
	case PST_PLANE_MOVED:
		return ENDS(m->moved.done.text) && m->moved.why < PST_WHY_COUNT;
	default:
		return true;
	}
}

int pst_plane_check(const struct pst_plane_message *message, size_t len, bool from_plane,
		    bool has_fd)
{
	if (len < HEAD || message->magic != PST_PLANE_MAGIC || !pst_plane_len(message->kind) ||
	    len != kinds[message->kind].len || kinds[message->kind].from_plane != from_plane ||
	    has_fd != (message->kind == PST_PLANE_FD))
		return -EPROTO;
	/* A HELLO has the same layout in all versions, so its version is not checked. The plane can
	 * then answer a tenant whose version it does not support. */
	if (message->kind != PST_PLANE_HELLO &&
	    (message->version < PST_PLANE_VERSION_MIN || message->version > PST_PLANE_VERSION_MAX))
		return -EPROTO;
	return body_is_right(message) ? 0 : -EPROTO;
}

int pst_plane_send(int sock, struct pst_plane_message *message, int fd)
{
	struct iovec iov = {message, pst_plane_len(message->kind)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union pst_pass_fd control;

	message->magic = PST_PLANE_MAGIC;
	if (!message->version)
		message->version = PST_PLANE_VERSION_MAX;
	if (fd >= 0)
		pst_pass_fd_put(&msg, &control, fd);
	for (;;) {
		if (sendmsg(sock, &msg, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR)
			/* EAGAIN: the socket's queue had no room during the time of SO_SNDTIMEO */
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	}
}

int pst_plane_receive(int sock, struct pst_plane_message *message, bool from_plane, int *fd)
{
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n = pst_pass_fd_receive(sock, &msg, fd);
	int ret;

	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
	if (!n)
		ret = -ECONNRESET;
	else if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		ret = -EPROTO;
	else
		ret = pst_plane_check(message, (size_t)n, from_plane, *fd >= 0);
	if (ret && *fd >= 0) {
		close(*fd);
		*fd = -1;
	}
	return ret ? ret : 1;
}

void pst_plane_socket_set(int sock, unsigned timeout_ms)
{
	struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
	int bytes = 256 << 10;

	/* A larger queue makes waits in send rarer. The time limit keeps a send from waiting
	 * forever. */
	(void)setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}
