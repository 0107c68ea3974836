/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of an HTTP server. Each thread accepts connections from the listening socket, and
 * runs a daemon of libmicrohttpd that serves them. Called by http.c.
 *
 * The threads are not those of libmicrohttpd, because these may stall. If a call of epoll_wait
 * reports as many events as libmicrohttpd has room for (128), libmicrohttpd (0.9.75 to 1.0.1) waits
 * for further events before it handles these ones. So the threads of this file wait outside of
 * libmicrohttpd, and let it only take the events that exist.
 */
#ifndef GW_DAEMONS_H
#define GW_DAEMONS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Maximum number of connections that a thread accepts before it serves its other connections. */
#define GW_ACCEPT_MAX 10

struct MHD_Daemon;
struct gw_daemons;

/* `thread` is the index of a thread. */
struct gw_daemons_options {
	int fd; /* socket that listens, which must not block; the caller owns it */
	unsigned threads;
	/* Starts the daemon of a thread, with its own epoll descriptor and no socket that listens.
	 * Returns NULL on an error. */
	struct MHD_Daemon *(*start)(void *owner, unsigned thread);
	/* Returns whether the thread shall serve a connection from this address. If not, the thread
	 * closes it. */
	bool (*admit)(void *owner, unsigned thread, const struct sockaddr *address);
	/* Called after each turn of the daemon. Each connection that was admitted before has now
	 * started, or it has failed. */
	void (*turned)(void *owner, unsigned thread);
	void *owner;
};

/* Starts the daemons and their threads. The threads accept connections when all of them run and
 * *out is set. Returns false on an error. */
bool gw_daemons_start(const struct gw_daemons_options *options, struct gw_daemons **out);
/* Lets a thread run its daemon. Must be called after each MHD_resume_connection: libmicrohttpd
 * itself wakes no thread that is not its own. */
void gw_daemons_wake(struct gw_daemons *daemons, unsigned thread);
/* Lets the threads accept no more connections. A thread may still accept some in its current
 * turn. */
void gw_daemons_quiesce(struct gw_daemons *daemons);
/* Ends the threads, closes their connections and frees the daemons. The caller must have resumed
 * all suspended connections. NULL is allowed. */
void gw_daemons_stop(struct gw_daemons *daemons);

#endif
