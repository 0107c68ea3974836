/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which messages a client of S3 over RDMA must refuse. The test sends the transports'
 * messages itself, as a broken or hostile server: wrong capabilities, other windows, ranges beyond
 * the window, released tokens, bytes that arrive after a release, and a server that hangs. Each
 * case compares the client's memory with the expected contents, and checks that the client has
 * counted the refusal. tests/unit/test_wire_decline.c tests hostile clients.
 */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "../crc32c.h"
#include "penstock_object.h"
#include "s3/token.h"
#include "wire/shm1.h"
#include "wire/tcp1.h"

#define LEN 16384u /* length of the buffer; the window is its second quarter */
#define OFF 4096u
#define WINDOW 4096u

struct state {
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct pst_token token;
	unsigned char *mem;
	int sock;
	uint64_t seq;
};

static struct penstock_object_client_info counts(struct state *s)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};

	assert_int_equal(penstock_object_client_get_info(s->client, &info), 0);
	return info;
}

/* Connects to the client that the token names, and receives the greeting of tcp1. */
static int dial(const struct pst_token *t)
{
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct sockaddr_un local;
	char greeting[PST_TCP1_GREETING_LEN];
	int sock, ret;

	if (t->kind == PST_TOKEN_SHM1) {
		unsigned len = pst_shm1_address(t->shm.handle, &local);

		sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		ret = connect(sock, (struct sockaddr *)&local, len);
	} else {
		four.sin_port = htons(t->tcp.at.port);
		inet_pton(AF_INET, t->tcp.at.address, &four.sin_addr);
		sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		ret = connect(sock, (struct sockaddr *)&four, sizeof(four));
	}
	if (ret)
		fail_msg("connect: %s", strerror(errno));
	if (t->kind == PST_TOKEN_TCP1) {
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
		assert_int_equal(recv(sock, greeting, sizeof(greeting), MSG_WAITALL),
				 sizeof(greeting));
		assert_memory_equal(greeting, PST_TCP1_GREETING, sizeof(greeting));
	}
	return sock;
}

static void open_state_with(struct state *s, const struct penstock_object_client_opts *opts,
			    enum penstock_op op)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	memset(s, 0, sizeof(*s));
	assert_int_equal(penstock_object_client_open(opts, &s->client), 0);
	assert_int_equal(penstock_object_alloc(s->client, NULL, LEN, &s->buffer), 0);
	s->mem = penstock_object_ptr(s->buffer);
	for (unsigned i = 0; i < LEN; i++)
		s->mem[i] = (unsigned char)(i * 7);
	assert_int_equal(penstock_object_window_open(s->buffer, op, OFF, WINDOW, &s->window), 0);
	assert_int_equal(penstock_object_window_get_info(s->window, &info), 0);
	assert_int_equal(pst_token_parse(info.token, strlen(info.token), &s->token), 0);
	s->sock = dial(&s->token);
}

static void open_state(struct state *s, const char *transport, enum penstock_op op)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;

	opts.transports = transport;
	opts.fence_ms = 50;
	open_state_with(s, &opts, op);
}

static void close_state(struct state *s)
{
	close(s->sock);
	penstock_object_release(s->window);
	assert_int_equal(penstock_object_unregister(s->buffer), 0);
	penstock_object_client_close(s->client);
}

/* Checks that the memory still has the contents that open_state wrote. */
static void expect_untouched(const struct state *s)
{
	for (unsigned i = 0; i < LEN; i++)
		if (s->mem[i] != (unsigned char)(i * 7))
			fail_msg("byte %u is %u, expected %u", i, s->mem[i], (i * 7) & 255);
}

/* ---- tcp1 ---- */

static struct pst_tcp1_command command(struct state *s, enum pst_tcp1_kind kind, uint64_t off,
				       uint32_t len)
{
	struct pst_tcp1_command c = {
		.kind = kind, .seq = ++s->seq, .id = s->token.base, .off = off, .len = len};

	memcpy(c.cap, s->token.tcp.cap, sizeof(c.cap));
	return c;
}

static void transmit(struct state *s, const struct pst_tcp1_command *c)
{
	unsigned char out[PST_TCP1_COMMAND_LEN];

	pst_tcp1_put_command(out, c);
	assert_int_equal(send(s->sock, out, sizeof(out), MSG_NOSIGNAL), sizeof(out));
}

/* Sends the command WRITE of tcp1, with bytes of 0xee and the right checksum. */
static void transmit_write(struct state *s, struct pst_tcp1_command *c)
{
	static unsigned char bytes[WINDOW + 1];

	memset(bytes, 0xee, sizeof(bytes));
	c->crc = test_crc32c(bytes, c->len);
	transmit(s, c);
	assert_int_equal(send(s->sock, bytes, c->len, MSG_NOSIGNAL), c->len);
}

static struct pst_tcp1_reply receive_reply(struct state *s)
{
	unsigned char in[PST_TCP1_REPLY_LEN];
	struct pst_tcp1_reply r;

	assert_int_equal(recv(s->sock, in, sizeof(in), MSG_WAITALL), sizeof(in));
	assert_int_equal(pst_tcp1_get_reply(in, &r), 0);
	assert_int_equal(r.seq, s->seq);
	return r;
}

/* A client must refuse a command of tcp1 unless the command has the number and the capability (a
 * secret) of an open window. */
static void tcp1_refuses_a_wrong_capability(void **unused)
{
	struct pst_tcp1_command c;
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	for (unsigned bit = 0; bit < 128; bit++) {
		c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
		c.cap[bit / 8] ^= (unsigned char)(1 << bit % 8);
		transmit_write(&s, &c);
		assert_int_equal(receive_reply(&s).status, 1);
	}
	assert_int_equal(counts(&s).wrong_cap, 128);
	expect_untouched(&s);
	c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 0);
	assert_int_equal(s.mem[OFF], 0xee);
	close_state(&s);
}

/* A client with the option either_way opens a window for reading: a server may also read the
 * window's memory, but not the memory around it. */
static void tcp1_either_way_serves_both_directions(void **unused)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	static unsigned char bytes[WINDOW];
	struct pst_tcp1_command c;
	struct state s = {0};

	(void)unused;
	opts.either_way = 1;
	opts.transports = "shm1";
	assert_int_equal(penstock_object_client_open(&opts, &s.client), -EOPNOTSUPP);
	opts.transports = NULL;
	open_state_with(&s, &opts, PENSTOCK_READ);
	assert_int_equal(penstock_object_window_get_info(s.window, &info), 0);
	assert_string_equal(info.transport, "tcp1");
	c = command(&s, PST_TCP1_READ, 0, WINDOW);
	transmit(&s, &c);
	assert_int_equal(receive_reply(&s).status, 0);
	assert_int_equal(recv(s.sock, bytes, WINDOW, MSG_WAITALL), WINDOW);
	assert_memory_equal(bytes, s.mem + OFF, WINDOW);
	c = command(&s, PST_TCP1_READ, 1, WINDOW);
	transmit(&s, &c);
	assert_int_equal(receive_reply(&s).status, 2);
	c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 0);
	assert_memory_not_equal(bytes, s.mem + OFF, WINDOW);
	assert_int_equal(counts(&s).out_of_window, 1);
	close_state(&s);
}

static void tcp1_refuses_another_id(void **unused)
{
	static const uint64_t changes[] = {1, 4096, UINT64_C(1) << 40, UINT64_C(1) << 63};
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	for (unsigned i = 0; i < 4; i++) {
		struct pst_tcp1_command c = command(&s, PST_TCP1_WRITE, 0, WINDOW);

		c.id ^= changes[i];
		transmit_write(&s, &c);
		assert_int_equal(receive_reply(&s).status, 1);
	}
	assert_int_equal(counts(&s).wrong_cap, 4);
	expect_untouched(&s);
	close_state(&s);
}

static void tcp1_refuses_ranges_outside_the_window(void **unused)
{
	static const struct {
		uint64_t off;
		uint32_t len;
	} ranges[] = {{0, WINDOW + 1}, {1, WINDOW},	      {WINDOW, 1},	   {WINDOW + 1, 0},
		      {UINT64_MAX, 1}, {UINT64_MAX - 10, 12}, {-(uint64_t)OFF, 16}};
	struct pst_tcp1_command c;
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		c = command(&s, PST_TCP1_WRITE, ranges[i].off, ranges[i].len);
		transmit_write(&s, &c);
		assert_int_equal(receive_reply(&s).status, 2);
	}
	/* The window is for writing only, so a server cannot read its contents. */
	c = command(&s, PST_TCP1_READ, 0, 16);
	transmit(&s, &c);
	assert_int_equal(receive_reply(&s).status, 2);
	assert_int_equal(counts(&s).out_of_window, 8);
	expect_untouched(&s);
	close_state(&s);
	open_state(&s, "tcp1", PENSTOCK_WRITE);
	c = command(&s, PST_TCP1_WRITE, 0, 16);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 2);
	expect_untouched(&s);
	close_state(&s);
}

static void tcp1_refuses_a_released_token(void **unused)
{
	struct penstock_object_window *other;
	struct pst_tcp1_command c;
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 1);
	assert_int_equal(counts(&s).late, 1);
	/* The old token is refused even if a new window covers the same memory. */
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, OFF, WINDOW, &other),
			 0);
	c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 1);
	assert_int_equal(counts(&s).late, 2);
	expect_untouched(&s);
	assert_int_equal(penstock_object_release(other), 0);
	close_state(&s);
}

/* Waits until a byte has the value `value`. The client's thread writes this byte meanwhile, which a
 * thread sanitizer would report as a race. An application must not read the window before the
 * response. */
__attribute__((no_sanitize("thread"))) static void wait_for_byte(const volatile unsigned char *at,
								 unsigned char value)
{
	for (uint64_t until = test_now_ns() + 10000000000u; *at != value;)
		if (test_now_ns() > until)
			fail_msg("the first half has not arrived");
}

/* A response is lost in the middle of a transfer. The client releases the window and uses the
 * memory for other data. The rest of the bytes then arrives, and the client must not write it to
 * the memory. */
static void tcp1_drops_bytes_that_come_after_the_release(void **unused)
{
	unsigned char bytes[WINDOW];
	struct pst_tcp1_command c;
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	memset(bytes, 0xee, sizeof(bytes));
	c = command(&s, PST_TCP1_WRITE, 0, WINDOW);
	c.crc = test_crc32c(bytes, sizeof(bytes));
	transmit(&s, &c);
	assert_int_equal(send(s.sock, bytes, WINDOW / 2, MSG_NOSIGNAL), WINDOW / 2);
	wait_for_byte(s.mem + OFF + WINDOW / 2 - 1, 0xee);
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	for (unsigned i = 0; i < LEN; i++)
		s.mem[i] = (unsigned char)(i * 7);
	assert_int_equal(send(s.sock, bytes, WINDOW / 2, MSG_NOSIGNAL), WINDOW / 2);
	assert_int_equal(receive_reply(&s).status, 1);
	assert_int_equal(counts(&s).late, 1);
	assert_int_equal(counts(&s).bytes, 0);
	expect_untouched(&s);
	close_state(&s);
}

static void tcp1_finds_damaged_bytes(void **unused)
{
	unsigned char bytes[16] = {0};
	struct pst_tcp1_command c;
	struct state s;

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	c = command(&s, PST_TCP1_WRITE, 0, sizeof(bytes));
	c.crc = test_crc32c(bytes, sizeof(bytes)) ^ 1;
	transmit(&s, &c);
	assert_int_equal(send(s.sock, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(receive_reply(&s).status, 3);
	assert_int_equal(counts(&s).bad_checksum, 1);
	assert_int_equal(counts(&s).bytes, 0);
	close_state(&s);
}

static void tcp1_closes_after_a_malformed_command(void **unused)
{
	char byte;

	(void)unused;
	for (unsigned i = 0; i < 3; i++) {
		unsigned char out[PST_TCP1_COMMAND_LEN];
		struct pst_tcp1_command c;
		struct state s;

		open_state(&s, "tcp1", PENSTOCK_READ);
		c = command(&s, i == 0 ? 9 : PST_TCP1_WRITE, 0,
			    i == 1 ? PST_TCP1_FRAME_MAX + 1 : 16);
		pst_tcp1_put_command(out, &c);
		out[0] ^= i == 2;
		assert_int_equal(send(s.sock, out, sizeof(out), 0), sizeof(out));
		assert_int_equal(recv(s.sock, &byte, 1, 0), 0);
		assert_int_equal(counts(&s).malformed, 1);
		expect_untouched(&s);
		close_state(&s);
	}
}

/* Connections that send nothing do not prevent a server from connecting. */
static void tcp1_serves_behind_idle_connections(void **unused)
{
	struct pst_tcp1_command c;
	struct state s;
	int idle[300];

	(void)unused;
	open_state(&s, "tcp1", PENSTOCK_READ);
	for (unsigned i = 0; i < 300; i++)
		idle[i] = dial(&s.token);
	close(s.sock);
	s.sock = dial(&s.token);
	c = command(&s, PST_TCP1_WRITE, 0, 16);
	transmit_write(&s, &c);
	assert_int_equal(receive_reply(&s).status, 0);
	for (unsigned i = 0; i < 300; i++)
		close(idle[i]);
	close_state(&s);
}

/* ---- shm1 ---- */

/* Sends a message of shm1 to the client and receives the answer. */
static struct pst_shm1_message exchange(struct state *s, struct pst_shm1_message *message, int *fd)
{
	struct pollfd wait = {s->sock, POLLIN, 0};
	struct pst_shm1_message answer;

	assert_int_equal(pst_shm1_send(s->sock, message, -1), 0);
	assert_int_equal(poll(&wait, 1, 10000), 1);
	assert_int_equal(pst_shm1_receive(s->sock, &answer, fd), 1);
	return answer;
}

static struct pst_shm1_message open_message(const struct state *s, enum penstock_op op)
{
	struct pst_shm1_message m = {
		.kind = PST_SHM1_OPEN, .id = s->token.base, .op = op, .len = WINDOW};

	memcpy(m.cap, s->token.shm.cap, sizeof(m.cap));
	return m;
}

/* Opens the window, and maps the memory as a server does. */
static unsigned char *map_window(struct state *s, enum penstock_op op, int prot)
{
	struct pst_shm1_message m = open_message(s, op), answer;
	unsigned char *at;
	int fd;

	answer = exchange(s, &m, &fd);
	assert_int_equal(answer.kind, PST_SHM1_WINDOW);
	assert_int_equal(answer.status, 0);
	assert_int_equal(answer.off, OFF);
	assert_int_equal(fd, -1);
	m = (struct pst_shm1_message){.kind = PST_SHM1_WANT, .memory = answer.memory};
	answer = exchange(s, &m, &fd);
	assert_int_equal(answer.kind, PST_SHM1_MEMORY);
	assert_true(fd >= 0);
	at = mmap(NULL, answer.memory_len, prot, MAP_SHARED, fd, 0);
	close(fd);
	return at;
}

static void shm1_refuses_wrong_tokens(void **unused)
{
	struct pst_shm1_message m;
	struct state s;
	int fd;

	(void)unused;
	open_state(&s, "shm1", PENSTOCK_READ);
	m = open_message(&s, PENSTOCK_READ);
	m.cap[15] ^= 0x80;
	assert_int_equal(exchange(&s, &m, &fd).status, 1);
	m = open_message(&s, PENSTOCK_READ);
	m.id += 4096;
	assert_int_equal(exchange(&s, &m, &fd).status, 1);
	assert_int_equal(counts(&s).wrong_cap, 2);
	m = open_message(&s, PENSTOCK_WRITE);
	assert_int_equal(exchange(&s, &m, &fd).status, 2);
	m = open_message(&s, PENSTOCK_READ);
	m.off = 1;
	assert_int_equal(exchange(&s, &m, &fd).status, 2);
	m.off = UINT64_MAX;
	assert_int_equal(exchange(&s, &m, &fd).status, 2);
	assert_int_equal(counts(&s).out_of_window, 3);
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	m = open_message(&s, PENSTOCK_READ);
	assert_int_equal(exchange(&s, &m, &fd).status, 1);
	assert_int_equal(counts(&s).late, 1);
	expect_untouched(&s);
	close_state(&s);
}

/* A server that has no open window must not get a descriptor of the memory. */
static void shm1_gives_no_memory_without_a_window(void **unused)
{
	struct pst_shm1_message m = {.kind = PST_SHM1_WANT, .memory = 2}, answer;
	struct pollfd wait;
	struct state s;
	int fd;

	(void)unused;
	open_state(&s, "shm1", PENSTOCK_READ);
	assert_int_equal(pst_shm1_send(s.sock, &m, -1), 0);
	wait = (struct pollfd){s.sock, POLLIN, 0};
	assert_int_equal(poll(&wait, 1, 10000), 1);
	assert_int_equal(pst_shm1_receive(s.sock, &answer, &fd), -EPIPE);
	assert_int_equal(counts(&s).malformed, 1);
	close_state(&s);
}

/* For a PUT, the client must pass a read-only descriptor of the memory. */
static void shm1_passes_a_put_read_only(void **unused)
{
	unsigned char *at;
	struct state s;

	(void)unused;
	open_state(&s, "shm1", PENSTOCK_WRITE);
	at = map_window(&s, PENSTOCK_WRITE, PROT_READ | PROT_WRITE);
	assert_ptr_equal(at, MAP_FAILED);
	close_state(&s);
	open_state(&s, "shm1", PENSTOCK_WRITE);
	at = map_window(&s, PENSTOCK_WRITE, PROT_READ);
	assert_ptr_not_equal(at, MAP_FAILED);
	assert_int_equal(at[OFF + 3], ((OFF + 3) * 7) & 255);
	assert_true(mprotect(at, LEN, PROT_READ | PROT_WRITE) < 0);
	munmap(at, LEN);
	close_state(&s);
}

/* A server hangs with the window open. The release gives the buffer new pages, so that later writes
 * of the server do not reach the buffer. The buffer keeps its address and its contents. */
static void shm1_cuts_off_a_server_that_hangs(void **unused)
{
	struct penstock_object_window *next, *overlaps, *by_tcp1;
	unsigned char *at;
	struct state s;

	(void)unused;
	/* The first window uses shm1. The other one has an odd offset, so it uses tcp1. */
	open_state(&s, NULL, PENSTOCK_READ);
	assert_int_equal(s.token.kind, PST_TOKEN_SHM1);
	at = map_window(&s, PENSTOCK_READ, PROT_READ | PROT_WRITE);
	assert_ptr_not_equal(at, MAP_FAILED);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, LEN, &overlaps),
			 0);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 1, 16, &by_tcp1), 0);
	at[OFF] ^= 0xff;
	assert_int_equal(s.mem[OFF], at[OFF]);
	at[OFF] ^= 0xff;
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	assert_int_equal(counts(&s).cut_off, 1);
	expect_untouched(&s);
	memset(at + OFF, 0xee, WINDOW);
	expect_untouched(&s);
	/* The server does not see what the application writes after the release. */
	s.mem[OFF + 1] = 0x11;
	assert_int_equal(at[OFF + 1], 0xee);
	/* Bytes of the other windows may have been written to the old pages, so their release
	 * fails. */
	assert_int_equal(penstock_object_release(overlaps), -EIO);
	assert_int_equal(penstock_object_release(by_tcp1), -EIO);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, OFF, WINDOW, &next),
			 -EIO);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 1, 16, &next), -EIO);
	munmap(at, LEN);
	close_state(&s);
}

/* Runs in a forked child: uses objects of the parent. Returns 0 if every call is refused or has no
 * effect. */
static int use_as_child(struct state *s)
{
	struct penstock_object_window *other;

	if (penstock_object_window_open(s->buffer, PENSTOCK_READ, 0, 1, &other) != -EOWNERDEAD)
		return 1;
	if (penstock_object_release(s->window))
		return 2;
	if (penstock_object_unregister(s->buffer))
		return 3;
	penstock_object_client_close(s->client);
	return 0;
}

/* A forked child has a copy of the window's handle and of the parent's sockets. When the child
 * releases the window, it must neither send a message to the server nor close the server's
 * connection. */
static void a_child_leaves_the_parents_window_alone(void **unused)
{
	struct pst_shm1_message m;
	struct pollfd wait;
	struct state s;
	int status = -1, fd;
	pid_t pid;

	(void)unused;
	open_state(&s, "shm1", PENSTOCK_READ);
	m = open_message(&s, PENSTOCK_READ);
	assert_int_equal(exchange(&s, &m, &fd).status, 0);
	pid = fork();
	if (!pid)
		_exit(use_as_child(&s));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The server has received no message, and its connection is still open. */
	wait = (struct pollfd){s.sock, POLLIN, 0};
	assert_int_equal(poll(&wait, 1, 0), 0);
	m.kind = PST_SHM1_DONE;
	m.len = WINDOW;
	assert_int_equal(pst_shm1_send(s.sock, &m, -1), 0);
	for (uint64_t until = test_now_ns() + 10000000000u; counts(&s).bytes != WINDOW;)
		if (test_now_ns() > until)
			fail_msg("the client has not taken the end of the transfer");
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	assert_int_equal(counts(&s).cut_off, 0);
	close_state(&s);
}

/* A server hangs while a window of a GPU's memory is open. The client cannot revoke this memory.
 * The server may copy at any later time, so the memory is never freed, not even when the client is
 * closed. */
static void shm1_keeps_gpu_memory_of_a_server_that_hangs(void **unused)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_device *gpu, *owner = NULL;
	struct pst_shm1_message m, answer;
	struct state s = {0};
	int fd;

	(void)unused;
	opts.fence_ms = 50;
	if (penstock_device_open("cuda:0", NULL, &gpu) < 0)
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_object_client_open(&opts, &s.client), 0);
	assert_int_equal(penstock_object_alloc(s.client, gpu, LEN, &s.buffer), 0);
	s.mem = penstock_object_ptr(s.buffer);
	assert_int_equal(
		penstock_object_window_open(s.buffer, PENSTOCK_READ, OFF, WINDOW, &s.window), 0);
	assert_int_equal(penstock_object_window_get_info(s.window, &info), 0);
	assert_string_equal(info.transport, "shm1");
	assert_int_equal(pst_token_parse(info.token, strlen(info.token), &s.token), 0);
	s.sock = dial(&s.token);
	m = open_message(&s, PENSTOCK_READ);
	answer = exchange(&s, &m, &fd);
	assert_int_equal(answer.status, 0);
	assert_int_equal(penstock_object_release(s.window), -ETIMEDOUT);
	assert_int_equal(counts(&s).cut_off, 1);
	assert_int_equal(counts(&s).stuck, 1);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 1, 1, &s.window),
			 -EIO);
	assert_int_equal(penstock_object_unregister(s.buffer), 0);
	penstock_object_client_close(s.client);
	assert_int_equal(penstock_device_of(s.mem, &owner), 0);
	assert_ptr_equal(owner, gpu);
	assert_int_equal(penstock_free(gpu, s.mem), 0);
	close(s.sock);
	penstock_device_close(gpu);
}

/* Runs in a forked child: becomes another user and tries to open the window. Returns 0 if the
 * client closes the connection without an answer. */
static int dial_as_other_user(const struct state *s)
{
	struct pst_shm1_message m = open_message(s, PENSTOCK_READ), answer;
	struct pollfd wait = {-1, POLLIN, 0};
	int fd, ret;

	if (setresuid(65534, 65534, 65534))
		return 2;
	wait.fd = dial(&s->token);
	ret = pst_shm1_send(wait.fd, &m, -1);
	if (ret)
		return ret == -EPIPE || ret == -ECONNRESET ? 0 : 3;
	if (poll(&wait, 1, 10000) != 1)
		return 4;
	return pst_shm1_receive(wait.fd, &answer, &fd) < 0 ? 0 : 5;
}

static void shm1_refuses_another_user(void **unused)
{
	const struct penstock_object_header declined = {"x-amz-rdma-reply", "501"};
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct state s;
	int status = -1;
	pid_t pid;

	(void)unused;
	if (getuid())
		test_skip("only root can become another user");
	open_state(&s, "shm1", PENSTOCK_READ);
	reply.status = 200;
	reply.headers = &declined;
	reply.header_count = 1;
	assert_int_equal(penstock_object_judge(s.window, &reply, &verdict), 0);
	assert_string_equal(verdict.text, "the server declined RDMA");
	pid = fork();
	if (!pid)
		_exit(dial_as_other_user(&s));
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	assert_int_equal(counts(&s).wrong_user, 1);
	assert_int_equal(penstock_object_judge(s.window, &reply, &verdict), 0);
	print_message("# %s\n", verdict.text);
	assert_non_null(strstr(verdict.text, "shm1 does not serve user 65534"));
	expect_untouched(&s);
	close_state(&s);
}

/* If the server has closed its connection, no server has the window open, and the release does not
 * wait. */
static void shm1_release_after_the_server_has_gone(void **unused)
{
	unsigned char *at;
	struct state s;

	(void)unused;
	open_state(&s, "shm1", PENSTOCK_READ);
	at = map_window(&s, PENSTOCK_READ, PROT_READ | PROT_WRITE);
	at[OFF] = 0x42;
	munmap(at, LEN);
	shutdown(s.sock, SHUT_RDWR);
	assert_int_equal(penstock_object_release(s.window), 0);
	s.window = NULL;
	assert_int_equal(s.mem[OFF], 0x42);
	assert_int_equal(counts(&s).cut_off, 0);
	close_state(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tcp1_refuses_a_wrong_capability),
		cmocka_unit_test(tcp1_refuses_another_id),
		cmocka_unit_test(tcp1_either_way_serves_both_directions),
		cmocka_unit_test(tcp1_refuses_ranges_outside_the_window),
		cmocka_unit_test(tcp1_refuses_a_released_token),
		cmocka_unit_test(tcp1_drops_bytes_that_come_after_the_release),
		cmocka_unit_test(tcp1_finds_damaged_bytes),
		cmocka_unit_test(tcp1_closes_after_a_malformed_command),
		cmocka_unit_test(tcp1_serves_behind_idle_connections),
		cmocka_unit_test(shm1_refuses_wrong_tokens),
		cmocka_unit_test(shm1_gives_no_memory_without_a_window),
		cmocka_unit_test(shm1_passes_a_put_read_only),
		cmocka_unit_test(shm1_cuts_off_a_server_that_hangs),
		cmocka_unit_test(shm1_keeps_gpu_memory_of_a_server_that_hangs),
		cmocka_unit_test(a_child_leaves_the_parents_window_alone),
		cmocka_unit_test(shm1_refuses_another_user),
		cmocka_unit_test(shm1_release_after_the_server_has_gone),
	};

	test_use_standin();
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
