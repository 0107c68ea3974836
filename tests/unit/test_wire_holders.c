/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests when a client uses memory of a device again after a server has lost its connection in the
 * middle of a transfer by shm1: only when the server's process has ended. The server is a forked
 * process that speaks the messages of shm1.h; the device has host memory.
 */
#include "test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "core/ops.h"
#include "wire/client.h"
#include "wire/shm1.h"

#define LEN (3u << 20)
#define FENCE_MS 200

static struct penstock_device device = {.name = "test:0"};
static unsigned allocated, freed;
static uint64_t serial = 1;
/* The memory of the device that the client has not freed. */
static void *owned[4];

static int device_alloc(struct penstock_device *dev, size_t len, void **out)
{
	assert_ptr_equal(dev, &device);
	assert_true(allocated < sizeof(owned) / sizeof(owned[0]));
	*out = owned[allocated] = malloc(len);
	allocated++;
	return *out ? 0 : -ENOMEM;
}

static int device_free(struct penstock_device *dev, void *ptr)
{
	assert_ptr_equal(dev, &device);
	for (unsigned i = 0; i < allocated; i++)
		if (owned[i] == ptr)
			owned[i] = NULL;
	freed++;
	free(ptr);
	return 0;
}

/* Frees the memory that the client has kept because a server could still access it. A driver does
 * the same when the process ends. */
static void device_memory_end(void)
{
	for (unsigned i = 0; i < allocated; i++)
		free(owned[i]);
	memset(owned, 0, sizeof(owned));
	allocated = 0;
}

static int device_export(struct penstock_device *dev, void *ptr, size_t len,
			 struct penstock_export *out)
{
	(void)dev;
	(void)ptr;
	memcpy(out->bytes, &len, sizeof(len));
	return 0;
}

static uint64_t device_serial(const struct penstock_device *dev)
{
	assert_ptr_equal(dev, &device);
	return serial;
}

static const struct pst_wire_devices devices = {.alloc = device_alloc,
						.free = device_free,
						.serial = device_serial,
						.export_memory = device_export};

/* What a server does after it has received the window's memory. */
enum how { DIES, HANGS_UP, SAYS_NOTHING, ENDS };

static int tell(int fd, char c)
{
	return write(fd, &c, 1) == 1 ? 0 : -1;
}

static void await(int fd)
{
	char c;

	assert_int_equal(read(fd, &c, 1), 1);
}

/* Sends a message, and receives the answer, for which it waits at most 20 s. */
static int ask(int sock, struct pst_shm1_message *message, struct pst_shm1_message *answer)
{
	struct pollfd ready = {sock, POLLIN, 0};
	int fd = -1, ret = pst_shm1_send(sock, message, -1);

	if (!ret && poll(&ready, 1, 20000) == 1)
		ret = pst_shm1_receive(sock, answer, &fd);
	if (fd >= 0)
		close(fd);
	return ret == 1 ? 0 : -1;
}

/* Opens the window as a server does, and then does what `how` says. Never returns. */
static void serve(const struct pst_token *token, enum how how, int said)
{
	struct pst_shm1_message open = {.kind = PST_SHM1_OPEN, .id = token->base, .len = LEN};
	struct pst_shm1_message want = {.kind = PST_SHM1_WANT}, window, memory;
	struct sockaddr_un address;
	unsigned len = pst_shm1_address(token->shm.handle, &address);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	/* If an assertion fails, the server must not keep the output of the test open. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memcpy(open.cap, token->shm.cap, sizeof(open.cap));
	if (sock < 0 || connect(sock, (struct sockaddr *)&address, len) ||
	    ask(sock, &open, &window) || window.status)
		_exit(2);
	want.memory = window.memory;
	if (ask(sock, &want, &memory) || !memory.cuda || memory.memory_len < LEN)
		_exit(3);
	if (how == DIES && !tell(said, 'm'))
		kill(getpid(), SIGKILL);
	if (how == HANGS_UP)
		close(sock);
	open.kind = PST_SHM1_DONE;
	if (how == ENDS && pst_shm1_send(sock, &open, -1))
		_exit(4);
	tell(said, 'm');
	for (;;)
		pause();
}

struct sides {
	struct pst_wire_client *client;
	struct pst_wire_buffer *buffer;
	struct pst_wire_grant *grant;
	pid_t server;
	struct pst_err err;
};

static struct pst_wire_buffer *buffer_open(struct sides *s)
{
	struct pst_wire_buffer *buffer;

	assert_int_equal(
		pst_wire_buffer_open(s->client, &device, NULL, LEN, &buffer, &s->err), 0);
	pst_wire_buffer_direct(buffer);
	return buffer;
}

/* Opens a window, and starts a server that opens the window and then does what `how` says. */
static void begin(struct sides *s, enum how how)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pst_token token;
	int said[2];

	allocated = freed = 0;
	opts.transports = "tcp1,shm1";
	opts.fence_ms = FENCE_MS;
	assert_int_equal(pst_wire_client_open(&opts, &devices, 0, &s->client, &s->err), 0);
	s->buffer = buffer_open(s);
	if (pst_wire_window_open(s->buffer, PENSTOCK_READ, 0, LEN, &s->grant, &s->err))
		fail_msg("%s", s->err.text);
	pst_wire_window_info(s->grant, &info);
	/* With tcp1, no server would map the GPU's memory, and this test needs servers that do. */
	assert_string_equal(info.transport, "shm1");
	assert_int_equal(pst_token_parse(info.token, strlen(info.token), &token), 0);
	assert_true(token.shm.cuda);
	assert_int_equal(pipe(said), 0);
	s->server = fork();
	if (!s->server)
		serve(&token, how, said[1]);
	close(said[1]);
	await(said[0]);
	close(said[0]);
}

static void end(struct sides *s)
{
	kill(s->server, SIGKILL);
	waitpid(s->server, NULL, 0);
	s->server = 0;
}

static uint64_t stuck(const struct sides *s)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};

	pst_wire_client_info(s->client, &info);
	return info.stuck;
}

static void ended_transfers_need_no_wait(void **state)
{
	struct sides s;
	uint64_t begun;

	(void)state;
	begin(&s, ENDS);
	begun = test_now_ns();
	assert_int_equal(pst_wire_release(s.grant, &s.err), 0);
	assert_true(test_now_ns() - begun < FENCE_MS * 1000000u);
	assert_int_equal(stuck(&s), 0);
	assert_int_equal(pst_wire_buffer_close(s.buffer, &s.err), 0);
	assert_int_equal(freed, 1);
	end(&s);
	pst_wire_client_close(s.client);
}

/* After a server was killed, the client waits until the server's pidfd reports its end. Only then
 * can the window's memory be used again. */
static void killed_servers_are_waited_for(void **state)
{
	struct sides s;

	(void)state;
	begin(&s, DIES);
	if (pst_wire_release(s.grant, &s.err))
		fail_msg("%s", s.err.text);
	assert_int_equal(stuck(&s), 0);
	assert_false(pst_wire_buffer_is_cut(s.buffer));
	assert_int_equal(pst_wire_window_open(s.buffer, PENSTOCK_READ, 0, LEN, &s.grant, &s.err),
			 0);
	assert_int_equal(pst_wire_release(s.grant, &s.err), 0);
	assert_int_equal(pst_wire_buffer_close(s.buffer, &s.err), 0);
	assert_int_equal(freed, 1);
	end(&s);
	pst_wire_client_close(s.client);
}

static void close_host_buffer(struct sides *s)
{
	struct pst_wire_buffer *buffer;

	assert_int_equal(pst_wire_buffer_open(s->client, NULL, NULL, LEN, &buffer, &s->err), 0);
	assert_int_equal(pst_wire_buffer_close(buffer, &s->err), 0);
}

/* While the server's process lives, the client must not free the memory. After the process has
 * ended, the client frees the memory when it closes another buffer of the same device. It does not
 * free the memory when it closes a buffer of host memory: a free of device memory waits for the
 * device, and a close of host memory must not wait for it. */
static void memory_stays_while_the_server_lives(struct sides *s)
{
	int ret = pst_wire_release(s->grant, &s->err);

	printf("# %d: %s\n", ret, s->err.text);
	assert_int_equal(ret, -ETIMEDOUT);
	assert_non_null(strstr(s->err.text, "may still access the memory"));
	assert_int_equal(stuck(s), 1);
	assert_true(pst_wire_buffer_is_cut(s->buffer));
	assert_int_equal(pst_wire_window_open(s->buffer, PENSTOCK_READ, 0, LEN, &s->grant, &s->err),
			 -EIO);
	assert_int_equal(pst_wire_buffer_close(s->buffer, &s->err), 0);
	assert_int_equal(pst_wire_buffer_close(buffer_open(s), &s->err), 0);
	assert_int_equal(allocated, 2);
	assert_int_equal(freed, 1);
	end(s);
	close_host_buffer(s);
	print_message("# freed after the close of host memory: %u, expected 1\n", freed);
	assert_int_equal(freed, 1);
	assert_int_equal(pst_wire_buffer_close(buffer_open(s), &s->err), 0);
	assert_int_equal(allocated, 3);
	assert_int_equal(freed, 3);
	pst_wire_client_close(s->client);
}

static void lost_connections_keep_the_memory(void **state)
{
	struct sides s;

	(void)state;
	begin(&s, HANGS_UP);
	memory_stays_while_the_server_lives(&s);
}

static void silent_servers_keep_the_memory(void **state)
{
	struct sides s;

	(void)state;
	begin(&s, SAYS_NOTHING);
	memory_stays_while_the_server_lives(&s);
}

/* The device is closed before the server's process ends. Then another device is opened, whose
 * struct has the same address. The functions of that device must not free the memory. */
static void memory_of_a_closed_device_is_not_freed(void **state)
{
	struct sides s;

	(void)state;
	begin(&s, SAYS_NOTHING);
	assert_int_equal(pst_wire_release(s.grant, &s.err), -ETIMEDOUT);
	assert_int_equal(pst_wire_buffer_close(s.buffer, &s.err), 0);
	end(&s);
	serial++;
	close_host_buffer(&s);
	assert_int_equal(pst_wire_buffer_close(buffer_open(&s), &s.err), 0);
	print_message("# freed: %u, expected 1\n", freed);
	assert_int_equal(freed, 1);
	pst_wire_client_close(s.client);
	assert_int_equal(freed, 1);
	device_memory_end();
}

/* The caller closes the client while a window is open and a server copies. The memory of the window
 * must stay allocated. */
static void open_windows_keep_the_memory(void **state)
{
	struct sides s;

	(void)state;
	begin(&s, SAYS_NOTHING);
	pst_wire_client_close(s.client);
	print_message("# freed: %u, expected 0\n", freed);
	assert_int_equal(freed, 0);
	end(&s);
	device_memory_end();
}

static void transports_that_copy_are_refused(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct sides s = {.server = 0};

	(void)state;
	opts.transports = "tcp1";
	assert_int_equal(pst_wire_client_open(&opts, &devices, 0, &s.client, &s.err), 0);
	s.buffer = buffer_open(&s);
	assert_int_equal(pst_wire_window_open(s.buffer, PENSTOCK_READ, 0, LEN, &s.grant, &s.err),
			 -EOPNOTSUPP);
	assert_non_null(strstr(s.err.text, "no transport of this client"));
	pst_wire_client_close(s.client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ended_transfers_need_no_wait),
		cmocka_unit_test(killed_servers_are_waited_for),
		cmocka_unit_test(lost_connections_keep_the_memory),
		cmocka_unit_test(silent_servers_keep_the_memory),
		cmocka_unit_test(memory_of_a_closed_device_is_not_freed),
		cmocka_unit_test(open_windows_keep_the_memory),
		cmocka_unit_test(transports_that_copy_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
