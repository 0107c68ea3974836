/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the reactors (threads that carry HTTP requests) with a server in this process. The linker
 * replaces three functions in this program. recv() is replaced so that a test can let each answer
 * arrive before the client has returned from sending its request. close() is replaced so that a
 * test can fork when a connection has been closed. getaddrinfo() is replaced so that a name can
 * have several addresses.
 */
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "io/http_endpoint.h"

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

static __thread bool serves;	 /* whether this thread belongs to the server */
static _Atomic bool close_forks; /* whether the client's next close() forks */
static _Atomic int child_status = -1;

/* Closes a descriptor, opens another file that gets its number, and forks. The child exits with 1
 * if the library's fork hooks have closed that file. */
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

int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out);

/* Resolves a name such as "127.0.0.2+127.0.0.1" to these addresses, in this order. */
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out)
{
	char names[256], *save, *name;
	int ret = 0;

	if (!strchr(node, '+'))
		return __real_getaddrinfo(node, service, hints, out);
	snprintf(names, sizeof(names), "%s", node);
	for (name = strtok_r(names, "+", &save); name && !ret; name = strtok_r(NULL, "+", &save)) {
		ret = __real_getaddrinfo(name, service, hints, out);
		while (!ret && *out)
			out = &(*out)->ai_next; /* freeaddrinfo() frees each element */
	}
	return ret;
}

/* ---- the server ---- */

/* The server's answers to requests for these paths. Any other path is answered with BODY bytes. */
static const struct {
	const char *path, *answer;
} answers[] = {
	{"GET /close ", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
	{"GET /error ", "HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n"},
	{"GET /slow-down ", "HTTP/1.1 503 Error\r\nContent-Length: 0\r\n\r\n"},
	{"GET /empty ", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"GET /surplus ", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore"},
	{"GET /surplus-204 ", "HTTP/1.1 204 OK\r\n\r\nmore"},
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

/* Starts CALLS calls at once, and waits until they have ended. Returns the duration in
 * milliseconds. */
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
		assert_int_equal(pst_endpoint_get(&opts, &call->endpoint, &err), 0);
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

/* If a call ends while a reactor starts it, the reactor must start the next call at once, without
 * sleeping. */
static void answers_that_come_at_once(void **state)
{
	unsigned port = server_start(), ms;

	(void)state;
	instant = true;
	ms = calls_run(port);
	instant = false;
	printf("# %u calls in %u ms\n", CALLS, ms);
	/* A reactor with idle connections would sleep for 5000 ms, which is longer than this
	 * limit. */
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

/* number of delays of a call that the tests look at */
#define DELAYS 3

struct one {
	struct pst_http_call http;
	uint64_t delays_ns[DELAYS]; /* the delay before each repetition */
	const char *method, *path;
	const char *path_then; /* path after DELAYS attempts; NULL: the same path */
	struct iovec iov;
	char memory[BODY];
	bool ended; /* whether the call has ended; guarded by `lock` */
};

static void one_write_head(struct pst_http_call *call, struct pst_text *out)
{
	struct one *one = (struct one *)call;

	if (call->attempts > 1 && call->attempts <= DELAYS + 1)
		one->delays_ns[call->attempts - 2] = call->delay_ns;
	pst_text_put_str(out, one->method);
	pst_text_put_str(out, " ");
	pst_text_put_str(out, one->path_then && call->attempts > DELAYS ? one->path_then
									 : one->path);
	pst_text_put_str(out, " HTTP/1.1\r\nhost: test\r\n\r\n");
}

static enum pst_http_verdict one_judge(struct pst_http_call *call)
{
	if (call->head.status == 500 || call->head.status == 503)
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

/* Prepares a call without starting it. */
static void one_init(struct one *one, const struct pst_http_endpoint_opts *opts, const char *path)
{
	static const struct pst_http_ops one_ops = {one_write_head, one_judge, one_done};
	struct pst_err err;

	memset(one, 0, sizeof(*one));
	one->method = "GET";
	one->path = path;
	one->iov = (struct iovec){one->memory, BODY};
	one->http.ops = &one_ops;
	one->http.in = &one->iov;
	one->http.in_count = 1;
	one->http.in_len = BODY;
	assert_int_equal(pst_endpoint_get(opts, &one->http.endpoint, &err), 0);
}

static void one_start_at(struct one *one, const struct pst_http_endpoint_opts *opts,
			 const char *path)
{
	struct pst_err err;

	one_init(one, opts, path);
	assert_int_equal(pst_http_start(&one->http, &err), 0);
}

static void one_start(struct one *one, const char *host, unsigned port, const char *path)
{
	struct pst_http_endpoint_opts opts = {.host = host, .port = port};

	one_start_at(one, &opts, path);
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

/* The memory for the body has as many pieces as the body has bytes. The body arrives together with
 * the head, or, if the head fills the first receive, some bytes of the body arrive later. */
static void memory_in_many_pieces(void **state)
{
	static const struct pst_http_ops piece_ops = {write_head, judge, done};
	static char memory[2 * BODY];
	static struct iovec iov[BODY];
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .port = server_start()};
	struct pst_http_call call = {
		.ops = &piece_ops, .in = iov, .in_count = BODY, .in_len = BODY};
	struct pst_err err;
	unsigned missing = 0;

	(void)state;
	for (unsigned i = 0; i < BODY; i++)
		iov[i] = (struct iovec){&memory[2 * i], 1};
	ended = 0;
	assert_int_equal(pst_endpoint_get(&opts, &call.endpoint, &err), 0);
	assert_int_equal(pst_http_start(&call, &err), 0);
	pthread_mutex_lock(&lock);
	while (!ended)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	assert_int_equal(call.result, 0);
	for (unsigned i = 0; i < BODY; i++) {
		missing += memory[2 * i] != 'b';
		assert_int_equal(memory[2 * i + 1], 0);
	}
	printf("# got %u bytes, %u of them are not in the memory\n", (unsigned)call.got, missing);
	assert_int_equal(call.got, BODY);
	assert_int_equal(missing, 0);
}

/* The library's fork hook runs in the child. It must not close a file that has got the number of a
 * closed connection. */
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

/* While failed calls wait for their next attempt, they do not count as calls in flight. So another
 * call can start, although the limit of calls in flight has been reached before. */
static void delayed_calls_make_room(void **state)
{
	static struct one failing[PST_HTTP_INFLIGHT_FIRST], other;
	struct pst_http_counts counts;
	unsigned port = server_start(), still = 0;
	uint64_t before;

	(void)state;
	pst_http_get_counts(&counts);
	before = counts.retries;
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		one_start(&failing[i], "127.0.0.1", port, "/error");
	do { /* waits until each call has failed once */
		sched_yield();
		pst_http_get_counts(&counts);
	} while (counts.retries < before + PST_HTTP_INFLIGHT_FIRST);
	one_start(&other, "127.0.0.1", port, "/");
	assert_int_equal(one_wait(&other), 0);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		still += !failing[i].ended;
	pthread_mutex_unlock(&lock);
	printf("# %u of %u calls are repeated when the other one ends\n", still,
	       PST_HTTP_INFLIGHT_FIRST);
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++) {
		if (pst_http_cancel(&failing[i].http))
			continue;
		assert_true(one_wait(&failing[i]) < 0);
	}
	assert_int_equal(still, PST_HTTP_INFLIGHT_FIRST);
}

/* A call that was answered with "slow down" still counts as a call in flight while it waits for its
 * next attempt, because the server must not get another request instead. */
static void slowed_calls_make_no_room(void **state)
{
	static struct one failing[PST_HTTP_INFLIGHT_FIRST], other;
	struct pst_http_counts counts;
	unsigned port = server_start();
	bool waited;
	uint64_t before;

	(void)state;
	pst_http_get_counts(&counts);
	before = counts.retries;
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		one_start(&failing[i], "127.0.0.1", port, "/slow-down");
	do {
		sched_yield();
		pst_http_get_counts(&counts);
	} while (counts.retries < before + PST_HTTP_INFLIGHT_FIRST);
	one_start(&other, "127.0.0.1", port, "/");
	waited = pst_http_cancel(&other.http);
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		if (!pst_http_cancel(&failing[i].http))
			assert_true(one_wait(&failing[i]) < 0);
	if (!waited)
		one_wait(&other);
	assert_true(waited);
	/* After these calls have ended, as many calls as the limit allows can be in flight
	 * again. */
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		one_start(&failing[i], "127.0.0.1", port, "/");
	for (unsigned i = 0; i < PST_HTTP_INFLIGHT_FIRST; i++)
		assert_int_equal(one_wait(&failing[i]), 0);
}

/* Checks the delays of many calls. Each must be at least `least_ns` and less than `most_ns`. The
 * largest must exceed the smallest by a quarter of this range. Random delays of DELAYED calls fail
 * this check in one of 10^20 runs. */
static void delays_check(const uint64_t *ns, unsigned count, uint64_t least_ns, uint64_t most_ns)
{
	uint64_t low = UINT64_MAX, high = 0;

	for (unsigned i = 0; i < count; i++) {
		low = ns[i] < low ? ns[i] : low;
		high = ns[i] > high ? ns[i] : high;
	}
	printf("# %u delays from %u to %u us; expected from %u to %u us\n", count,
	       (unsigned)(low / 1000), (unsigned)(high / 1000), (unsigned)(least_ns / 1000),
	       (unsigned)(most_ns / 1000));
	assert_true(low >= least_ns);
	assert_true(high < most_ns);
	assert_true(high - low >= (most_ns - least_ns) / 4);
}

#define DELAYED 40
#define MS_NS 1000000ull

/* The maximum delay before a repetition doubles with each repetition. A delay is random, so that
 * calls that have failed at the same moment are not repeated at the same moment. */
static void delays_are_random(void **state)
{
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .port = server_start()};
	static struct one failing[DELAYED];
	uint64_t ns[DELAYED];
	struct pst_err err;

	(void)state;
	for (unsigned i = 0; i < DELAYED; i++) {
		one_init(&failing[i], &opts, "/error");
		failing[i].path_then = "/";
		assert_int_equal(pst_http_start(&failing[i].http, &err), 0);
	}
	for (unsigned i = 0; i < DELAYED; i++)
		assert_int_equal(one_wait(&failing[i]), 0);
	for (unsigned n = 0; n < DELAYS; n++) {
		for (unsigned i = 0; i < DELAYED; i++)
			ns[i] = failing[i].delays_ns[n];
		delays_check(ns, DELAYED, 50 * MS_NS << n, 100 * MS_NS << n);
	}
}

/* Starts calls with a delay, as after the failed attempt number `tries`, and cancels them at once.
 * Returns the number of milliseconds until they have ended. */
static unsigned later_calls_run(struct one *calls, unsigned port, unsigned tries,
				unsigned retry_after_s)
{
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .port = port};
	struct timespec from, to;
	struct pst_err err;
	int ret;

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (unsigned i = 0; i < DELAYED; i++) {
		one_init(&calls[i], &opts, "/");
		calls[i].http.tries = tries;
		calls[i].http.head.retry_after_s = retry_after_s;
		assert_int_equal(pst_http_start_later(&calls[i].http, &err), 0);
		assert_false(pst_http_cancel(&calls[i].http));
		ret = one_wait(&calls[i]);
		/* If this thread is preempted for 50 ms, it cancels a call with a short delay too
		 * late. */
		if (!ret && tries <= 2)
			continue;
		assert_int_equal(ret, -ECANCELED);
		assert_int_equal(calls[i].http.attempts, 0);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	return (unsigned)((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
}

/* The owner of a call can repeat the call itself. The delay is like that between two attempts, and
 * pst_http_cancel ends it. */
static void later_calls_are_delayed(void **state)
{
	static const struct {
		unsigned tries, retry_after_s;
		uint64_t least_ms, most_ms;
	} rows[] = {{1, 0, 50, 100},	       {2, 0, 100, 200},	 {8, 0, 6400, 12800},
		    {100, 0, 10000, 20000},    {3, 10, 10100, 10200},	 {3, 1000, 60100, 60200},
		    {UINT32_MAX, 0, 10000, 20000}};
	static struct one calls[DELAYED];
	uint64_t ns[DELAYED];
	unsigned port = server_start();

	(void)state;
	for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++) {
		unsigned ms = later_calls_run(calls, port, rows[n].tries, rows[n].retry_after_s);

		printf("# %u attempts: cancelled calls ended in %u ms\n", rows[n].tries, ms);
		for (unsigned i = 0; i < DELAYED; i++)
			ns[i] = calls[i].http.delay_ns;
		delays_check(ns, DELAYED, rows[n].least_ms * MS_NS, rows[n].most_ms * MS_NS);
		/* less than most of the delays */
		assert_in_range(ms, 0, 5000);
	}
}

/* If the server has asked for fewer requests, the owner of a call says so. The limit of calls in
 * flight then falls, and the call keeps its place while it waits. */
static void later_calls_slow_down(void **state)
{
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .port = server_start()};
	struct pst_http_endpoint *endpoint;
	struct pst_err err;
	struct one one;

	(void)state;
	one_init(&one, &opts, "/");
	endpoint = one.http.endpoint;
	assert_int_equal(endpoint->limit.now, PST_HTTP_INFLIGHT_FIRST);
	one.http.tries = 8;
	one.http.slowed = true;
	assert_int_equal(pst_http_start_later(&one.http, &err), 0);
	assert_int_equal(endpoint->limit.now, PST_HTTP_INFLIGHT_FIRST / 2);
	assert_int_equal(endpoint->inflight, 1);
	assert_false(pst_http_cancel(&one.http));
	assert_int_equal(one_wait(&one), -ECANCELED);
	assert_int_equal(endpoint->inflight, 0);
	/* Without a delay that the test cancels, such a call is served. */
	one_init(&one, &opts, "/");
	one.http.tries = 1;
	one.http.slowed = true;
	assert_int_equal(pst_http_start_later(&one.http, &err), 0);
	assert_int_equal(one_wait(&one), 0);
	assert_int_equal(one.http.got, BODY);
	assert_int_equal(one.http.attempts, 1);
	assert_int_equal(endpoint->inflight, 0);
}

/* If a connection received more bytes than the answer has, the client closes the connection. */
static void surplus_ends_a_connection(void **state)
{
	static const struct {
		const char *path;
		unsigned connections; /* number of connections that two calls need */
	} rows[] = {{"/empty", 1}, {"/surplus", 2}, {"/surplus-204", 2}};
	struct pst_http_counts before, after;
	struct one one;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned port = server_start();

		pst_http_get_counts(&before);
		for (unsigned calls = 0; calls < 2; calls++) {
			one_start(&one, "127.0.0.1", port, rows[i].path);
			assert_int_equal(one_wait(&one), 0);
		}
		pst_http_get_counts(&after);
		printf("# %s: %u connections for 2 calls\n", rows[i].path,
		       (unsigned)(after.connections - before.connections));
		assert_int_equal(after.connections - before.connections, rows[i].connections);
	}
}

/* If a call cannot connect to the first address, it tries the next address at once. The server
 * listens at 127.0.0.1 only, and a connection to 255.255.255.255 fails within connect(). */
static void other_addresses_are_tried(void **state)
{
	static const struct {
		const char *name;
		unsigned attempts;
	} rows[] = {{"127.0.0.2+127.0.0.1", 2},
		    {"255.255.255.255+127.0.0.1", 2},
		    {"127.0.0.2+255.255.255.255+127.0.0.3+127.0.0.1", 4}};
	unsigned port = server_start();
	struct one one;

	(void)state;
	/* The second call finds no idle connection. It must skip the addresses that failed
	 * before. */
	for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
		int ret;

		one_start(&one, rows[i / 2].name, port, "/close");
		ret = one_wait(&one);
		printf("# %s: %d after %u attempts\n", rows[i / 2].name, ret, one.http.attempts);
		assert_int_equal(ret, 0);
		assert_int_equal(one.http.attempts, i % 2 ? 1 : rows[i / 2].attempts);
	}
}

/* With virtual-hosted addresses, each bucket is a server with a host name of its own. The library
 * must be able to use 1000 servers, which share one TLS context. */
static void many_servers(void **state)
{
	struct pst_http_endpoint_opts opts = {.host = "127.0.0.1", .tls = true};
	struct pst_http_endpoint *first = NULL, *endpoint, *other;
	struct pst_err err;

	(void)state;
	for (opts.port = 1; opts.port <= 1000; opts.port++) {
		int ret = pst_endpoint_get(&opts, &endpoint, &err);

		if (ret)
			printf("# server %u: %s\n", opts.port, err.text);
		assert_int_equal(ret, 0);
		first = first ? first : endpoint;
		assert_ptr_equal(endpoint->tls_context, first->tls_context);
	}
	/* these options trust other certificates, so the server counts as another one */
	opts.insecure = true;
	assert_int_equal(pst_endpoint_get(&opts, &other, &err), 0);
	assert_ptr_not_equal(other->tls_context, first->tls_context);
	opts.insecure = false;
	opts.port = 1;
	assert_int_equal(pst_endpoint_get(&opts, &endpoint, &err), 0);
	assert_ptr_equal(endpoint, first);
}

/* Calls one of many servers, which differ only in a setting that has no effect without TLS. */
static void server_call(unsigned port, unsigned number)
{
	char setting[16];
	struct pst_http_endpoint_opts opts = {
		.host = "127.0.0.1", .port = port, .ca_bundle = setting};
	struct one one;

	snprintf(setting, sizeof(setting), "%u", number);
	one_start_at(&one, &opts, "/");
	assert_int_equal(one_wait(&one), 0);
	assert_int_equal(one.http.got, BODY);
	assert_int_equal(one.memory[BODY - 1], 'b');
}

/* A reactor can have as many connections as calls may be in flight. A call to one more server
 * closes the connection that has been idle for the longest time. One reactor carries all calls,
 * because they are made one after another. */
static void more_servers_than_connections(void **state)
{
	const unsigned count = PST_HTTP_INFLIGHT_MAX + 50;
	struct pst_http_counts first, second, third;
	unsigned port = server_start();

	(void)state;
	pst_http_get_counts(&first);
	for (unsigned i = 0; i < count; i++)
		server_call(port, i);
	pst_http_get_counts(&second);
	for (unsigned i = count; i--;)
		server_call(port, i);
	pst_http_get_counts(&third);
	printf("# %u servers: %u connections, and %u more for the second calls\n", count,
	       (unsigned)(second.connections - first.connections),
	       (unsigned)(third.connections - second.connections));
	assert_int_equal(second.connections - first.connections, count);
	assert_int_equal(third.connections - second.connections, count - PST_HTTP_INFLIGHT_MAX);
	assert_int_equal(third.requests - first.requests, 2 * count);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_that_come_at_once),
		cmocka_unit_test(connections_are_used_again),
		cmocka_unit_test(memory_in_many_pieces),
		cmocka_unit_test(other_addresses_are_tried),
		cmocka_unit_test(delayed_calls_make_room),
		cmocka_unit_test(slowed_calls_make_no_room),
		cmocka_unit_test(delays_are_random),
		cmocka_unit_test(later_calls_are_delayed),
		cmocka_unit_test(later_calls_slow_down),
		cmocka_unit_test(surplus_ends_a_connection),
		cmocka_unit_test(forks_while_a_connection_closes),
		cmocka_unit_test(many_servers),
		cmocka_unit_test(more_servers_than_connections),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
