/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the threads for long operations, see pool.h. */
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/thread.h"

struct gw_pool {
	pthread_mutex_t lock; /* protects all members below except the threads */
	pthread_cond_t wake;
	struct gw_job *first, **last;
	bool stop;
	unsigned count;
	pthread_t threads[];
};

static void *pool_run(void *arg)
{
	struct gw_pool *pool = arg;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		struct gw_job *job = pool->first;

		if (!job) {
			if (pool->stop)
				break;
			pthread_cond_wait(&pool->wake, &pool->lock);
			continue;
		}
		pool->first = job->next;
		if (!pool->first)
			pool->last = &pool->first;
		pthread_mutex_unlock(&pool->lock);
		job->run(job);
		pthread_mutex_lock(&pool->lock);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

struct gw_pool *gw_pool_start(unsigned threads)
{
	struct gw_pool *pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->threads[0]));

	if (!pool)
		return NULL;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	pool->last = &pool->first;
	while (pool->count < threads &&
	       !pst_thread_start(&pool->threads[pool->count], pool_run, pool))
		pool->count++;
	if (pool->count)
		return pool;
	gw_pool_free(pool);
	return NULL;
}

bool gw_pool_add(struct gw_pool *pool, struct gw_job *job)
{
	bool added;

	job->next = NULL;
	pthread_mutex_lock(&pool->lock);
	added = !pool->stop;
	if (added) {
		*pool->last = job;
		pool->last = &job->next;
		pthread_cond_signal(&pool->wake);
	}
	pthread_mutex_unlock(&pool->lock);
	return added;
}

void gw_pool_stop(struct gw_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	while (pool->count)
		pthread_join(pool->threads[--pool->count], NULL);
}

void gw_pool_free(struct gw_pool *pool)
{
	if (!pool)
		return;
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}
