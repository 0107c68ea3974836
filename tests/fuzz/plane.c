/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the messages that a plane (`penstock plane`) receives from a tenant, a process for which
 * it makes RDMA transfers. The first byte of the input chooses the tenant's role, client or server.
 * The rest are messages: a byte for the kind, two bytes for the number of bytes that follow, and
 * these bytes, which fill the message's body from its start. The kind 0 sends the bytes as they
 * are; the kind FD passes a descriptor of memory. The plane gives random numbers to memory, windows
 * and remote windows. So if the first eight bytes of a body are a number from 1 to 9, the target
 * replaces them by the last number that an answer had.
 *
 * A failure is a crash, memory or work that is left when the tenant has gone, or an answer that
 * pst_plane_check does not accept.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plane/tenant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static struct pl_options options = {.transports = "shm1",
				    .channels = 1,
				    .tenants_max = 1,
				    .memories_max = 2,
				    .windows_max = 2,
				    .in_flight_max = 2,
				    .memory_max = 4u << 20,
				    .buckets = "none"};
/* descriptors of memory: for reading and writing, and for reading only */
static int memory[2] = {-1, -1};

static void memory_open(void)
{
	char name[40];

	memory[0] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", memory[0]);
	memory[1] = open(name, O_RDONLY | O_CLOEXEC);
	if (memory[0] < 0 || memory[1] < 0 || ftruncate(memory[0], 2 << 20) ||
	    fcntl(memory[0], F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
}

/* Receives an answer, and stores its number in *id. Returns false if the plane has closed the
 * connection. */
static bool answer_take(int fd, uint64_t *id)
{
	struct pollfd wait = {fd, POLLIN, 0};
	struct pst_plane_message answer;
	int passed, ret;

	poll(&wait, 1, -1);
	ret = pst_plane_receive(fd, &answer, true, &passed);
	if (ret == -EPROTO)
		abort();
	if (ret > 0 && answer.kind == PST_PLANE_ANSWER && answer.answer.id)
		*id = answer.answer.id;
	return ret > 0;
}

/* Sends a message, and receives its answer. Returns false if the connection has ended. */
static bool message_send(int fd, unsigned kind, const uint8_t *bytes, size_t len, uint64_t *id)
{
	struct pst_plane_message m = {.kind = (uint16_t)kind, .seq = 7};
	uint64_t name;

	if (!pst_plane_len(kind))
		return send(fd, bytes, len, MSG_NOSIGNAL) >= 0 && answer_take(fd, id);
	if (len > pst_plane_len(kind) - offsetof(struct pst_plane_message, hello))
		len = pst_plane_len(kind) - offsetof(struct pst_plane_message, hello);
	memcpy(&m.hello, bytes, len);
	if (kind == PST_PLANE_FD)
		return !pst_plane_send(fd, &m, memory[m.fd.slot & 1]);
	memcpy(&name, &m.hello, sizeof(name));
	if (name && name < 10)
		memcpy(&m.hello, id, sizeof(*id));
	return !pst_plane_send(fd, &m, -1) && answer_take(fd, id);
}

static void tenant_feed(int fd, const uint8_t *data, size_t len)
{
	struct pst_plane_message hello = {.kind = PST_PLANE_HELLO, .seq = 1};
	uint64_t id = 0;

	hello.hello.first = hello.hello.last = PST_PLANE_VERSION_MAX;
	hello.hello.role = data[0] & 1 ? PST_PLANE_SERVER : PST_PLANE_CLIENT;
	if (pst_plane_send(fd, &hello, -1) || !answer_take(fd, &id))
		return;
	for (data++, len--; len >= 3;) {
		size_t n = data[1] | (size_t)data[2] << 8;
		unsigned kind = data[0];

		data += 3;
		len -= 3;
		if (n > len)
			n = len;
		if (!message_send(fd, kind, data, n, &id))
			return;
		data += n;
		len -= n;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	static struct pl_plane plane = {.options = &options, .stop = -1, .wake = -1};
	struct pl_tenant *tenant;
	uint64_t events;
	int pair[2];

	if (!len_bytes)
		return 0;
	if (plane.stop < 0) {
		plane.stop = eventfd(0, EFD_CLOEXEC);
		plane.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		memory_open();
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) ||
	    pl_tenant_start(&plane, pair[1], getuid(), getpid(), &tenant))
		abort();
	tenant_feed(pair[0], data, len_bytes);
	close(pair[0]);
	pthread_join(tenant->thread, NULL);
	free(tenant);
	if (read(plane.wake, &events, sizeof(events)) != (ssize_t)sizeof(events) ||
	    atomic_load(&plane.counts.tenants) || atomic_load(&plane.counts.memory) ||
	    atomic_load(&plane.counts.in_flight))
		abort();
	return 0;
}
