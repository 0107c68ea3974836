/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives single packets between two ranks, and finds out why a connection ended.
 * Called by barrier.c and join.c. Every wait has a limit, since the other rank may be stopped.
 * This includes the wait for room in the socket.
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

#include "common/pass_fd.h"

/* Time in ms to wait for the exit of a process whose socket has closed. The kernel closes the
 * sockets of a process before its pidfd reports the exit. */
#define DEATH_REASON_MS 2000
/* Time in ms between two attempts to send while the kernel lacks resources. */
#define RETRY_MS 10

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

int pst_group_wait_fds(struct pollfd *fds, unsigned count, int ms)
{
	struct pollfd valid[PST_WAIT_MAX];
	unsigned used = 0;
	int n;

	/* poll(2) fails with EINVAL if it gets more entries than RLIMIT_NOFILE, even if most of
	 * the entries have no descriptor. */
	for (unsigned i = 0; i < count; i++)
		if (fds[i].fd >= 0)
			valid[used++] = fds[i];
	n = poll(valid, used, ms);
	if (n < 0)
		/* EINVAL: RLIMIT_NOFILE has become lower than the number of open descriptors. */
		return errno == EINVAL ? -EMFILE : -errno;
	for (unsigned i = count; i-- > 0;)
		fds[i].revents = fds[i].fd >= 0 ? valid[--used].revents : 0;
	return n;
}

/* ---- sending ---- */

/* Returns true if sending failed with a temporary error. Either the receiver has not read yet,
 * or this user has too many descriptors in flight (ETOOMANYREFS). poll(2) does not report when
 * the cause of ETOOMANYREFS is gone, so the caller tries again after a pause. */
static bool is_send_busy(int code)
{
	return code == EAGAIN || code == EWOULDBLOCK || code == ETOOMANYREFS || code == ENOBUFS ||
	       code == ENOMEM;
}

int pst_link_send(const struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		  const struct pst_message *message)
{
	union pst_pass_fd control;
	struct iovec iov[2] = {{packet, sizeof(*packet)}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1};

	packet->magic = PST_PACKET_MAGIC;
	packet->len = 0;
	if (message && message->len) {
		packet->len = (uint32_t)message->len;
		iov[1] = (struct iovec){message->bytes, message->len};
		msg.msg_iovlen = 2;
	}
	if (message && message->fd >= 0)
		pst_pass_fd_put(&msg, &control, message->fd);
	while (sendmsg(link->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		struct pollfd writable = {link->sock, POLLOUT, 0};
		int code = errno, ms = pst_group_ms_until(until_ms);

		if (code == EINTR)
			continue;
		if (!is_send_busy(code))
			return -code;
		if (!ms)
			return -ETIMEDOUT;
		if (code == EAGAIN || code == EWOULDBLOCK)
			poll(&writable, 1, ms);
		else
			poll(NULL, 0, RETRY_MS);
	}
	return 0;
}

/* ---- receiving ---- */

/* Receives a packet without waiting. Returns 1 if it has received a packet, and 0 if there is
 * none. Returns -EPIPE if the other end has closed the connection or does not follow this
 * protocol. */
static int receive_packet(struct pst_link *link, struct pst_packet *packet,
			  struct pst_message *message)
{
	struct iovec iov[2] = {{packet, sizeof(*packet)}, {message->bytes, PST_MESSAGE_MAX}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n = pst_pass_fd_receive(link->sock, &msg, &message->fd);

	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -EPIPE;
	if (message->fd < 0 && msg.msg_flags & MSG_CTRUNC)
		/* The descriptor is lost, but the packet's other content is valid, so the
		 * caller can report which rank sent the packet. */
		message->fd = PST_FD_LOST;
	message->len = n > (ssize_t)sizeof(*packet) ? (size_t)n - sizeof(*packet) : 0;
	if ((size_t)n >= sizeof(*packet) && packet->magic == PST_PACKET_MAGIC &&
	    packet->len == message->len && !(msg.msg_flags & MSG_TRUNC)) {
		packet->text[sizeof(packet->text) - 1] = '\0';
		link->closed = packet->seq == PST_SEQ_LEFT;
		if (!link->closed)
			return 1;
	}
	if (message->fd >= 0)
		close(message->fd);
	message->fd = -1;
	return -EPIPE;
}

int pst_link_receive(struct pst_link *link, uint64_t until_ms, struct pst_packet *packet,
		     struct pst_message *message)
{
	for (;;) {
		struct pollfd fds[2] = {{link->sock, POLLIN, 0}, {link->pidfd, POLLIN, 0}};
		int ms = pst_group_ms_until(until_ms), ret;
		int n = until_ms ? pst_group_wait_fds(fds, 2, ms) : 0;
		bool ended = n > 0 && fds[1].revents;

		ret = receive_packet(link, packet, message);
		if (ret || !until_ms)
			return ret;
		if (ended)
			/* The process has exited, and this process has read all packets that it
			 * sent. */
			return -EPIPE;
		if (n < 0 && n != -EINTR)
			return n;
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

/* ---- the process at the other end ---- */

/* Returns the exit status of a process that has exited but that its parent has not waited for.
 * Returns -1 if the status is not known. */
static int exit_status_of(pid_t pid)
{
	char path[64], text[1024], *at;
	/* Field 2 is the process's name in parentheses, which may contain spaces. */
	int status = -1, field = 2;
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
		/* The pid belongs to another process, or the process has not exited. */
		return -1;
	while (at && field++ < 52) /* Field 52 is exit_code, see proc(5). */
		at = strchr(at + 1, ' ');
	if (at)
		status = (int)strtol(at + 1, NULL, 10);
	return status;
}

void pst_link_death_reason(const struct pst_link *link, char *text, size_t size)
{
	struct pollfd end = {link->pidfd, POLLIN, 0};
	int status;

	if (link->closed) {
		snprintf(text, size, "it closed the group");
		return;
	}
	if (link->pidfd < 0 || poll(&end, 1, DEATH_REASON_MS) != 1) {
		snprintf(text, size, "its connection ended");
		return;
	}
	status = exit_status_of(link->pid);
	if (status < 0)
		snprintf(text, size, "its process %ld ended", (long)link->pid);
	else if (WIFSIGNALED(status))
		snprintf(text, size, "its process %ld was killed by signal %d (%s)",
			 (long)link->pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(text, size, "its process %ld ended with status %d", (long)link->pid,
			 WEXITSTATUS(status));
}
