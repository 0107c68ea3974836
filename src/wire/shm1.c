/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements shm1.h: sends and receives single messages, with a file descriptor or without.
 * shm1_client.c and shm1_server.c call these functions, which never wait.
 */
#include "wire/shm1.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/pass_fd.h"

int pst_shm1_send(int sock, struct pst_shm1_message *message, int fd)
{
	union pst_pass_fd control;
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	message->magic = PST_SHM1_MAGIC;
	if (fd >= 0)
		pst_pass_fd_put(&msg, &control, fd);
	while (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int pst_shm1_receive(int sock, struct pst_shm1_message *message, int *fd)
{
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n = pst_pass_fd_receive(sock, &msg, fd);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == (ssize_t)sizeof(*message) && message->magic == PST_SHM1_MAGIC &&
	    !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 1;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return n ? -EPROTO : -EPIPE;
}

unsigned pst_shm1_address(const char *handle, void *out)
{
	struct sockaddr_un *address = out;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	/* The first byte stays 0. The name is then in Linux's abstract namespace, and bind(2)
	 * creates no file. */
	snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, PST_SHM1_NAME "%s", handle);
	return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 +
			  strlen(address->sun_path + 1));
}
