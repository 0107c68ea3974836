/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes descriptors between processes with messages of Unix sockets (SCM_RIGHTS). Called by
 * src/wire and src/group. A message carries at most one descriptor, and a receiver never keeps one
 * that it did not expect.
 */
#ifndef PST_COMMON_PASS_FD_H
#define PST_COMMON_PASS_FD_H

#include <sys/socket.h>
#include <sys/types.h>

/* Space for the control data of a message with one descriptor. */
union pst_pass_fd {
	struct cmsghdr align;
	char space[CMSG_SPACE(sizeof(int))];
};

/* Adds a descriptor to a message that is about to be sent. `control` must stay valid until the
 * message has been sent. */
void pst_pass_fd_put(struct msghdr *msg, union pst_pass_fd *control, int fd);

/*
 * Receives a message into the buffers msg->msg_iov, without waiting. Returns the result of
 * recvmsg(2), with errno after an error. *fd receives the message's descriptor, or -1. The flag
 * MSG_CTRUNC in msg->msg_flags says that the kernel has dropped a descriptor.
 */
ssize_t pst_pass_fd_receive(int sock, struct msghdr *msg, int *fd);

#endif
