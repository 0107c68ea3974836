/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run long operations, such as syncing a file, so that the threads of the HTTP server
 * can serve their other connections meanwhile. Called by http.c and upstream.c.
 */
#ifndef GW_POOL_H
#define GW_POOL_H

#include <stdbool.h>

struct gw_pool;

/* A piece of work. The owner must not free it before run() is called. */
struct gw_job {
	struct gw_job *next;
	void (*run)(struct gw_job *job);
};

/* Starts the threads. Returns NULL if there is too little memory or if a thread cannot start. */
struct gw_pool *gw_pool_start(unsigned threads);
/* Adds a job. Returns false if the pool is about to stop; the caller then runs the job itself. */
bool gw_pool_add(struct gw_pool *pool, struct gw_job *job);
/* Runs all jobs that were added, and ends the threads. Before this call, the caller must make the
 * jobs end soon: serve.c sets `stopping` (server.h) and calls gw_rdma_cancel. NULL is allowed. */
void gw_pool_stop(struct gw_pool *pool);
/* Frees a pool that has stopped. NULL is allowed. */
void gw_pool_free(struct gw_pool *pool);

#endif
