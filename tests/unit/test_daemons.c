/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the threads of the gateway's HTTP server when calls fail: a thread cannot start, and
 * libmicrohttpd cannot start a connection. No connection may be lost or stay counted.
 */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/addresses.h"
#include "gateway/http.h"
#include "gateway/listen.h"

#define THREADS 2
/* Number of the call of pthread_create that starts the server's last thread: the watch has a thread
 * of its own. */
#define LAST_THREAD (1 + THREADS)
#define WAIT_MS 200

static struct gw_http_shared shared;
static unsigned threads_made, thread_fails, adds_fail, connections_seen;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
enum MHD_Result __real_MHD_add_connection(struct MHD_Daemon *daemon, MHD_socket fd,
					  const struct sockaddr *address, socklen_t len);
enum MHD_Result __wrap_MHD_add_connection(struct MHD_Daemon *daemon, MHD_socket fd,
					  const struct sockaddr *address, socklen_t len);

/* Before a thread fails to start, gives the other threads time to accept connections. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	if (++threads_made != thread_fails)
		return __real_pthread_create(thread, attr, run, arg);
	for (unsigned i = 0; i < WAIT_MS && !connections_seen; i++) {
		connections_seen = atomic_load(&shared.connections);
		poll(NULL, 0, 1);
	}
	return EAGAIN;
}

enum MHD_Result __wrap_MHD_add_connection(struct MHD_Daemon *daemon, MHD_socket fd,
					  const struct sockaddr *address, socklen_t len)
{
	if (!adds_fail)
		return __real_MHD_add_connection(daemon, fd, address, len);
	adds_fail--;
	close(fd);
	return MHD_NO;
}

static bool head(void *owner, struct gw_http_request *req)
{
	(void)owner;
	req->reply.status = 204;
	return false;
}

static void done(void *owner, struct gw_http_request *req, bool complete)
{
	(void)owner;
	(void)req;
	(void)complete;
}

static struct gw_http *server_start(int fd, char *why, size_t why_len)
{
	static const struct gw_http_calls calls = {.head = head, .done = done};
	const struct gw_http_options options = {
		.fd = fd,
		.threads = THREADS,
		.shared = &shared,
		.timeout_s = 60,
		.calls = &calls,
	};

	threads_made = 0;
	return gw_http_start(&options, why, why_len);
}

/* Connects to the server and sends a request. */
static int client_open(int server)
{
	static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	struct sockaddr_in to;
	socklen_t len = sizeof(to);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(getsockname(server, (struct sockaddr *)&to, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, len), 0);
	assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
	return fd;
}

/* Reads the start of a reply. Returns the number of bytes, 0 if the server has closed the
 * connection. */
static ssize_t client_read(int fd, char out[16])
{
	struct pollfd on = {.fd = fd, .events = POLLIN};

	memset(out, 0, 16);
	assert_int_equal(poll(&on, 1, 60000), 1);
	return recv(fd, out, 12, MSG_WAITALL);
}

static void no_connection_is_lost_if_a_thread_fails(void **state)
{
	char why[256] = "", reply[16];
	int server = gw_listen("127.0.0.1:0", why, sizeof(why)), client;
	struct gw_http *http;

	(void)state;
	assert_true(server >= 0);
	memset(&shared, 0, sizeof(shared));
	shared.connections_max = 10;
	client = client_open(server);
	thread_fails = LAST_THREAD;
	http = server_start(server, why, sizeof(why));
	thread_fails = 0;
	assert_null(http);
	assert_non_null(strstr(why, strerror(EAGAIN)));
	assert_int_equal(connections_seen, 0);
	/* The connection still waits in the listening socket's queue, for the next server. */
	http = server_start(server, why, sizeof(why));
	assert_non_null(http);
	assert_int_equal(client_read(client, reply), 12);
	assert_string_equal(reply, "HTTP/1.1 204");
	close(client);
	gw_http_stop(http);
	close(server);
}

static void failed_connections_are_not_counted(void **state)
{
	char why[256] = "", reply[16];
	int server = gw_listen("127.0.0.1:0", why, sizeof(why));
	uint64_t give_up = test_now_ns() + 60000000000u;
	struct gw_http *http;

	(void)state;
	assert_true(server >= 0);
	memset(&shared, 0, sizeof(shared));
	shared.connections_max = 10;
	shared.addresses = gw_addresses_open(10, 1);
	http = server_start(server, why, sizeof(why));
	assert_non_null(http);
	for (unsigned i = 0; i < 3; i++) {
		bool fails = i < 2;
		int client;

		adds_fail = fails;
		client = client_open(server);
		assert_int_equal(client_read(client, reply) > 0, !fails);
		close(client);
		/* An address may have one connection, so one that stays counted would keep the next
		 * one out. */
		while (atomic_load(&shared.connections) && test_now_ns() < give_up)
			poll(NULL, 0, 1);
		assert_int_equal(atomic_load(&shared.connections), 0);
	}
	assert_string_equal(reply, "HTTP/1.1 204");
	assert_int_equal(atomic_load(&shared.refused), 0);
	gw_http_stop(http);
	gw_addresses_close(shared.addresses);
	close(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_connection_is_lost_if_a_thread_fails),
		cmocka_unit_test(failed_connections_are_not_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
