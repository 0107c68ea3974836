/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the library's code for planes (processes that hold the network card) with a fake plane in
 * this test. The fake plane ends, is silent, or sends invalid messages. In each case, calls must
 * fail, requests must complete, and nothing may hang. After a release, bytes that are written to
 * the shared memory must not appear in the application's memory.
 */
#include "test.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "../standin/pst_standin.h"
#include "object/plane_message.h"

#define MIB (1u << 20)
#define SILENCE_MS 300

/* What the fake plane does when it receives the message of the kind plane.kind. CUT means: it
 * answers that a server was cut off from the window. */
enum act { ANSWER, HOLD, DIE, BE_SILENT, SEND_GARBAGE, REFUSE, END_TWICE, CUT, CUT_LOST };

static char path[108];
static struct plane {
	int listener, fd;
	_Atomic enum pst_plane_kind kind;
	_Atomic enum act act;
	int mem;       /* descriptor of the memory that the library shares with the plane */
	int lease;     /* descriptor of the lease of memory of a GPU */
	bool releases; /* whether the plane ends the lease after the connection has ended */
	unsigned char *shared;
	/* only for HOLD. `held`: the message has arrived. `released`: the plane may continue. */
	sem_t held, released;
	pthread_t thread;
} plane;

static void send_kind(enum pst_plane_kind kind, uint64_t seq, uint64_t user)
{
	struct pst_plane_message m = {.kind = kind, .seq = seq};

	if (kind == PST_PLANE_WELCOME) {
		m.welcome.version = PST_PLANE_VERSION_MAX;
		m.welcome.in_flight = 2;
	} else if (kind == PST_PLANE_ENDED) {
		m.ended.end.user = user;
		m.ended.end.result = 4096;
		snprintf(m.ended.end.transport, sizeof(m.ended.end.transport), "shm1");
	} else {
		m.answer.id = 1;
	}
	pst_plane_send(plane.fd, &m, -1);
}

/* Answers a message, or does what the test has chosen for this kind of message. Returns whether the
 * connection ends. */
static bool act(const struct pst_plane_message *m)
{
	bool chosen = m->kind == plane.kind;
	/* Reads plane.kind before it answers, because after the answer the test may change it. */
	bool ends = m->kind == PST_PLANE_START && !chosen;
	struct pst_plane_message answer = {.kind = PST_PLANE_ANSWER, .seq = m->seq};

	if (chosen && plane.act == HOLD) {
		sem_post(&plane.held);
		sem_wait(&plane.released);
	}
	if (chosen && plane.act == DIE)
		return true;
	if (chosen && plane.act == SEND_GARBAGE)
		return send(plane.fd, "garbage", 7, MSG_NOSIGNAL) != 7;
	if (chosen && plane.act == REFUSE) {
		answer.answer.result = -EDQUOT;
		answer.answer.why = PENSTOCK_WHY_FULL;
		snprintf(answer.answer.text, sizeof(answer.answer.text), "too many");
		return pst_plane_send(plane.fd, &answer, -1);
	}
	if (chosen && (plane.act == CUT || plane.act == CUT_LOST)) {
		answer.answer.cut = 1;
		if (plane.act == CUT_LOST) {
			answer.answer.result = -EIO;
			answer.answer.why = PENSTOCK_WHY_DEADLINE;
			snprintf(answer.answer.text, sizeof(answer.answer.text), "lost");
		}
		return pst_plane_send(plane.fd, &answer, -1);
	}
	send_kind(m->kind == PST_PLANE_HELLO ? PST_PLANE_WELCOME : PST_PLANE_ANSWER, m->seq, 0);
	if (ends)
		send_kind(PST_PLANE_ENDED, 0, m->start.user);
	if (chosen && plane.act == END_TWICE) {
		send_kind(PST_PLANE_ENDED, 0, m->start.user);
		send_kind(PST_PLANE_ENDED, 0, m->start.user);
	}
	return false;
}

static void *plane_run(void *arg)
{
	struct pst_plane_message m;
	sigset_t signals;
	int fd, ret;

	(void)arg;
	sigfillset(&signals);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	plane.fd = accept(plane.listener, NULL, NULL);
	for (;;) {
		struct pollfd wait = {plane.fd, POLLIN, 0};

		poll(&wait, 1, -1);
		ret = pst_plane_receive(plane.fd, &m, false, &fd);
		if (ret < 0)
			break;
		if (m.kind == PST_PLANE_FD && m.fd.slot == 0)
			plane.mem = fd;
		else if (m.kind == PST_PLANE_FD && m.fd.slot == 1 && plane.mem < 0)
			plane.lease = fd;
		else if (m.kind == PST_PLANE_FD)
			close(fd);
		if (m.kind == PST_PLANE_FD)
			continue;
		if (m.kind == plane.kind && plane.act == BE_SILENT) {
			/* waits until the tenant closes the connection */
			while (ret >= 0) {
				poll(&wait, 1, -1);
				ret = pst_plane_receive(plane.fd, &m, false, &fd);
			}
			break;
		}
		if (act(&m))
			break;
	}
	close(plane.fd);
	if (plane.releases)
		assert_int_equal(send(plane.lease, "", 1, MSG_NOSIGNAL), 1);
	return NULL;
}

/* Starts a fake plane that does `what` when it receives a message of this kind. */
static void plane_start(enum pst_plane_kind kind, enum act what)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(path, sizeof(path), "%s/plane-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
		 getpid());
	memcpy(address.sun_path, path, strlen(path));
	unlink(path);
	plane.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(plane.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(plane.listener, 4), 0);
	plane.kind = kind;
	plane.act = what;
	plane.mem = plane.lease = -1;
	sem_init(&plane.held, 0, 0);
	sem_init(&plane.released, 0, 0);
	assert_int_equal(pthread_create(&plane.thread, NULL, plane_run, NULL), 0);
}

static void plane_join(void)
{
	pthread_join(plane.thread, NULL);
	close(plane.listener);
	if (plane.mem >= 0)
		close(plane.mem);
	if (plane.lease >= 0)
		close(plane.lease);
	unlink(path);
}

static struct penstock_object_client_opts client_opts(void)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;

	opts.plane = path;
	opts.plane_ms = SILENCE_MS;
	return opts;
}

static struct penstock_object_request request(void)
{
	struct penstock_object_request r = PENSTOCK_OBJECT_REQUEST_INIT;

	r.bucket = "bucket";
	r.key = "key";
	r.user = 42;
	return r;
}

/* ---- the tests ---- */

/* The fake plane does not answer HELLO, the first message of a connection, or refuses it. */
static void greeting(void **state)
{
	static const struct {
		enum act act;
		int result;
	} tries[] = {{DIE, -ECONNRESET},
		     {BE_SILENT, -ECONNRESET},
		     {SEND_GARBAGE, -ECONNRESET},
		     {REFUSE, -EDQUOT}};
	struct penstock_object_server_opts server = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_client *client;
	struct penstock_object_server *other;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct penstock_object_client_opts opts = client_opts();

		plane_start(PST_PLANE_HELLO, tries[i].act);
		assert_int_equal(penstock_object_client_open(&opts, &client), tries[i].result);
		assert_string_not_equal(penstock_errmsg(), "");
		plane_join();
		/* No plane listens at this path. */
		assert_int_equal(penstock_object_client_open(&opts, &client), -ENOENT);
		server.plane = path;
		assert_int_equal(penstock_object_server_open(&server, &other), -ENOENT);
		/* If a client or server uses a plane, its caller must not set these options,
		 * because only the plane can choose them. */
		opts.transports = "shm1";
		assert_int_equal(penstock_object_client_open(&opts, &client), -EINVAL);
		opts.transports = NULL;
		opts.either_way = 1;
		assert_int_equal(penstock_object_client_open(&opts, &client), -EINVAL);
		server.channels = 2;
		assert_int_equal(penstock_object_server_open(&server, &other), -EINVAL);
		server.channels = 0;
	}
}

static void alarm_ignore(int number)
{
	(void)number;
}

/* Signals must not interrupt the wait for the plane's reply to HELLO, the first message. */
static void greeting_with_signals(void **state)
{
	const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
	struct sigaction action = {.sa_handler = alarm_ignore}, old;
	struct penstock_object_client_opts opts = client_opts();
	struct penstock_object_client *client;
	int ret;

	(void)state;
	plane_start(PST_PLANE_HELLO, BE_SILENT);
	assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
	setitimer(ITIMER_REAL, &often, NULL);
	ret = penstock_object_client_open(&opts, &client);
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &old, NULL);
	assert_int_equal(ret, -ECONNRESET);
	/* This message shows that the call has waited until its time limit. */
	if (!strstr(penstock_errmsg(), "does not answer"))
		fail_msg("found '%s'", penstock_errmsg());
	plane_join();
}

/* When the library sends a certain message, the fake plane ends the connection, does not answer, or
 * sends garbage. */
static void questions(void **state)
{
	static const enum pst_plane_kind kinds[] = {PST_PLANE_MEMORY, PST_PLANE_WINDOW,
						    PST_PLANE_START, PST_PLANE_INFO};
	static const enum act acts[] = {DIE, BE_SILENT, SEND_GARBAGE};

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		struct penstock_object_client_info info = {.size = sizeof(info)};
		struct penstock_object_client_opts opts = client_opts();
		struct penstock_object_request r = request();
		struct penstock_object_client *client;
		struct penstock_object_buffer *buffer = NULL;
		struct penstock_object_window *window = NULL;
		struct penstock_object_end end;
		int ret;

		plane_start(kinds[i / 3], acts[i % 3]);
		assert_int_equal(penstock_object_client_open(&opts, &client), 0);
		ret = penstock_object_alloc(client, NULL, MIB, &buffer);
		assert_int_equal(ret, i / 3 == 0 ? -ECONNRESET : 0);
		if (!ret)
			ret = penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB, &window);
		assert_int_equal(ret, i / 3 <= 1 ? -ECONNRESET : 0);
		if (!ret)
			ret = penstock_object_start(window, &r);
		assert_int_equal(ret, i / 3 <= 2 ? -ECONNRESET : 0);
		if (!ret) {
			assert_int_equal(penstock_object_client_wait(client, &end, 1, -1), 1);
			assert_int_equal(end.user, 42);
			assert_int_equal(end.result, 4096);
			assert_string_equal(end.transport, "shm1");
		}
		assert_int_equal(penstock_object_client_get_info(client, &info), -ECONNRESET);
		/* After the connection has failed, every further call must fail, too. */
		assert_int_equal(penstock_object_alloc(client, NULL, MIB,
						       &(struct penstock_object_buffer *){0}),
				 -ECONNRESET);
		assert_int_equal(penstock_object_release(window), 0);
		assert_int_equal(penstock_object_unregister(buffer), 0);
		assert_int_equal(penstock_object_client_wait(client, &end, 1, 0), 0);
		penstock_object_client_close(client);
		plane_join();
	}
}

/* The fake plane ends or becomes silent while a request is in flight. Afterwards a server writes to
 * the memory that it shares with the plane. */
static void in_flight(void **state)
{
	static const enum act acts[] = {DIE, BE_SILENT, SEND_GARBAGE};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct penstock_object_client_opts opts = client_opts();
		struct penstock_object_request r = request();
		struct penstock_object_client *client;
		struct penstock_object_buffer *buffer;
		struct penstock_object_window *windows[3];
		struct penstock_object_end end;
		unsigned char *mine, *theirs;
		uint64_t users = 0;

		/* The fake plane answers START, the message that starts a request, but never
		 * completes the request. When the message RELEASE arrives, it ends, is silent or
		 * sends garbage. */
		plane_start(PST_PLANE_START, ANSWER);
		assert_int_equal(penstock_object_client_open(&opts, &client), 0);
		assert_int_equal(penstock_object_alloc(client, NULL, MIB, &buffer), 0);
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ,
								     k * 8192, 8192, &windows[k]),
					 0);
		mine = penstock_object_ptr(buffer);
		memset(mine, 1, MIB);
		theirs = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, plane.mem, 0);
		assert_true(theirs != MAP_FAILED);
		assert_int_equal(theirs[5], 1);
		assert_int_equal(penstock_object_start(windows[0], &r), 0);
		assert_int_equal(penstock_object_start(windows[0], &r), -EBUSY);
		assert_int_equal(penstock_object_release(windows[0]), -EBUSY);
		r.user = 43;
		assert_int_equal(penstock_object_start(windows[1], &r), 0);
		assert_int_equal(penstock_object_start(windows[2], &r), -EAGAIN);
		assert_int_equal(penstock_object_client_wait(client, &end, 1, 0), 0);
		plane.kind = PST_PLANE_RELEASE;
		plane.act = acts[i];
		theirs[100] = 2;
		assert_int_equal(mine[100], 2);
		assert_int_equal(penstock_object_release(windows[2]), 0);
		for (unsigned k = 0; k < 2; k++) {
			assert_int_equal(penstock_object_client_wait(client, &end, 1, -1), 1);
			users += end.user; /* the completions may arrive in any order */
			assert_int_equal(end.result, -ECONNRESET);
			assert_int_equal(end.next, PENSTOCK_OBJECT_ERROR);
			assert_string_not_equal(end.text, "");
			assert_int_equal(penstock_object_release(windows[k]), 0);
		}
		assert_int_equal(users, 42 + 43);
		/* As a late server does, writes to the memory that is shared with the plane. The
		 * application's memory must not change. */
		memset(theirs, 3, 3 * 8192);
		assert_int_equal(mine[100], 2);
		for (unsigned k = 0; k < 3 * 8192; k++)
			if (k != 100)
				assert_int_equal(mine[k], 1);
		munmap(theirs, MIB);
		assert_int_equal(penstock_object_unregister(buffer), 0);
		penstock_object_client_close(client);
		plane_join();
	}
}

/* The plane reports that it has cut off a server from a window: the window has new pages, which
 * only the application can access. A later window of the same buffer would receive bytes that the
 * application does not see, so the library must open none. If bytes of a window may be lost, the
 * application must get the error. */
static void cut_off(void **state)
{
	static const struct {
		enum act act;
		int result;
	} tries[] = {{CUT, 0}, {CUT_LOST, -EIO}};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct penstock_object_client_opts opts = client_opts();
		struct penstock_object_client *client;
		struct penstock_object_buffer *buffer, *fresh;
		struct penstock_object_window *window = NULL, *other;
		unsigned char *mine, *theirs;
		int ret;

		plane_start(PST_PLANE_RELEASE, tries[i].act);
		assert_int_equal(penstock_object_client_open(&opts, &client), 0);
		assert_int_equal(penstock_object_alloc(client, NULL, MIB, &buffer), 0);
		mine = penstock_object_ptr(buffer);
		memset(mine, 1, MIB);
		theirs = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, plane.mem, 0);
		assert_true(theirs != MAP_FAILED);
		assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB,
							     &window),
				 0);
		assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 100, 100,
							     &other),
				 0);
		assert_int_equal(penstock_object_release(window), tries[i].result);
		/* The server of this window may have written to the old pages, which the
		 * application does not see, so the release must fail. */
		ret = penstock_object_release(other);
		printf("# release of a window that was open during the cut: %d\n", ret);
		assert_int_equal(ret, -EIO);
		theirs[100] = 2;
		assert_int_equal(mine[100], 1);
		ret = penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB, &window);
		printf("# a window after the cut: %d\n", ret);
		assert_int_equal(ret, -EIO);
		assert_string_not_equal(penstock_errmsg(), "");
		assert_int_equal(penstock_object_unregister(buffer), 0);
		/* Windows of other buffers must still work. */
		close(plane.mem);
		plane.mem = -1;
		assert_int_equal(penstock_object_alloc(client, NULL, MIB, &fresh), 0);
		assert_int_equal(penstock_object_window_open(fresh, PENSTOCK_READ, 0, MIB, &window),
				 0);
		munmap(theirs, MIB);
		penstock_object_client_close(client);
		plane_join();
	}
}

/* The fake plane sends two completions for one request, which is a violation of the protocol. The
 * library must close the connection. */
static void ended_twice(void **state)
{
	struct penstock_object_client_opts opts = client_opts();
	struct penstock_object_request r = request();
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_object_end ends[3];

	(void)state;
	plane_start(PST_PLANE_START, END_TWICE);
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	assert_int_equal(penstock_object_alloc(client, NULL, MIB, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB, &window), 0);
	assert_int_equal(penstock_object_start(window, &r), 0);
	plane_join(); /* returns when the fake plane has seen the end of the connection */
	assert_int_equal(penstock_object_client_wait(client, ends, 3, 0), 1);
	assert_int_equal(ends[0].result, 4096);
	assert_int_equal(penstock_object_start(window, &r), -ECONNRESET);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
}

/* Closes a client that has open windows and a request in flight. */
static void closed_open(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
		struct penstock_object_request r = request();
		struct penstock_object_client *client;
		struct penstock_object_buffer *buffer;
		struct penstock_object_window *windows[2];

		if (i) {
			plane_start(PST_PLANE_START, ANSWER);
			opts = client_opts();
		}
		assert_int_equal(penstock_object_client_open(&opts, &client), 0);
		assert_int_equal(penstock_object_alloc(client, NULL, MIB, &buffer), 0);
		for (unsigned k = 0; k < 2; k++)
			assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 4096,
								     &windows[k]),
					 0);
		if (i)
			assert_int_equal(penstock_object_start(windows[0], &r), 0);
		penstock_object_client_close(client);
		if (i)
			plane_join();
	}
}

/* Allocates and frees memory of a server, with and without a plane. */
static void server_memory(void **state)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server;
	void *mem;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		char byte;

		if (i)
			plane_start(PST_PLANE_INFO, ANSWER);
		opts.plane = i ? path : NULL;
		assert_int_equal(penstock_object_server_open(&opts, &server), 0);
		assert_int_equal(penstock_object_server_alloc(server, NULL, 0, &mem), -EINVAL);
		assert_int_equal(penstock_object_server_alloc(server, NULL, MIB, &mem), 0);
		memset(mem, 1, MIB);
		assert_int_equal(penstock_object_server_free(server, &byte), -EINVAL);
		assert_int_equal(penstock_object_server_free(server, NULL), 0);
		assert_int_equal(penstock_object_server_free(server, mem), 0);
		assert_int_equal(penstock_object_server_free(server, mem), -EINVAL);
		assert_int_equal(penstock_object_server_alloc(server, NULL, MIB, &mem), 0);
		penstock_object_server_close(server);
		if (i)
			plane_join();
	}
}

struct held_move {
	struct penstock_object_remote *remote;
	struct penstock_object_seg seg;
	_Atomic bool done;
	int result;
};

static void *held_move_run(void *arg)
{
	struct held_move *move = arg;

	move->result = penstock_object_move(move->remote, PENSTOCK_READ, 0, &move->seg, 1, 0);
	atomic_store(&move->done, true);
	return NULL;
}

/* While the plane has not accepted a move, other threads can use the server. */
static void slow_move(void **state)
{
	static const char token[] = "1000:1000:tcp1:127.0.0.1:1:00112233445566778899aabbccddeeff";
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_server *server;
	struct held_move move = {.result = 1};
	pthread_t thread;
	void *mem;
	char byte;

	(void)state;
	plane_start(PST_PLANE_MOVE, HOLD);
	opts.plane = path;
	opts.plane_ms = 2000;
	assert_int_equal(penstock_object_server_open(&opts, &server), 0);
	assert_int_equal(penstock_object_server_alloc(server, NULL, MIB, &mem), 0);
	assert_int_equal(
		penstock_object_resolve(server, token, sizeof(token) - 1, &peer, &move.remote), 0);
	move.seg = (struct penstock_object_seg){.ptr = mem, .len = 4096, .fd = -1};
	assert_int_equal(pthread_create(&thread, NULL, held_move_run, &move), 0);
	sem_wait(&plane.held);
	assert_int_equal(penstock_object_server_free(server, &byte), -EINVAL);
	assert_false(atomic_load(&move.done));
	sem_post(&plane.released);
	pthread_join(thread, NULL);
	assert_int_equal(move.result, 0);
	penstock_object_forget(move.remote);
	penstock_object_server_close(server);
	plane_join();
}

static size_t gpu_allocs(void)
{
	struct pst_standin_live live;
	void (*query)(struct pst_standin_live *);

	*(void **)&query = test_standin_symbol("pst_standin_live");
	assert_non_null(query);
	query(&live);
	return live.allocs;
}

/* Allocates memory of a GPU, and closes the server or the client. With `by_call`, frees the memory
 * by a call first. */
static void gpu_memory_use(struct penstock_device *gpu, bool is_server, bool by_call)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_client_opts client_options = client_opts();
	struct penstock_object_server *server;
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	void *mem;

	opts.plane = path;
	opts.plane_ms = SILENCE_MS;
	if (is_server) {
		assert_int_equal(penstock_object_server_open(&opts, &server), 0);
		assert_int_equal(penstock_object_server_alloc(server, gpu, MIB, &mem), 0);
		if (by_call)
			assert_int_equal(penstock_object_server_free(server, mem), 0);
		penstock_object_server_close(server);
		return;
	}
	assert_int_equal(penstock_object_client_open(&client_options, &client), 0);
	assert_int_equal(penstock_object_alloc(client, gpu, MIB, &buffer), 0);
	if (by_call)
		assert_int_equal(penstock_object_unregister(buffer), 0);
	else
		assert_int_equal(
			penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB, &window), 0);
	penstock_object_client_close(client);
}

/* A plane that was stopped, or that has lost its connection, may still copy to or from memory of a
 * GPU. This memory is freed only after the plane has released it. */
static void gpu_memory(void **state)
{
	static const struct {
		bool is_server, by_call;
		enum act act; /* reaction to MEMORY_CLOSE */
		bool releases;
	} tries[] = {
		{true, true, ANSWER, false}, /* the answer to MEMORY_CLOSE is enough */
		{true, true, BE_SILENT, false},	 {true, true, DIE, false},
		{true, true, DIE, true},	 {true, false, ANSWER, false},
		{true, false, ANSWER, true},	 {false, true, ANSWER, false},
		{false, true, BE_SILENT, false}, {false, true, DIE, true},
		{false, false, ANSWER, false},	 {false, false, ANSWER, true},
	};
	struct penstock_device *gpu;

	(void)state;
	if (!getenv("PENSTOCK_LIBCUDA"))
		test_skip("this case counts the allocations of the stand-in");
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		const bool freed =
			tries[i].releases || (tries[i].by_call && tries[i].act == ANSWER);
		const size_t before = gpu_allocs();

		plane.releases = tries[i].releases;
		plane_start(PST_PLANE_MEMORY_CLOSE, tries[i].act);
		gpu_memory_use(gpu, tries[i].is_server, tries[i].by_call);
		printf("# try %u: %zu allocations before, %zu after\n", i, before, gpu_allocs());
		assert_int_equal(gpu_allocs(), before + !freed);
		plane_join();
	}
	plane.releases = false;
	penstock_device_close(gpu);
}

/* If a client uses a plane, the calls that only a client without a plane supports must fail. */
static void without_plane(void **state)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
	struct penstock_object_client_opts opts = client_opts();
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	unsigned char byte[1];

	(void)state;
	plane_start(PST_PLANE_START, ANSWER);
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	assert_true(penstock_object_client_fd(client) >= 0);
	assert_int_equal(penstock_object_register(client, NULL, byte, 1, &buffer), -EOPNOTSUPP);
	assert_int_equal(penstock_object_alloc(client, NULL, MIB, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, MIB, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.token, "");
	assert_int_equal(penstock_object_headers(window, headers, 4), -EOPNOTSUPP);
	assert_int_equal(penstock_object_judge(window, &reply, &verdict), -EOPNOTSUPP);
	assert_int_equal(penstock_object_unregister(buffer), -EBUSY);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
	plane_join();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greeting),
		cmocka_unit_test(questions),
		cmocka_unit_test(in_flight),
		cmocka_unit_test(ended_twice),
		cmocka_unit_test(without_plane),
		cmocka_unit_test(server_memory),
		cmocka_unit_test(closed_open),
		cmocka_unit_test(cut_off),
		cmocka_unit_test(greeting_with_signals),
		cmocka_unit_test(gpu_memory),
		cmocka_unit_test(slow_move),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
