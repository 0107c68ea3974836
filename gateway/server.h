/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that all requests of a gateway share. Made by serve.c. It must not contain the state of an
 * object: several gateways on one root have to agree.
 */
#ifndef GW_SERVER_H
#define GW_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "keys.h"
#include "metrics.h"
#include "store.h"

struct gw_server {
	struct gw_store store;
	const char *region;	   /* region that signatures must name; NULL accepts any */
	const char *domain;	   /* suffix of hosts that name a bucket; NULL: path-style only */
	bool md5;		   /* whether a single PUT has its MD5 digest as ETag */
	uint64_t body_max;	   /* longest body of an object or a part */
	atomic_ullong text_bytes;  /* bytes of all bodies that are kept in memory */
	pthread_mutex_t keys_lock; /* protects `keys` */
	struct gw_keys *keys;
	struct gw_metrics metrics;
	struct gw_access_log *log; /* NULL if there is none */
	struct gw_rdma *rdma;	   /* server half of S3 over RDMA */
	/* Server to which requests are passed; NULL: `store` has the objects. */
	struct gw_upstream *upstream;
	/* Set when the time of the drain is over: requests that have not begun are refused, and
	 * copies end with -ECANCELED. */
	atomic_bool stopping;
};

#endif
