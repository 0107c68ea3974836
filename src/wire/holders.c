/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks servers that have lost their connection in the middle of a transfer to or from a client's
 * GPU memory. A GPU's copies continue when a connection ends, and another process's access to the
 * memory cannot be revoked. So the memory is used again only when the server's process has ended.
 * Then its pidfd is readable, the kernel has closed all its descriptors, and the GPU's driver has
 * stopped its copies. client.c and shm1_client.c call these functions.
 */
#include "wire/holders.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "wire/common.h"

void pst_wire_holders_add(struct pst_wire_buffer *buffer, int pidfd)
{
	if (buffer->holder_count < PST_WIRE_HOLDERS_MAX) {
		buffer->holders[buffer->holder_count++] = pidfd;
		return;
	}
	/* The array is full. One entry becomes -1, which stands for a process that cannot be
	 * watched. So the memory is never freed or used again. */
	if (pidfd >= 0)
		close(pidfd);
	if (buffer->holders[0] >= 0)
		close(buffer->holders[0]);
	buffer->holders[0] = -1;
}

/* Waits until all the processes have ended, but not longer than until `until_ms`. Returns whether
 * all have ended. */
static bool are_gone(const int *holders, unsigned count, uint64_t until_ms)
{
	for (unsigned i = 0; i < count; i++) {
		struct pollfd fd = {holders[i], POLLIN, 0};
		int n;

		if (holders[i] < 0)
			return false;
		do {
			uint64_t now = pst_wire_now_ms();

			n = poll(&fd, 1, until_ms > now ? (int)(until_ms - now) : 0);
		} while (n < 0 && errno == EINTR);
		if (n <= 0)
			return false;
	}
	return true;
}

bool pst_wire_holders_gone(const struct pst_wire_buffer *buffer)
{
	return buffer->holder_count && are_gone(buffer->holders, buffer->holder_count, 0);
}

/* Removes the processes that have ended from buffer->holders. The caller holds client->lock. */
static void holders_drop(struct pst_wire_buffer *buffer)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < buffer->holder_count; i++) {
		if (are_gone(&buffer->holders[i], 1, 0))
			close(buffer->holders[i]);
		else
			buffer->holders[kept++] = buffer->holders[i];
	}
	buffer->holder_count = kept;
}

/* Waits until all the processes have ended, with the client's lock released. Duplicates the pidfds,
 * because another thread may close them meanwhile. */
static bool wait_unlocked(struct pst_wire_buffer *buffer, uint64_t until_ms)
{
	struct pst_wire_client *client = buffer->client;
	const unsigned count = buffer->holder_count;
	int fds[PST_WIRE_HOLDERS_MAX];
	bool gone;

	for (unsigned i = 0; i < count; i++)
		fds[i] = buffer->holders[i] < 0 ? -1
						: fcntl(buffer->holders[i], F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&client->lock);
	gone = are_gone(fds, count, until_ms);
	for (unsigned i = 0; i < count; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	pthread_mutex_lock(&client->lock);
	return gone;
}

int pst_wire_holders_wait(struct pst_wire_buffer *buffer, struct pst_err *err)
{
	struct pst_wire_client *client = buffer->client;
	const uint64_t until_ms = pst_wire_now_ms() + client->opts.fence_ms;

	while (buffer->holder_count && !buffer->stuck) {
		if (wait_unlocked(buffer, until_ms)) {
			holders_drop(buffer);
			continue;
		}
		if (buffer->stuck || !buffer->holder_count)
			break;
		buffer->stuck = buffer->cut = true;
		atomic_fetch_add(&client->counts.stuck, 1);
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
				      "a server has gone in the middle of a transfer, but its "
				      "process has not ended, and may still access the memory");
	}
	return 0;
}

void pst_wire_holders_close(struct pst_wire_buffer *buffer)
{
	for (unsigned i = 0; i < buffer->holder_count; i++)
		if (buffer->holders[i] >= 0)
			close(buffer->holders[i]);
	buffer->holder_count = 0;
}
