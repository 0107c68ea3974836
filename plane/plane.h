/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process `penstock plane`: carries out the transfers of S3 over RDMA for other processes, its
 * tenants, which hold neither the network card nor the keys. Part of the command, not of the
 * library. The messages are in src/object/plane_message.h.
 *
 * The main thread accepts tenants. Each tenant has a thread, and a client or a server of the object
 * API of its own: so no tenant shares numbers, secrets, connections or queues with another one, and
 * a call that blocks delays its own tenant only.
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
	const char *listen;    /* path of the socket */
	const unsigned *users; /* users that may be tenants, beside root and the plane's own */
	unsigned user_count;
	bool no_clients, no_servers; /* roles that are refused */
	const char *buckets;	     /* names, separated by commas; NULL: all */
	bool read_only;
	/* of the clients and servers of tenants, see penstock_object.h */
	const char *transports, *address, *device, *networks;
	bool require_encryption;
	const unsigned *server_users;
	unsigned server_user_count;
	unsigned channels;
	/* limits; those below the first are for each tenant */
	unsigned tenants_max, memories_max, windows_max, in_flight_max;
	uint64_t memory_max;
	unsigned drain_s;
	const char *metrics; /* ADDRESS:PORT; NULL: none */
	/* Called when the plane listens. */
	void (*ready)(const struct pl_options *options, unsigned metrics_port);
};

enum pl_limit {
	PL_LIMIT_TENANTS,
	PL_LIMIT_MEMORY,
	PL_LIMIT_WINDOWS,
	PL_LIMIT_IN_FLIGHT,
	PL_LIMITS,
};

/* How the bytes of a request moved. */
enum pl_outcome {
	PL_BY_WINDOW,
	PL_BY_BODY,
	PL_FAILED,
	PL_OUTCOMES,
};

struct pl_counts {
	_Atomic uint64_t tenants;	     /* that are connected */
	_Atomic uint64_t tenants_total[2];   /* clients, servers */
	_Atomic uint64_t refused_user;	     /* connections of users that are not permitted */
	_Atomic uint64_t refused_version;    /* HELLOs of another version, or of a refused role */
	_Atomic uint64_t refused[PL_LIMITS]; /* questions beyond a limit */
	_Atomic uint64_t refused_name;	     /* questions with a number that the tenant has not */
	_Atomic uint64_t refused_policy;     /* requests for buckets that are not permitted */
	_Atomic uint64_t malformed;	     /* tenants that sent a malformed message */
	_Atomic uint64_t lost;		     /* tenants that ended with open windows or moves */
	_Atomic uint64_t lost_windows;	     /* windows that were open then, and were fenced */
	_Atomic uint64_t cut_off;	     /* releases that could not fence a server */
	_Atomic uint64_t memory;	     /* bytes of memory that tenants share */
	_Atomic uint64_t in_flight;	     /* requests and moves */
	_Atomic uint64_t requests[2][PL_OUTCOMES]; /* GETs, PUTs */
	_Atomic uint64_t bytes[2][PL_OUTCOMES];
	_Atomic uint64_t moves[2]; /* completed, failed */
	_Atomic uint64_t moved_bytes;
};

/* What all tenants share. */
struct pl_plane {
	const struct pl_options *options;
	struct penstock_device *device; /* NULL: no memory of a GPU */
	_Atomic bool draining;
	int stop; /* eventfd that becomes readable when tenants must end */
	int wake; /* eventfd for the main thread: a tenant has ended, or has nothing in flight */
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
