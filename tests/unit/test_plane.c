/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests, in this process, the code with which a plane serves its tenants. A plane is a process that
 * holds the network card; its tenants are the processes that use the card. Each case makes
 * connections with socketpair(2) and sends the messages itself, including messages that the library
 * never sends.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "common/pass_fd.h"
#include "plane/metrics.h"
#include "plane/tenant.h"
#include "s3/token.h"

#define MIB (1u << 20)
#define BUFFER (4 * MIB)

static struct pl_options options;
static struct pl_plane plane;

/* A tenant's connection to the plane. */
struct line {
	int fd;
	struct pl_tenant *tenant;
	uint64_t seq;
};

static int setup(void **state)
{
	(void)state;
	options = (struct pl_options){.transports = "tcp1,shm1",
				      .channels = 1,
				      .tenants_max = 8,
				      .memories_max = 4,
				      .windows_max = 4,
				      .in_flight_max = 2,
				      .memory_max = 64 * MIB};
	memset(&plane, 0, sizeof(plane));
	plane.options = &options;
	plane.stop = eventfd(0, EFD_CLOEXEC);
	plane.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return plane.stop < 0 || plane.wake < 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(atomic_load(&plane.counts.tenants), 0);
	assert_int_equal(atomic_load(&plane.counts.memory), 0);
	assert_int_equal(atomic_load(&plane.counts.in_flight), 0);
	close(plane.stop);
	close(plane.wake);
	return 0;
}

static struct line line_open(void)
{
	struct line line = {.seq = 100};
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(pl_tenant_start(&plane, pair[1], getuid(), getpid(), &line.tenant), 0);
	line.fd = pair[0];
	return line;
}

/* Waits until the tenant's thread has ended, which has freed all objects of the tenant. */
static void line_join(struct line *line)
{
	pthread_join(line->tenant->thread, NULL);
	free(line->tenant);
	close(line->fd);
}

static void line_close(struct line *line)
{
	shutdown(line->fd, SHUT_RDWR);
	line_join(line);
}

/* Receives a message of the plane. Fails if the plane has closed the connection. */
static void line_receive(const struct line *line, struct pst_plane_message *message)
{
	struct pollfd fd = {line->fd, POLLIN, 0};
	int passed, ret;

	assert_int_equal(poll(&fd, 1, 60000), 1);
	ret = pst_plane_receive(line->fd, message, true, &passed);
	assert_int_equal(ret, 1);
}

/* Fails unless the plane has closed the connection without sending a message. */
static void line_ends(struct line *line)
{
	struct pst_plane_message message;
	struct pollfd fd = {line->fd, POLLIN, 0};
	int passed;

	assert_int_equal(poll(&fd, 1, 60000), 1);
	assert_int_equal(pst_plane_receive(line->fd, &message, true, &passed), -ECONNRESET);
	line_join(line);
}

/* Sends a message, and replaces it by the plane's answer. Returns the result in the answer. */
static int ask(struct line *line, struct pst_plane_message *message)
{
	uint64_t seq = message->seq = ++line->seq;

	assert_int_equal(pst_plane_send(line->fd, message, -1), 0);
	line_receive(line, message);
	assert_int_equal(message->kind, PST_PLANE_ANSWER);
	assert_int_equal(message->seq, seq);
	if (message->answer.result)
		assert_string_not_equal(message->answer.text, "");
	return message->answer.result;
}

static void hello(struct line *line, enum pst_plane_role role)
{
	struct pst_plane_message m = {.kind = PST_PLANE_HELLO, .seq = 1};

	m.hello.first = PST_PLANE_VERSION_MIN;
	m.hello.last = PST_PLANE_VERSION_MAX;
	m.hello.role = role;
	assert_int_equal(pst_plane_send(line->fd, &m, -1), 0);
	line_receive(line, &m);
	assert_int_equal(m.kind, PST_PLANE_WELCOME);
	assert_int_equal(m.welcome.version, PST_PLANE_VERSION_MAX);
	assert_int_equal(m.welcome.in_flight, options.in_flight_max);
}

static struct line tenant_open(enum pst_plane_role role)
{
	struct line line = line_open();

	hello(&line, role);
	return line;
}

static void pass(const struct line *line, unsigned slot, int fd)
{
	struct pst_plane_message m = {.kind = PST_PLANE_FD, .fd.slot = slot};

	assert_int_equal(pst_plane_send(line->fd, &m, fd), 0);
}

static int memory_ask(struct line *line, uint64_t len, int fd, int read_fd, uint64_t *id)
{
	struct pst_plane_message m = {.kind = PST_PLANE_MEMORY};
	int ret;

	if (fd >= 0)
		pass(line, 0, fd);
	if (read_fd >= 0)
		pass(line, 1, read_fd);
	m.memory.len = len;
	m.memory.fds = 2;
	ret = ask(line, &m);
	if (id)
		*id = m.answer.id;
	return ret;
}

static uint64_t memory_open(struct line *line, size_t len)
{
	struct pst_shared shared;
	struct pst_err err;
	uint64_t id;

	assert_int_equal(pst_shared_create(NULL, len, &shared, &err), 0);
	assert_int_equal(memory_ask(line, shared.len, shared.fd, shared.read_fd, &id), 0);
	pst_shared_close(&shared);
	assert_true(id != 0);
	return id;
}

static int ask_id(struct line *line, enum pst_plane_kind kind, uint64_t id)
{
	struct pst_plane_message m = {.kind = kind, .name.id = id};

	return ask(line, &m);
}

static int window_ask(struct line *line, uint64_t memory, uint64_t off, uint64_t len, uint64_t *id)
{
	struct pst_plane_message m = {.kind = PST_PLANE_WINDOW};
	int ret;

	m.window.memory = memory;
	m.window.off = off;
	m.window.len = len;
	m.window.op = PENSTOCK_READ;
	ret = ask(line, &m);
	*id = m.answer.id;
	return ret;
}

static int start_ask(struct line *line, uint64_t window, const char *bucket)
{
	struct pst_plane_message m = {.kind = PST_PLANE_START};

	m.start.window = window;
	snprintf(m.start.bucket, sizeof(m.start.bucket), "%s", bucket);
	snprintf(m.start.key, sizeof(m.start.key), "key");
	m.start.key_len = 3;
	return ask(line, &m);
}

static int remote_ask(struct line *line, const char *token, uint64_t *id)
{
	struct pst_plane_message m = {.kind = PST_PLANE_RESOLVE};
	int ret;

	m.resolve.token_len = (uint32_t)strlen(token);
	memcpy(m.resolve.token, token, m.resolve.token_len);
	ret = ask(line, &m);
	*id = m.answer.id;
	return ret;
}

/* ---- the tests ---- */

static void versions(void **state)
{
	static const struct {
		uint32_t first, last, role;
		int result;
	} tries[] = {{2, 3, PST_PLANE_CLIENT, -EPROTONOSUPPORT},
		     {0, 0, PST_PLANE_CLIENT, -EPROTONOSUPPORT},
		     {1, 1, 3, -EOPNOTSUPP},
		     {1, 1, PST_PLANE_SERVER, -EOPNOTSUPP}};

	(void)state;
	options.no_servers = true;
	for (unsigned i = 0; i < 4; i++) {
		struct line line = line_open();
		struct pst_plane_message m = {.kind = PST_PLANE_HELLO};

		/* The plane must not refuse HELLO, the first message, because of this member: the
		 * members `first` and `last` of HELLO say which versions the tenant supports */
		m.version = 9;
		m.hello.first = tries[i].first;
		m.hello.last = tries[i].last;
		m.hello.role = tries[i].role;
		assert_int_equal(ask(&line, &m), tries[i].result);
		line_ends(&line);
	}
	assert_int_equal(atomic_load(&plane.counts.refused_version), 4);
	assert_int_equal(atomic_load(&plane.counts.malformed), 0);
}

/* Sends bytes that are not a valid message. Expects that the plane closes the connection. */
static void garbage_send(const void *bytes, size_t len, bool greeted)
{
	struct line line = line_open();

	if (greeted)
		hello(&line, PST_PLANE_CLIENT);
	assert_int_equal(send(line.fd, bytes, len, MSG_NOSIGNAL), len);
	line_ends(&line);
}

/* Sends a message that is invalid because of one member, and expects the end of the connection. */
static void message_refused(struct pst_plane_message m)
{
	m.magic = m.magic ? m.magic : PST_PLANE_MAGIC;
	m.version = m.version ? m.version : PST_PLANE_VERSION_MAX;
	garbage_send(&m, pst_plane_len(m.kind) ? pst_plane_len(m.kind) : sizeof(m), true);
}

static void garbage(void **state)
{
	struct line calm = tenant_open(PST_PLANE_CLIENT);
	uint64_t seed = test_seed(0x9e3779b97f4a7c15), sent = 0;
	struct pst_plane_message m;

	(void)state;
	for (unsigned i = 0; i < 20; i++, sent++) {
		unsigned char bytes[sizeof(m)];

		for (unsigned k = 0; k < sizeof(bytes); k++)
			bytes[k] = (unsigned char)(test_random(&seed) >> 32);
		garbage_send(bytes, 1 + test_random(&seed) % sizeof(bytes), i & 1);
	}
	m = (struct pst_plane_message){.kind = PST_PLANE_WINDOW};
	m.magic = PST_PLANE_MAGIC;
	m.version = 1;
	garbage_send(&m, pst_plane_len(PST_PLANE_WINDOW), false);    /* before HELLO */
	garbage_send(&m, pst_plane_len(PST_PLANE_WINDOW) - 1, true); /* too short */
	garbage_send(&m, sizeof(m), true);			     /* too long */
	message_refused((struct pst_plane_message){.kind = PST_PLANE_KINDS});
	message_refused((struct pst_plane_message){.kind = PST_PLANE_PING, .magic = 1});
	message_refused((struct pst_plane_message){.kind = PST_PLANE_PING, .version = 2});
	message_refused((struct pst_plane_message){.kind = PST_PLANE_ENDED});
	/* only a tenant with the role of a server may send MOVE */
	message_refused((struct pst_plane_message){.kind = PST_PLANE_MOVE});
	/* a second HELLO */
	message_refused((struct pst_plane_message){.kind = PST_PLANE_HELLO});
	message_refused((struct pst_plane_message){.kind = PST_PLANE_FD}); /* no descriptor */
	message_refused((struct pst_plane_message){.kind = PST_PLANE_WINDOW, .window.op = 2});
	message_refused((struct pst_plane_message){.kind = PST_PLANE_MEMORY, .memory.fds = 3});
	m = (struct pst_plane_message){.kind = PST_PLANE_START};
	/* no NUL at the end of the text */
	memset(m.start.bucket, 'b', sizeof(m.start.bucket));
	message_refused(m);
	m = (struct pst_plane_message){.kind = PST_PLANE_START, .start.key_len = 2};
	m.start.key[0] = 'k'; /* the key has another length than `key_len` */
	message_refused(m);
	sent += 14;
	assert_int_equal(atomic_load(&plane.counts.malformed), sent);
	/* Sends a descriptor with a message that takes none, and then a descriptor for a number
	 * (slot) under which the plane already has one. */
	for (unsigned i = 0; i < 2; i++) {
		struct line line = tenant_open(PST_PLANE_CLIENT);
		struct pst_plane_message ping = {.kind = PST_PLANE_PING};

		if (i)
			pass(&line, 3, plane.wake);
		ping.fd.slot = 3;
		ping.kind = i ? PST_PLANE_FD : PST_PLANE_PING;
		assert_int_equal(pst_plane_send(line.fd, &ping, plane.wake), 0);
		line_ends(&line);
	}
	assert_int_equal(atomic_load(&plane.counts.malformed), sent + 2);
	/* The tenant that sent no invalid message must still be connected. */
	memory_open(&calm, BUFFER);
	line_close(&calm);
}

/* A tenant sends IDs of memory, windows and remote windows that the plane gave to another tenant.
 * The plane must refuse these IDs. */
static void names(void **state)
{
	static const char token[] = "0000000000001000:1000:tcp1:127.0.0.1:1:"
				    "00112233445566778899aabbccddeeff";
	struct line a = tenant_open(PST_PLANE_CLIENT), b = tenant_open(PST_PLANE_CLIENT);
	struct line c = tenant_open(PST_PLANE_SERVER), d = tenant_open(PST_PLANE_SERVER);
	struct pst_plane_message m = {.kind = PST_PLANE_MOVE};
	uint64_t memory = memory_open(&a, BUFFER), own = memory_open(&b, BUFFER);
	uint64_t window, other, remote, shared;
	unsigned refused = 0;

	(void)state;
	assert_int_equal(window_ask(&a, memory, 0, 4096, &window), 0);
	assert_int_equal(window_ask(&b, own, 0, 4096, &other), 0);
	assert_true(window != other && memory != own);
	assert_int_equal(start_ask(&b, window, "bucket"), -EACCES);
	assert_int_equal(ask_id(&b, PST_PLANE_RELEASE, window), -EACCES);
	assert_int_equal(ask_id(&b, PST_PLANE_MEMORY_CLOSE, memory), -EACCES);
	assert_int_equal(window_ask(&b, memory, 0, 4096, &other), -EACCES);
	refused += 4;
	assert_int_equal(remote_ask(&c, token, &remote), 0);
	shared = memory_open(&c, BUFFER);
	m.move.remote = remote;
	assert_int_equal(ask(&d, &m), -EACCES);
	assert_int_equal(ask_id(&d, PST_PLANE_FORGET, remote), -EACCES);
	assert_int_equal(remote_ask(&d, token, &remote), 0);
	m = (struct pst_plane_message){.kind = PST_PLANE_MOVE};
	m.move.remote = remote;
	m.move.seg_count = 1;
	m.move.segs[0] = (struct pst_plane_seg){.memory = shared, .len = 4096};
	assert_int_equal(ask(&d, &m), -EACCES);
	refused += 3;
	/* The plane refuses guessed IDs: IDs near valid ones, and IDs of released objects. */
	for (int i = -2; i <= 2; i++)
		if (i)
			assert_int_equal(ask_id(&b, PST_PLANE_RELEASE, window + (uint64_t)i),
					 -EACCES);
	assert_int_equal(ask_id(&a, PST_PLANE_RELEASE, window), 0);
	assert_int_equal(ask_id(&a, PST_PLANE_RELEASE, window), -EACCES);
	assert_int_equal(ask_id(&a, PST_PLANE_RELEASE, 0), -EACCES);
	refused += 6;
	assert_int_equal(atomic_load(&plane.counts.refused_name), refused);
	assert_int_equal(atomic_load(&plane.counts.malformed), 0);
	line_close(&a);
	line_close(&b);
	line_close(&c);
	line_close(&d);
	assert_int_equal(atomic_load(&plane.counts.lost), 1);
	assert_int_equal(atomic_load(&plane.counts.lost_windows), 1);
}

static void limits(void **state)
{
	struct line a = tenant_open(PST_PLANE_CLIENT), b = tenant_open(PST_PLANE_CLIENT);
	uint64_t memory = memory_open(&a, BUFFER), window, ids[4];
	struct pst_shared shared;
	struct pst_err err;

	(void)state;
	/* Each tenant may share at most 64 MiB of memory with the plane (60 MiB here and 4 MiB
	 * before). */
	assert_int_equal(pst_shared_create(NULL, 60 * MIB, &shared, &err), 0);
	assert_int_equal(memory_ask(&a, 60 * MIB, shared.fd, shared.read_fd, &ids[0]), 0);
	assert_int_equal(memory_ask(&a, 2 * MIB, shared.fd, shared.read_fd, NULL), -EDQUOT);
	assert_int_equal(memory_ask(&b, 60 * MIB, shared.fd, shared.read_fd, NULL), 0);
	assert_int_equal(ask_id(&a, PST_PLANE_MEMORY_CLOSE, ids[0]), 0);
	/* Each tenant may share at most 4 pieces of memory. */
	for (unsigned i = 1; i < 4; i++)
		assert_int_equal(memory_ask(&a, 2 * MIB, shared.fd, shared.read_fd, &ids[i]), 0);
	assert_int_equal(memory_ask(&a, 2 * MIB, shared.fd, shared.read_fd, NULL), -EDQUOT);
	assert_int_equal(atomic_load(&plane.counts.refused[PL_LIMIT_MEMORY]), 2);
	pst_shared_close(&shared);
	/* Each tenant may have at most 4 open windows. Memory that has an open window cannot be
	 * closed. */
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(window_ask(&a, memory, 0, 4096, &window), 0);
	assert_int_equal(window_ask(&a, memory, 0, 4096, &ids[0]), -EDQUOT);
	assert_int_equal(atomic_load(&plane.counts.refused[PL_LIMIT_WINDOWS]), 1);
	assert_int_equal(ask_id(&a, PST_PLANE_MEMORY_CLOSE, memory), -EBUSY);
	assert_int_equal(ask_id(&a, PST_PLANE_RELEASE, window), 0);
	assert_int_equal(window_ask(&a, memory, 0, 4096, &window), 0);
	assert_int_equal(window_ask(&a, memory, BUFFER - 4096, 4097, &ids[0]), -EDQUOT);
	assert_int_equal(ask_id(&a, PST_PLANE_RELEASE, window), 0);
	assert_int_equal(window_ask(&a, memory, BUFFER - 4096, 4097, &ids[0]), -ERANGE);
	assert_int_equal(window_ask(&a, memory, UINT64_MAX, 2, &ids[0]), -ERANGE);
	/* The plane refuses buckets and operations that its options do not permit. */
	options.buckets = "one,two";
	assert_int_equal(window_ask(&a, memory, 0, 4096, &window), 0);
	assert_int_equal(start_ask(&a, window, "on"), -EACCES);
	assert_int_equal(start_ask(&a, window, "one,two"), -EACCES);
	assert_int_equal(atomic_load(&plane.counts.refused_policy), 2);
	/* No operation may begin after the plane was told to end (`draining`). */
	atomic_store(&plane.draining, true);
	assert_int_equal(start_ask(&a, window, "two"), -ESHUTDOWN);
	line_close(&a);
	line_close(&b);
	assert_int_equal(atomic_load(&plane.counts.lost_windows), 4);
}

static int memfd(size_t len, int seals, int *read_fd)
{
	char name[40];
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	*read_fd = open(name, O_RDONLY | O_CLOEXEC);
	assert_true(*read_fd >= 0);
	return fd;
}

/* The plane must refuse memory that could become shorter, because an access behind its end would
 * kill the plane. */
static void memory(void **state)
{
	struct line a = tenant_open(PST_PLANE_CLIENT), b = tenant_open(PST_PLANE_SERVER);
	int read_fd, other_read, fd = memfd(2 * MIB, F_SEAL_SHRINK, &read_fd);
	int other = memfd(4 * MIB, F_SEAL_SHRINK, &other_read);
	int soft_read, soft = memfd(2 * MIB, F_SEAL_GROW, &soft_read);
	struct line *const lines[] = {&a, &b};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct line *line = lines[i];

		assert_int_equal(memory_ask(line, 2 * MIB, soft, soft_read, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 4 * MIB, fd, read_fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, fd, other_read, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, read_fd, read_fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, fd, fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, fd, -1, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, -1, -1, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, plane.wake, read_fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 0, fd, read_fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, MIB, fd, read_fd, NULL), -EINVAL);
		assert_int_equal(memory_ask(line, 2 * MIB, fd, read_fd, NULL), 0);
	}
	close(fd);
	close(read_fd);
	close(other);
	close(other_read);
	close(soft);
	close(soft_read);
	line_close(&a);
	line_close(&b);
}

/* The plane must refuse to move bytes from or to an invalid segment. */
static void pieces(void **state)
{
	struct line a = tenant_open(PST_PLANE_SERVER);
	static const char token[] = "1000:1000:tcp1:127.0.0.1:1:00112233445566778899aabbccddeeff";
	uint64_t memory = memory_open(&a, BUFFER), remote;
	struct pst_plane_message m;
	int folder = open("/", O_RDONLY | O_CLOEXEC);
	static const struct {
		struct pst_plane_seg seg;
		int result;
	} tries[] = {
		{{.off = BUFFER - 1, .len = 2}, -ERANGE},
		{{.off = UINT64_MAX, .len = 2}, -ERANGE},
		{{.is_file = 1, .slot = 0, .len = 1}, -EINVAL}, /* no descriptor */
		{{.is_file = 1, .slot = 1, .len = 1}, -EINVAL}, /* a folder */
		{{.len = 4097}, -ERANGE},			/* longer than the window */
		/* the memory of a process; a process could delay page faults of this memory */
		{{.is_file = 1, .slot = 2, .len = 1}, -EINVAL},
		{{.is_file = 1, .slot = 3, .len = 1}, -EINVAL}, /* a file of /sys */
	};
	int process = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	int machine = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);

	(void)state;
	assert_int_equal(remote_ask(&a, "nonsense", &remote), -EBADMSG);
	assert_int_equal(remote_ask(&a,
				    "1000:1000:tcp1:10.1.2.3:1:"
				    "00112233445566778899aabbccddeeff",
				    &remote),
			 -EOPNOTSUPP);
	assert_int_equal(remote_ask(&a, token, &remote), 0);
	assert_true(process >= 0);
	for (unsigned i = 0; i < (machine < 0 ? 6 : 7); i++) {
		m = (struct pst_plane_message){.kind = PST_PLANE_MOVE};
		m.move.remote = remote;
		m.move.seg_count = 1;
		m.move.segs[0] = tries[i].seg;
		m.move.segs[0].memory = memory;
		pass(&a, 1, folder);
		pass(&a, 2, process);
		if (machine >= 0)
			pass(&a, 3, machine);
		printf("# piece %u\n", i);
		assert_int_equal(ask(&a, &m), tries[i].result);
	}
	/* The plane cannot reach the client that the token names. The move must then complete with
	 * an error. After that, the memory of the move can be closed. */
	m = (struct pst_plane_message){.kind = PST_PLANE_MOVE, .move.user = 77};
	m.move.remote = remote;
	m.move.seg_count = 1;
	m.move.segs[0] = (struct pst_plane_seg){.memory = memory, .len = 4096};
	assert_int_equal(ask(&a, &m), 0);
	line_receive(&a, &m);
	assert_int_equal(m.kind, PST_PLANE_MOVED);
	assert_int_equal(m.moved.done.user, 77);
	assert_int_equal(m.moved.done.result, -EOPNOTSUPP);
	assert_int_equal(ask_id(&a, PST_PLANE_MEMORY_CLOSE, memory), 0);
	close(folder);
	close(process);
	if (machine >= 0)
		close(machine);
	line_close(&a);
	assert_int_equal(atomic_load(&plane.counts.moves[1]), 1);
}

/* A tenant may disconnect, or the plane may end its connection. In both cases, no object of the
 * tenant may be left. */
static void ends(void **state)
{
	const uint64_t one = 1;
	struct pst_text text = {NULL, 0, 0, false};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct line a = tenant_open(PST_PLANE_CLIENT);
		uint64_t memory = memory_open(&a, BUFFER), window;

		assert_int_equal(window_ask(&a, memory, 0, BUFFER, &window), 0);
		assert_int_equal(window_ask(&a, memory, 0, 100, &window), 0);
		assert_int_equal(atomic_load(&plane.counts.memory), BUFFER);
		if (i)
			assert_int_equal(write(plane.stop, &one, sizeof(one)), sizeof(one));
		if (i)
			line_ends(&a);
		else
			line_close(&a);
		assert_int_equal(atomic_load(&plane.counts.memory), 0);
		assert_int_equal(atomic_load(&plane.counts.lost), i + 1);
		assert_int_equal(atomic_load(&plane.counts.lost_windows), 2 * (i + 1));
	}
	pl_metrics_write(&plane.counts, &text);
	assert_non_null(strstr(text.at, "\npenstock_plane_lost_windows_total 4\n"));
	assert_non_null(strstr(text.at, "\npenstock_plane_tenants_total{role=\"client\"} 2\n"));
	free(text.at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(versions, setup, teardown),
		cmocka_unit_test_setup_teardown(garbage, setup, teardown),
		cmocka_unit_test_setup_teardown(names, setup, teardown),
		cmocka_unit_test_setup_teardown(limits, setup, teardown),
		cmocka_unit_test_setup_teardown(memory, setup, teardown),
		cmocka_unit_test_setup_teardown(pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(ends, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
