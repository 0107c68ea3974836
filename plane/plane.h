/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process `penstock plane`. It makes the transfers of S3 over RDMA for other processes, which
 * are called its tenants. The tenants have access neither to the network card nor to the access
 * keys. The plane is part of the command, not of the library. src/object/plane_message.h describes
 * the messages.
 *
 * The main thread accepts tenants. Each tenant has its own thread, and its own client or server of
 * the object API. So tenants share no numbers, secrets, connections or queues, and a call that
 * blocks delays only its own tenant.
 */
#ifndef PLANE_PLANE_H
#define PLANE_PLANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"
#include "penstock_object.h"

struct pl_options {
	const char *listen; /* path of the socket */
	/* users whose processes may be tenants, in addition to root and the plane's own user */
	const unsigned *users;
	unsigned user_count;
	bool no_clients, no_servers; /* roles that tenants may not have */
	/* buckets that tenants may use, separated by commas; NULL: all */
	const char *buckets;
	bool read_only;
	/* options for the tenants' clients and servers, see penstock_object.h */
	const char *transports, *address, *device, *networks;
	bool require_encryption;
	const unsigned *server_users;
	unsigned server_user_count;
	unsigned channels;
	/* limits: the number of tenants, and four limits for each tenant. One of `users` may have
	 * one tenant, or half of those that the other users leave. */
	unsigned tenants_max, memories_max, windows_max, in_flight_max;
	uint64_t memory_max;
	unsigned drain_s;
	/* ADDRESS:PORT at which metrics are served; NULL: no metrics */
	const char *metrics;
	/* Called once when the plane has begun to listen. */
	void (*ready)(const struct pl_options *options, unsigned metrics_port);
};

enum pl_limit {
	PL_LIMIT_TENANTS,
	PL_LIMIT_USER, /* tenants of one user */
	PL_LIMIT_MEMORY,
	PL_LIMIT_WINDOWS,
	PL_LIMIT_IN_FLIGHT,
	PL_LIMITS,
};

/* How the bytes of a request moved: by RDMA through a window, in an HTTP body, or not, because the
 * request failed. */
enum pl_outcome {
	PL_BY_WINDOW,
	PL_BY_BODY,
	PL_FAILED,
	PL_OUTCOMES,
};

struct pl_counts {
	_Atomic uint64_t tenants;	   /* tenants that are connected now */
	_Atomic uint64_t tenants_total[2]; /* tenants since the start: clients, servers */
	_Atomic uint64_t refused_user;	   /* connections of users that are not permitted */
	/* connections refused because their first message, HELLO, has no protocol version that the
	 * plane speaks, or has a role that tenants may not have */
	_Atomic uint64_t refused_version;
	/* messages of tenants that were refused because of a limit */
	_Atomic uint64_t refused[PL_LIMITS];
	/* messages with a number that belongs to no memory or window of the tenant */
	_Atomic uint64_t refused_name;
	/* requests that were refused because of `buckets` or `read_only` */
	_Atomic uint64_t refused_policy;
	/* tenants that were disconnected because of a malformed message */
	_Atomic uint64_t malformed;
	/* tenants that ended with open windows or transfers in flight */
	_Atomic uint64_t lost;
	/* open windows of the tenants in `lost`; the plane then ends the servers' access to them */
	_Atomic uint64_t lost_windows;
	/* releases of windows after which a server might still access the windows' pages */
	_Atomic uint64_t cut_off;
	_Atomic uint64_t memory;    /* bytes of memory that tenants share now */
	_Atomic uint64_t in_flight; /* requests and transfers in flight now */
	/* requests by operation (GET, PUT) and outcome */
	_Atomic uint64_t requests[2][PL_OUTCOMES];
	_Atomic uint64_t bytes[2][PL_OUTCOMES];
	_Atomic uint64_t moves[2]; /* servers' transfers: completed, failed */
	_Atomic uint64_t moved_bytes;
};

/* Data that all tenants of a plane share. */
struct pl_plane {
	const struct pl_options *options;
	/* GPU for accesses to tenants' GPU memory; NULL: GPU memory of tenants is refused */
	struct penstock_device *device;
	_Atomic bool draining;
	int stop; /* eventfd that becomes readable when tenants must end */
	/* eventfd that wakes the main thread: a tenant has ended, or has no operation in flight */
	int wake;
	struct pl_counts counts;
};

static inline void pl_count(_Atomic uint64_t *count)
{
	atomic_fetch_add(count, 1);
}

/* Returns the version of the protocol. */
unsigned pl_version(void);
/* Serves tenants until SIGTERM or SIGINT. Returns 0, or -errno with a sentence in `why`. */
int pl_serve(const struct pl_options *options, char *why, size_t why_len);

#endif
