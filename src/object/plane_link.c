/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements plane_link.h. Each link (connection to a plane) has a thread that receives all
 * messages of the plane. A caller that has sent a question waits until this thread has copied the
 * answer to the caller's stack.
 */
#include "object/plane_link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/clock.h"

#define TIMEOUT_MS 30000
/* maximum number of operations in flight that this process accepts from a plane */
#define IN_FLIGHT_MAX 4096

/* A message to the plane whose sender waits for the answer. */
struct question {
	struct question *next;
	/* contains the question; link_run's thread overwrites it with the answer */
	struct pst_plane_message *message;
	/* the operation, if the question is START or MOVE; NULL for other questions */
	struct flight *flight;
	uint64_t seq;
	bool answered;
};

/* An operation in flight, which the plane carries out: an HTTP request or a move of bytes. */
struct flight {
	struct pst_end *end; /* completion of the operation; NULL if the entry is free */
	/* `user` is the caller's value for the operation; messages contain the unique `tag`
	 * instead */
	uint64_t user, tag;
	bool started; /* whether the plane has accepted the operation */
};

struct pst_plane_link {
	struct pst_plane_link_opts opts;
	int fd, stop;
	int plane; /* pidfd of the plane; -1: the kernel does not tell its process ID */
	pthread_t thread;
	bool running;
	/* held while a message and its descriptors are sent; taken before `lock` */
	pthread_mutex_t send_lock;
	pthread_mutex_t lock; /* protects the members below */
	pthread_cond_t changed;
	int dead; /* 0, or -errno if the connection has ended */
	uint64_t seq, tags, heard_ms, asked_ms;
	struct question *questions;
	struct flight *flights;
	unsigned flight_max, in_flight;
};

static uint64_t now_ms(void)
{
	return pst_now_ns() / 1000000;
}

static int dead_fail(int code, struct pst_err *err)
{
	return pst_fail_errno(err, ECONNRESET, PENSTOCK_WHY_IO_ERROR,
			      "the plane %s: open the client or the server again",
			      code == -ETIMEDOUT ? "does not answer"
			      : code == -EPROTO	 ? "sent a malformed message"
						 : "is gone");
}

/* ---- what arrives ---- */

/* Completes an operation. The caller holds link->lock. The function releases the lock while it
 * calls opts.idle(). */
static void flight_end(struct pst_plane_link *link, struct flight *flight)
{
	struct pst_end *end = flight->end;

	flight->end = NULL;
	link->in_flight--;
	pthread_mutex_unlock(&link->lock);
	link->opts.idle(end->owner);
	pst_ends_put(link->opts.ends, end);
	pthread_mutex_lock(&link->lock);
}

static struct flight *flight_find(struct pst_plane_link *link, uint64_t tag)
{
	struct flight *flight = link->flight_max ? &link->flights[tag % link->flight_max] : NULL;

	return flight && flight->end && flight->tag == tag && flight->started ? flight : NULL;
}

/* Handles the plane's message that an operation has completed. Returns 0 or -EPROTO. */
static int ended(struct pst_plane_link *link, const struct pst_plane_message *m)
{
	bool moved = m->kind == PST_PLANE_MOVED;
	struct flight *flight = flight_find(link, moved ? m->moved.done.user : m->ended.end.user);

	if (!flight || moved != (link->opts.role == PST_PLANE_SERVER))
		return -EPROTO;
	if (moved) {
		flight->end->move = m->moved.done;
		flight->end->move.user = flight->user;
	} else {
		flight->end->request = m->ended.end;
		flight->end->request.user = flight->user;
	}
	flight_end(link, flight);
	return 0;
}

/* Copies an answer of the plane to the caller that sent the question. Returns 0 or -EPROTO. */
static int answered(struct pst_plane_link *link, const struct pst_plane_message *m)
{
	struct question *q;

	if (!m->seq) /* this is the answer to a PING, for which no caller waits */
		return 0;
	for (q = link->questions; q && (q->seq != m->seq || q->answered); q = q->next)
		;
	if (!q)
		return -EPROTO;
	memcpy(q->message, m, pst_plane_len(m->kind));
	q->answered = true;
	if (q->flight && m->kind == PST_PLANE_ANSWER && !m->answer.result)
		q->flight->started = true;
	pthread_cond_broadcast(&link->changed);
	return 0;
}

/* Handles all messages that have arrived. The caller holds the lock. */
static int receive_all(struct pst_plane_link *link)
{
	struct pst_plane_message m;
	int fd, ret;

	while ((ret = pst_plane_receive(link->fd, &m, true, &fd)) > 0) {
		link->heard_ms = now_ms();
		ret = m.kind == PST_PLANE_ENDED || m.kind == PST_PLANE_MOVED ? ended(link, &m)
									     : answered(link, &m);
		if (ret)
			return ret;
	}
	return ret;
}

/* Ends the connection: fails all questions and completes all operations with the error. The caller
 * holds the lock. */
static void die(struct pst_plane_link *link, int code)
{
	struct pst_err err;

	if (!link->dead)
		link->dead = code;
	dead_fail(link->dead, &err);
	/* Shuts the connection down, so that the plane sees its end even if a forked child still
	 * has the descriptor open. */
	shutdown(link->fd, SHUT_RDWR);
	for (unsigned i = 0; i < link->flight_max; i++) {
		struct flight *flight = &link->flights[i];
		struct pst_end *end = flight->end;

		if (!end || !flight->started)
			continue;
		if (link->opts.role == PST_PLANE_SERVER) {
			end->move = (struct penstock_object_done){.user = flight->user,
								  .result = err.code};
			memcpy(end->move.text, err.text, sizeof(err.text));
		} else {
			end->request = (struct penstock_object_end){.user = flight->user,
								    .result = err.code,
								    .next = PENSTOCK_OBJECT_ERROR};
			memcpy(end->request.text, err.text, sizeof(err.text));
		}
		flight_end(link, flight);
	}
	pthread_cond_broadcast(&link->changed);
}

/* Returns true if the plane has not answered a PING in time. A PING is sent if the plane has sent
 * nothing for a quarter of the time limit although a question or an operation waits for it. The
 * time limit starts with the PING, because this process may have been stopped before the PING. The
 * caller holds link->lock. */
static bool is_silent(struct pst_plane_link *link)
{
	struct pst_plane_message ping = {.kind = PST_PLANE_PING};
	const unsigned patience = link->opts.timeout_ms / 4;
	struct pollfd room = {link->fd, POLLOUT, 0};
	uint64_t now = now_ms();

	if (!link->questions && !link->in_flight) {
		link->heard_ms = now;
		return false;
	}
	if (link->asked_ms > link->heard_ms)
		return now - link->asked_ms > link->opts.timeout_ms - patience;
	/* If another thread holds send_lock, it is sending a question. If the plane does not read
	 * that question, the send itself runs into its time limit and ends the connection. */
	if (now - link->heard_ms <= patience || pthread_mutex_trylock(&link->send_lock))
		return false;
	link->asked_ms = now;
	if (poll(&room, 1, 0) > 0 && (room.revents & POLLOUT))
		/* ignores an error: it has ended the connection, and the next receive
		 * reports that */
		(void)pst_plane_send(link->fd, &ping, -1);
	pthread_mutex_unlock(&link->send_lock);
	return false;
}

static void *link_run(void *arg)
{
	struct pst_plane_link *link = arg;
	int wait = (int)(link->opts.timeout_ms / 8) + 1, ret = 0;

	while (!ret) {
		struct pollfd fds[2] = {{link->fd, POLLIN, 0}, {link->stop, POLLIN, 0}};

		poll(fds, 2, wait);
		pthread_mutex_lock(&link->lock);
		ret = fds[1].revents ? -ECONNRESET : receive_all(link);
		if (!ret && is_silent(link))
			ret = -ETIMEDOUT;
		if (ret)
			die(link, ret);
		pthread_mutex_unlock(&link->lock);
	}
	return NULL;
}

/* ---- questions ---- */

/* Sends the descriptors, and then the message that uses them. Returns 0 or -errno. */
static int send_all(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		    unsigned fd_count)
{
	int ret = 0;

	pthread_mutex_lock(&link->send_lock);
	for (unsigned i = 0; i < fd_count && !ret; i++) {
		struct pst_plane_message pass = {.kind = PST_PLANE_FD, .fd.slot = i};

		if (fds[i] < 0) /* the slot stays empty */
			continue;
		ret = pst_plane_send(link->fd, &pass, fds[i]);
	}
	if (!ret)
		ret = pst_plane_send(link->fd, message, -1);
	pthread_mutex_unlock(&link->send_lock);
	return ret;
}

static void question_remove(struct pst_plane_link *link, const struct question *question)
{
	struct question **at = &link->questions;

	while (*at != question)
		at = &(*at)->next;
	*at = question->next;
}

static int ask(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
	       unsigned fd_count, struct flight *flight, struct pst_err *err)
{
	struct question question = {.message = message, .flight = flight};
	struct pst_plane_message sent = *message;
	int ret, code;

	pthread_mutex_lock(&link->lock);
	question.seq = sent.seq = ++link->seq;
	question.next = link->questions;
	link->questions = &question;
	code = link->dead;
	if (!code && !link->heard_ms)
		link->heard_ms = now_ms();
	pthread_mutex_unlock(&link->lock);
	ret = code ? code : send_all(link, &sent, fds, fd_count);
	pthread_mutex_lock(&link->lock);
	if (ret && !link->dead)
		die(link, ret);
	while (!question.answered && !link->dead)
		pthread_cond_wait(&link->changed, &link->lock);
	question_remove(link, &question);
	code = link->dead;
	pthread_mutex_unlock(&link->lock);
	if (!question.answered)
		return dead_fail(code, err);
	if (message->kind == PST_PLANE_ANSWER && message->answer.result)
		return pst_fail_errno(err, message->answer.result,
				      (enum penstock_why)message->answer.why, "%s",
				      message->answer.text);
	return 0;
}

int pst_plane_ask(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_err *err)
{
	return ask(link, message, fds, fd_count, NULL, err);
}

/* Takes a free entry for an operation. Returns NULL if all are in use. */
static struct flight *flight_take(struct pst_plane_link *link, struct pst_end *end, uint64_t user)
{
	struct flight *flight = NULL;

	pthread_mutex_lock(&link->lock);
	for (unsigned i = 0; i < link->flight_max && !flight; i++)
		if (!link->flights[i].end)
			flight = &link->flights[i];
	if (flight) {
		uint64_t place = (uint64_t)(flight - link->flights);

		*flight = (struct flight){
			.end = end,
			.user = user,
			/* A number that no earlier operation had. Its remainder modulo flight_max
			 * is the index of the entry. */
			.tag = ++link->tags * link->flight_max + place,
		};
		link->in_flight++;
	}
	pthread_mutex_unlock(&link->lock);
	return flight;
}

int pst_plane_fly(struct pst_plane_link *link, struct pst_plane_message *message, const int *fds,
		  unsigned fd_count, struct pst_end *end, struct pst_err *err)
{
	uint64_t *user =
		message->kind == PST_PLANE_MOVE ? &message->move.user : &message->start.user;
	struct flight *flight = flight_take(link, end, *user);
	int ret;

	if (!flight)
		return pst_fail(err, PENSTOCK_WHY_FULL,
				"%u operations are in flight, as many as the plane permits",
				link->flight_max);
	*user = flight->tag;
	ret = ask(link, message, fds, fd_count, flight, err);
	if (!ret)
		return 0;
	pthread_mutex_lock(&link->lock);
	flight->end = NULL;
	link->in_flight--;
	pthread_mutex_unlock(&link->lock);
	return ret;
}

int pst_plane_pass(struct pst_plane_link *link, struct pst_shared *shared, uint64_t *id,
		   struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_MEMORY};
	int fds[2] = {shared->fd, shared->read_fd}, lease = -1;
	int ret = shared->dev ? pst_shared_lease(shared, link->plane, &lease, err) : 0;

	if (ret)
		return ret;

	m.memory.len = shared->len;
	m.memory.cuda = shared->dev != NULL;
	m.memory.fds = 2;
	memcpy(m.memory.exported, shared->exported.bytes, sizeof(m.memory.exported));
	if (shared->dev) {
		fds[0] = shared->exported.fd;
		fds[1] = lease;
		m.memory.fds = fds[0] >= 0;
	}
	ret = pst_plane_ask(link, &m, fds, 2, err);
	if (lease >= 0)
		close(lease);
	if (!ret)
		*id = m.answer.id;
	return ret;
}

int pst_plane_ask_id(struct pst_plane_link *link, enum pst_plane_kind kind, uint64_t id,
		     struct pst_plane_message *answer, struct pst_err *err)
{
	*answer = (struct pst_plane_message){.kind = (uint16_t)kind, .name.id = id};
	return pst_plane_ask(link, answer, NULL, 0, err);
}

bool pst_plane_link_is_dead(struct pst_plane_link *link)
{
	bool dead;

	pthread_mutex_lock(&link->lock);
	dead = link->dead;
	pthread_mutex_unlock(&link->lock);
	return dead;
}

uint64_t pst_plane_link_until(struct pst_plane_link *link)
{
	uint64_t now = pst_now_ns();
	int dead;

	pthread_mutex_lock(&link->lock);
	dead = link->dead;
	pthread_mutex_unlock(&link->lock);
	return dead == -ETIMEDOUT ? now : now + link->opts.timeout_ms * UINT64_C(1000000);
}

/* ---- open and close ---- */

/* Opens a pidfd of the plane. */
static int plane_watch(int sock)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	/* The kernel reports process ID 0 for a plane in a PID namespace that this process does not
	 * see. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

static int link_connect(struct pst_plane_link *link, struct pst_err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = link->opts.path;

	if (strlen(path) >= sizeof(address.sun_path))
		return pst_fail_errno(err, ENAMETOOLONG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the path of the plane's socket is too long");
	memcpy(address.sun_path, path, strlen(path));
	link->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (link->fd < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "socket: %m");
	pst_plane_socket_set(link->fd, link->opts.timeout_ms);
	if (connect(link->fd, (struct sockaddr *)&address, sizeof(address)))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "%.100s: no plane listens there (%m): start 'penstock "
				      "plane --listen'",
				      pst_path_tail(path));
	link->plane = plane_watch(link->fd);
	return 0;
}

/* Waits for the reply to HELLO. Returns 0 or -ETIMEDOUT. */
static int greet_wait(const struct pst_plane_link *link)
{
	const uint64_t until = now_ms() + link->opts.timeout_ms;

	for (;;) {
		struct pollfd fd = {link->fd, POLLIN, 0};
		uint64_t now = now_ms();
		int n = poll(&fd, 1, now < until ? (int)(until - now) : 0);

		/* a signal can interrupt poll(2) */
		if (n >= 0 || errno != EINTR)
			return n ? 0 : -ETIMEDOUT;
	}
}

/* Sends HELLO with the role and the versions of this process, and receives the plane's reply. The
 * link's thread has not been started, so this function reads the socket itself. */
static int link_greet(struct pst_plane_link *link, struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_HELLO};
	int passed, ret;

	m.hello.first = PST_PLANE_VERSION_MIN;
	m.hello.last = PST_PLANE_VERSION_MAX;
	m.hello.role = link->opts.role;
	m.hello.require_encryption = link->opts.require_encryption;
	ret = pst_plane_send(link->fd, &m, -1);
	/* A plane that refuses the connection has sent its reason before it closed the connection,
	 * so the reason can still be received. */
	if (ret == -EPIPE || ret == -ECONNRESET)
		ret = 0;
	if (!ret)
		ret = greet_wait(link);
	if (!ret)
		ret = pst_plane_receive(link->fd, &m, true, &passed);
	if (ret <= 0)
		return dead_fail(ret, err);
	if (m.kind == PST_PLANE_ANSWER && m.answer.result)
		return pst_fail_errno(err, m.answer.result, (enum penstock_why)m.answer.why, "%s",
				      m.answer.text);
	if (m.kind != PST_PLANE_WELCOME || !m.welcome.in_flight ||
	    m.welcome.in_flight > IN_FLIGHT_MAX)
		return dead_fail(-EPROTO, err);
	link->flight_max = m.welcome.in_flight;
	return 0;
}

int pst_plane_link_open(const struct pst_plane_link_opts *opts, struct pst_plane_link **out,
			struct pst_err *err)
{
	struct pst_plane_link *link = calloc(1, sizeof(*link));
	int ret, code;

	if (!link)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a connection");
	link->opts = *opts;
	link->opts.path = opts->path;
	if (!link->opts.timeout_ms)
		link->opts.timeout_ms = TIMEOUT_MS;
	if (link->opts.timeout_ms > INT32_MAX)
		link->opts.timeout_ms = INT32_MAX;
	link->fd = link->plane = -1;
	pthread_mutex_init(&link->send_lock, NULL);
	pthread_mutex_init(&link->lock, NULL);
	pthread_cond_init(&link->changed, NULL);
	link->stop = eventfd(0, EFD_CLOEXEC);
	ret = link->stop < 0 ? pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "eventfd: %m")
			     : link_connect(link, err);
	if (!ret)
		ret = link_greet(link, err);
	/* the string belongs to the caller, and is not used any more */
	link->opts.path = NULL;
	if (!ret) {
		link->flights = calloc(link->flight_max, sizeof(*link->flights));
		if (!link->flights)
			ret = pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for requests");
	}
	if (!ret) {
		code = pst_thread_start(&link->thread, link_run, link);
		link->running = !code;
		if (code)
			ret = pst_fail_errno(err, code, PENSTOCK_WHY_NO_MEMORY, "thread: %s",
					     strerror(code));
	}
	if (ret)
		pst_plane_link_close(link);
	else
		*out = link;
	return ret;
}

void pst_plane_link_close(struct pst_plane_link *link)
{
	const uint64_t one = 1;

	if (link->running && write(link->stop, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(link->thread, NULL);
	if (link->fd >= 0)
		close(link->fd);
	if (link->stop >= 0)
		close(link->stop);
	if (link->plane >= 0)
		close(link->plane);
	pthread_cond_destroy(&link->changed);
	pthread_mutex_destroy(&link->lock);
	pthread_mutex_destroy(&link->send_lock);
	free(link->flights);
	free(link);
}
