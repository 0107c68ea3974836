/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the reactors with a server in this process. The linker replaces recv() in this program, so
 * that a test can let each answer arrive before the client has returned from sending its request,
 * and close(), so that a test can fork when a connection has been closed.
 */
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "io/http.h"

#define CALLS 200
#define BODY 3000

ssize_t __real_recv(int fd, void *buf, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *buf, size_t len, int flags);

static _Atomic bool instant;
static _Atomic unsigned served;

ssize_t __wrap_recv(int fd, void *buf, size_t len, int flags)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	if (instant && !(flags & MSG_PEEK))
		poll(&wait, 1, 1000);
	return __real_recv(fd, buf, len, flags);
}

int __real_close(int fd);
int __wrap_close(int fd);

static __thread bool serves;	 /* this thread is one of the server */
static _Atomic bool close_forks; /* the client's next close() forks */
static _Atomic int child_status = -1;

/* Forks when the descriptor has been closed and another file has got its number. The child exits
 * with 1 if the hooks of the library have closed that file. */
static int close_and_fork(int fd)
{
	int other = open("/dev/null", O_RDONLY), status = -1;
	pid_t pid;

	__real_close(fd);
	if (other < 0 || dup2(other, fd) != fd)
		return -1;
	__real_close(other);
	pid = fork();
	if (!pid)
		_exit(fcntl(fd, F_GETFD) < 0);
	if (pid > 0 && waitpid(pid, &status, 0) == pid)
		child_status = status;
	return __real_close(fd);
}

int __wrap_close(int fd)
{
	if (!serves && atomic_exchange(&close_forks, false))
		return close_and_fork(fd);
	return __real_close(fd);
}

/* ---- the server ---- */

/* Answers to requests for these paths; the others get BODY bytes. */
static const struct {
	const char *path, *answer;
} answers[] = {
	{"GET /close ", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
};

static const char *answer_find(const char *request)
{
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		if (!strncmp(request, answers[i].path, strlen(answers[i].path)))
			return answers[i].answer;
	return NULL;
}

static void *connection_serve(void *arg)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n";
	const char *other;
	int fd = (int)(intptr_t)arg;
	char request[1024], answer[sizeof(head) - 1 + BODY];
	size_t have = 0;
	ssize_t n;

	serves = true;
	memset(answer, 'b', sizeof(answer));
	memcpy(answer, head, sizeof(head) - 1);
	while ((n = read(fd, request + have, sizeof(request) - have)) > 0) {
		have += (size_t)n;
		if (have < 4 || memcmp(request + have - 4, "\r\n\r\n", 4))
			continue;
		have = 0;
		served++;
		other = answer_find(request);
		if (write(fd, other ? other : answer, other ? strlen(other) : sizeof(answer)) < 0)
			break;
	}
	close(fd);
	return NULL;
}

static void *server_run(void *arg)
{
	int listening = (int)(intptr_t)arg, fd;
	pthread_t thread;

	serves = true;
	while ((fd = accept(listening, NULL, NULL)) >= 0)
		if (!pthread_create(&thread, NULL, connection_serve, (void *)(intptr_t)fd))
			pthread_detach(thread);
	return NULL;
}

static unsigned server_start(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;

	assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(fd, 512), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	assert_int_equal(pthread_create(&thread, NULL, server_run, (void *)(intptr_t)fd), 0);
	pthread_detach(thread);
	return ntohs(address.sin_port);
}

/* ---- the calls ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned ended;

static void write_head(struct pst_http_call *call, struct pst_text *out)
{
	(void)call;
	pst_text_put_str(out, "GET / HTTP/1.1\r\nhost: test\r\n\r\n");
}

static enum pst_http_verdict judge(struct pst_http_call *call)
{
	return call->head.status == 200 ? PST_HTTP_BODY : PST_HTTP_TEXT;
}

static void done(struct pst_http_call *call)
{
	(void)call;
	pthread_mutex_lock(&lock);
	ended++;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

static const struct pst_http_ops ops = {write_head, judge, done};

/* Starts CALLS calls at once, and waits for their ends. Returns the milliseconds that they took. */
static unsigned calls_run(unsigned port)
{
	static struct pst_http_call calls[CALLS];
	static struct iovec iov[CALLS];
	static char memory[CALLS][BODY];
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .port = port};
	struct timespec from, to;
	struct pst_err err;

	memset(calls, 0, sizeof(calls));
	memset(memory, 0, sizeof(memory));
	ended = served = 0;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (unsigned i = 0; i < CALLS; i++) {
		struct pst_http_call *call = &calls[i];

		iov[i] = (struct iovec){memory[i], BODY};
		call->ops = &ops;
		call->in = &iov[i];
		call->in_count = 1;
		call->in_len = BODY;
		assert_int_equal(pst_http_endpoint_open(&opts, &call->endpoint, &err), 0);
		assert_int_equal(pst_http_start(call, &err), 0);
	}
	pthread_mutex_lock(&lock);
	while (ended < CALLS)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	clock_gettime(CLOCK_MONOTONIC, &to);
	for (unsigned i = 0; i < CALLS; i++) {
		assert_int_equal(calls[i].result, 0);
		assert_int_equal(calls[i].got, BODY);
		for (unsigned b = 0; b < BODY; b++)
			assert_int_equal(memory[i][b], 'b');
		free(calls[i].text.at);
	}
	assert_int_equal(served, CALLS);
	return (unsigned)((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
}

/* A reactor that ends a call while it starts it must not sleep before it starts the next. */
static void answers_that_come_at_once(void **state)
{
	unsigned port = server_start(), ms;

	(void)state;
	instant = true;
	ms = calls_run(port);
	instant = false;
	printf("# %u calls in %u ms\n", CALLS, ms);
	/* A reactor with idle connections sleeps for 5000 ms. */
	assert_in_range(ms, 0, 4000);
}

static void connections_are_used_again(void **state)
{
	struct pst_http_counts before, after;
	unsigned port = server_start();

	(void)state;
	pst_http_get_counts(&before);
	calls_run(port);
	calls_run(port);
	pst_http_get_counts(&after);
	printf("# %u connections for %u calls\n",
	       (unsigned)(after.connections - before.connections), 2 * CALLS);
	assert_int_equal(after.requests - before.requests, 2 * CALLS);
	assert_int_equal(after.body_bytes - before.body_bytes, 2 * CALLS * BODY);
	assert_in_range(after.connections - before.connections, 1, CALLS / 4);
}

/* ---- single calls ---- */

struct one {
	struct pst_http_call http;
	const char *method, *path;
	struct iovec iov;
	char memory[BODY];
	bool ended; /* guarded by the lock */
};

static void one_write_head(struct pst_http_call *call, struct pst_text *out)
{
	const struct one *one = (const struct one *)call;

	pst_text_put_str(out, one->method);
	pst_text_put_str(out, " ");
	pst_text_put_str(out, one->path);
	pst_text_put_str(out, " HTTP/1.1\r\nhost: test\r\n\r\n");
}

static enum pst_http_verdict one_judge(struct pst_http_call *call)
{
	if (call->head.status == 500)
		return PST_HTTP_RETRY;
	return call->head.has_length && call->head.length == BODY ? PST_HTTP_BODY : PST_HTTP_TEXT;
}

static void one_done(struct pst_http_call *call)
{
	struct one *one = (struct one *)call;

	pthread_mutex_lock(&lock);
	one->ended = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void one_start(struct one *one, const char *host, unsigned port, const char *path)
{
	static const struct pst_http_ops one_ops = {one_write_head, one_judge, one_done};
	struct pst_http_endpoint_opts opts = {.host = host, .port = port};
	struct pst_err err;

	memset(one, 0, sizeof(*one));
	one->method = "GET";
	one->path = path;
	one->iov = (struct iovec){one->memory, BODY};
	one->http.ops = &one_ops;
	one->http.in = &one->iov;
	one->http.in_count = 1;
	one->http.in_len = BODY;
	assert_int_equal(pst_http_endpoint_open(&opts, &one->http.endpoint, &err), 0);
	assert_int_equal(pst_http_start(&one->http, &err), 0);
}

/* Waits for the call's end, and frees its text. Returns its result. */
static int one_wait(struct one *one)
{
	pthread_mutex_lock(&lock);
	while (!one->ended)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	free(one->http.text.at);
	return one->http.result;
}

/* The hook in the child must not close a file that has got the number of a closed connection. */
static void forks_while_a_connection_closes(void **state)
{
	unsigned port = server_start();
	struct one one;

	(void)state;
	close_forks = true;
	one_start(&one, "127.0.0.1", port, "/close");
	assert_int_equal(one_wait(&one), 0);
	printf("# child's status %d\n", child_status);
	assert_int_equal(child_status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_that_come_at_once),
		cmocka_unit_test(connections_are_used_again),
		cmocka_unit_test(forks_while_a_connection_closes),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
