/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that all requests of a gateway share. Made by serve.c. It must not contain the state of an
 * object: several gateways can serve the same root (the folder with the objects), and each must see
 * the changes of the others.
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
	const char *region; /* region that signatures must name; NULL accepts any */
	/* suffix of hosts that name a bucket (BUCKET.domain); NULL: path-style only */
	const char *domain;
	/* whether the ETag of an object that a single PUT has stored is its MD5 digest */
	bool md5;
	uint64_t body_max;	   /* maximum length in bytes of an object's or a part's body */
	atomic_ullong text_bytes;  /* bytes of all bodies that are kept in memory */
	pthread_mutex_t keys_lock; /* protects `keys` */
	struct gw_keys *keys;
	struct gw_metrics metrics;
	struct gw_access_log *log; /* NULL if no access log is written */
	struct gw_rdma *rdma;	   /* server side of S3 over RDMA; NULL if RDMA is off */
	/* Server to which requests are passed through; NULL if `store` has the objects. */
	struct gw_upstream *upstream;
	/* Set at shutdown, when the time limit for the requests in progress has passed. Requests
	 * that have not begun are then refused, and copies end with -ECANCELED. */
	atomic_bool stopping;
};

#endif
