/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reactors (threads), and the calls that they carry: see http.h. A call is one request with its
 * repetitions; an endpoint is a server. A call waits in the list of its endpoint until the limits
 * allow one more call in flight. Then it belongs to one reactor, which gives it to a connection.
 * After a failed attempt, the call is delayed: it is on a list of that reactor, and not in flight.
 * When the delay is over, it becomes the first in the list of its endpoint.
 *
 * One lock guards the lists, the limits and the reactors' inboxes. It is held for a few
 * instructions at a time. Only a reactor's own thread uses its connections.
 */
#include "io/http.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/splitmix64.h"
#include "io/http_conn.h"
#include "io/http_endpoint.h"

#define CONNS_MAX PST_HTTP_INFLIGHT_MAX
#define EVENTS_MAX 64
/* Interval between two checks of the times and speeds of a reactor's connections. */
#define TICK_NS 100000000u
#define IDLE_TICK_MS 5000
/* An idle connection is closed after this time in ns. S3 closes it after about 20 s. */
#define IDLE_NS 15000000000u
/* DELAY_NS: maximum delay in ns before the first repetition of a call. The maximum doubles with
 * each repetition, up to DELAY_MAX_NS. */
#define DELAY_NS 100000000u
#define DELAY_MAX_NS 20000000000u
#define RETRY_AFTER_MAX_S 60
/* Maximum number of attempts in a row that find no server at the address. It is low, because a
 * server that refuses connections will probably refuse them for longer than a few seconds. */
#define REFUSED_TRIES_MAX 4
/* Maximum number of reactors (threads) if PENSTOCK_HTTP_THREADS does not set the number. */
#define REACTORS_MANY 16

/* Values of pst_http_call.place: the list that a call is on. */
enum { CALL_NOWHERE, CALL_WAITS, CALL_ACTIVE, CALL_DELAYED };

struct reactor {
	unsigned index;
	int epoll_fd, wake_fd;
	/* array of CONNS_MAX connections; an unused one has fd -1 */
	struct pst_http_conn *conns;
	struct pst_http_conn *vacant; /* list of unused elements of `conns` */
	/* connections without a call; the one whose call ended last comes first */
	struct pst_http_conn *idle;
	unsigned busy;		      /* number of connections with a call */
	/* calls to start, some of them (CALL_DELAYED) after a delay; guarded by the lock */
	struct pst_http_call *inbox;
	/* number of this reactor's calls in flight; guarded by the lock */
	unsigned load;
	struct pst_http_call *delayed; /* calls that wait for their next attempt */
	_Atomic bool cancels;	       /* a call of this reactor has been cancelled */
	uint64_t random;
	uint64_t tick_ns; /* time of the last check of times and speeds */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reactor *reactors[PST_HTTP_REACTORS_MAX];
static unsigned reactor_count;
static unsigned inflight; /* number of calls that reactors have, without the delayed ones */
/* List of the endpoints that have waiting calls. An endpoint whose last waiting call was cancelled
 * stays on the list for a while. */
static struct pst_http_endpoint *queue, **queue_end = &queue;
static unsigned queue_len;
static _Atomic uint64_t connections, requests, retries, body_bytes, copied_bytes;

/* Runs in the child of a fork, which has none of the parent's reactors. Closes the child's copies
 * of their sockets, so that a connection ends when the parent closes it. */
static void http_in_child(void)
{
	for (unsigned i = 0; i < reactor_count; i++) {
		for (unsigned c = 0; c < CONNS_MAX; c++)
			if (reactors[i]->conns[c].fd >= 0)
				close(reactors[i]->conns[c].fd);
		close(reactors[i]->epoll_fd);
		close(reactors[i]->wake_fd);
		reactors[i] = NULL;
	}
	pthread_mutex_init(&lock, NULL);
	reactor_count = inflight = 0;
	queue = NULL;
	queue_end = &queue;
	queue_len = 0;
}

__attribute__((constructor)) static void http_watch_fork(void)
{
	pst_fork_hook(http_in_child);
}

static void reactor_wake(const struct reactor *reactor)
{
	uint64_t one = 1;

	if (write(reactor->wake_fd, &one, sizeof(one)) < 0)
		return; /* the counter is full, so the reactor has been woken already */
}

/* ---- the lists, under the lock ---- */

static struct reactor *reactor_least(void)
{
	struct reactor *least = reactors[0];

	for (unsigned i = 1; i < reactor_count; i++)
		if (reactors[i]->load < least->load)
			least = reactors[i];
	return least;
}

/* Gives a call to a reactor. */
static void call_assign(struct pst_http_call *call, struct reactor *reactor)
{
	call->place = CALL_ACTIVE;
	call->reactor = reactor->index;
	call->next = reactor->inbox;
	reactor->inbox = call;
	reactor->load++;
	call->endpoint->inflight++;
	inflight++;
}

/* Sets the call's new place, and removes the call from the counts of calls in flight. */
static void call_leave(struct pst_http_call *call, struct reactor *r, int place)
{
	if (call->place == CALL_ACTIVE) {
		inflight--;
		r->load--;
		call->endpoint->inflight--;
	} else if (call->keeps_slot) {
		call->endpoint->inflight--;
	}
	call->keeps_slot = false;
	call->place = place;
}

static struct pst_http_call *waiting_take(struct pst_http_endpoint *endpoint)
{
	struct pst_http_call *call = endpoint->waiting;

	endpoint->waiting = call->next;
	if (!endpoint->waiting)
		endpoint->waiting_end = &endpoint->waiting;
	return call;
}

/* Starts the waiting calls (HTTP requests) of an endpoint (a server), as far as the limits
 * allow. */
static void endpoint_dispatch(struct pst_http_endpoint *endpoint, struct reactor *self)
{
	while (endpoint->waiting && inflight < PST_HTTP_INFLIGHT_MAX &&
	       endpoint->inflight < endpoint->limit.now) {
		struct reactor *to = reactor_least();

		/* Prefer the calling reactor if it is not busier: it has just completed a call, so
		 * it has an idle connection. */
		if (self && self->load <= to->load + 1)
			to = self;
		call_assign(waiting_take(endpoint), to);
		if (to != self)
			reactor_wake(to);
	}
	if (endpoint->waiting)
		pst_http_limit_wait(&endpoint->limit);
}

static void queue_add(struct pst_http_endpoint *endpoint)
{
	if (endpoint->queued)
		return;
	endpoint->queued = true;
	endpoint->queue_next = NULL;
	*queue_end = endpoint;
	queue_end = &endpoint->queue_next;
	queue_len++;
}

static struct pst_http_endpoint *queue_take(void)
{
	struct pst_http_endpoint *endpoint = queue;

	queue = endpoint->queue_next;
	if (!queue)
		queue_end = &queue;
	queue_len--;
	endpoint->queued = false;
	return endpoint;
}

/* Starts waiting calls as far as the limits allow, those of each endpoint in turn. `self` is the
 * calling reactor, which gets its share of the calls but is not woken, because it is running. */
static void calls_dispatch(struct reactor *self)
{
	for (unsigned left = queue_len; left && inflight < PST_HTTP_INFLIGHT_MAX; left--) {
		struct pst_http_endpoint *endpoint = queue_take();

		endpoint_dispatch(endpoint, self);
		if (endpoint->waiting)
			queue_add(endpoint);
	}
}

/* ---- the ends of calls, on the reactor's thread ---- */

/* Stores the result of a cancelled call. If an earlier attempt failed, err.text keeps the text
 * about that failure. */
static int call_cancelled(struct pst_http_call *call)
{
	if ((call->attempts < 2 && !call->tries) || !call->err.text[0])
		pst_fail(&call->err, PENSTOCK_WHY_CANCELLED, "cancelled");
	call->err.why = PENSTOCK_WHY_CANCELLED;
	call->err.code = -ECANCELED;
	return call->err.code;
}

static void call_end(struct reactor *r, struct pst_http_call *call, int result)
{
	uint64_t now_ns = pst_now_ns(), bytes = call->got - call->got_first;

	if (result < 0 && atomic_load(&call->cancelled))
		result = call_cancelled(call);
	call->result = result;
	pthread_mutex_lock(&lock);
	call_leave(call, r, CALL_NOWHERE);
	if (!result)
		pst_http_limit_end(&call->endpoint->limit, bytes + call->out_len + call->beside,
				   now_ns);
	calls_dispatch(r);
	pthread_mutex_unlock(&lock);
	atomic_fetch_add_explicit(&body_bytes, bytes, memory_order_relaxed);
	call->ops->done(call);
}

/* Returns the time until the next attempt: random, so that many clients do not come back at the
 * same time. */
static uint64_t call_delay(struct reactor *r, const struct pst_http_call *call)
{
	unsigned shift = call->tries - 1 < 10 ? call->tries - 1 : 10;
	uint64_t most = (uint64_t)DELAY_NS << shift, asked_s = call->head.retry_after_s;
	uint64_t delay;

	most = most < DELAY_MAX_NS ? most : DELAY_MAX_NS;
	delay = most / 2 + pst_splitmix64(r->random++) % (most / 2);
	asked_s = asked_s < RETRY_AFTER_MAX_S ? asked_s : RETRY_AFTER_MAX_S;
	/* The time that the server has asked for (Retry-After) is a minimum, so the random part is
	 * added to it. */
	return asked_s ? asked_s * 1000000000u + delay / 2 : delay;
}

static void call_give_up(struct reactor *r, struct pst_http_call *call, enum pst_http_end end)
{
	if (end == PST_HTTP_AGAIN)
		pst_fail_errno(&call->err, EIO, PENSTOCK_WHY_IO_ERROR,
			       "%s answered %u in each of %u attempts",
			       pst_path_tail(call->endpoint->host), call->head.status, call->tries);
	call_end(r, call, call->err.code);
}

/* Puts a call on the reactor's list of delayed calls. */
static void call_schedule(struct reactor *r, struct pst_http_call *call)
{
	atomic_fetch_add_explicit(&retries, 1, memory_order_relaxed);
	call->delay_ns = call_delay(r, call);
	call->due_ns = pst_now_ns() + call->delay_ns;
	call->next = r->delayed;
	r->delayed = call;
}

/* Lowers the limit of calls in flight, because the server asked for fewer requests. Lets the call
 * keep its place among these calls while it waits, so that no other call takes it. Called under the
 * lock. */
static void call_slow_down(struct pst_http_call *call)
{
	pst_http_limit_slow_down(&call->endpoint->limit, pst_now_ns());
	call->keeps_slot = true;
	call->endpoint->inflight++;
}

/* Repeats a call (an HTTP request) later, or ends it if it has been repeated often enough. */
static void call_repeat(struct reactor *r, struct pst_http_call *call, enum pst_http_end end)
{
	unsigned tries_max = end == PST_HTTP_REFUSED ? REFUSED_TRIES_MAX : PST_HTTP_TRIES_MAX;

	if (atomic_load(&call->cancelled)) {
		call_end(r, call, -ECANCELED);
		return;
	}
	if (call->got > call->got_before)
		call->tries = 0;
	call->got_before = call->got;
	call->addresses_tried = 0;
	if (++call->tries >= tries_max) {
		call_give_up(r, call, end);
		return;
	}
	call_schedule(r, call);
	pthread_mutex_lock(&lock);
	call_leave(call, r, CALL_DELAYED);
	if (end == PST_HTTP_AGAIN && (call->head.status == 503 || call->head.status == 429))
		call_slow_down(call);
	calls_dispatch(r);
	pthread_mutex_unlock(&lock);
}

/* Ends the delay of a call: puts it at the head of its endpoint's list, or ends it if it was
 * cancelled. */
static void call_resume(struct reactor *r, struct pst_http_call *call)
{
	struct pst_http_endpoint *endpoint = call->endpoint;

	pthread_mutex_lock(&lock);
	/* pst_http_cancel() does not end a delayed call itself. */
	if (atomic_load(&call->cancelled)) {
		pthread_mutex_unlock(&lock);
		call_end(r, call, -ECANCELED);
		return;
	}
	call_leave(call, r, CALL_WAITS);
	call->next = endpoint->waiting;
	endpoint->waiting = call;
	if (!call->next)
		endpoint->waiting_end = &call->next;
	queue_add(endpoint);
	calls_dispatch(r);
	pthread_mutex_unlock(&lock);
}

/* ---- connections ---- */

static void conn_watch(struct reactor *r, struct pst_http_conn *conn, int op)
{
	struct epoll_event event = {.events = EPOLLIN | (conn->wants_write ? EPOLLOUT : 0u),
				    .data.ptr = conn};

	conn->watches_write = conn->wants_write;
	epoll_ctl(r->epoll_fd, op, conn->fd, &event);
}

/* Closes a connection that is on no list. */
static void conn_close(struct reactor *r, struct pst_http_conn *conn)
{
	pst_http_conn_close(conn);
	conn->next = r->vacant;
	r->vacant = conn;
}

/* Gives a call to a connection that is on no list. */
static void conn_give(struct reactor *r, struct pst_http_conn *conn, struct pst_http_call *call)
{
	r->busy++;
	pst_http_conn_give(conn, call, pst_now_ns());
}

/* Takes the call from its connection. The connection becomes idle, or is closed. */
static struct pst_http_call *conn_release(struct reactor *r, struct pst_http_conn *conn,
					  bool usable)
{
	struct pst_http_call *call = conn->call;

	atomic_fetch_add_explicit(&copied_bytes, conn->copied, memory_order_relaxed);
	conn->copied = 0;
	conn->call = NULL;
	r->busy--;
	if (!usable) {
		conn_close(r, conn);
		return call;
	}
	conn->next = r->idle;
	r->idle = conn;
	conn->state = PST_CONN_IDLE;
	conn->reused = true;
	conn->began_ns = pst_now_ns();
	conn->wants_write = false;
	if (conn->watches_write)
		conn_watch(r, conn, EPOLL_CTL_MOD);
	return call;
}

/* Closes an idle connection. `at` is the pointer to it in the list. */
static void idle_close(struct reactor *r, struct pst_http_conn **at)
{
	struct pst_http_conn *conn = *at;

	*at = conn->next;
	conn_close(r, conn);
}

/* Takes an idle connection to the endpoint off the list. If there is none, takes an unused element
 * for a new connection, and closes the oldest idle connection if all are used. Returns NULL if
 * every connection has a call. */
static struct pst_http_conn *conn_take(struct reactor *r, const struct pst_http_endpoint *endpoint)
{
	struct pst_http_conn **at = &r->idle, **last = NULL, *conn;

	while ((conn = *at)) {
		if (conn->endpoint != endpoint) {
			last = at;
			at = &conn->next;
		} else if (pst_http_conn_has_surplus(conn)) {
			idle_close(r, at);
		} else {
			*at = conn->next;
			return conn;
		}
	}
	if (!r->vacant && last)
		/* `last` has been idle for the longest time */
		idle_close(r, last);
	conn = r->vacant;
	if (conn)
		r->vacant = conn->next;
	return conn;
}

static void attempt_ended(struct reactor *r, struct pst_http_conn *conn, enum pst_http_end end);
static void call_begin(struct reactor *r, struct pst_http_call *call);

/* Continues a call whose connection was refused: tries the server's next address at once, or
 * repeats the call later if all addresses have failed. */
static void call_refused(struct reactor *r, struct pst_http_call *call)
{
	unsigned count = pst_endpoint_address_failed(call->endpoint, call->address);

	if (++call->addresses_tried < count) {
		call->address++;
		call_begin(r, call);
		return;
	}
	pst_endpoint_refresh(call->endpoint);
	call_repeat(r, call, PST_HTTP_REFUSED);
}

/* Begins to connect to the call's address. */
static void call_connect(struct reactor *r, struct pst_http_call *call, struct pst_http_conn *conn)
{
	struct pst_http_endpoint *endpoint = call->endpoint;
	struct sockaddr_storage address;
	socklen_t len;
	int ret;

	if (!call->addresses_tried)
		call->address = pst_endpoint_address_first(endpoint);
	pst_endpoint_address(endpoint, call->address, &address, &len);
	conn->endpoint = endpoint;
	conn->host = endpoint->host;
	conn->tls_context = endpoint->tls_context;
	ret = pst_http_conn_open(conn, (const struct sockaddr *)&address, len);
	if (ret) {
		pst_fail_errno(&call->err, ret, pst_why_from_errno(ret), "a connection to %s: %m",
			       pst_path_tail(endpoint->host));
		conn_close(r, conn);
		call_refused(r, call);
		return;
	}
	atomic_fetch_add_explicit(&connections, 1, memory_order_relaxed);
	conn_give(r, conn, call);
	conn_watch(r, conn, EPOLL_CTL_ADD);
}

/* Begins an attempt of a call. */
static void call_begin(struct reactor *r, struct pst_http_call *call)
{
	struct pst_http_conn *conn;

	if (atomic_load(&call->cancelled)) {
		call_end(r, call, -ECANCELED);
		return;
	}
	call->attempts++;
	atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
	conn = conn_take(r, call->endpoint);
	if (!conn) {
		pst_fail_errno(&call->err, EMFILE, pst_why_from_errno(EMFILE),
			       "a connection to %s: %m", pst_path_tail(call->endpoint->host));
		call_repeat(r, call, PST_HTTP_REFUSED);
	} else if (conn->fd >= 0) {
		conn_give(r, conn, call);
		attempt_ended(r, conn, pst_http_conn_run(conn, pst_now_ns()));
	} else {
		call_connect(r, call, conn);
	}
}

/* Handles the result of pst_http_conn_run or pst_http_conn_check: the end of an attempt, or a
 * change of the events to wait for. */
static void attempt_ended(struct reactor *r, struct pst_http_conn *conn, enum pst_http_end end)
{
	struct pst_http_call *call;

	if (end == PST_HTTP_RUNNING) {
		if (conn->wants_write != conn->watches_write)
			conn_watch(r, conn, EPOLL_CTL_MOD);
		return;
	}
	call = conn_release(r, conn,
			    conn->usable && (end == PST_HTTP_DONE || end == PST_HTTP_AGAIN));
	if (end == PST_HTTP_DONE) {
		call_end(r, call, 0);
	} else if (end == PST_HTTP_FAILED) {
		call_end(r, call, call->err.code);
	} else if (end == PST_HTTP_STALE) {
		call_begin(r, call);
	} else if (end == PST_HTTP_REFUSED) {
		call_refused(r, call);
	} else {
		call_repeat(r, call, end);
	}
}

/* ---- the loop ---- */

static void conn_event(struct reactor *r, struct pst_http_conn *conn, uint64_t now_ns)
{
	struct pst_http_conn **at = &r->idle;

	if (conn->fd < 0)
		return; /* an earlier event of this loop pass has closed it */
	if (conn->call) {
		attempt_ended(r, conn, pst_http_conn_run(conn, now_ns));
	} else if (pst_http_conn_has_surplus(conn)) {
		while (*at != conn)
			at = &(*at)->next;
		idle_close(r, at);
	}
}

static void inbox_start(struct reactor *r)
{
	struct pst_http_call *list, *next;

	pthread_mutex_lock(&lock);
	list = r->inbox;
	r->inbox = NULL;
	pthread_mutex_unlock(&lock);
	for (; list; list = next) {
		next = list->next;
		if (list->place == CALL_DELAYED) {
			call_schedule(r, list);
			memset(&list->head, 0, sizeof(list->head));
		} else {
			call_begin(r, list);
		}
	}
}

/* Resumes delayed calls whose time has come, and ends those that were cancelled. */
static void delayed_start(struct reactor *r, uint64_t now_ns)
{
	struct pst_http_call *list = r->delayed, *next;

	r->delayed = NULL;
	for (; list; list = next) {
		next = list->next;
		if (list->due_ns <= now_ns || atomic_load(&list->cancelled)) {
			call_resume(r, list);
		} else {
			list->next = r->delayed;
			r->delayed = list;
		}
	}
}

/* Ends the cancelled calls that have a connection. */
static void cancelled_end(struct reactor *r)
{
	atomic_store(&r->cancels, false);
	for (unsigned i = 0; i < CONNS_MAX; i++) {
		struct pst_http_conn *conn = &r->conns[i];

		if (conn->fd >= 0 && conn->call && atomic_load(&conn->call->cancelled))
			call_end(r, conn_release(r, conn, false), -ECANCELED);
	}
}

static void conns_check(struct reactor *r, uint64_t now_ns)
{
	struct pst_http_conn **at = &r->idle;

	r->tick_ns = now_ns;
	while (*at) {
		/* A connection may have become idle after the clock was read for `now_ns`. */
		if (now_ns > (*at)->began_ns + IDLE_NS)
			idle_close(r, at);
		else
			at = &(*at)->next;
	}
	for (unsigned i = 0; r->busy && i < CONNS_MAX; i++)
		if (r->conns[i].fd >= 0 && r->conns[i].call)
			attempt_ended(r, &r->conns[i], pst_http_conn_check(&r->conns[i], now_ns));
}

/* Returns how long the reactor may sleep, in ms. */
static int sleep_ms(struct reactor *r, uint64_t now_ns)
{
	uint64_t due_ns = UINT64_MAX;
	bool more;

	/* This pass of the reactor's loop may have put a call into the reactor's own inbox after it
	 * had emptied the inbox: each call that ends lets a waiting call start. */
	pthread_mutex_lock(&lock);
	more = r->inbox;
	pthread_mutex_unlock(&lock);
	if (more)
		return 0;
	for (const struct pst_http_call *call = r->delayed; call; call = call->next)
		due_ns = call->due_ns < due_ns ? call->due_ns : due_ns;
	if (r->busy && due_ns > now_ns + TICK_NS)
		due_ns = now_ns + TICK_NS;
	if (due_ns != UINT64_MAX)
		return due_ns > now_ns ? (int)((due_ns - now_ns) / 1000000u) + 1 : 0;
	return r->idle ? IDLE_TICK_MS : -1;
}

static void *reactor_run(void *arg)
{
	struct reactor *r = arg;
	struct epoll_event events[EVENTS_MAX];
	uint64_t now_ns = pst_now_ns(), drained;

	for (;;) {
		int n = epoll_wait(r->epoll_fd, events, EVENTS_MAX, sleep_ms(r, now_ns));

		now_ns = pst_now_ns();
		for (int i = 0; i < n; i++) {
			if (events[i].data.ptr)
				conn_event(r, events[i].data.ptr, now_ns);
			else if (read(r->wake_fd, &drained, sizeof(drained)) < 0)
				continue; /* an earlier pass of the loop has read the counter */
		}
		if (atomic_load(&r->cancels))
			cancelled_end(r);
		/* A call in the inbox may be delayed and already cancelled. delayed_start ends it,
		 * because no further event would wake this thread before the delay is over. */
		inbox_start(r);
		delayed_start(r, now_ns);
		if (now_ns - r->tick_ns >= TICK_NS)
			conns_check(r, now_ns);
	}
	return NULL;
}

/* ---- starting ---- */

static void reactor_free(struct reactor *r)
{
	if (r->epoll_fd >= 0)
		close(r->epoll_fd);
	if (r->wake_fd >= 0)
		close(r->wake_fd);
	free(r->conns);
	free(r);
}

static int reactor_start(void)
{
	struct reactor *r = calloc(1, sizeof(*r));
	struct epoll_event event = {.events = EPOLLIN};
	pthread_t thread;
	int ret;

	if (!r)
		return -ENOMEM;
	r->index = reactor_count;
	r->conns = calloc(CONNS_MAX, sizeof(*r->conns));
	r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!r->conns || r->epoll_fd < 0 || r->wake_fd < 0 ||
	    epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->wake_fd, &event)) {
		ret = r->conns ? -errno : -ENOMEM;
		reactor_free(r);
		return ret;
	}
	for (unsigned i = CONNS_MAX; i--;) {
		r->conns[i].fd = -1;
		r->conns[i].next = r->vacant;
		r->vacant = &r->conns[i];
	}
	if (getrandom(&r->random, sizeof(r->random), GRND_NONBLOCK) < 0)
		r->random = pst_now_ns();
	reactors[reactor_count++] = r;
	ret = -pst_thread_start(&thread, reactor_run, r);
	if (ret) {
		reactor_count--;
		reactor_free(r);
		return ret;
	}
	pthread_detach(thread);
	return 0;
}

/* Returns the number of reactors (threads): $PENSTOCK_HTTP_THREADS, or the number of CPUs that the
 * process may use, but not more than REACTORS_MANY. A reactor receives about 3 GB/s on a loopback
 * interface. */
static unsigned reactors_wanted(void)
{
	const char *text = getenv("PENSTOCK_HTTP_THREADS");
	unsigned long named = text ? strtoul(text, NULL, 10) : 0;
	cpu_set_t set;
	int cpus;

	if (named)
		return named < PST_HTTP_REACTORS_MAX ? (unsigned)named : PST_HTTP_REACTORS_MAX;
	/* The call fails if the kernel's set of CPUs is longer than cpu_set_t. */
	cpus = sched_getaffinity(0, sizeof(set), &set) ? REACTORS_MANY : CPU_COUNT(&set);
	return cpus < REACTORS_MANY ? (unsigned)cpus : REACTORS_MANY;
}

/* Starts the reactors (threads), if none is running. Called under the lock. */
static int reactors_start(void)
{
	unsigned wanted;
	int ret = 0;

	if (reactor_count)
		return 0;
	wanted = reactors_wanted();
	while (!ret && reactor_count < wanted)
		ret = reactor_start();
	return reactor_count ? 0 : ret; /* one is enough to work */
}

/* Adds a call to the list of its endpoint. Called under the lock. */
static void call_wait(struct pst_http_call *call)
{
	struct pst_http_endpoint *endpoint = call->endpoint;

	call->place = CALL_WAITS;
	call->next = NULL;
	*endpoint->waiting_end = call;
	endpoint->waiting_end = &call->next;
	queue_add(endpoint);
	calls_dispatch(NULL);
}

/* Gives a call to a reactor, which begins it after a delay. Called under the lock. */
static void call_put_off(struct pst_http_call *call)
{
	struct reactor *reactor = reactor_least();

	call->place = CALL_DELAYED;
	call->reactor = reactor->index;
	call->next = reactor->inbox;
	reactor->inbox = call;
	if (call->slowed)
		call_slow_down(call);
	reactor_wake(reactor);
}

static int call_start(struct pst_http_call *call, void (*put)(struct pst_http_call *call),
		      struct pst_err *err)
{
	int ret;

	call->got_first = call->got_before = call->got;
	pthread_mutex_lock(&lock);
	ret = reactors_start();
	if (!ret)
		put(call);
	pthread_mutex_unlock(&lock);
	if (ret)
		return pst_fail_errno(err, ret, pst_why_from_errno(ret),
				      "the threads for HTTP cannot be started: %m");
	return 0;
}

int pst_http_start(struct pst_http_call *call, struct pst_err *err)
{
	return call_start(call, call_wait, err);
}

int pst_http_start_later(struct pst_http_call *call, struct pst_err *err)
{
	return call_start(call, call_put_off, err);
}

bool pst_http_cancel(struct pst_http_call *call)
{
	struct pst_http_endpoint *endpoint = call->endpoint;
	struct pst_http_call **at;
	bool waited;

	pthread_mutex_lock(&lock);
	atomic_store(&call->cancelled, true);
	waited = call->place == CALL_WAITS;
	if (waited) {
		for (at = &endpoint->waiting; *at != call;)
			at = &(*at)->next;
		*at = call->next;
		if (!call->next)
			endpoint->waiting_end = at;
		call->place = CALL_NOWHERE;
		call->result = call_cancelled(call);
	} else if (call->place != CALL_NOWHERE) {
		atomic_store(&reactors[call->reactor]->cancels, true);
		reactor_wake(reactors[call->reactor]);
	}
	pthread_mutex_unlock(&lock);
	return waited;
}

void pst_http_get_counts(struct pst_http_counts *out)
{
	out->connections = atomic_load(&connections);
	out->requests = atomic_load(&requests);
	out->retries = atomic_load(&retries);
	out->body_bytes = atomic_load(&body_bytes);
	out->copied_bytes = atomic_load(&copied_bytes);
}
