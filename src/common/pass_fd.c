/* SPDX-License-Identifier: Apache-2.0 */
/* Implements pass_fd.h. The messages come from another process, which may send anything. */
#include "common/pass_fd.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void pst_pass_fd_put(struct msghdr *msg, union pst_pass_fd *control, int fd)
{
	struct cmsghdr *c;

	memset(control, 0, sizeof(*control));
	msg->msg_control = control->space;
	msg->msg_controllen = sizeof(control->space);
	c = CMSG_FIRSTHDR(msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
}

/* Returns the first descriptor of a message, or -1. Closes all others: the alignment of the control
 * data leaves room for more than one. */
static int fd_take(struct msghdr *msg)
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

ssize_t pst_pass_fd_receive(int sock, struct msghdr *msg, int *fd)
{
	union pst_pass_fd control;
	ssize_t n = -1;

	*fd = -1;
	for (int i = 0; i < 3; i++) {
		msg->msg_control = control.space;
		msg->msg_controllen = sizeof(control.space);
		n = recvmsg(sock, msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		/* Tries again after ECONNRESET: the kernel reports it first, and only then
		 * delivers the messages that were sent before the reset. */
		if (n >= 0 || (errno != EINTR && errno != ECONNRESET))
			break;
	}
	if (n >= 0)
		*fd = fd_take(msg);
	/* The buffer for the control data is a local variable, so remove the pointers to it. */
	msg->msg_control = NULL;
	msg->msg_controllen = 0;
	return n;
}
