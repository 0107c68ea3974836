/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends connections that are too slow, or that the client has closed in the middle of a request.
 * Once a second, a thread reads from the kernel how many bytes each connection has moved. Called by
 * http.c. It must not end a connection that waits for the server's own work.
 */
#ifndef GW_WATCH_H
#define GW_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct gw_watch;
struct gw_watched;

enum gw_phase {
	/* there is no request, or only a part of a request's head has arrived */
	GW_PHASE_HEAD,
	GW_PHASE_BODY,	/* the client sends a body */
	GW_PHASE_WORK,	/* the server works; no limit */
	GW_PHASE_REPLY, /* the client receives the reply */
};

/* Starts the thread. In phase HEAD, a connection is ended after `head_s` seconds. In the phases
 * BODY and REPLY, it is ended if it moves fewer than `rate_min` bytes a second during `window_s`
 * seconds. */
struct gw_watch *gw_watch_start(unsigned head_s, unsigned window_s, unsigned rate_min);
void gw_watch_stop(struct gw_watch *watch);

/* Begins to watch a socket. Returns NULL if there is no memory. The functions below accept NULL in
 * place of the result. */
struct gw_watched *gw_watch_add(struct gw_watch *watch, int fd);
void gw_watch_phase(struct gw_watched *watched, enum gw_phase phase);
/* Returns whether the watch has ended the connection, or the time for a request's head is over. */
bool gw_watch_is_over(const struct gw_watch *watch, const struct gw_watched *watched);
/* Called by the connection's thread before the reply to a request is sent: the bytes received until
 * then belong to no later request. If `last` is true, later bytes belong to no request, either. */
void gw_watch_settle(struct gw_watched *watched, bool last);
/* Returns how many bytes the kernel has received since the last call of gw_watch_settle, or since
 * the start of the connection. The end of the stream (FIN) counts as a byte. */
uint64_t gw_watch_received(const struct gw_watched *watched);
/* Stops watching a socket. Must be called before the socket is closed. */
void gw_watch_remove(struct gw_watch *watch, struct gw_watched *watched);

#endif
