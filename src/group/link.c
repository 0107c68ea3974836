/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packet between two ranks of a group, and what can be learnt of the process at the
 * other end once it is silent. Every wait has an end, also that for room to send: the
 * other side may have stopped. Called by group.c and group_join.c.
 */
#include "group/link.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEATH_REASON_MS 2000 /* its sockets close before the process counts as ended */
#define RETRY_MS 10	     /* between tries to send what the kernel has no room for */

uint64_t pst_group_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

int pst_group_ms_until(uint64_t until_ms)
{
	uint64_t now = pst_group_now_ms();

	if (until_ms == UINT64_MAX)
		return -1;
	return until_ms <= now ? 0 : until_ms - now > 60000 ? 60000 : (int)(until_ms - now);
}

/* ---- sending ---- */

/* What passes: the other side has not read yet, or too many descriptors of this user are
 * under way, of which poll tells nothing. */
static bool is_send_busy(int code)
{
	return code == EAGAIN || code == EWOULDBLOCK || code == ETOOMANYREFS || code == ENOBUFS ||
	       code == ENOMEM;
}

int pst_link_send(const struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		  const struct pst_message *said)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.room = {0}};
	struct iovec iov[2] = {{packet, sizeof(*packet)}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1};

	packet->magic = PST_PACKET_MAGIC;
	packet->len = 0;
	if (said && said->len) {
		packet->len = (uint32_t)said->len;
		iov[1] = (struct iovec){said->bytes, said->len};
		msg.msg_iovlen = 2;
	}
	if (said && said->fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = control.room;
		msg.msg_controllen = sizeof(control.room);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &said->fd, sizeof(said->fd));
	}
	while (sendmsg(link->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		struct pollfd room = {link->sock, POLLOUT, 0};
		int code = errno, ms = pst_group_ms_until(until_ms);

		if (code == EINTR)
			continue;
		if (!is_send_busy(code))
			return -code;
		if (!ms)
			return -ETIMEDOUT;
		if (code == EAGAIN || code == EWOULDBLOCK)
			poll(&room, 1, ms);
		else
			poll(NULL, 0, RETRY_MS);
	}
	return 0;
}

/* ---- receiving ---- */

/* The first; there is room for more than the one that a rank sends. */
static int take_passed_fd(struct msghdr *msg)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
			int other;

			memcpy(&other, (const char *)c + at, sizeof(other));
			if (fd < 0)
				fd = other;
			else
				close(other);
		}
	}
	return fd;
}

/* 1: a packet, 0: none is there, -EPIPE: the other end has gone or speaks otherwise. */
static int receive_packet(struct pst_link *link, struct pst_packet *packet,
			  struct pst_message *said)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov[2] = {{packet, sizeof(*packet)}, {said->bytes, PST_MESSAGE_MAX}};
	struct msghdr msg;
	ssize_t n;

	for (int i = 0; i < 3; i++) {
		msg = (struct msghdr){.msg_iov = iov,
				      .msg_iovlen = 2,
				      .msg_control = control.room,
				      .msg_controllen = sizeof(control.room)};
		n = recvmsg(link->sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		/* A reset comes before what was sent ahead of it. */
		if (n >= 0 || (errno != EINTR && errno != ECONNRESET))
			break;
	}
	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -EPIPE;
	said->fd = take_passed_fd(&msg);
	if (said->fd < 0 && msg.msg_flags & MSG_CTRUNC)
		said->fd = PST_FD_LOST; /* what came with it is told, and the rank can be */
	said->len = n > (ssize_t)sizeof(*packet) ? (size_t)n - sizeof(*packet) : 0;
	if ((size_t)n >= sizeof(*packet) && packet->magic == PST_PACKET_MAGIC &&
	    packet->len == said->len && !(msg.msg_flags & MSG_TRUNC)) {
		packet->text[sizeof(packet->text) - 1] = '\0';
		link->closed = packet->seq == PST_SEQ_LEFT;
		if (!link->closed)
			return 1;
	}
	if (said->fd >= 0)
		close(said->fd);
	said->fd = -1;
	return -EPIPE;
}

int pst_link_receive(struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		     struct pst_message *said)
{
	for (;;) {
		struct pollfd fds[2] = {{link->sock, POLLIN, 0}, {link->pidfd, POLLIN, 0}};
		int ms = pst_group_ms_until(until_ms), ret, n = until_ms ? poll(fds, 2, ms) : 0;
		bool ended = n > 0 && fds[1].revents;

		ret = receive_packet(link, packet, said);
		if (ret || !until_ms)
			return ret;
		if (ended)
			return -EPIPE; /* and nothing of what it sent is left */
		if (!n && !ms)
			return -ETIMEDOUT;
	}
}

bool pst_link_peek(const struct pst_link *link, struct pst_packet *packet)
{
	ssize_t n = recv(link->sock, packet, sizeof(*packet), MSG_PEEK | MSG_DONTWAIT);

	if (n != (ssize_t)sizeof(*packet) || packet->magic != PST_PACKET_MAGIC)
		return false;
	packet->text[sizeof(packet->text) - 1] = '\0';
	return true;
}

void pst_link_close(struct pst_link *link)
{
	if (link->sock >= 0)
		close(link->sock);
	if (link->pidfd >= 0)
		close(link->pidfd);
	*link = PST_LINK_NONE;
}

/* ---- the other end ---- */

/* The exit status of a process that nobody has waited for yet, -1: not known. */
static int exit_status_of(pid_t pid)
{
	char path[64], text[1024], *at;
	int status = -1, field = 2; /* the name's: it may hold blanks */
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	at = strrchr(text, ')');
	if (!at || at[1] != ' ' || at[2] != 'Z')
		return -1;	   /* not it, or not yet */
	while (at && field++ < 52) /* exit_code of proc(5) */
		at = strchr(at + 1, ' ');
	if (at)
		status = (int)strtol(at + 1, NULL, 10);
	return status;
}

void pst_link_death_reason(const struct pst_link *link, char *text, size_t room)
{
	struct pollfd end = {link->pidfd, POLLIN, 0};
	int status;

	if (link->closed) {
		snprintf(text, room, "it closed the group");
		return;
	}
	if (link->pidfd < 0 || poll(&end, 1, DEATH_REASON_MS) != 1) {
		snprintf(text, room, "its connection ended");
		return;
	}
	status = exit_status_of(link->pid);
	if (status < 0)
		snprintf(text, room, "its process %ld ended", (long)link->pid);
	else if (WIFSIGNALED(status))
		snprintf(text, room, "its process %ld was killed by signal %d (%s)",
			 (long)link->pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(text, room, "its process %ld ended with status %d", (long)link->pid,
			 WEXITSTATUS(status));
}
