/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a plane: listens on its socket, and accepts tenants (other processes) whose user is
 * permitted. After SIGTERM it waits until no operation is in flight, and then exits. A second
 * signal, or the time limit, makes it cancel the operations and exit. Called by cli/plane.c.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "metrics.h"
#include "tenant.h"

/* time in ms for which the plane waits for the tenants' threads before it ends without them */
#define STOP_MS 5000
/* if no descriptor is free: time in ms until the next attempt to accept a connection */
#define PAUSE_MS 100

struct plane {
	struct pl_plane shared;
	struct pl_tenant *tenants;
	struct pl_metrics *metrics;
	int fd, signals;
	/* reserve descriptor: if no other descriptor is free, the plane closes this one, so that it
	 * can accept and refuse a connection */
	int spare;
	bool pause; /* whether the next wait ignores connections, because none can be accepted */
	/* result of lstat(2) for the socket's own file, to detect that another process has replaced
	 * it */
	struct stat socket;
	char *why;
	size_t why_len;
};

static int say(const struct plane *p, int code, const char *what)
{
	snprintf(p->why, p->why_len, "%s: %s", what, strerror(code));
	return -code;
}

/* ---- the socket ---- */

/* Removes the socket of a plane that has ended without doing so. Returns whether the name is then
 * free. */
static bool stale_remove(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct stat st;
	bool stale;

	stale = fd >= 0 && !lstat(address->sun_path, &st) && S_ISSOCK(st.st_mode) &&
		connect(fd, (const struct sockaddr *)address, sizeof(*address)) &&
		errno == ECONNREFUSED;
	if (fd >= 0)
		close(fd);
	return stale && !unlink(address->sun_path);
}

static int socket_listen(struct plane *p)
{
	const struct pl_options *o = p->shared.options;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	/* Any user may connect if further users are permitted. The plane then checks each user with
	 * SO_PEERCRED. */
	mode_t mode = o->user_count ? 0666 : 0600, mask;
	int ret;

	if (strlen(o->listen) >= sizeof(address.sun_path))
		return say(p, ENAMETOOLONG, o->listen);
	memcpy(address.sun_path, o->listen, strlen(o->listen));
	p->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->fd < 0)
		return say(p, errno, "socket");
	mask = umask(0177);
	ret = bind(p->fd, (struct sockaddr *)&address, sizeof(address));
	if (ret && errno == EADDRINUSE && stale_remove(&address))
		ret = bind(p->fd, (struct sockaddr *)&address, sizeof(address));
	ret = ret ? errno : 0;
	umask(mask);
	if (ret == EADDRINUSE) {
		snprintf(p->why, p->why_len,
			 "%s exists, and a process listens there, or it is no "
			 "socket: choose another path",
			 o->listen);
		return -ret;
	}
	if (ret || lstat(o->listen, &p->socket) || chmod(o->listen, mode) || listen(p->fd, 128))
		return say(p, ret ? ret : errno, o->listen);
	return 0;
}

/* Removes the socket's file, unless another process has replaced it. */
static void socket_close(struct plane *p)
{
	struct stat st;

	if (p->fd < 0)
		return;
	if (p->socket.st_ino && !lstat(p->shared.options->listen, &st) &&
	    st.st_ino == p->socket.st_ino && st.st_dev == p->socket.st_dev)
		unlink(p->shared.options->listen);
	close(p->fd);
	p->fd = -1;
}

/* ---- tenants ---- */

static bool user_is_permitted(const struct pl_options *o, unsigned user)
{
	if (!user || user == geteuid())
		return true;
	for (unsigned i = 0; i < o->user_count; i++)
		if (o->users[i] == user)
			return true;
	return false;
}

/* Returns whether a user that the option --users names has as many tenants as one user may have:
 * one, or half of the tenants that others leave. So a user cannot keep the others out, and neither
 * can several users together: each further user leaves half of the rest. Root and the plane's own
 * user have no limit, because they can end the plane anyway. */
static bool user_is_full(const struct plane *p, unsigned user)
{
	const struct pl_options *o = p->shared.options;
	unsigned count = 0, others = 0;

	if (!user || user == geteuid())
		return false;
	for (const struct pl_tenant *tenant = p->tenants; tenant; tenant = tenant->next) {
		const bool lives = !atomic_load(&tenant->ended);

		count += lives && tenant->user == user;
		others += lives && tenant->user != user;
	}
	return count && count >= (o->tenants_max - others) / 2;
}

/* Sends a process the reason why it is refused, and closes its connection. */
static void refuse(int fd, int code, enum penstock_why why, const char *text)
{
	struct pst_plane_message answer = {.kind = PST_PLANE_ANSWER};

	answer.answer.result = -code;
	answer.answer.why = why;
	snprintf(answer.answer.text, sizeof(answer.answer.text), "%s", text);
	/* Ignores an error. The queue of a new connection has room, so an error means that the
	 * process has disconnected. */
	(void)pst_plane_send(fd, &answer, -1);
	close(fd);
}

static void spare_open(struct plane *p)
{
	if (p->spare < 0)
		p->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Accepts and refuses a connection when no descriptor is free, after closing the reserve
 * descriptor. Otherwise the connection would stay in the queue of the socket, which would stay
 * readable. */
static void refuse_without_files(struct plane *p)
{
	int fd;

	if (p->spare >= 0)
		close(p->spare);
	p->spare = -1;
	fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
	p->pause = fd < 0;
	if (fd >= 0)
		refuse(fd, EMFILE, PENSTOCK_WHY_NO_FILES,
		       "the plane has no descriptor left: raise its RLIMIT_NOFILE");
	spare_open(p);
}

static void tenant_accept(struct plane *p)
{
	struct pl_plane *plane = &p->shared;
	int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
	struct pl_tenant *tenant;
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			refuse_without_files(p);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len)) {
		close(fd);
		return;
	}
	if (!user_is_permitted(plane->options, peer.uid)) {
		pl_count(&plane->counts.refused_user);
		pst_log(PST_LOG_WARN, "plane", "user %u is not permitted", peer.uid);
		refuse(fd, EACCES, PENSTOCK_WHY_NO_PERMISSION,
		       "the plane does not serve this user: start it with --users");
		return;
	}
	if (atomic_load(&plane->counts.tenants) >= plane->options->tenants_max) {
		pl_count(&plane->counts.refused[PL_LIMIT_TENANTS]);
		refuse(fd, EAGAIN, PENSTOCK_WHY_FULL,
		       "the plane has as many tenants as it may have: start it with --tenants");
		return;
	}
	if (user_is_full(p, peer.uid)) {
		pl_count(&plane->counts.refused[PL_LIMIT_USER]);
		refuse(fd, EAGAIN, PENSTOCK_WHY_FULL,
		       "the user has half of the plane's tenants that others leave, as many as a "
		       "user may have: start the plane with --tenants");
		return;
	}
	if (pl_tenant_start(plane, fd, peer.uid, peer.pid, &tenant))
		return;
	tenant->next = p->tenants;
	p->tenants = tenant;
}

/* Joins the threads of tenants that have ended. */
static void tenants_join(struct plane *p)
{
	struct pl_tenant **at = &p->tenants;

	while (*at) {
		struct pl_tenant *tenant = *at;

		if (!atomic_load(&tenant->ended)) {
			at = &tenant->next;
			continue;
		}
		pthread_join(tenant->thread, NULL);
		*at = tenant->next;
		free(tenant);
	}
}

/* ---- the loop ---- */

/* Waits for a connection, for the end of a tenant's work, or for a signal. Returns whether a signal
 * has arrived. */
static bool plane_wait(struct plane *p, int timeout_ms)
{
	struct pollfd fds[3] = {{p->pause ? -1 : p->fd, POLLIN, 0},
				{p->shared.wake, POLLIN, 0},
				{p->signals, POLLIN, 0}};
	struct signalfd_siginfo info;
	uint64_t events;

	if (p->pause && (timeout_ms < 0 || timeout_ms > PAUSE_MS))
		timeout_ms = PAUSE_MS;
	p->pause = false;
	poll(fds, 3, timeout_ms);
	if (fds[1].revents && read(p->shared.wake, &events, sizeof(events)) > 0)
		tenants_join(p);
	if (fds[0].revents)
		tenant_accept(p);
	return fds[2].revents && read(p->signals, &info, sizeof(info)) == (ssize_t)sizeof(info);
}

/* Waits until no operation of a tenant is in flight. Ends early at the time limit, or when a signal
 * arrives. */
static void drain(struct plane *p)
{
	struct pl_plane *plane = &p->shared;
	uint64_t until = pst_now_ns() / 1000000 + plane->options->drain_s * UINT64_C(1000);

	atomic_store(&plane->draining, true);
	socket_close(p);
	while (atomic_load(&plane->counts.in_flight)) {
		uint64_t now = pst_now_ns() / 1000000;

		if (now >= until || plane_wait(p, (int)(until - now)))
			return;
	}
}

/* Waits until the threads of all tenants have ended. If a thread does not return from a call, for
 * example of a file server or of a GPU's driver, ends the process without it. The kernel then ends
 * the thread's work, as after a kill. */
static void tenants_end(struct plane *p)
{
	const uint64_t until = pst_now_ns() / 1000000 + STOP_MS;

	tenants_join(p);
	while (p->tenants) {
		uint64_t now = pst_now_ns() / 1000000;

		if (now < until) {
			plane_wait(p, (int)(until - now)); /* ignores further signals */
			continue;
		}
		pst_log(PST_LOG_ERROR, "plane",
			"process %d of user %u: its thread does not end, so the plane ends "
			"without it",
			p->tenants->process, p->tenants->user);
		_exit(EXIT_FAILURE);
	}
}

/* Raises the limit of open files to the hard limit, because each tenant needs descriptors. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	/* if this fails, the old limit remains */
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static int plane_start(struct plane *p, unsigned *metrics_port)
{
	const struct pl_options *o = p->shared.options;
	sigset_t signals;
	int ret;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	/* All threads inherit this signal mask, so only the main thread receives the signals. */
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	raise_file_limit();
	spare_open(p);
	p->shared.stop = eventfd(0, EFD_CLOEXEC);
	p->shared.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (p->shared.stop < 0 || p->shared.wake < 0 || p->signals < 0)
		return say(p, errno, "eventfd");
	if (o->device) {
		ret = penstock_device_open(o->device, NULL, &p->shared.device);
		if (ret < 0) {
			snprintf(p->why, p->why_len, "%s", penstock_errmsg());
			return ret;
		}
	}
	ret = socket_listen(p);
	if (ret)
		return ret;
	if (!o->metrics)
		return 0;
	p->metrics = pl_metrics_open(&p->shared, o->metrics, metrics_port, p->why, p->why_len);
	return p->metrics ? 0 : -EIO;
}

static void plane_stop(struct plane *p)
{
	const uint64_t one = 1;

	socket_close(p);
	if (p->shared.stop >= 0 &&
	    write(p->shared.stop, &one, sizeof(one)) == (ssize_t)sizeof(one)) {
		tenants_end(p);
		pl_metrics_close(p->metrics);
	}
	if (p->shared.device)
		penstock_device_close(p->shared.device);
	if (p->shared.stop >= 0)
		close(p->shared.stop);
	if (p->shared.wake >= 0)
		close(p->shared.wake);
	if (p->signals >= 0)
		close(p->signals);
	if (p->spare >= 0)
		close(p->spare);
}

unsigned pl_version(void)
{
	return PST_PLANE_VERSION_MAX;
}

int pl_serve(const struct pl_options *options, char *why, size_t why_len)
{
	struct plane p = {.shared = {.options = options, .stop = -1, .wake = -1},
			  .fd = -1,
			  .signals = -1,
			  .spare = -1,
			  .why = why,
			  .why_len = why_len};
	unsigned metrics_port = 0;
	int ret = plane_start(&p, &metrics_port);

	if (!ret) {
		if (options->ready)
			options->ready(options, metrics_port);
		while (!plane_wait(&p, -1))
			;
		drain(&p);
	}
	plane_stop(&p);
	return ret;
}
