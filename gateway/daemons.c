/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the threads of an HTTP server, see daemons.h. */
#include "daemons.h"

#include <errno.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/thread.h"

/* Maximum time in ms for which a thread accepts no connections after the kernel had no descriptor
 * or no memory for one. Without this pause, the thread would use a whole CPU. */
#define PAUSE_MS 100

/* Indices of the descriptors that a thread polls: of its daemon, of its wake-up event and of the
 * listening socket. */
enum { ON_DAEMON, ON_WAKE, ON_LISTEN, ON_COUNT };

struct thread {
	struct gw_daemons *daemons;
	struct MHD_Daemon *daemon;
	int wake; /* event that ends the thread's wait */
	pthread_t id;
};

struct gw_daemons {
	struct gw_daemons_options options;
	atomic_bool quiet, stop;
	unsigned count; /* number of threads that run */
	struct thread threads[];
};

static int epoll_of(struct MHD_Daemon *daemon)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD);

	return info ? info->epoll_fd : -1;
}

/* Returns how long poll() may wait before the daemon needs a turn, in ms; -1 without a limit. */
static int timeout_of(struct MHD_Daemon *daemon)
{
	unsigned long long timeout;

	if (MHD_get_timeout(daemon, &timeout) != MHD_YES)
		return -1;
	return timeout < INT_MAX ? (int)timeout : INT_MAX;
}

/* Accepts connections and passes them to the daemon. Returns false if the thread must pause before
 * it accepts more. */
static bool thread_accept(struct thread *t)
{
	const struct gw_daemons_options *o = &t->daemons->options;
	unsigned index = (unsigned)(t - t->daemons->threads);

	for (unsigned i = 0; i < GW_ACCEPT_MAX; i++) {
		struct sockaddr_in6 from; /* has room for IPv4, too */
		struct sockaddr *address = (struct sockaddr *)&from;
		socklen_t len = sizeof(from);
		int fd = accept4(o->fd, address, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);

		/* EINVAL means that the socket no longer listens. Other errors are those of one
		 * connection, which has ended already, or another thread has accepted it. */
		if (fd < 0)
			return errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
			       errno != ENOMEM && errno != EINVAL;
		/* If MHD_add_connection fails, it has closed the socket. */
		if (o->admit(o->owner, index, address))
			(void)MHD_add_connection(t->daemon, fd, address, len);
		else
			close(fd);
	}
	return true;
}

static void *thread_run(void *arg)
{
	struct thread *t = arg;
	struct gw_daemons *daemons = t->daemons;
	const struct gw_daemons_options *o = &daemons->options;
	unsigned index = (unsigned)(t - daemons->threads);
	struct pollfd on[ON_COUNT] = {
		[ON_DAEMON] = {.fd = epoll_of(t->daemon), .events = POLLIN},
		[ON_WAKE] = {.fd = t->wake, .events = POLLIN},
		[ON_LISTEN] = {.fd = o->fd, .events = POLLIN},
	};
	eventfd_t value;
	bool pauses = false;

	for (;;) {
		int timeout = timeout_of(t->daemon);

		if (pauses && (timeout < 0 || timeout > PAUSE_MS))
			timeout = PAUSE_MS;
		/* poll() ignores an entry with a negative descriptor. */
		on[ON_LISTEN].fd = pauses || atomic_load(&daemons->quiet) ? -1 : o->fd;
		if (poll(on, ON_COUNT, timeout) < 0)
			continue;
		/* The event must be reset before the conditions that it announces are read. */
		if (on[ON_WAKE].revents)
			(void)eventfd_read(t->wake, &value);
		if (atomic_load(&daemons->stop))
			return NULL;
		pauses =
			on[ON_LISTEN].revents && !atomic_load(&daemons->quiet) && !thread_accept(t);
		/* MHD_run never waits. */
		MHD_run(t->daemon);
		o->turned(o->owner, index);
	}
}

/* Starts the next thread with its daemon. Returns false on an error. */
static bool thread_start(struct gw_daemons *daemons)
{
	const struct gw_daemons_options *o = &daemons->options;
	struct thread *t = &daemons->threads[daemons->count];

	t->daemons = daemons;
	t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->wake < 0)
		return false;
	t->daemon = o->start(o->owner, daemons->count);
	if (!t->daemon)
		goto err_close;
	errno = pst_thread_start(&t->id, thread_run, t);
	if (errno)
		goto err_stop;
	daemons->count++;
	return true;
err_stop:
	MHD_stop_daemon(t->daemon);
err_close:
	close(t->wake);
	return false;
}

void gw_daemons_wake(struct gw_daemons *daemons, unsigned thread)
{
	/* The write fails only if the event is set already, at its maximum. */
	(void)eventfd_write(daemons->threads[thread].wake, 1);
}

static void wake_all(struct gw_daemons *daemons)
{
	for (unsigned i = 0; i < daemons->count; i++)
		gw_daemons_wake(daemons, i);
}

bool gw_daemons_start(const struct gw_daemons_options *o, struct gw_daemons **out)
{
	struct gw_daemons *daemons =
		calloc(1, sizeof(*daemons) + o->threads * sizeof(daemons->threads[0]));

	if (!daemons)
		return false;
	daemons->options = *o;
	/* No thread accepts a connection until all have started. So if one cannot start, no
	 * connection is lost, and none is suspended when the daemons stop. */
	daemons->quiet = true;
	while (daemons->count < o->threads)
		if (!thread_start(daemons)) {
			gw_daemons_stop(daemons);
			return false;
		}
	*out = daemons; /* an admitted connection may need it */
	atomic_store(&daemons->quiet, false);
	wake_all(daemons);
	return true;
}

void gw_daemons_quiesce(struct gw_daemons *daemons)
{
	atomic_store(&daemons->quiet, true);
	wake_all(daemons);
}

void gw_daemons_stop(struct gw_daemons *daemons)
{
	int error = errno; /* for the caller of gw_daemons_start */

	if (!daemons)
		return;
	atomic_store(&daemons->stop, true);
	wake_all(daemons);
	for (unsigned i = 0; i < daemons->count; i++)
		pthread_join(daemons->threads[i].id, NULL);
	for (unsigned i = 0; i < daemons->count; i++) {
		MHD_stop_daemon(daemons->threads[i].daemon);
		close(daemons->threads[i].wake);
	}
	free(daemons);
	errno = error;
}
