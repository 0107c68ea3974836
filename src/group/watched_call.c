/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs calls that a store may block for a long time, such as opening a file, on a separate thread.
 * Meanwhile this process (a rank of a group) calls pst_group_poll, which detects that another rank
 * has failed or is lost. If so, this rank stops waiting for the call, and the thread keeps a
 * reference to the model until the call returns. Called by load.c and compare_files.c.
 */
#include "group/watched_call.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "common/thread.h"
#include "weights/err.h"
#include "weights/open.h"

#define POLL_NS 250000000l

struct watched_call {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	/* `done`: the call has returned. `left`: the rank no longer waits for the call. The thread
	 * that sets the second of the two frees the struct. */
	bool done, left;
	int (*work)(struct penstock_weights *w, unsigned which);
	struct penstock_weights *w;
	unsigned which;
	int ret;
	struct pst_weights_error error;
};

static void call_free(struct watched_call *call)
{
	pthread_cond_destroy(&call->ended);
	pthread_mutex_destroy(&call->lock);
	free(call);
}

static void *call_thread(void *arg)
{
	struct watched_call *call = arg;
	struct penstock_weights *w = call->w;
	bool left;

	call->ret = call->work(w, call->which);
	if (call->ret)
		pst_weights_error_save(&call->error);
	pthread_mutex_lock(&call->lock);
	call->done = true;
	left = call->left;
	pthread_cond_signal(&call->ended);
	pthread_mutex_unlock(&call->lock);
	if (left)
		call_free(call);
	penstock_weights_close(w);
	return NULL;
}

static bool call_start(struct watched_call *call)
{
	pthread_t thread;

	return !pst_thread_start(&thread, call_thread, call) && !pthread_detach(thread);
}

/* Waits until the call has returned or the group has failed. Returns 0 or the group's error. */
static int call_await(struct penstock_group *g, struct watched_call *call)
{
	int ret = 0;

	pthread_mutex_lock(&call->lock);
	while (!call->done && !ret) {
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += POLL_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&call->ended, &call->lock, &until);
		if (call->done)
			break;
		pthread_mutex_unlock(&call->lock);
		ret = pst_group_poll(g);
		pthread_mutex_lock(&call->lock);
	}
	call->left = !call->done;
	pthread_mutex_unlock(&call->lock);
	return ret;
}

static struct watched_call *call_new(struct penstock_weights *w,
				     int (*work)(struct penstock_weights *w, unsigned which),
				     unsigned which)
{
	struct watched_call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	*call = (struct watched_call){.work = work, .w = w, .which = which};
	pthread_mutex_init(&call->lock, NULL);
	pst_cond_init(&call->ended);
	return call;
}

int pst_group_watched_call(struct penstock_group *g, struct penstock_weights *w,
			   int (*work)(struct penstock_weights *w, unsigned which), unsigned which)
{
	struct watched_call *call = pst_group_size(g) > 1 ? call_new(w, work, which) : NULL;
	bool left;
	int ret;

	if (!call)
		return work(w, which);
	pst_weights_ref(w);
	if (!call_start(call)) {
		call_free(call);
		penstock_weights_close(w);
		return work(w, which);
	}
	ret = call_await(g, call);
	left = call->left;
	if (!ret && call->ret)
		ret = pst_weights_error_restore(call->ret, &call->error);
	if (!left)
		call_free(call);
	return ret;
}
