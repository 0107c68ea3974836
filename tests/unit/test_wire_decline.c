/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which tokens a server of S3 over RDMA declines, and that a hostile client cannot harm the
 * server. The declined tokens name another address than the request came from, another host, or
 * another user. A server that requires encryption declines tokens of unencrypted transports. The
 * hostile clients are programs that do not speak the protocol, and clients whose memory shrinks, is
 * missing, or is shorter than the client says. The CUDA driver is the stand-in. The program starts
 * itself as a second process that exports a GPU's memory, because a process cannot import its own
 * memory.
 */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "penstock_object.h"
#include "s3/token.h"
#include "wire/shm1.h"
#include "wire/tcp1.h"

#define CAP "00112233445566778899aabbccddeeff"

static struct penstock_object_server *server_open(int require_encryption)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server;

	opts.require_encryption = require_encryption;
	opts.channels = 1;
	opts.timeout_ms = 5000;
	assert_int_equal(penstock_object_server_open(&opts, &server), 0);
	return server;
}

static int resolve(struct penstock_object_server *server, const char *token,
		   const struct penstock_object_peer *peer)
{
	struct penstock_object_remote *remote;
	int ret = penstock_object_resolve(server, token, strlen(token), peer, &remote);

	if (!ret)
		penstock_object_forget(remote);
	else
		assert_string_not_equal(penstock_errmsg(), "");
	/* No error message may contain the capability of the token, which is a secret number. */
	assert_null(strstr(penstock_errmsg(), "00112233"));
	return ret;
}

static void declines_other_kinds(void **state)
{
	static const struct {
		const char *token;
		int ret;
	} tokens[] = {
		{"0:1000:tcp1:127.0.0.1:4791:" CAP, 0},
		{"0:1000:tcp1:127.9.9.9:4791:" CAP, 0},
		{"0:1000:tcp1:[::1]:4791:" CAP, 0},
		/* If the peer's address is unknown, the server accepts only loopback addresses. */
		{"0:1000:tcp1:192.0.2.1:4791:" CAP, -EOPNOTSUPP},
		{"0:1000:tcp1:[2001:db8::1]:4791:" CAP, -EOPNOTSUPP},
		{"0:1000:shm1:" CAP ":m:abc:" CAP, -EOPNOTSUPP}, /* another host */
		{"0:1000:rc1:192.0.2.1:4791:" CAP ":0000beef", -EOPNOTSUPP},
		{"0:1000:ofi1:tcp;ofi_rxm:0200:1", -EOPNOTSUPP},
		{"00007f0012345000:00c00000:00001234:0001:00abcd:1:" CAP, -EOPNOTSUPP},
		{"0:1000:tcp2:127.0.0.1:4791:" CAP, -EBADMSG},
		{"", -EBADMSG},
	};
	struct penstock_object_server_info info = {.size = sizeof(info)};
	struct penstock_object_server *server = server_open(0);

	(void)state;
	for (unsigned i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
		if (resolve(server, tokens[i].token, NULL) != tokens[i].ret)
			fail_msg("token %u: expected %d: %s", i, tokens[i].ret, tokens[i].token);
	assert_int_equal(penstock_object_server_get_info(server, &info), 0);
	assert_int_equal(info.resolved, 3);
	assert_int_equal(info.declined, 6);
	assert_int_equal(info.malformed, 2);
	penstock_object_server_close(server);
}

/* A token cannot make the server connect to a host other than the sender of the request. */
static void declines_other_addresses(void **state)
{
	static const struct {
		const char *peer, *named;
		int ret;
	} rows[] = {
		{"192.0.2.1", "192.0.2.1", 0},
		{"::ffff:192.0.2.1", "192.0.2.1", 0},
		{"2001:db8::1", "[2001:db8:0::1]", 0},
		{"192.0.2.1", "192.0.2.2", -EOPNOTSUPP},
		{"192.0.2.1", "127.0.0.1", -EOPNOTSUPP},
		{"2001:db8::1", "[2001:db8::2]", -EOPNOTSUPP},
		{"example.org", "127.0.0.1", -EOPNOTSUPP},
	};
	struct penstock_object_server *server = server_open(0);

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
		char token[128];

		peer.address = rows[i].peer;
		snprintf(token, sizeof(token), "0:1:tcp1:%s:80:" CAP, rows[i].named);
		if (resolve(server, token, &peer) != rows[i].ret)
			fail_msg("%s from %s: expected %d", token, rows[i].peer, rows[i].ret);
	}
	penstock_object_server_close(server);
}

static void required_encryption_excludes_tcp1(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_server *server = server_open(1);
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	char mem[16];

	(void)state;
	assert_int_equal(resolve(server, "0:1000:tcp1:127.0.0.1:4791:" CAP, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "encrypt"));
	opts.require_encryption = 1;
	opts.transports = "tcp1";
	assert_int_equal(penstock_object_client_open(&opts, &client), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "tcp1 does not encrypt"));
	/* shm1 is allowed, because its bytes do not leave the host. */
	opts.transports = NULL;
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	assert_int_equal(penstock_object_alloc(client, NULL, 4096, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 4096, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "shm1");
	assert_int_equal(resolve(server, info.token, NULL), 0);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	assert_int_equal(penstock_object_register(client, NULL, mem, sizeof(mem), &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 16, &window),
			 -EOPNOTSUPP);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
	penstock_object_server_close(server);
}

static void refuses_wrong_options(void **state)
{
	struct penstock_object_client_opts c = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_server_opts s = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_client *client;
	struct penstock_object_server *server;

	(void)state;
	c.transports = "rdma";
	assert_int_equal(penstock_object_client_open(&c, &client), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "rdma"));
	c.transports = "tcp1";
	c.address = "localhost";
	assert_int_equal(penstock_object_client_open(&c, &client), -EINVAL);
	c.address = "192.0.2.1"; /* not an address of this host */
	assert_int_equal(penstock_object_client_open(&c, &client), -EADDRNOTAVAIL);
	c.address = NULL;
	c.port = 65536;
	assert_int_equal(penstock_object_client_open(&c, &client), -EINVAL);
	c.size = 1;
	assert_int_equal(penstock_object_client_open(&c, &client), -EINVAL);
	s.transports = "shm1,x";
	assert_int_equal(penstock_object_server_open(&s, &server), -EINVAL);
	s.transports = NULL;
	s.channels = 65;
	assert_int_equal(penstock_object_server_open(&s, &server), -E2BIG);
	assert_int_equal(penstock_object_client_open(NULL, NULL), -EINVAL);
	assert_int_equal(penstock_object_server_open(NULL, NULL), -EINVAL);
	penstock_object_client_close(NULL);
	penstock_object_server_close(NULL);
	penstock_object_forget(NULL);
	assert_int_equal(penstock_object_release(NULL), 0);
	assert_int_equal(penstock_object_unregister(NULL), 0);
}

/* ---- what a token leads to ---- */

/* Makes the server move one byte with this token. Returns the number of bytes or an error. */
static int64_t move_byte(struct penstock_object_server *server, const char *token,
			 const struct penstock_object_peer *peer)
{
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	char byte = 'x';
	struct penstock_object_seg seg = {.ptr = &byte, .len = 1};

	if (penstock_object_resolve(server, token, strlen(token), peer, &remote))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 5), 0);
	assert_int_equal(penstock_object_wait(server, &done, 1, 20000), 1);
	penstock_object_forget(remote);
	if (done.result < 0)
		assert_string_not_equal(done.text, "");
	return done.result;
}

/* If another program listens at the address in the token, the server must send it no data. */
static void sends_nothing_to_other_programs(void **state)
{
	struct penstock_object_server *server = server_open(0);
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), sock;
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	struct penstock_object_seg seg = {.ptr = "x", .len = 1};
	char token[128], byte;

	(void)state;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	getsockname(listener, (struct sockaddr *)&at, &len);
	snprintf(token, sizeof(token), "0:1:tcp1:127.0.0.1:%u:" CAP, ntohs(at.sin_port));
	assert_int_equal(penstock_object_resolve(server, token, strlen(token), NULL, &remote), 0);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 0), 0);
	sock = accept(listener, NULL, NULL);
	assert_int_equal(send(sock, "220 mail.example ESMTP ready\r\n", 30, 0), 30);
	/* The server closes the connection without having sent anything. */
	assert_true(recv(sock, &byte, 1, 0) <= 0);
	assert_int_equal(penstock_object_wait(server, &done, 1, 20000), 1);
	assert_int_equal(done.result, -EOPNOTSUPP);
	close(sock);
	close(listener);
	assert_int_equal(move_byte(server, token, NULL), -EOPNOTSUPP);
	penstock_object_forget(remote);
	penstock_object_server_close(server);
}

/* Does what a slow client of tcp1 does: answers the command READ with one byte at a time until the
 * server closes the connection. Returns the number of bytes that the server has accepted. */
static unsigned drip(int listener)
{
	struct pollfd wait = {accept(listener, NULL, NULL), POLLIN, 0};
	unsigned char in[PST_TCP1_COMMAND_LEN], out[PST_TCP1_REPLY_LEN];
	struct pst_tcp1_command c;
	struct pst_tcp1_reply reply = {.len = 1 << 20};
	unsigned count = 0;

	assert_true(wait.fd >= 0);
	assert_int_equal(send(wait.fd, PST_TCP1_GREETING, PST_TCP1_GREETING_LEN, 0),
			 PST_TCP1_GREETING_LEN);
	assert_int_equal(recv(wait.fd, in, sizeof(in), MSG_WAITALL), sizeof(in));
	assert_int_equal(pst_tcp1_get_command(in, &c), 0);
	reply.seq = c.seq;
	pst_tcp1_put_reply(out, &reply);
	assert_int_equal(send(wait.fd, out, sizeof(out), 0), sizeof(out));
	/* The server closes a connection that makes no progress until its time limit. The loop
	 * sends each byte before this limit has passed. */
	while (!poll(&wait, 1, 20) && count < 2000 &&
	       send(wait.fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
		count++;
	close(wait.fd);
	return count;
}

/* The client sends one byte at a time, so it always makes some progress. It must not occupy a
 * channel (a thread of the server) forever. A move that is queued behind this client's move must
 * not wait longer than its own deadline. */
static void ends_a_move_that_drips(void **state)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	static char mem[1 << 20];
	struct penstock_object_seg seg = {.ptr = mem, .len = sizeof(mem)};
	struct penstock_object_server *server;
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	uint64_t start = test_now_ns(), ms;
	char token[128];
	unsigned taken;

	(void)state;
	opts.channels = 1;
	opts.timeout_ms = 400;
	opts.rate_min = sizeof(mem);
	assert_int_equal(penstock_object_server_open(&opts, &server), 0);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	getsockname(listener, (struct sockaddr *)&at, &len);
	snprintf(token, sizeof(token), "0:100000:tcp1:127.0.0.1:%u:" CAP, ntohs(at.sin_port));
	assert_int_equal(penstock_object_resolve(server, token, strlen(token), NULL, &remote), 0);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, 0, &seg, 1, 1), 0);
	/* The deadline of this move is 400 ms after this call. The deadline of the first move is
	 * 1,400 ms after its call. */
	seg.len = 1;
	assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, 0, &seg, 1, 2), 0);
	taken = drip(listener);
	for (uint64_t user = 1; user <= 2; user++) {
		assert_int_equal(penstock_object_wait(server, &done, 1, 20000), 1);
		assert_int_equal(done.user, user);
		assert_int_equal(done.result, -ETIMEDOUT);
	}
	ms = (test_now_ns() - start) / 1000000;
	printf("# the server took %u bytes in %llu ms\n", taken, (unsigned long long)ms);
	assert_in_range(ms, 1400, 20000);
	assert_in_range(taken, 2, 1999);
	penstock_object_forget(remote);
	penstock_object_server_close(server);
	close(listener);
}

/* Writes the identity of this host, as a client of this host prints it in its tokens. */
static void own_host(char out[33])
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;

	opts.transports = "shm1";
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	assert_int_equal(penstock_object_alloc(client, NULL, 1, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 1, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	snprintf(out, 33, "%s", strstr(info.token, "shm1:") + 5);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
}

/* The wrong ways in which a hostile client describes its memory, and the right way. */
enum lie { FILE_FD, NO_FD, SHRINKABLE, TOO_SHORT, OFF_BEYOND, LEN_OTHER, HONEST };

static int lie_fd(enum lie lie)
{
	int fd;

	if (lie == NO_FD)
		return -1;
	if (lie == FILE_FD)
		return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	if (lie != SHRINKABLE)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return fd;
}

/* Answers the messages of one move as a hostile client whose memory has the fault `lie`. The server
 * may close the connection at any time. Returns the kind of the server's last message. */
static unsigned answer_as(int listener, enum lie lie)
{
	struct pst_shm1_message m, answer;
	int sock = accept(listener, NULL, NULL), fd = lie_fd(lie), none;
	unsigned kind = 0;

	assert_true(sock >= 0);
	for (;;) {
		struct pollfd wait = {sock, POLLIN, 0};

		assert_int_equal(poll(&wait, 1, 10000), 1);
		if (pst_shm1_receive(sock, &m, &none) <= 0)
			break;
		kind = m.kind;
		if (kind == PST_SHM1_DONE)
			break;
		answer = (struct pst_shm1_message){.id = m.id, .memory = 2, .memory_len = 4096};
		if (m.kind == PST_SHM1_OPEN) {
			answer.kind = PST_SHM1_WINDOW;
			answer.len = lie == LEN_OTHER ? 9 : m.len;
			answer.off = lie == OFF_BEYOND ? 4096 : 0;
			(void)pst_shm1_send(sock, &answer, -1);
		} else if (m.kind == PST_SHM1_WANT) {
			/* Shrinks the memory while the server is about to use it. */
			answer.kind = PST_SHM1_MEMORY;
			answer.memory_len = lie == TOO_SHORT ? 8192 : 4096;
			(void)pst_shm1_send(sock, &answer, fd);
			answer.kind = PST_SHM1_DROP;
			(void)pst_shm1_send(sock, &answer, -1);
		}
	}
	close(sock);
	if (fd >= 0)
		close(fd);
	return kind;
}

/* A hostile client passes wrong memory. The server must not crash, and must not map memory that can
 * shrink. */
static void survives_hostile_memory(void **state)
{
	char host[33], token[PST_TOKEN_MAX];

	(void)state;
	own_host(host);
	for (enum lie lie = FILE_FD; lie <= HONEST; lie++) {
		int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		struct penstock_object_server *server = server_open(0);
		struct penstock_object_remote *remote;
		struct penstock_object_done done;
		struct penstock_object_seg seg = {.ptr = "x", .len = 1};
		struct sockaddr_un at;
		char handle[32];

		snprintf(handle, sizeof(handle), "lie%d-%d", lie, (int)getpid());
		assert_int_equal(
			bind(listener, (struct sockaddr *)&at, pst_shm1_address(handle, &at)), 0);
		assert_int_equal(listen(listener, 1), 0);
		snprintf(token, sizeof(token), "0:1:shm1:%s:m:%s:" CAP, host, handle);
		assert_int_equal(
			penstock_object_resolve(server, token, strlen(token), NULL, &remote), 0);
		assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 0), 0);
		assert_int_equal(answer_as(listener, lie), PST_SHM1_DONE);
		assert_int_equal(penstock_object_wait(server, &done, 1, 20000), 1);
		if (done.result != (lie == HONEST ? 1 : -EPROTO))
			fail_msg("lie %d: result %lld: %s", lie, (long long)done.result, done.text);
		penstock_object_forget(remote);
		penstock_object_server_close(server);
		close(listener);
	}
}

/* ---- memory of a GPU ---- */

#define GPU_LEN (2u << 20)

/* Runs in a child: exports memory of a GPU, writes the export to stdout, and keeps the memory until
 * end of file on stdin. Returns the exit status. */
static int role_export(void)
{
	struct penstock_export out = PENSTOCK_EXPORT_INIT;
	struct penstock_device *gpu;
	char byte;
	void *mem;

	if (penstock_device_open("cuda:0", NULL, &gpu) < 0 || penstock_alloc(gpu, GPU_LEN, &mem) ||
	    penstock_export_memory(gpu, mem, GPU_LEN, &out))
		return 1;
	if (write(STDOUT_FILENO, out.bytes, sizeof(out.bytes)) != (ssize_t)sizeof(out.bytes))
		return 2;
	if (read(STDIN_FILENO, &byte, 1) != 0)
		return 3;
	return penstock_free(gpu, mem) ? 4 : 0;
}

/* Starts the child that exports memory. Returns a socket; closing it ends the child. */
static int export_start(unsigned char *bytes, size_t len, pid_t *pid)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	*pid = fork();
	if (!*pid) {
		if (dup2(ends[1], STDIN_FILENO) >= 0 && dup2(ends[1], STDOUT_FILENO) >= 0)
			execl("/proc/self/exe", "export", "export", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	assert_int_equal(recv(ends[0], bytes, len, MSG_WAITALL), len);
	return ends[0];
}

/* Answers the messages of one move as a client that passes exported memory of a GPU. `len` is the
 * length that the client states. */
static void answer_export(int listener, const unsigned char *exported, uint64_t len, uint64_t off)
{
	int sock = accept(listener, NULL, NULL), none;
	struct pst_shm1_message m, answer;
	struct pollfd wait = {sock, POLLIN, 0};

	assert_true(sock >= 0);
	for (;;) {
		assert_int_equal(poll(&wait, 1, 10000), 1);
		if (pst_shm1_receive(sock, &m, &none) <= 0 || m.kind == PST_SHM1_DONE)
			break;
		answer = (struct pst_shm1_message){.id = m.id, .memory = 2, .memory_len = len};
		answer.kind = m.kind == PST_SHM1_OPEN ? PST_SHM1_WINDOW : PST_SHM1_MEMORY;
		answer.off = off;
		answer.len = m.len;
		answer.cuda = m.kind == PST_SHM1_WANT;
		memcpy(answer.exported, exported, sizeof(answer.exported));
		(void)pst_shm1_send(sock, &answer, -1);
	}
	close(sock);
}

/* A client claims that an export of a GPU's memory is longer than it is. The server must not copy
 * beyond the export, because other memory of the GPU follows it, possibly the server's own. */
static void bounds_an_import_by_its_export(void **state)
{
	static const struct {
		uint64_t len, off;
		int64_t result;
	} rows[] = {{GPU_LEN, GPU_LEN - 1, 1},
		    {GPU_LEN, GPU_LEN, -EPROTO},
		    {GPU_LEN + 1, 0, -EPROTO},
		    {UINT64_MAX, GPU_LEN, -EPROTO},
		    {UINT64_MAX, UINT64_MAX - GPU_LEN, -EPROTO}};
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	unsigned char exported[sizeof(((struct penstock_export *)0)->bytes)];
	char host[33], token[PST_TOKEN_MAX];
	int child, status = -1;
	pid_t pid;

	(void)state;
	if (penstock_device_open("cuda:0", NULL, &opts.device) < 0)
		fail_msg("%s", penstock_errmsg());
	opts.channels = 1;
	opts.timeout_ms = 5000;
	own_host(host);
	child = export_start(exported, sizeof(exported), &pid);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		struct penstock_object_seg seg = {.ptr = "x", .len = 1};
		struct penstock_object_server *server;
		struct penstock_object_remote *remote;
		struct penstock_object_done done;
		struct sockaddr_un at;
		char handle[32];

		assert_int_equal(penstock_object_server_open(&opts, &server), 0);
		snprintf(handle, sizeof(handle), "export%u-%d", i, (int)getpid());
		assert_int_equal(
			bind(listener, (struct sockaddr *)&at, pst_shm1_address(handle, &at)), 0);
		assert_int_equal(listen(listener, 1), 0);
		snprintf(token, sizeof(token), "0:1:shm1:%s:c:%s:" CAP, host, handle);
		assert_int_equal(
			penstock_object_resolve(server, token, strlen(token), NULL, &remote), 0);
		assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 0), 0);
		answer_export(listener, exported, rows[i].len, rows[i].off);
		assert_int_equal(penstock_object_wait(server, &done, 1, 20000), 1);
		if (done.result != rows[i].result)
			fail_msg("row %u: result %lld, expected %lld: %s", i,
				 (long long)done.result, (long long)rows[i].result, done.text);
		penstock_object_forget(remote);
		penstock_object_server_close(server);
		close(listener);
	}
	close(child);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	penstock_device_close(opts.device);
}

/* A server must refuse a window of shm1 (memory that the client shares) unless its owner is the
 * user that made the request. */
static void checks_the_windows_owner(void **state)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_server *server = server_open(0);
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;

	(void)state;
	opts.transports = "shm1";
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	assert_int_equal(penstock_object_alloc(client, NULL, 4096, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 1, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	peer.has_user = 1;
	peer.user = getuid() + 1;
	assert_int_equal(move_byte(server, info.token, &peer), -EACCES);
	assert_int_equal(*(char *)penstock_object_ptr(buffer), 0);
	peer.user = getuid();
	assert_int_equal(move_byte(server, info.token, &peer), 1);
	assert_int_equal(*(char *)penstock_object_ptr(buffer), 'x');
	/* The connection stays open, and the server checks the owner again for the next move. */
	peer.user = getuid() + 1;
	assert_int_equal(move_byte(server, info.token, &peer), -EACCES);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
	penstock_object_server_close(server);
}

/* Tests how the function that composes a server's response checks its own arguments.
 * tests/unit/test_judge.c tests the contents of the responses. */
static void checks_the_answers_arguments(void **state)
{
	struct penstock_object_answer answer = PENSTOCK_OBJECT_ANSWER_INIT;

	(void)state;
	assert_int_equal(penstock_object_answer_fill(&answer), 0);
	assert_int_equal(answer.status, 200);
	assert_int_equal(answer.body, 1);
	assert_string_equal(answer.headers[0].value, "501");
	answer.outcome = 9;
	assert_int_equal(penstock_object_answer_fill(&answer), -EINVAL);
	answer.outcome = PENSTOCK_OBJECT_MOVED;
	answer.size = 8;
	assert_int_equal(penstock_object_answer_fill(&answer), -EINVAL);
	assert_int_equal(penstock_object_answer_fill(NULL), -EINVAL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(declines_other_kinds),
		cmocka_unit_test(declines_other_addresses),
		cmocka_unit_test(required_encryption_excludes_tcp1),
		cmocka_unit_test(refuses_wrong_options),
		cmocka_unit_test(sends_nothing_to_other_programs),
		cmocka_unit_test(ends_a_move_that_drips),
		cmocka_unit_test(survives_hostile_memory),
		cmocka_unit_test(bounds_an_import_by_its_export),
		cmocka_unit_test(checks_the_windows_owner),
		cmocka_unit_test(checks_the_answers_arguments),
	};

	test_use_standin();
	if (argc == 2 && !strcmp(argv[1], "export"))
		return role_export();
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
