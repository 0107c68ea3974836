/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements shm1.h: single messages, with a descriptor or without. Called by shm1_client.c and
 * shm1_server.c. Never waits.
 */
#include "wire/shm1.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union control {
	struct cmsghdr align;
	char space[CMSG_SPACE(sizeof(int))];
};

int pst_shm1_send(int sock, struct pst_shm1_message *message, int fd)
{
	union control control = {.space = {0}};
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	message->magic = PST_SHM1_MAGIC;
	if (fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = control.space;
		msg.msg_controllen = sizeof(control.space);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	while (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* Returns the first descriptor of a message, or -1. Closes all others. */
static int take_fd(struct msghdr *msg)
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

int pst_shm1_receive(int sock, struct pst_shm1_message *message, int *fd)
{
	union control control;
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg;
	ssize_t n;

	*fd = -1;
	for (int i = 0; i < 3; i++) {
		msg = (struct msghdr){.msg_iov = &iov,
				      .msg_iovlen = 1,
				      .msg_control = control.space,
				      .msg_controllen = sizeof(control.space)};
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		/* Tries again after ECONNRESET: the kernel reports it first, and only then
		 * delivers the messages that were sent before the reset. */
		if (n >= 0 || (errno != EINTR && errno != ECONNRESET))
			break;
	}
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (!n)
		return -EPIPE;
	*fd = take_fd(&msg);
	if (n == (ssize_t)sizeof(*message) && message->magic == PST_SHM1_MAGIC &&
	    !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 1;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return -EPROTO;
}

unsigned pst_shm1_address(const char *handle, void *out)
{
	struct sockaddr_un *address = out;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	/* The first byte stays 0: the name is in the abstract namespace, which has no files. */
	snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, PST_SHM1_NAME "%s", handle);
	return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 +
			  strlen(address->sun_path + 1));
}
